//! What compaction takes away and what it leaves.

use capstan_meta::{Delete, KeyRange, MetaError, Put, Range, Revision, Txn, Watch};

use crate::subjects::{Subject, World, error, shown};

/// `a` at 1, 3 and 5; `b` from 2 to 4.
async fn history(w: &World) {
    w.put("a", "1").await;
    w.put("b", "2").await;
    w.put("a", "3").await;
    w.store.delete(Delete::one("b")).await.unwrap();
    w.put("a", "5").await;
}

fn gone_before(w: &World, n: i64) -> MetaError {
    MetaError::Compacted { oldest: w.rev(n) }
}

pub async fn history_before_it_is_gone(w: World) {
    history(&w).await;
    assert_eq!(w.store.compact(w.rev(3)).await.unwrap(), w.rev(5));
    for n in [1, 2] {
        assert_eq!(error(w.store.range(Range::one("a").at(w.rev(n))).await), gone_before(&w, 3));
    }
    assert_eq!(error(w.store.range(Range::one("a").at(Revision(1))).await), gone_before(&w, 3));
    assert_eq!(w.store.status().await.unwrap().compacted, w.rev(3));
}

pub async fn the_compacted_revision_itself_can_be_read(w: World) {
    history(&w).await;
    w.store.compact(w.rev(3)).await.unwrap();
    let found = w.store.range(Range::prefix("").at(w.rev(3))).await.unwrap();
    assert_eq!((found.count, &found.kvs[0].value[..], &found.kvs[1].value[..]), (2, &b"3"[..], &b"2"[..]));
}

pub async fn the_newest_version_of_each_key_stays(w: World) {
    history(&w).await;
    w.store.compact(w.rev(5)).await.unwrap();
    let kv = w.store.get("a").await.unwrap().unwrap();
    assert_eq!((&kv.value[..], kv.create_revision, kv.version), (&b"5"[..], w.rev(1), 3));
    assert_eq!(w.keys(Range::prefix("").at(w.rev(5))).await, ["a"]);
}

pub async fn revisions_below_or_equal_are_refused(w: World) {
    history(&w).await;
    w.store.compact(w.rev(3)).await.unwrap();
    for revision in [w.rev(3), w.rev(2), Revision(1), Revision::ZERO] {
        assert_eq!(error(w.store.compact(revision).await), gone_before(&w, 3), "{revision}");
    }
    w.store.compact(w.rev(4)).await.unwrap();
}

pub async fn the_future_cannot_be_compacted(w: World) {
    history(&w).await;
    assert_eq!(error(w.store.compact(w.rev(6)).await), MetaError::FutureRevision);
    w.store.compact(w.rev(5)).await.unwrap();
}

pub async fn revision_one_can_be_compacted_once(w: World) {
    let fresh = World::fresh(w.subject).await;
    assert_eq!(fresh.store.compact(Revision(1)).await.unwrap(), Revision(1));
    assert!(matches!(error(fresh.store.compact(Revision(1)).await), MetaError::Compacted { .. }));
}

pub async fn a_watch_from_before_it_is_told_where_history_begins(w: World) {
    history(&w).await;
    w.store.compact(w.rev(4)).await.unwrap();
    for n in [1, 3] {
        let watch = Watch::from(KeyRange::all(), w.rev(n));
        assert_eq!(w.watch_error(watch).await, gone_before(&w, 4));
    }
}

pub async fn a_watch_from_it_is_legal(w: World) {
    history(&w).await;
    w.store.compact(w.rev(3)).await.unwrap();
    let mut watch = w.watch_all(w.rev(3)).await;
    let events = watch.events(3).await;
    assert_eq!(shown(&w, &events), ["PUT a=3 @3", "DELETE b @4", "PUT a=5 @5"]);
}

/// Etcd 3.4 before 3.4.36 does not tell.
pub async fn a_deletion_at_it_is_still_told(w: World) {
    history(&w).await;
    w.store.compact(w.rev(4)).await.unwrap();
    if w.subject != Subject::Etcd {
        let events = w.watch_all(w.rev(4)).await.events(2).await;
        assert_eq!(shown(&w, &events), ["DELETE b @4", "PUT a=5 @5"]);
    }
    assert_eq!(w.keys(Range::prefix("").at(w.rev(4))).await, ["a"]);
}

pub async fn a_running_watch_is_not_disturbed(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    history(&w).await;
    watch.events(5).await;
    w.store.compact(w.rev(5)).await.unwrap();
    w.put("c", "6").await;
    assert_eq!(shown(&w, &watch.events(1).await), ["PUT c=6 @6"]);
}

pub async fn compacted_previous_versions_are_left_out(w: World) {
    w.put("a", "1").await;
    w.put("a", "2").await;
    w.put("a", "3").await;
    w.store.compact(w.rev(2)).await.unwrap();
    let watch = Watch { prev_kv: true, ..Watch::from(KeyRange::all(), w.rev(2)) };
    let events = w.watch(watch).await.events(2).await;
    assert_eq!(events[0].prev, None);
    assert_eq!(events[1].prev.as_ref().unwrap().value, "2");
}

pub async fn transactions_cannot_read_before_it(w: World) {
    history(&w).await;
    w.store.compact(w.rev(3)).await.unwrap();
    // Together with a write this could make members of etcd before 3.7 differ: reads only.
    let txn = Txn::new().then(Range::one("a").at(w.rev(1)));
    assert_eq!(error(w.store.commit(txn).await), gone_before(&w, 3));
    if w.subject != Subject::Etcd {
        let txn = Txn::new().then(Put::new("x", "1")).then(Range::one("a").at(w.rev(1)));
        assert_eq!(error(w.store.commit(txn).await), gone_before(&w, 3));
    }
    assert_eq!(w.now().await, w.rev(5));
}
