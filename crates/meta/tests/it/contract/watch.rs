//! What a watch brings, whatever revision it begins at.

use std::time::Duration;

use capstan_meta::{Delete, KeyRange, MetaError, Op, Put, Txn, Watch, WatchMessage};

use crate::subjects::{EVENT_DEADLINE, World, shown};

pub async fn live_events_come_in_order(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    w.put("a", "1").await;
    w.put("a", "2").await;
    w.store.delete(Delete::one("a")).await.unwrap();
    w.put("b", "4").await;
    let events = watch.events(4).await;
    assert_eq!(shown(&w, &events), ["PUT a=1 @1", "PUT a=2 @2", "DELETE a @3", "PUT b=4 @4"]);
    assert_eq!((events[1].kv.version, events[1].kv.create_revision), (2, w.rev(1)));
}

pub async fn a_transaction_is_one_message(w: World) {
    w.put("z", "0").await;
    let mut watch = w.watch_all(w.rev(2)).await;
    let mut txn = Txn::new().then(Put::new("b", "1")).then(Delete::one("z")).then(Put::new("a", "2"));
    txn.success.push(Op::Txn(Txn::new().then(Put::new("c", "3"))));
    w.store.commit(txn).await.unwrap();
    let (revision, events) = watch.batch().await;
    assert_eq!(revision, w.rev(2));
    assert_eq!(shown(&w, &events), ["PUT b=1 @2", "DELETE z @2", "PUT a=2 @2", "PUT c=3 @2"]);
}

pub async fn every_form_of_range_is_watched(w: World) {
    let keys = ["a", "b", "ba", "bb", "c"];
    let cases = [
        (KeyRange::one("b"), "b"),
        (KeyRange::prefix("b"), "b ba bb"),
        (KeyRange::span("ba", "c"), "ba bb"),
        (KeyRange::from_key("bb"), "bb c"),
        (KeyRange::all(), "a b ba bb c"),
    ];
    let mut watches = Vec::new();
    for (keys, expected) in cases {
        watches.push((w.watch(Watch::from(keys, w.rev(1))).await, expected));
    }
    w.put_all(&keys).await;
    for (mut watch, expected) in watches {
        let events = watch.events(expected.split(' ').count()).await;
        let found: Vec<_> = events.iter().map(|event| event.kv.key_text().into_owned()).collect();
        assert_eq!(found.join(" "), expected);
        watch.quiet_until(w.rev(5)).await;
    }
}

pub async fn no_key_is_the_lowest_one(w: World) {
    let mut all = w.watch(Watch::from(KeyRange::from_key(""), w.rev(1))).await;
    let mut below = w.watch(Watch::from(KeyRange::span("", "b"), w.rev(1))).await;
    w.put_all(&["a", "b"]).await;
    assert_eq!(all.events(2).await.len(), 2);
    assert_eq!(shown(&w, &below.events(1).await), ["PUT a=a @1"]);
}

pub async fn an_empty_range_is_refused(w: World) {
    for keys in [KeyRange::span("b", "a"), KeyRange::span("a", "a")] {
        assert_eq!(w.watch_error(Watch::from(keys, w.rev(1))).await, MetaError::EmptyWatchRange);
    }
}

pub async fn previous_versions_come_on_request(w: World) {
    let with = Watch { prev_kv: true, ..Watch::from(KeyRange::all(), w.rev(1)) };
    let (mut with, mut without) = (w.watch(with).await, w.watch_all(w.rev(1)).await);
    w.put("a", "1").await;
    w.put("a", "2").await;
    w.store.delete(Delete::one("a")).await.unwrap();
    w.put("a", "4").await;
    let events = with.events(4).await;
    let previous = |n: usize| events[n].prev.as_ref().map(|kv| (kv.value.to_vec(), kv.mod_revision));
    assert_eq!(previous(0), None);
    assert_eq!(previous(1), Some((b"1".to_vec(), w.rev(1))));
    assert_eq!(previous(2), Some((b"2".to_vec(), w.rev(2))));
    assert_eq!(previous(3), None, "it came back from nothing");
    assert!(without.events(4).await.iter().all(|event| event.prev.is_none()));
}

pub async fn filters_leave_out_puts_or_deletions(w: World) {
    let watch = |no_put, no_delete| Watch { no_put, no_delete, ..Watch::from(KeyRange::all(), w.rev(1)) };
    let mut puts = w.watch(watch(false, true)).await;
    let mut deletions = w.watch(watch(true, false)).await;
    w.put("a", "1").await;
    w.store.commit(Txn::new().then(Delete::one("a")).then(Put::new("b", "2"))).await.unwrap();
    w.store.delete(Delete::one("b")).await.unwrap();
    w.put("c", "4").await;
    assert_eq!(shown(&w, &puts.events(3).await), ["PUT a=1 @1", "PUT b=2 @2", "PUT c=4 @4"]);
    assert_eq!(shown(&w, &deletions.events(2).await), ["DELETE a @2", "DELETE b @3"]);
}

pub async fn two_watches_both_see_everything(w: World) {
    let (mut one, mut two) = (w.watch_all(w.rev(1)).await, w.watch_all(w.rev(1)).await);
    w.put_all(&["a", "b"]).await;
    drop(one.events(2).await);
    drop(one);
    w.put("c", "c").await;
    assert_eq!(two.events(3).await.len(), 3, "the end of one is not the end of the other");
}

pub async fn a_dropped_call_of_next_loses_nothing(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    let writing = async {
        for n in 0..100 {
            w.put("a", &n.to_string()).await;
        }
    };
    let reading = async {
        let mut seen = Vec::new();
        while seen.len() < 100 {
            // Most of these calls are dropped before they are answered.
            let next = tokio::time::timeout(Duration::from_micros(200), watch.stream.next()).await;
            if let Ok(message) = next
                && let WatchMessage::Events { events, .. } = message.unwrap()
            {
                seen.extend(events.iter().map(|event| event.kv.mod_revision.0 - w.base.0));
            }
        }
        seen
    };
    let both = async { tokio::join!(writing, reading).1 };
    let seen = tokio::time::timeout(EVENT_DEADLINE, both).await.expect("events were lost");
    assert_eq!(seen, (1..=100).collect::<Vec<i64>>());
}

/// More than any buffer on the way holds: 600 revisions of 16 KiB, read after the last of them.
pub async fn a_slow_reader_gets_everything(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    let value = "x".repeat(16 << 10);
    for _ in 0..600 {
        w.put("a", &value).await;
    }
    let events = watch.events(600).await;
    let revisions: Vec<_> = events.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(revisions, (1..=600).map(|n| w.rev(n)).collect::<Vec<_>>());
}

/// Eight mebibytes in one revision, which etcd sends in pieces and a client takes four of at a time by default.
pub async fn a_large_revision_stays_whole(w: World) {
    let lease = w.store.lease_grant(Duration::from_secs(300), capstan_meta::LeaseId::NONE).await.unwrap().id;
    for n in 0..8 {
        w.store.put(Put::new(format!("{n}"), vec![n; 1 << 20]).lease(lease)).await.unwrap();
    }
    let watch = Watch { prev_kv: true, ..Watch::from(KeyRange::all(), w.rev(9)) };
    let mut watch = w.watch(watch).await;
    w.store.lease_revoke(lease).await.unwrap();
    let (revision, events) = watch.batch().await;
    assert_eq!((revision, events.len()), (w.rev(9), 8));
    assert!(events.iter().all(|event| event.prev.as_ref().unwrap().value.len() == 1 << 20));
}
