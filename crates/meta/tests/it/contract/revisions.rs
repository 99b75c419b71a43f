//! What makes a revision, and where it shows.

use std::time::Duration;

use capstan_meta::{Compare, Delete, KeyRange, LeaseId, Op, OpResult, Put, Range, Revision, Txn};

use crate::subjects::World;

pub async fn a_fresh_store_is_at_one_and_its_first_write_gets_two(w: World) {
    let fresh = World::fresh(w.subject).await;
    assert_eq!(fresh.now().await, Revision::FIRST);
    assert_eq!(fresh.put("a", "1").await, Revision(2));
}

pub async fn every_change_is_exactly_one_revision(w: World) {
    assert_eq!(w.put("a", "1").await, w.rev(1));
    assert_eq!(w.put("a", "1").await, w.rev(2), "the same value is a change too");
    let txn = Txn::new().then(Put::new("b", "1")).then(Put::new("c", "1")).then(Delete::one("a"));
    assert_eq!(w.store.commit(txn).await.unwrap().revision, w.rev(3));
    assert_eq!(w.store.delete(Delete::prefix("")).await.unwrap().revision, w.rev(4));
    let lease = w.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
    assert_eq!(w.store.put(Put::new("d", "1").lease(lease)).await.unwrap().revision, w.rev(5));
    assert_eq!(w.store.lease_revoke(lease).await.unwrap(), w.rev(6));
    assert_eq!(w.now().await, w.rev(6));
}

pub async fn what_changes_nothing_makes_no_revision(w: World) {
    w.put("a", "1").await;
    assert_eq!(w.store.delete(Delete::one("b")).await.unwrap().revision, w.rev(1));
    assert_eq!(w.store.delete(Delete::prefix("b")).await.unwrap().revision, w.rev(1));
    assert_eq!(w.store.commit(Txn::new()).await.unwrap().revision, w.rev(1));
    let reads = Txn::new().then(Range::one("a")).then(Range::prefix(""));
    assert_eq!(w.store.commit(reads).await.unwrap().revision, w.rev(1));
    let refused = Txn::new().when(Compare::absent("a")).then(Put::new("a", "2"));
    assert_eq!(w.store.commit(refused).await.unwrap().revision, w.rev(1));
    let nothing = Txn::new().then(Delete::one("b"));
    assert_eq!(w.store.commit(nothing).await.unwrap().revision, w.rev(1));
    let lease = w.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
    w.store.lease_keep_alive(lease).await.unwrap();
    assert_eq!(w.store.lease_revoke(lease).await.unwrap(), w.rev(1));
    assert_eq!(w.now().await, w.rev(1));
}

pub async fn all_changes_of_a_transaction_share_its_revision(w: World) {
    let inner = Txn::new().then(Put::new("c", "1"));
    let mut txn = Txn::new().then(Put::new("a", "1")).then(Put::new("b", "1"));
    txn.success.push(Op::Txn(inner));
    w.store.commit(txn).await.unwrap();
    let found = w.store.range(Range::prefix("")).await.unwrap();
    assert_eq!(found.kvs.len(), 3);
    assert!(found.kvs.iter().all(|kv| kv.mod_revision == w.rev(1) && kv.create_revision == w.rev(1)));
}

pub async fn a_key_that_comes_back_begins_anew(w: World) {
    let numbers = async || {
        let kv = w.store.get("a").await.unwrap().unwrap();
        (kv.create_revision.0 - w.base.0, kv.mod_revision.0 - w.base.0, kv.version)
    };
    w.put("a", "1").await;
    assert_eq!(numbers().await, (1, 1, 1));
    w.put("a", "2").await;
    assert_eq!(numbers().await, (1, 2, 2));
    w.store.delete(Delete::one("a")).await.unwrap();
    w.put("a", "3").await;
    assert_eq!(numbers().await, (4, 4, 1));
}

pub async fn a_deletion_carries_nothing_but_key_and_revision(w: World) {
    let lease = w.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
    let mut watch = w.watch_all(w.rev(1)).await;
    w.store.put(Put::new("a", "1").lease(lease)).await.unwrap();
    w.store.delete(Delete::one("a")).await.unwrap();
    let events = watch.events(2).await;
    let gone = &events[1].kv;
    assert_eq!((&gone.key[..], gone.mod_revision), (&b"a"[..], w.rev(2)));
    assert_eq!((gone.version, gone.create_revision, gone.lease), (0, Revision::ZERO, LeaseId::NONE));
    assert!(gone.value.is_empty() && events[1].prev.is_none());
}

pub async fn a_read_of_the_past_reports_the_present_revision(w: World) {
    w.put_all(&["a", "b", "c"]).await;
    let past = w.store.range(Range::of(KeyRange::all()).at(w.rev(1))).await.unwrap();
    assert_eq!((past.revision, past.count), (w.rev(3), 1));
}

pub async fn answers_inside_a_transaction_carry_its_revision(w: World) {
    w.put("z", "1").await;
    let inner = Txn::new().then(Put::new("b", "1"));
    let mut txn = Txn::new().then(Put::new("a", "1")).then(Range::one("a")).then(Delete::one("z"));
    txn.success.push(Op::Txn(inner));
    let done = w.store.commit(txn).await.unwrap();
    assert_eq!(done.revision, w.rev(2));
    for response in done.responses {
        let revision = match response {
            OpResult::Put(one) => one.revision,
            OpResult::Range(one) => one.revision,
            OpResult::Delete(one) => one.revision,
            OpResult::Txn(one) => one.revision,
        };
        assert_eq!(revision, w.rev(2));
    }
}
