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
    assert!(w.store.get("a").await.unwrap().is_some());
    // A lease that was lost took its key along, with a revision of its own.
    assert!(w.now().await <= w.rev(2 * leases - 1), "renewing is no change");
}

/// Keeps a lease alive beyond its time. False: the machine stood still for that long, and the lease ended rightly.
async fn outlives_its_time(w: &World) -> bool {
    let lease = w.store.lease_grant(SHORTEST, LeaseId::NONE).await.unwrap().id;
    w.store.put(Put::new("a", "1").lease(lease)).await.unwrap();
    let begun = Instant::now();
    let mut renewed = begun;
    eventually("the lease has outlived its time", EVENT_DEADLINE, async || {
        match w.store.lease_keep_alive(lease).await {
            Ok(ttl) => assert_eq!(ttl, SHORTEST),
            Err(MetaError::LeaseNotFound) if renewed.elapsed() >= SHORTEST => return Ok(false),
            Err(error) => panic!("{error}, {:?} after it was renewed", renewed.elapsed()),
        }
        renewed = Instant::now();
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
