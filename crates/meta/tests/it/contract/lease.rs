//! What a lease is and which keys it holds; what time does to it is in `lease_time`.

use std::time::Duration;

use capstan_meta::{Delete, KeyRange, Lease, LeaseId, MetaError, Put, Txn, Watch};

use crate::subjects::{World, error, shown};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(300);
/// Nobody grants this one.
const MISSING: LeaseId = LeaseId(987_654_321);

async fn grant(w: &World) -> LeaseId {
    w.store.lease_grant(LONG, LeaseId::NONE).await.unwrap().id
}

async fn keys(w: &World, lease: LeaseId) -> Vec<String> {
    let info = w.store.lease_info(lease).await.unwrap().unwrap();
    info.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

pub async fn the_store_chooses_a_positive_id(w: World) {
    let first = w.store.lease_grant(LONG, LeaseId::NONE).await.unwrap();
    let second = w.store.lease_grant(LONG, LeaseId::NONE).await.unwrap();
    assert!(first.id.0 > 0 && second.id.0 > 0 && first.id != second.id);
    assert_eq!(first.ttl, LONG);
}

pub async fn any_id_may_be_chosen(w: World) {
    for id in [LeaseId(1), LeaseId(-7), LeaseId(i64::MAX), LeaseId(i64::MIN)] {
        assert_eq!(w.store.lease_grant(LONG, id).await.unwrap(), Lease { id, ttl: LONG });
        w.store.put(Put::new("a", "1").lease(id)).await.unwrap();
        assert_eq!(w.store.get("a").await.unwrap().unwrap().lease, id);
        w.store.lease_revoke(id).await.unwrap();
        assert_eq!(w.store.get("a").await.unwrap(), None);
    }
}

pub async fn an_id_is_granted_once(w: World) {
    let id = LeaseId(4_711);
    w.store.lease_grant(LONG, id).await.unwrap();
    assert_eq!(error(w.store.lease_grant(LONG, id).await), MetaError::LeaseExists);
    w.store.lease_revoke(id).await.unwrap();
    w.store.lease_grant(LONG, id).await.unwrap();
}

pub async fn short_leases_become_two_seconds(w: World) {
    for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(2)] {
        let granted = w.store.lease_grant(ttl, LeaseId::NONE).await.unwrap();
        assert_eq!(granted.ttl, Duration::from_secs(2), "{ttl:?}");
    }
}

pub async fn too_long_a_lease_is_refused(w: World) {
    let longest = Duration::from_secs(9_000_000_000);
    assert_eq!(w.store.lease_grant(longest, LeaseId::NONE).await.unwrap().ttl, longest);
    for ttl in [longest + Duration::from_secs(1), Duration::MAX] {
        assert_eq!(error(w.store.lease_grant(ttl, LeaseId::NONE).await), MetaError::LeaseTtlTooLarge);
    }
}

pub async fn revoking_deletes_its_keys_in_one_revision(w: World) {
    let lease = grant(&w).await;
    for key in ["c", "a", "b"] {
        w.store.put(Put::new(key, "1").lease(lease)).await.unwrap();
    }
    w.put("other", "1").await;
    let watch = Watch { prev_kv: true, ..Watch::from(KeyRange::all(), w.rev(5)) };
    let mut watch = w.watch(watch).await;
    assert_eq!(w.store.lease_revoke(lease).await.unwrap(), w.rev(5));
    let (revision, events) = watch.batch().await;
    assert_eq!(revision, w.rev(5));
    assert_eq!(shown(&w, &events), ["DELETE a @5", "DELETE b @5", "DELETE c @5"]);
    assert!(events.iter().all(|event| event.prev.as_ref().unwrap().lease == lease));
    assert_eq!(w.store.lease_info(lease).await.unwrap(), None);
}

pub async fn a_missing_lease_is_not_found(w: World) {
    assert_eq!(error(w.store.lease_revoke(MISSING).await), MetaError::LeaseNotFound);
    assert_eq!(error(w.store.lease_keep_alive(MISSING).await), MetaError::LeaseNotFound);
    assert_eq!(w.store.lease_info(MISSING).await.unwrap(), None);
    let lease = grant(&w).await;
    w.store.lease_revoke(lease).await.unwrap();
    assert_eq!(error(w.store.lease_revoke(lease).await), MetaError::LeaseNotFound);
    assert_eq!(error(w.store.lease_keep_alive(lease).await), MetaError::LeaseNotFound);
    assert_eq!(w.store.lease_info(lease).await.unwrap(), None);
}

pub async fn a_lease_tells_its_keys(w: World) {
    let lease = grant(&w).await;
    assert!(keys(&w, lease).await.is_empty());
    for key in ["b", "a"] {
        w.store.put(Put::new(key, "1").lease(lease)).await.unwrap();
    }
    assert_eq!(keys(&w, lease).await, ["a", "b"]);
    assert_eq!(w.store.lease_info(lease).await.unwrap().unwrap().granted_ttl, LONG);
}

pub async fn a_put_moves_a_key_to_another_lease(w: World) {
    let (first, second) = (grant(&w).await, grant(&w).await);
    w.store.put(Put::new("a", "1").lease(first)).await.unwrap();
    w.store.put(Put::new("a", "2").lease(second)).await.unwrap();
    assert_eq!((keys(&w, first).await.len(), keys(&w, second).await), (0, vec!["a".to_owned()]));
    assert_eq!(w.store.lease_revoke(first).await.unwrap(), w.rev(2));
    assert!(w.store.get("a").await.unwrap().is_some());
    assert_eq!(w.store.lease_revoke(second).await.unwrap(), w.rev(3));
    assert_eq!(w.store.get("a").await.unwrap(), None);
}

pub async fn a_deletion_detaches_the_key(w: World) {
    let lease = grant(&w).await;
    w.store.put(Put::new("a", "1").lease(lease)).await.unwrap();
    w.store.delete(Delete::one("a")).await.unwrap();
    assert!(keys(&w, lease).await.is_empty());
    w.put("a", "2").await;
    w.store.lease_revoke(lease).await.unwrap();
    assert!(w.store.get("a").await.unwrap().is_some());
}

pub async fn a_lease_attached_in_a_transaction_holds(w: World) {
    let lease = grant(&w).await;
    let txn = Txn::new().then(Put::new("a", "1").lease(lease)).then(Put::new("b", "1").lease(lease));
    w.store.commit(txn).await.unwrap();
    assert_eq!(keys(&w, lease).await, ["a", "b"]);
    assert_eq!(w.store.lease_revoke(lease).await.unwrap(), w.rev(2));
}

pub async fn leases_are_listed_by_expiry(w: World) {
    let mut expected = Vec::new();
    for minutes in [3, 1, 2] {
        let ttl = Duration::from_secs(60 * minutes);
        expected.push((minutes, w.store.lease_grant(ttl, LeaseId::NONE).await.unwrap().id));
    }
    expected.sort_unstable();
    let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
    assert_eq!(w.store.leases().await.unwrap(), expected);
    w.store.lease_revoke(expected[1]).await.unwrap();
    assert_eq!(w.store.leases().await.unwrap(), [expected[0], expected[2]]);
}
