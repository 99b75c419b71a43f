//! What a put does and when it is refused.

use std::time::Duration;

use bytes::Bytes;
use capstan_meta::{LeaseId, MetaError, Put};

use crate::subjects::{World, error};

async fn lease(w: &World) -> LeaseId {
    w.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id
}

pub async fn the_previous_version_comes_on_request(w: World) {
    let put = |value: &'static str| Put { prev_kv: true, ..Put::new("a", value) };
    assert_eq!(w.store.put(put("1")).await.unwrap().prev, None);
    let prev = w.store.put(put("2")).await.unwrap().prev.unwrap();
    assert_eq!((&prev.value[..], prev.version, prev.mod_revision), (&b"1"[..], 1, w.rev(1)));
    assert_eq!(w.store.put(Put::new("a", "3")).await.unwrap().prev, None, "it was not asked for");
}

pub async fn ignore_value_keeps_the_value(w: World) {
    let lease = lease(&w).await;
    w.put("a", "1").await;
    let put = Put { ignore_value: true, ..Put::new("a", "").lease(lease) };
    assert_eq!(w.store.put(put).await.unwrap().revision, w.rev(2));
    let kv = w.store.get("a").await.unwrap().unwrap();
    assert_eq!((&kv.value[..], kv.lease, kv.version), (&b"1"[..], lease, 2));
}

pub async fn ignore_lease_keeps_the_lease(w: World) {
    let lease = lease(&w).await;
    w.store.put(Put::new("a", "1").lease(lease)).await.unwrap();
    w.store.put(Put { ignore_lease: true, ..Put::new("a", "2") }).await.unwrap();
    let kv = w.store.get("a").await.unwrap().unwrap();
    assert_eq!((&kv.value[..], kv.lease), (&b"2"[..], lease));
    assert_eq!(w.store.lease_info(lease).await.unwrap().unwrap().keys, ["a"]);
}

pub async fn ignoring_needs_an_existing_key(w: World) {
    let put = Put { ignore_value: true, ..Put::new("a", "") };
    assert_eq!(error(w.store.put(put).await), MetaError::KeyNotFound);
    let put = Put { ignore_lease: true, ..Put::new("a", "1") };
    assert_eq!(error(w.store.put(put).await), MetaError::KeyNotFound);
    assert_eq!(w.now().await, w.base);
}

pub async fn ignoring_and_giving_contradict(w: World) {
    w.put("a", "1").await;
    let put = Put { ignore_value: true, ..Put::new("a", "2") };
    assert_eq!(error(w.store.put(put).await), MetaError::ValueProvided);
    let put = Put { ignore_lease: true, ..Put::new("a", "2").lease(LeaseId(77)) };
    assert_eq!(error(w.store.put(put).await), MetaError::LeaseProvided);
    assert_eq!(w.now().await, w.rev(1));
}

pub async fn a_put_without_lease_detaches(w: World) {
    let lease = lease(&w).await;
    w.store.put(Put::new("a", "1").lease(lease)).await.unwrap();
    w.put("a", "2").await;
    assert_eq!(w.store.get("a").await.unwrap().unwrap().lease, LeaseId::NONE);
    assert!(w.store.lease_info(lease).await.unwrap().unwrap().keys.is_empty());
    w.store.lease_revoke(lease).await.unwrap();
    assert!(w.store.get("a").await.unwrap().is_some());
}

pub async fn an_unknown_lease_is_refused(w: World) {
    let put = Put::new("a", "1").lease(LeaseId(987_654_321));
    assert_eq!(error(w.store.put(put).await), MetaError::LeaseNotFound);
    assert_eq!((w.store.get("a").await.unwrap(), w.now().await), (None, w.base));
}

pub async fn no_key_is_refused(w: World) {
    assert_eq!(error(w.store.put(Put::new("", "1")).await), MetaError::EmptyKey);
}

pub async fn values_are_any_bytes(w: World) {
    let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
    for value in [Bytes::new(), all, Bytes::from(vec![0; 1 << 20])] {
        w.store.put(Put::new("a", value.clone())).await.unwrap();
        assert_eq!(w.store.get("a").await.unwrap().unwrap().value, value);
    }
}

pub async fn a_request_beyond_the_limit_is_too_large(w: World) {
    w.store.put(Put::new("a", vec![0; (3 << 19) - 100])).await.unwrap();
    // Just above the limit of requests, and above that of the transport.
    for size in [(3 << 19) + 1, 3 << 20] {
        let put = Put::new("a", vec![0; size]);
        assert_eq!(error(w.store.put(put).await), MetaError::TooLarge, "{size}");
    }
    assert_eq!(w.now().await, w.rev(1));
}
