//! What time does to a lease. These rules take as long as a lease lives: two seconds at least.

use std::time::{Duration, Instant};

use capstan_meta::{LeaseId, MetaError, Put};
use capstan_testkit::eventually;

use crate::subjects::{EVENT_DEADLINE, World, error, shown};

const SHORTEST: Duration = Duration::from_secs(2);

pub async fn an_expired_lease_takes_its_keys_in_one_revision(w: World) {
    let begun = Instant::now();
    let lease = w.store.lease_grant(SHORTEST, LeaseId::NONE).await.unwrap().id;
    for key in ["b", "a"] {
        w.store.put(Put::new(key, "1").lease(lease)).await.unwrap();
    }
    let mut watch = w.watch_all(w.rev(3)).await;
    let (_, events) = watch.batch().await;
    assert_eq!(shown(&w, &events), ["DELETE a @3", "DELETE b @3"]);
    assert!(begun.elapsed() >= SHORTEST - Duration::from_millis(100), "too early: {:?}", begun.elapsed());
    assert_eq!(error(w.store.lease_keep_alive(lease).await), MetaError::LeaseNotFound);
    assert_eq!(w.store.lease_info(lease).await.unwrap(), None);
}

pub async fn keeping_alive_keeps_the_keys(w: World) {
    let mut leases = 1;
    while !outlives_its_time(&w).await {
        leases += 1;
    }
    // A lease that was lost took its key along, with a revision of its own.
    assert!(w.now().await <= w.rev(2 * leases), "renewing is no change");
}

/// Keeps a lease alive beyond its time. False: the machine stood still for that long, and the lease ended rightly.
///
/// A lease that was renewed lives for its time from when the request was sent, not from when the answer arrived: on a busy
/// machine an answer waits for its reader, and the time between the two is lost.
async fn outlives_its_time(w: &World) -> bool {
    let mut sent = Instant::now();
    let begun = sent;
    let lease = w.store.lease_grant(SHORTEST, LeaseId::NONE).await.unwrap().id;
    let ended = |error: MetaError, sent: Instant| match error {
        MetaError::LeaseNotFound if sent.elapsed() >= SHORTEST => false,
        error => panic!("{error}, {:?} after its last renewal was sent", sent.elapsed()),
    };
    if let Err(error) = w.store.put(Put::new("a", "1").lease(lease)).await {
        return ended(error, sent);
    }
    eventually("the lease has outlived its time", EVENT_DEADLINE, async || {
        let renewal = Instant::now();
        match w.store.lease_keep_alive(lease).await {
            Ok(ttl) => assert_eq!(ttl, SHORTEST),
            Err(error) => return Ok(ended(error, sent)),
        }
        sent = renewal;
        if w.store.get("a").await.unwrap().is_none() {
            return Ok(ended(MetaError::LeaseNotFound, sent));
        }
        let age = begun.elapsed();
        if age > SHORTEST + Duration::from_secs(1) { Ok(true) } else { Err(format!("{age:?}")) }
    })
    .await
}

pub async fn the_remaining_time_is_rounded_down(w: World) {
    let ttl = Duration::from_secs(30);
    let lease = w.store.lease_grant(ttl, LeaseId::NONE).await.unwrap().id;
    let info = w.store.lease_info(lease).await.unwrap().unwrap();
    assert_eq!(info.granted_ttl, ttl);
    assert!(info.remaining < ttl && info.remaining >= Duration::from_secs(20), "{:?}", info.remaining);
    assert_eq!(info.remaining.subsec_nanos(), 0);
}
