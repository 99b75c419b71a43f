//! Of two replicas, the one with more of its primary's writes is promoted.

use capstan_redis::Address;
use capstan_redis::spec::ClusterSpec;
use capstan_testkit::eventually;
use capstan_testkit::redis::spread_keys;

use super::pool::{Pool, SOON};
use super::replicas_have_everything;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_replica_with_the_highest_offset_is_promoted() {
    let mut pool = Pool::start(3, 1, 1, ClusterSpec { replicas: 2, ..ClusterSpec::of(1) }).await;
    pool.write_all("early").unwrap();
    replicas_have_everything(&pool).await;
    pool.in_sync().await;
    let primary = pool.owner("key-0").await;
    let mut replicas: Vec<_> = pool.nodes().await.into_iter().filter(|node| !node.is_primary()).collect();
    replicas.sort_by(|one, other| one.address.cmp(&other.address));
    // Of equals the first would be promoted: so the first one is held back.
    let (behind, ahead) = (replicas[0].clone(), replicas[1].clone());
    hold_back(&pool, &behind.address, &primary.address).await;
    pool.write_all("late").unwrap();
    let known = async || {
        let offset = |node: &capstan_redis::status::NodeRecord| {
            pool.boards[0].of(&node.proxy_address).nodes.get(&node.address).map_or(0, |fact| fact.offset)
        };
        let (behind, ahead, first) = (offset(&behind), offset(&ahead), offset(&primary));
        if behind < ahead && ahead >= first { Ok(()) } else { Err(format!("{behind} {ahead} {first}")) }
    };
    eventually("the coordinator has both offsets", SOON, known).await;
    pool.warm().await;
    pool.host(&primary.proxy_address).kill().await;
    pool.hosts.retain(|host| host.address != primary.proxy_address);
    let promoted = async || {
        let owner = pool.owner("key-0").await.address;
        if owner == ahead.address { Ok(()) } else { Err(owner.to_string()) }
    };
    eventually("the replica that is ahead is promoted", SOON, promoted).await;
    let kept = async || match pool.count("late") {
        all if all == spread_keys().count() => Ok(()),
        some => Err(format!("{some} keys are there")),
    };
    eventually("nothing is lost", SOON, kept).await;
    pool.end().await;
}

/// The replica loses its primary and cannot reconnect, because it has the wrong password.
async fn hold_back(pool: &Pool, replica: &Address, primary: &Address) {
    let said = pool.node(replica).await.unwrap().say("CONFIG SET masterauth wrong").unwrap();
    assert_eq!(said, "+OK\r\n");
    pool.node(primary).await.unwrap().say("CLIENT KILL TYPE replica").unwrap();
    let down = async || {
        let info = pool.node(replica).await.and_then(|mut wire| wire.say("INFO replication"));
        match info {
            Ok(info) if info.contains("master_link_status:down") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually("the replica has lost its primary", SOON, down).await;
}
