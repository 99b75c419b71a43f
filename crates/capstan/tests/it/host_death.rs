//! What do clients see when a whole host fails: its daemon, its proxy and its redis-servers?

use std::time::{Duration, Instant};

use capstan_redis::timing::Timing;
use capstan_testkit::eventually;
use capstan_testkit::redis::{count, spread_keys, write_all};

use crate::cluster::{Cluster, LONG};

/// Two missed pings, and the promise from there on.
const HEALED_WITHIN: Duration = Duration::from_millis(2 * 500 + 1500);
/// What a machine that runs other tests at the same time may add.
const LOADED: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_host_is_replaced_and_its_replicas_have_its_data() {
    let mut cluster = Cluster::start("death", 3).await;
    let started = Instant::now();
    let proxies = cluster.create_redis().await;
    write_all(proxies[0], "before").unwrap();
    eventually("replicas have everything", LONG, async || cluster.replicas_are_in_sync()).await;
    // A controller files no reports until all controllers count it.
    let counted = async || match Timing::default().warm_up().checked_sub(started.elapsed()) {
        None => Ok(()),
        Some(left) => Err(format!("{left:?} are left")),
    };
    eventually("everybody counts the controllers", LONG, counted).await;

    let killed = Instant::now();
    cluster.hosts[0].kill9();
    let everything = spread_keys().count();
    let served = async || match count(proxies[1], "before") {
        all if all == everything => Ok(()),
        some => Err(format!("{some} of {everything}")),
    };
    eventually("every slot is served, with its data", LONG, served).await;
    let healed = killed.elapsed();
    eprintln!("healed {healed:?} after the kill");
    assert!(healed < HEALED_WITHIN + LOADED, "{healed:?}");
    write_all(proxies[1], "after").unwrap();
    let seen = async || match count(proxies[2], "after") {
        all if all == everything => Ok(()),
        some => Err(format!("{some} of {everything}")),
    };
    eventually("the third proxy knows the new owners", LONG, seen).await;
}
