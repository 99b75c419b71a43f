//! What happens to clients when a part fails? With real proxies, redis-servers and coordinators, at default
//! times.

mod acks;
mod loss;
mod offsets;
mod partition;
mod pool;
mod servers;

pub(crate) use pool::Pace;

use std::time::Duration;

use anyhow::Context;
use capstan_redis::Address;
use capstan_redis::spec::ClusterSpec;
use capstan_testkit::eventually;
use tokio::time::Instant;

use capstan_testkit::redis::spread_keys;
use capstan_testkit::seed::soak;
use pool::{Pool, SOON};

/// The promised time, from the second missed ping until every slot is served again.
const HEALED_WITHIN: Duration = Duration::from_millis(1500);
/// What concurrent tests on the same machine may add.
fn loaded() -> Duration {
    soak(Duration::from_secs(15), Duration::from_millis(1500))
}

fn replicated(primaries: u32) -> ClusterSpec {
    ClusterSpec { replicas: 1, ..ClusterSpec::of(primaries) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_host_is_replaced_in_time_and_its_replicas_have_its_data() {
    let mut pool = Pool::start(3, 3, 3, replicated(3)).await;
    pool.write_all("before").unwrap();
    pool.warm().await;
    replicas_have_everything(&pool).await;
    pool.in_sync().await;
    let victim = pool.owner("key-0").await.proxy_address;
    let killed_at = Instant::now();
    pool.host(&victim).kill().await;
    let missed = async || {
        let misses: Vec<u32> = pool.boards.iter().map(|board| board.of(&victim).misses).collect();
        if misses.iter().all(|misses| *misses >= 2) { Ok(Instant::now()) } else { Err(format!("{misses:?}")) }
    };
    let second_miss_at = eventually("the second ping is missed", SOON, missed).await;
    pool.hosts.retain(|host| host.address != victim);
    eventually("every slot is served", SOON, async || pool.write_all("after")).await;
    let (healed, total) = (second_miss_at.elapsed(), killed_at.elapsed());
    eprintln!("healed {healed:?} after the second missed ping, {total:?} after the kill");
    assert!(healed < HEALED_WITHIN + loaded(), "healed only after {healed:?}");
    assert_eq!(pool.count("after"), spread_keys().count());
    pool.end().await;
}

/// Waits until every replica has received what its primary has sent until now.
async fn replicas_have_everything(pool: &Pool) {
    let nodes = pool.nodes().await;
    for replica in nodes.iter().filter(|node| !node.is_primary()) {
        let primary = replica.replica_of.as_ref().unwrap();
        let sent = offset(pool, primary, "master_repl_offset:").await.unwrap();
        let synced = async || match offset(pool, &replica.address, "slave_repl_offset:").await {
            Ok(has) if has >= sent => Ok(()),
            other => Err(format!("{other:?} of {sent}")),
        };
        eventually("a replica has everything", SOON, synced).await;
    }
}

async fn offset(pool: &Pool, node: &Address, line: &str) -> anyhow::Result<u64> {
    let info = pool.node(node).await?.say("INFO replication")?;
    let text = info.lines().find_map(|said| said.strip_prefix(line));
    Ok(text.context("missing field")?.trim().parse()?)
}
