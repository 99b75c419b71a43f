//! Only a redis-server dies: its proxy notices and reports it.

use std::time::Duration;

use capstan_redis::spec::{ClusterSpec, Serving};
use capstan_testkit::eventually;
use capstan_testkit::redis::spread_keys;
use tokio::time::Instant;

use super::pool::{Pool, SOON};
use super::{replicas_have_everything, replicated};

/// A primary that restarts without its data is never replicated from: its replica is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_primary_is_succeeded_by_its_replica() {
    let pool = Pool::start(2, 2, 1, replicated(1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    pool.in_sync().await;
    let primary = pool.owner("key-0").await;
    let replica = pool.nodes().await.into_iter().find(|node| !node.is_primary()).unwrap();
    let killed_at = Instant::now();
    pool.kill_server(&primary.address).await;
    let succeeded = async || {
        let owner = pool.owner("key-0").await.address;
        if owner == replica.address {
            Ok(())
        } else {
            Err(format!("{owner}: {:?}", pool.boards[0].of(&primary.proxy_address).nodes))
        }
    };
    eventually("the replica is the primary", SOON, succeeded).await;
    let kept = async || match pool.count("kept") {
        all if all == spread_keys().count() => Ok(()),
        some => Err(format!("{some} keys are there")),
    };
    eventually("everything is served", SOON, kept).await;
    eprintln!("a killed server was succeeded after {:?}", killed_at.elapsed());
    eventually("everything can be written", SOON, async || pool.write_all("again")).await;
    pool.end().await;
}

/// Without a replica the data of a server without persistence is lost. A cluster that was created as a cache
/// continues, empty there, and the data of the others is untouched.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_lone_primary_of_a_cache_is_replaced_by_an_empty_node() {
    let serving = Serving { cache: true, ..Serving::default() };
    let pool = Pool::start(2, 1, 1, ClusterSpec { serving, ..ClusterSpec::of(2) }).await;
    pool.write_all("kept").unwrap();
    let primary = pool.owner("key-0").await;
    let mut lost = 0;
    for key in spread_keys() {
        lost += usize::from(pool.owner(&key).await.address == primary.address);
    }
    let killed_at = Instant::now();
    pool.kill_server(&primary.address).await;
    // The proxy detects it within moments; until then it may still reply.
    let noticed = async || {
        let boards = pool.boards.iter();
        let healths: Vec<String> = boards
            .filter_map(|board| board.of(&primary.proxy_address).nodes.get(&primary.address).cloned())
            .map(|node| node.health.to_string())
            .collect();
        let changed = pool.find_owner("key-0").await.as_ref() != Some(&primary);
        if changed || healths.iter().any(|health| health != "ready") {
            Ok(())
        } else {
            Err(healths.join(" "))
        }
    };
    eventually("the death is noticed", SOON, noticed).await;
    let served = async || match pool.count("kept") {
        some if some == spread_keys().count() - lost => pool.write_all("again"),
        some => Err(format!("{some} keys are there, {lost} were lost")),
    };
    eventually("the cluster goes on", SOON, served).await;
    let healed = killed_at.elapsed();
    eprintln!("a lone primary was replaced after {healed:?}");
    assert!(healed < Duration::from_secs(30), "{healed:?}");
    pool.end().await;
}
