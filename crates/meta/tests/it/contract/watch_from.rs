//! Where a watch begins: now, in the past, in the future.

use capstan_meta::{Delete, KeyRange, MetaError, Put, Revision, Txn, Watch};

use crate::subjects::{World, shown};

pub async fn zero_is_after_now(w: World) {
    w.put("a", "1").await;
    let mut watch = w.watch_all(Revision::ZERO).await;
    w.put("b", "2").await;
    assert_eq!(shown(&w, &watch.events(1).await), ["PUT b=2 @2"]);
}

pub async fn the_past_is_replayed_from_the_revision_on(w: World) {
    w.put("a", "1").await;
    w.put("b", "2").await;
    w.store.delete(Delete::one("a")).await.unwrap();
    for (from, expected) in [(1, 3), (2, 2), (3, 1)] {
        let events = w.watch_all(w.rev(from)).await.events(expected).await;
        assert_eq!(shown(&w, &events), ["PUT a=1 @1", "PUT b=2 @2", "DELETE a @3"][3 - expected..]);
    }
}

/// More than the thousand revisions that etcd replays at once, two changes each.
pub async fn a_long_replay_keeps_revisions_whole(w: World) {
    const REVISIONS: i64 = 1_300;
    for n in 0..REVISIONS {
        let value = n.to_string();
        let txn = Txn::new().then(Put::new("a", value.clone())).then(Put::new("b", value));
        w.store.commit(txn).await.unwrap();
    }
    let mut watch = w.watch_all(w.rev(1)).await;
    let mut next = 1;
    while next <= REVISIONS {
        let (revision, events) = watch.batch().await;
        for pair in events.chunks(2) {
            assert_eq!(pair.len(), 2, "half a revision");
            assert!(pair.iter().all(|event| event.kv.mod_revision == w.rev(next)), "{pair:?}");
            next += 1;
        }
        assert_eq!(revision, w.rev(next - 1));
    }
}

pub async fn the_future_is_silent_until_it_comes(w: World) {
    let mut watch = w.watch_all(w.rev(3)).await;
    w.put_all(&["a", "b", "c", "d"]).await;
    assert_eq!(shown(&w, &watch.events(2).await), ["PUT c=c @3", "PUT d=d @4"]);
}

pub async fn a_negative_revision_is_refused(w: World) {
    w.put("a", "1").await;
    let error = w.watch_error(Watch::from(KeyRange::all(), Revision(-1_000))).await;
    assert!(matches!(error, MetaError::Compacted { .. }), "{error:?}");
}

pub async fn resuming_behind_the_last_revision_misses_and_repeats_nothing(w: World) {
    let mut seen = Vec::new();
    let mut from = w.rev(1);
    for round in 0..10 {
        let mut watch = w.watch_all(from).await;
        for n in 0..7 {
            w.put("a", &format!("{round}{n}")).await;
        }
        // Leaves with some of them unread.
        while seen.len() < round * 7 + 4 {
            let (revision, events) = watch.batch().await;
            seen.extend(events.iter().map(|event| event.kv.mod_revision));
            from = revision.next();
        }
    }
    let last = w.watch_all(from).await.events(70 - seen.len()).await;
    seen.extend(last.iter().map(|event| event.kv.mod_revision));
    assert_eq!(seen, (1..=70).map(|n| w.rev(n)).collect::<Vec<_>>());
}

pub async fn replay_and_live_have_no_seam(w: World) {
    w.put_all(&["a"; 50]).await;
    let mut watch = w.watch_all(w.rev(1)).await;
    let ((), events) = tokio::join!(w.put_all(&["a"; 50]), watch.events(100));
    let revisions: Vec<_> = events.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(revisions, (1..=100).map(|n| w.rev(n)).collect::<Vec<_>>());
}
