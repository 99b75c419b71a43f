//! Every rule of the dispatcher, step by step.

use bytes::Bytes;

use super::*;
use crate::data::message::Record;
use crate::data::seats::CONSUMER_WINDOW;

fn message(offset: u64, key: &str) -> Arc<Message> {
    let record =
        Record { key: Some(Bytes::from(key.to_owned())), value: Some(Bytes::new()), ..Record::default() };
    Arc::new(Message { offset, producer_id: 1, append_time: 0, record })
}

fn dispatch(kind: SubscriptionKind, consumers: &[u64]) -> Dispatch {
    let policy = FailurePolicy { max_redelivery_count: 2, ack_timeout_ms: 100, ..FailurePolicy::default() };
    let policy = FailurePolicy { base_redelivery_delay_ms: 10, max_redelivery_delay_ms: 50, ..policy };
    let mut dispatch = Dispatch::new(kind, policy, Ledger::default(), true);
    for consumer in consumers {
        dispatch.join(Seat::new(*consumer, format!("c{consumer}"), Vec::new()));
        dispatch.attach(*consumer);
    }
    dispatch
}

/// Everything that goes out now: consumer and offset.
fn out(dispatch: &mut Dispatch, now: u64) -> Vec<(u64, u64)> {
    std::iter::from_fn(|| dispatch.next(now)).map(|out| (out.seat, out.message.offset)).collect()
}

#[test]
fn shared_takes_turns_and_failover_has_one_at_a_time() {
    let offered = || (0..4).map(|offset| message(offset, "k")).collect();
    let mut shared = dispatch(SubscriptionKind::Shared, &[1, 2]);
    shared.offer(offered(), 0);
    assert_eq!(out(&mut shared, 0), [(1, 0), (2, 1), (1, 2), (2, 3)]);
    let mut failover = dispatch(SubscriptionKind::Failover, &[1, 2]);
    failover.offer(offered(), 0);
    assert_eq!(out(&mut failover, 0), [(1, 0), (1, 1), (1, 2), (1, 3)]);
    failover.acknowledge(0);
    failover.leave(1, 5);
    assert_eq!(out(&mut failover, 5), [(2, 1), (2, 2), (2, 3)], "the other one takes over, in order");
    assert_eq!(failover.redeliveries, 0);
}

#[test]
fn shared_takes_turns_also_when_messages_come_one_at_a_time() {
    let mut shared = dispatch(SubscriptionKind::Shared, &[1, 2]);
    let sent: Vec<_> = (0..4)
        .flat_map(|offset| {
            shared.offer(vec![message(offset, "k")], 0);
            let sent = out(&mut shared, 0);
            assert!(shared.acknowledge(offset));
            sent
        })
        .collect();
    assert_eq!(sent, [(1, 0), (2, 1), (1, 2), (2, 3)]);
}

#[test]
fn refused_messages_come_back_with_growing_pauses_and_then_are_poison() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    one.offer(vec![message(0, "a"), message(1, "a")], 0);
    assert_eq!(out(&mut one, 0), [(1, 0), (1, 1)]);
    one.refuse(0, None, None, 0);
    assert!(one.acknowledge(1));
    assert_eq!((out(&mut one, 9), one.next_due(0)), (vec![], Some(10)));
    assert_eq!(out(&mut one, 10), [(1, 0)]);
    one.refuse(0, Some(1_000), None, 10);
    assert_eq!((out(&mut one, 59), out(&mut one, 60)), (vec![], vec![(1, 0)]), "the longest pause bounds it");
    one.refuse(0, None, None, 60);
    assert_eq!(
        (out(&mut one, 10_000), one.ledger().floor()),
        (vec![], 0),
        "blocked: neither sent nor acknowledged"
    );
    assert!(one.take_poison().is_empty());
    one.set_policy(FailurePolicy { poison: PoisonPolicy::DeadLetter, ..one.policy().clone() });
    let poison = one.take_poison();
    assert_eq!((poison.len(), poison[0].attempts), (1, 3));
    one.put_aside(0);
    assert_eq!(one.ledger().floor(), 2);
}

#[test]
fn what_is_not_acknowledged_in_time_comes_back_and_a_late_acknowledgment_counts() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    one.offer(vec![message(0, "a"), message(1, "a")], 0);
    out(&mut one, 0);
    one.time_out(99);
    assert_eq!(one.in_flight(), 2);
    one.time_out(100);
    assert_eq!((one.in_flight(), one.redeliveries), (0, 2));
    assert!(one.acknowledge(0), "late, and good");
    assert_eq!(out(&mut one, 110), [(1, 1)]);
    assert!(!one.acknowledge(2), "never delivered");
    assert!(!one.acknowledge(0), "twice");
}

#[test]
fn a_key_has_one_consumer_and_one_message_in_flight() {
    let mut keyed = dispatch(SubscriptionKind::KeyShared, &[1, 2]);
    let keys = ["a", "b", "a", "c", "b", "a"];
    keyed.offer(keys.iter().zip(0..).map(|(key, offset)| message(offset, key)).collect(), 0);
    let first: Vec<u64> = out(&mut keyed, 0).into_iter().map(|(_, offset)| offset).collect();
    assert_eq!(first, [0, 1, 3]);
    keyed.refuse(0, None, None, 0);
    assert_eq!(out(&mut keyed, 0), [], "the next of key a waits for the first");
    let again = out(&mut keyed, 10);
    assert_eq!(again.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [0]);
    keyed.acknowledge(0);
    keyed.acknowledge(1);
    let next: Vec<u64> = out(&mut keyed, 10).into_iter().map(|(_, offset)| offset).collect();
    assert_eq!(next, [2, 4]);
}

#[test]
fn filters_choose_and_what_nobody_takes_is_kept() {
    let mut keyed = dispatch(SubscriptionKind::KeyShared, &[]);
    keyed.join(Seat::new(1, "c1".to_owned(), vec!["pay*".to_owned()]));
    keyed.attach(1);
    keyed.offer(vec![message(0, "ship-1"), message(1, "pay-1")], 0);
    assert_eq!(out(&mut keyed, 0), [(1, 1)]);
    keyed.acknowledge(1);
    assert_eq!(keyed.ledger().floor(), 0);
    keyed.join(Seat::new(2, "c2".to_owned(), Vec::new()));
    keyed.attach(2);
    assert_eq!(out(&mut keyed, 0), [(2, 0)]);
}

#[test]
fn the_window_bounds_what_is_fetched_and_what_a_consumer_has() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    assert_eq!(one.room(), WINDOW);
    one.offer((0..WINDOW as u64).map(|offset| message(offset, "k")).collect(), 0);
    assert_eq!((one.room(), out(&mut one, 0).len()), (0, CONSUMER_WINDOW));
    one.acknowledge(5);
    assert_eq!(out(&mut one, 0), [(1, CONSUMER_WINDOW as u64)]);
    assert_eq!(one.room(), 1);
    let mut nobody = dispatch(SubscriptionKind::Shared, &[]);
    nobody.join(Seat::new(1, "c".to_owned(), Vec::new()));
    assert_eq!((nobody.room(), out(&mut nobody, 0)), (0, vec![]));
}

#[test]
fn a_stream_that_is_full_is_left_alone_until_it_is_read() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    one.offer((0..3).map(|offset| message(offset, "k")).collect(), 0);
    let first = one.next(0).unwrap();
    let second = one.next(0).unwrap();
    one.undelivered(&second, 0);
    assert!(one.next(0).is_none());
    one.made_room(1);
    one.acknowledge(first.message.offset);
    assert_eq!(out(&mut one, 0), [(1, 1), (1, 2)]);
}

#[test]
fn a_delayed_message_waits_and_a_seek_begins_anew() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    let late =
        Message { record: Record { deliver_at: 40, ..Record::default() }, ..(*message(0, "k")).clone() };
    let late = Arc::new(late);
    one.offer(vec![late.clone(), message(1, "k")], 0);
    assert_eq!(out(&mut one, 0), [(1, 1)]);
    assert_eq!((one.next_due(0), one.take_due()), (Some(40), vec![]));
    one.time_out(40);
    assert_eq!(one.take_due(), [0], "it is fetched again when its time has come");
    one.ripe(late, 40);
    assert_eq!(out(&mut one, 40), [(1, 0)]);
    one.acknowledge(0);
    one.acknowledge(1);
    one.seek(1);
    assert_eq!((one.position(), one.in_flight(), one.ledger().has(1)), (1, 0, false));
    one.offer(vec![message(1, "k")], 50);
    assert_eq!(out(&mut one, 50), [(1, 1)]);
}

/// Random consumers that come, go, refuse and forget: in the end everything was acknowledged, each message was delivered
/// at least once, and per key in order.
#[test]
fn every_message_is_acknowledged_in_the_end_whatever_consumers_do() {
    for seed in 0..300_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let kind = SubscriptionKind::of(i32::try_from(seed % 4).unwrap()).unwrap();
        let mut dispatch = dispatch(kind, &[1, 2, 3]);
        dispatch.set_policy(FailurePolicy { max_redelivery_count: u32::MAX, ..dispatch.policy().clone() });
        let total = 50;
        let keys = ["a", "b", "c"];
        dispatch.offer((0..total).map(|at| message(at, keys[usize::try_from(at % 3).unwrap()])).collect(), 0);
        let (mut acked, mut newest) = (BTreeSet::new(), [0_u64; 3]);
        for now in (0..200_000).step_by(7) {
            dispatch.time_out(now);
            let mut got = Vec::new();
            while let Some(delivery) = dispatch.next(now) {
                got.push(delivery);
            }
            for delivery in got {
                let offset = delivery.message.offset;
                let key = usize::try_from(offset % 3).unwrap();
                if kind == SubscriptionKind::KeyShared {
                    assert!(acked.iter().all(|done| done % 3 != offset % 3 || *done < offset), "seed {seed}");
                }
                newest[key] = newest[key].max(offset);
                match random(5) {
                    0 => dispatch.refuse(offset, None, None, now),
                    1 => {}
                    _ => {
                        dispatch.acknowledge(offset);
                        acked.insert(offset);
                    }
                }
            }
            if random(20) == 0 {
                let id = 1 + random(3);
                dispatch.leave(id, now);
                dispatch.join(Seat::new(id, "again".to_owned(), Vec::new()));
                dispatch.attach(id);
            }
            if dispatch.ledger().floor() == total {
                break;
            }
        }
        assert_eq!((dispatch.ledger().floor(), acked.len()), (total, 50), "seed {seed}, {kind}");
    }
}

#[test]
fn without_acknowledgments_a_full_stream_loses_nothing() {
    let mut fast =
        Dispatch::new(SubscriptionKind::Exclusive, FailurePolicy::default(), Ledger::default(), false);
    fast.join(Seat::new(1, "c".to_owned(), Vec::new()));
    fast.attach(1);
    fast.offer((0..3).map(|offset| message(offset, "k")).collect(), 0);
    let first = fast.next(0).unwrap();
    fast.undelivered(&first, 0);
    assert!(fast.next(0).is_none());
    fast.made_room(1);
    assert_eq!(out(&mut fast, 0), [(1, 0), (1, 1), (1, 2)], "in order, none lost");
}

#[test]
fn a_consumer_that_catches_up_after_everything_timed_out_goes_on() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    one.offer((0..3).map(|offset| message(offset, "k")).collect(), 0);
    // Two messages fill the stream, and nothing reads them until their time is up.
    let [_, _, third] = [(); 3].map(|()| one.next(0).unwrap());
    one.undelivered(&third, 0);
    one.time_out(100);
    assert_eq!(out(&mut one, 110), []);
    // It reads and acknowledges what the stream had.
    one.made_room(1);
    assert!(one.acknowledge(0) && one.acknowledge(1));
    assert_eq!(out(&mut one, 110), [(1, 2)]);
}

#[test]
fn a_blocked_message_holds_up_what_is_behind_it_until_it_is_acknowledged() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    one.set_policy(FailurePolicy { max_redelivery_count: 0, ..one.policy().clone() });
    one.offer(vec![message(0, "a")], 0);
    assert_eq!(out(&mut one, 0), [(1, 0)]);
    one.refuse(0, Some(0), Some("bad".to_owned()), 0);
    one.offer(vec![message(1, "b")], 0);
    assert_eq!(out(&mut one, 10_000), [], "without redeliveries the first failure blocks");
    assert!(one.take_poison().is_empty());
    assert!(one.acknowledge(0));
    assert_eq!(out(&mut one, 10_000), [(1, 1)]);
    // With keys, others go on.
    let mut keyed = dispatch(SubscriptionKind::KeyShared, &[1]);
    keyed.set_policy(FailurePolicy { max_redelivery_count: 0, ..keyed.policy().clone() });
    keyed.offer(vec![message(0, "a"), message(1, "a"), message(2, "b")], 0);
    assert_eq!(out(&mut keyed, 0), [(1, 0), (1, 2)]);
    keyed.refuse(0, None, None, 0);
    assert_eq!(out(&mut keyed, 10_000), []);
    assert!(keyed.acknowledge(0));
    assert_eq!(out(&mut keyed, 10_000), [(1, 1)]);
}

#[test]
fn poison_carries_why_the_last_delivery_failed() {
    let mut one = dispatch(SubscriptionKind::Shared, &[1]);
    let policy = one.policy().clone();
    one.set_policy(FailurePolicy { max_redelivery_count: 0, poison: PoisonPolicy::DeadLetter, ..policy });
    one.offer((0..3).map(|offset| message(offset, "k")).collect(), 0);
    assert_eq!(out(&mut one, 0).len(), 3);
    one.refuse(0, None, Some("bad".to_owned()), 0);
    one.refuse(1, None, None, 0);
    one.time_out(100);
    let reasons: Vec<_> = one.take_poison().into_iter().map(|poison| poison.reason).collect();
    assert_eq!(reasons, [Some("bad".to_owned()), None, Some(TIMED_OUT.to_owned())]);
}

#[test]
fn a_consumer_that_replaces_another_gets_its_keys() {
    let keys: Vec<_> = (0..40).map(|key| format!("k{key}")).collect();
    let owners = |consumers: &[u64], leaves: Option<u64>, comes: Option<u64>| {
        let mut keyed = dispatch(SubscriptionKind::KeyShared, consumers);
        if let Some(leaving) = leaves {
            keyed.leave(leaving, 0);
        }
        if let Some(coming) = comes {
            keyed.join(Seat::new(coming, format!("c{coming}"), Vec::new()));
            keyed.attach(coming);
        }
        keyed.offer((0..).zip(&keys).map(|(offset, key)| message(offset, key)).collect(), 0);
        let mut sent = out(&mut keyed, 0);
        sent.sort_unstable_by_key(|(_, offset)| *offset);
        sent.into_iter().map(|(consumer, _)| consumer).collect::<Vec<_>>()
    };
    let before = owners(&[1, 2, 3], None, None);
    let after = owners(&[1, 2, 3], Some(2), Some(9));
    let renamed: Vec<_> = before.iter().map(|owner| if *owner == 2 { 9 } else { *owner }).collect();
    assert_eq!(after, renamed);
    assert_eq!(
        owners(&[7, 8], None, None).iter().filter(|owner| **owner == 7).count(),
        owners(&[4, 5], None, None).iter().filter(|owner| **owner == 4).count(),
        "whatever their numbers"
    );
}

/// The bytes of everything that is there, counted anew.
fn counted(dispatch: &Dispatch) -> usize {
    let messages = dispatch.queued.iter();
    let messages = messages.chain(dispatch.flights.values().map(|flight| &flight.message));
    let messages = messages.chain(dispatch.held.values().map(|held| &held.message));
    let messages = messages.chain(dispatch.poison.iter().map(|poison| &poison.message));
    messages.map(|message| message.record.stored_size()).sum()
}

#[test]
fn the_window_bounds_bytes_wherever_messages_are() {
    let large = |offset| {
        let record = Record { value: Some(vec![0; 1 << 20].into()), ..Record::default() };
        Arc::new(Message { offset, producer_id: 1, append_time: 0, record })
    };
    for kind in [SubscriptionKind::Exclusive, SubscriptionKind::KeyShared] {
        let mut one = dispatch(kind, &[1]);
        let policy = one.policy().clone();
        one.set_policy(FailurePolicy { max_redelivery_count: 1, poison: PoisonPolicy::DeadLetter, ..policy });
        for step in 0..200 {
            let now = step * 10;
            if one.room() > 0 {
                one.offer(vec![large(one.position())], now);
            }
            // Refused, acknowledged, timed out, given to a consumer that is gone, put aside or not.
            for (at, (_, offset)) in out(&mut one, now).into_iter().enumerate() {
                match (at + usize::try_from(step).unwrap()) % 7 {
                    0 => one.refuse(offset, None, None, now),
                    1 => drop(one.acknowledge(offset)),
                    _ => {}
                }
            }
            one.time_out(now);
            if step % 50 == 49 {
                one.leave(1, now);
                one.join(Seat::new(1, "c1".to_owned(), Vec::new()));
                one.attach(1);
            }
            for (at, poison) in one.take_poison().into_iter().enumerate() {
                match at % 2 {
                    0 => one.put_aside(poison.message.offset),
                    _ => one.keep_poison(poison),
                }
            }
            assert_eq!(one.bytes, counted(&one), "{kind}, step {step}");
            assert!(one.bytes < WINDOW_BYTES + (2 << 20), "{kind}, step {step}");
        }
    }
    let mut stuck = dispatch(SubscriptionKind::Exclusive, &[1]);
    while stuck.room() > 0 {
        stuck.offer(vec![large(stuck.position())], 0);
        out(&mut stuck, 0);
    }
    assert!(stuck.position() <= 64, "{} messages of 1 MiB", stuck.position());
    assert!(stuck.acknowledge(0));
    assert!(stuck.room() > 0);
}

#[test]
fn offsets_that_are_passed_count_as_acknowledged_and_what_is_in_flight_before_them_does_not() {
    let mut one = dispatch(SubscriptionKind::Exclusive, &[1]);
    one.offer(vec![message(0, "a")], 0);
    one.pass_to(5);
    assert_eq!((one.position(), one.ledger().floor()), (5, 0), "message 0 is not acknowledged");
    one.offer(vec![message(5, "b")], 0);
    assert_eq!(out(&mut one, 0), [(1, 0), (1, 5)]);
    assert!(one.acknowledge(5));
    assert_eq!(one.ledger().floor(), 0);
    assert!(one.acknowledge(0));
    assert_eq!(one.ledger().floor(), 6);
    one.pass_to(3);
    assert_eq!((one.position(), one.ledger().floor()), (6, 6), "never back");
}
