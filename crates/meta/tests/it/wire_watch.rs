//! Does a watch stream keep every rule of the wire? Said and heard message by message.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use capstan_meta::wire::Options;
use capstan_meta::wire::proto::etcdserverpb as pb;
use capstan_meta::{Backend, Compare, Delete, LeaseId, Put, Revision, Txn};
use capstan_testkit::eventually;
use tonic::Code;

use crate::wire_support::{DEADLINE, RawWatch, Served, revision, served, served_with, under};

async fn put(served: &Served, key: &str, value: &str) -> i64 {
    served.store.put(Put::new(key.to_owned(), value.to_owned())).await.unwrap().revision.0
}

async fn delete(served: &Served, key: &str) -> i64 {
    served.store.delete(Delete::one(key.to_owned())).await.unwrap().revision.0
}

/// Revision, key and value of every event ("-" for a deletion).
fn heard(answer: &pb::WatchResponse) -> Vec<(i64, String, String)> {
    let events = answer.events.iter().map(|event| {
        let kv = &event.kv.as_ref().unwrap().0;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let value = if event.r#type == 1 { "-".to_owned() } else { text(&kv.value) };
        (kv.mod_revision.0, text(&kv.key), value)
    });
    events.collect()
}

fn event(revision: i64, key: &str, value: &str) -> (i64, String, String) {
    (revision, key.to_owned(), value.to_owned())
}

#[tokio::test]
async fn a_watcher_is_announced_and_then_hears_what_comes() {
    let served = served().await;
    put(&served, "a/1", "before").await;
    let mut stream = RawWatch::open(&served).await;
    let created = stream.created(under("a/")).await;
    assert_eq!((created.watch_id, created.canceled, revision(&created.header)), (0, false, 2));
    let header = created.header.unwrap();
    let about = served.store.status().await.unwrap();
    assert_eq!(
        (header.cluster_id, header.member_id, header.raft_term),
        (about.cluster_id, about.member_id, about.term)
    );
    put(&served, "b", "elsewhere").await;
    put(&served, "a/1", "after").await;
    let answer = stream.next().await;
    assert_eq!(heard(&answer), [event(4, "a/1", "after")]);
    assert_eq!((answer.watch_id, revision(&answer.header), answer.created), (0, 4, false));
}

#[tokio::test]
async fn ids_are_counted_up_or_chosen_and_never_twice_at_once() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    let chosen = |watch_id| pb::WatchCreateRequest { watch_id, ..under("a") };
    assert_eq!(stream.created(chosen(1)).await.watch_id, 1);
    assert_eq!(stream.created(chosen(0)).await.watch_id, 0);
    assert_eq!(stream.created(chosen(0)).await.watch_id, 2, "1 is taken");
    assert_eq!(stream.created(chosen(-7)).await.watch_id, -7);
    let twice = stream.created(chosen(1)).await;
    assert_eq!((twice.watch_id, twice.canceled), (-1, true));
    assert_eq!(twice.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    stream.cancel(1).await;
    assert!(stream.next().await.canceled);
    let again = stream.created(chosen(1)).await;
    assert_eq!((again.watch_id, again.canceled), (1, false));
}

#[tokio::test]
async fn what_can_never_be_watched_is_refused_at_once() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    let empty = pb::WatchCreateRequest { key: "b".into(), range_end: "a".into(), ..Default::default() };
    let refused = stream.created(empty).await;
    assert_eq!((refused.watch_id, refused.canceled), (-1, true));
    assert_eq!(refused.cancel_reason, "mvcc: watcher range is empty");
    let refused = stream.created(pb::WatchCreateRequest { start_revision: -1, ..under("a") }).await;
    assert_eq!((refused.watch_id, refused.canceled), (-1, true));
    assert_eq!(refused.cancel_reason, "etcdserver: mvcc: required revision has been compacted");
    assert_eq!(served.store.watchers(), 0);
}

#[tokio::test]
async fn no_key_is_the_smallest_key() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(pb::WatchCreateRequest { range_end: "\0".into(), ..Default::default() }).await;
    put(&served, "anything", "1").await;
    assert_eq!(heard(&stream.next().await), [event(2, "anything", "1")]);
}

#[tokio::test]
async fn history_is_replayed_in_whole_revisions_and_then_goes_on() {
    let served = served().await;
    for n in 0..2500 {
        let txn = Txn::new().then(Put::new("h/a", format!("{n}"))).then(Put::new("h/b", format!("{n}")));
        served.store.commit(txn).await.unwrap();
    }
    let mut stream = RawWatch::open(&served).await;
    stream.created(pb::WatchCreateRequest { start_revision: 2, ..under("h/") }).await;
    let mut next = 2;
    while next < 2502 {
        let answer = stream.next().await;
        let events = heard(&answer);
        assert!(events.len() <= 2000, "{} events in one answer", events.len());
        for pair in events.chunks(2) {
            let value = (next - 2).to_string();
            assert_eq!(pair, [event(next, "h/a", &value), event(next, "h/b", &value)]);
            next += 1;
        }
        assert!(revision(&answer.header) >= next - 1);
    }
    assert_eq!(put(&served, "h/a", "live").await, 2502);
    assert_eq!(heard(&stream.next().await), [event(2502, "h/a", "live")]);
}

#[tokio::test]
async fn a_future_revision_is_silent_until_it_is_reached() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    let created = stream.created(pb::WatchCreateRequest { start_revision: 4, ..under("f") }).await;
    assert_eq!(revision(&created.header), 1);
    for value in ["1", "2", "3"] {
        put(&served, "f", value).await;
    }
    assert_eq!(heard(&stream.next().await), [event(4, "f", "3")]);
}

#[tokio::test]
async fn a_compacted_start_is_created_and_then_cancelled_and_the_stream_lives_on() {
    let served = served().await;
    for value in ["1", "2", "3", "4"] {
        put(&served, "c", value).await;
    }
    served.store.compact(Revision(4)).await.unwrap();
    let mut stream = RawWatch::open(&served).await;
    let created = stream.created(pb::WatchCreateRequest { start_revision: 3, ..under("c") }).await;
    assert_eq!((created.watch_id, created.canceled), (0, false));
    let canceled = stream.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled, canceled.created), (0, true, false));
    assert_eq!((canceled.compact_revision, canceled.cancel_reason.as_str()), (4, ""));
    assert_eq!(revision(&canceled.header), 0);
    let equal = stream.created(pb::WatchCreateRequest { start_revision: 4, ..under("c") }).await;
    assert_eq!((equal.watch_id, equal.canceled), (1, false));
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(heard(&stream.next().await));
    }
    assert_eq!(events, [event(4, "c", "3"), event(5, "c", "4")]);
}

#[tokio::test]
async fn a_cancelled_watcher_is_silent_and_an_unknown_one_is_not_answered() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(under("x")).await;
    stream.created(under("x")).await;
    stream.cancel(99).await;
    stream.cancel(0).await;
    let canceled = stream.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled, canceled.compact_revision), (0, true, 0));
    assert_eq!((revision(&canceled.header), canceled.cancel_reason.as_str()), (1, ""));
    put(&served, "x", "1").await;
    let answer = stream.next().await;
    assert_eq!((answer.watch_id, heard(&answer)), (1, vec![event(2, "x", "1")]));
    stream.ask_progress().await;
    assert_eq!(stream.next().await.watch_id, -1, "nothing was left for the cancelled watcher");
    eventually("the store forgets it", DEADLINE, async || match served.store.watchers() {
        1 => Ok(()),
        n => Err(format!("{n} watchers")),
    })
    .await;
}

#[tokio::test]
async fn what_was_before_comes_along_when_asked_for() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(pb::WatchCreateRequest { prev_kv: true, ..under("p") }).await;
    put(&served, "p", "1").await;
    put(&served, "p", "2").await;
    delete(&served, "p").await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        for event in stream.next().await.events {
            let before = event.prev_kv.map(|kv| String::from_utf8(kv.0.value.to_vec()).unwrap());
            seen.push((event.r#type, before));
        }
    }
    assert_eq!(seen, [(0, None), (0, Some("1".into())), (1, Some("2".into()))]);
}

#[tokio::test]
async fn a_deletion_carries_its_key_and_revision_and_nothing_else() {
    let served = served().await;
    let lease = served.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap();
    let mut stream = RawWatch::open(&served).await;
    stream.created(under("l")).await;
    served.store.put(Put::new("l1", "v").lease(lease.id)).await.unwrap();
    served.store.put(Put::new("l2", "v").lease(lease.id)).await.unwrap();
    served.store.lease_revoke(lease.id).await.unwrap();
    let mut deletions = Vec::new();
    while deletions.is_empty() {
        deletions = stream.next().await.events.into_iter().filter(|event| event.r#type == 1).collect();
    }
    let keys: Vec<_> = deletions.iter().map(|event| event.kv.as_ref().unwrap().0.clone()).collect();
    assert_eq!(keys.len(), 2, "both keys of a lease go in one answer");
    for kv in keys {
        assert_eq!((kv.mod_revision.0, kv.create_revision.0, kv.version, kv.lease.0), (4, 0, 0, 0));
        assert!(kv.value.is_empty());
    }
}

#[tokio::test]
async fn filters_leave_out_whole_answers() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(pb::WatchCreateRequest { filters: vec![0], ..under("x") }).await;
    stream.created(pb::WatchCreateRequest { filters: vec![1], ..under("x") }).await;
    stream.created(pb::WatchCreateRequest { filters: vec![0, 1], ..under("x") }).await;
    put(&served, "x", "1").await;
    delete(&served, "x").await;
    let mut answers = [stream.next().await, stream.next().await].map(|a| (a.watch_id, heard(&a)));
    answers.sort();
    assert_eq!(answers, [(0, vec![event(3, "x", "-")]), (1, vec![event(2, "x", "1")])]);
    stream.ask_progress().await;
    assert_eq!(stream.next().await.watch_id, -1, "nothing came to the third");
}

#[tokio::test]
async fn a_large_answer_is_cut_when_asked_for() {
    let served = served().await;
    let value = "v".repeat(1 << 20);
    let mut stream = RawWatch::open(&served).await;
    stream.created(pb::WatchCreateRequest { fragment: true, ..under("big/") }).await;
    for n in 0..5 {
        put(&served, &format!("small/{n}"), &value).await;
    }
    let lease = served.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap();
    for n in 0..5 {
        let put = Put::new(format!("big/{n}"), value.clone()).lease(lease.id);
        served.store.put(put).await.unwrap();
    }
    for n in 0..5 {
        let answer = stream.next().await;
        assert_eq!((answer.events.len(), answer.fragment), (1, false), "put {n}");
    }
    let mut with_prev = RawWatch::open(&served).await;
    let asked = pb::WatchCreateRequest { fragment: true, prev_kv: true, ..under("big/") };
    with_prev.created(asked).await;
    let mut whole = RawWatch::open(&served).await;
    whole.created(pb::WatchCreateRequest { prev_kv: true, ..under("big/") }).await;
    served.store.lease_revoke(lease.id).await.unwrap();
    let mut parts = Vec::new();
    loop {
        let answer = with_prev.next().await;
        parts.extend(heard(&answer).into_iter().map(|(_, key, _)| key));
        if !answer.fragment {
            break;
        }
        assert_eq!(answer.events.len(), 1);
    }
    assert_eq!(parts, ["big/0", "big/1", "big/2", "big/3", "big/4"]);
    assert_eq!(whole.next().await.events.len(), 5, "without the wish it is one message");
}

#[tokio::test]
async fn progress_is_told_to_the_whole_stream_behind_its_events() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.ask_progress().await;
    let alone = stream.next().await;
    assert_eq!((alone.watch_id, revision(&alone.header)), (-1, 1), "a stream without watchers");
    stream.created(under("a")).await;
    stream.created(pb::WatchCreateRequest { start_revision: 100, ..under("b") }).await;
    for round in 0..200 {
        let at = put(&served, if round % 3 == 0 { "a" } else { "other" }, "1").await;
        stream.ask_progress().await;
        let mut told = stream.next().await;
        if round % 3 == 0 {
            assert_eq!(heard(&told), [event(at, "a", "1")], "events come before the progress over them");
            told = stream.next().await;
        }
        assert_eq!((told.watch_id, told.events.len(), revision(&told.header)), (-1, 0, at));
        assert!(!told.created && !told.canceled);
    }
}

#[tokio::test]
async fn progress_waits_for_a_watcher_that_is_behind() {
    let served = served().await;
    for n in 0..3000 {
        put(&served, "deep", &n.to_string()).await;
    }
    let mut stream = RawWatch::open(&served).await;
    stream.create(pb::WatchCreateRequest { start_revision: 2, ..under("deep") }).await;
    stream.ask_progress().await;
    assert!(stream.next().await.created);
    let mut last = 1;
    loop {
        let answer = stream.next().await;
        if answer.watch_id == -1 {
            assert_eq!((last, revision(&answer.header)), (3001, 3001));
            break;
        }
        last = heard(&answer).last().unwrap().0;
    }
}

#[tokio::test]
async fn a_quiet_watcher_is_told_how_far_it_is() {
    let options = Options { progress_notify_interval: Duration::from_millis(100), ..Options::default() };
    let served = served_with(options).await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(pb::WatchCreateRequest { watch_id: 7, progress_notify: true, ..under("q") }).await;
    stream.created(pb::WatchCreateRequest { watch_id: 8, ..under("q") }).await;
    let at = put(&served, "elsewhere", "1").await;
    loop {
        let told = stream.next().await;
        assert_eq!((told.watch_id, told.events.len()), (7, 0), "only who asked is told");
        if revision(&told.header) == at {
            break;
        }
    }
}

#[tokio::test]
async fn two_changes_of_one_transaction_arrive_together() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(under("t/")).await;
    let txn = Txn::new()
        .when(Compare::absent("t/1"))
        .then(Put::new("t/1", "1"))
        .then(Put::new("u", "not watched"))
        .then(Put::new("t/2", "2"));
    served.store.commit(txn).await.unwrap();
    assert_eq!(heard(&stream.next().await), [event(2, "t/1", "1"), event(2, "t/2", "2")]);
}

/// The client reads nothing while ten times more than any buffer holds is written; meanwhile others are served, and
/// afterwards it hears everything, once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_slows_only_itself_and_misses_nothing() {
    let served = served().await;
    let mut slow = RawWatch::open(&served).await;
    slow.created(under("s")).await;
    let mut quick = RawWatch::open(&served).await;
    quick.created(under("s")).await;
    let value = "v".repeat(64 << 10);
    for n in 0..1500 {
        let at = put(&served, "s", &value).await;
        assert_eq!(at, n + 2);
        let mut last = 0;
        while last < at {
            last = heard(&quick.next().await).last().unwrap().0;
        }
    }
    let mut next = 2;
    while next < 1502 {
        for (revision, _, _) in heard(&slow.next().await) {
            assert_eq!(revision, next);
            next += 1;
        }
    }
}

#[tokio::test]
async fn a_client_that_has_said_its_last_word_still_hears() {
    let served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(under("x")).await;
    let mut answers = stream.finish();
    put(&served, "x", "1").await;
    let answer = tokio::time::timeout(DEADLINE, answers.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(heard(&answer), [event(2, "x", "1")]);
}

#[tokio::test]
async fn a_stream_that_is_dropped_leaves_no_watcher_behind() {
    let served = served().await;
    let channel = served.channel().await;
    let mut stream = RawWatch::on(&channel).await;
    for _ in 0..100 {
        stream.created(under("x")).await;
    }
    assert_eq!(served.store.watchers(), 100);
    drop(stream);
    eventually("the store forgets them", DEADLINE, async || match served.store.watchers() {
        0 => Ok(()),
        n => Err(format!("{n} watchers")),
    })
    .await;
}

#[tokio::test]
async fn closing_the_server_ends_the_stream_with_a_word() {
    let mut served = served().await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(under("x")).await;
    served.close().await;
    let end = stream.try_next().await.unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "etcdserver: server stopped"));
}

#[tokio::test]
async fn more_watchers_than_a_stream_may_have_are_refused() {
    let mut options = Options::default();
    options.limits.watchers_per_stream = 2;
    let served = served_with(options).await;
    let mut stream = RawWatch::open(&served).await;
    stream.created(under("x")).await;
    stream.created(under("x")).await;
    let refused = stream.created(under("x")).await;
    assert_eq!((refused.watch_id, refused.canceled), (-1, true));
    assert_eq!(refused.cancel_reason, "etcdserver: too many requests");
}
