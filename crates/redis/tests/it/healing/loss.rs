//! Does automation leave data alone? Faults in which waiting is right: every acknowledged write is there
//! afterwards, on AOF nodes whose servers may load slowly.

use std::time::Duration;

use capstan_redis::agent::Health;
use capstan_redis::api;
use capstan_redis::spec::{ClusterSpec, Persistence, Serving};
use capstan_redis::status::NodeRecord;
use capstan_redis::timing::Timing;
use capstan_testkit::eventually;
use capstan_testkit::redis::spread_keys;
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::pool::{Pool, SOON};
use super::replicas_have_everything;

/// Longer than a coordinator waits for a node with a replica.
const LOADS_FOR: Duration = Duration::from_secs(5);

fn durable(primaries: u32, replicas: u32) -> ClusterSpec {
    let serving = Serving { persistence: Persistence::Aof, ..Serving::default() };
    ClusterSpec { replicas, serving, ..ClusterSpec::of(primaries) }
}

/// Waits until all keys have this value again.
async fn all_there(pool: &Pool, value: &str) {
    let kept = async || match pool.count(value) {
        all if all == spread_keys().count() => Ok(()),
        some => Err(format!("{some} keys are there; {:?}", pool.nodes().await)),
    };
    eventually("everything is served", SOON, kept).await;
    eventually("everything can be written", SOON, async || pool.write_all(value)).await;
}

/// Waits until the kernel has what a node acknowledged: a server that waits for its disk holds writes back
/// for a second, and loses them with its process. That is what its persistence promises, and not tested here.
async fn flushed(pool: &Pool, node: &NodeRecord) {
    let empty = async || {
        let info = pool.node(&node.address).await.and_then(|mut wire| wire.say("INFO persistence"));
        match info {
            Ok(info) if info.contains("aof_buffer_length:0\r\n") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually("the kernel has everything", SOON, empty).await;
}

async fn shard(pool: &Pool) -> (NodeRecord, NodeRecord) {
    let primary = pool.owner("key-0").await;
    let replica = pool.nodes().await.into_iter().find(|node| !node.is_primary()).unwrap();
    (primary, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d1_both_servers_of_a_shard_are_killed_and_load_slowly() {
    let pool = Pool::start(2, 2, 1, durable(1, 1)).await;
    pool.write_all("early").unwrap();
    replicas_have_everything(&pool).await;
    pool.warm().await;
    let (primary, replica) = shard(&pool).await;
    pool.load_for(LOADS_FOR);
    pool.kill_server(&replica.address).await;
    pool.write_all("kept").unwrap();
    flushed(&pool, &primary).await;
    pool.kill_server(&primary.address).await;
    all_there(&pool, "kept").await;
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d1_all_hosts_are_killed_and_come_back() {
    let mut pool = Pool::start(2, 2, 1, durable(1, 1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    pool.warm().await;
    flushed(&pool, &shard(&pool).await.0).await;
    pool.load_for(LOADS_FOR);
    for host in &mut pool.hosts {
        host.kill_daemon().await;
        host.kill_servers();
    }
    pool.believed_dead().await;
    pool.hosts.iter_mut().for_each(super::pool::Host::boot);
    all_there(&pool, "kept").await;
    pool.end().await;
}

/// Waits until a coordinator has seen this node after its host came back, and could have acted on it.
async fn seen_again(pool: &Pool, node: &NodeRecord) {
    let seen = async || match pool.boards[0].of(&node.proxy_address).nodes.get(&node.address) {
        Some(fact) if fact.is_ready() => Ok(Instant::now()),
        other => Err(format!("{other:?}")),
    };
    let since: Instant = eventually("the node is seen again", SOON, seen).await;
    let acted = async || match since.elapsed() {
        passed if passed > Timing::default().node_down => Ok(()),
        passed => Err(format!("only {passed:?} have passed")),
    };
    eventually("coordinators could act on it", SOON, acted).await;
}

/// A power cut, after which the host of the replica has an empty disk and is back first. It is in the in-sync set, and has
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_that_lost_its_disk_is_not_promoted() {
    let mut pool = Pool::start(2, 2, 1, durable(1, 1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    pool.in_sync().await;
    pool.warm().await;
    let (primary, replica) = shard(&pool).await;
    flushed(&pool, &primary).await;
    for host in &mut pool.hosts {
        host.kill_daemon().await;
        host.kill_servers();
    }
    pool.believed_dead().await;
    pool.host(&replica.proxy_address).lose_disk();
    pool.host(&replica.proxy_address).boot();
    seen_again(&pool, &replica).await;
    pool.host(&primary.proxy_address).boot();
    all_there(&pool, "kept").await;
    pool.end().await;
}

/// The same with the primary: its replica has everything, and is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_primary_that_lost_its_disk_does_not_lead() {
    let mut pool = Pool::start(2, 2, 1, durable(1, 1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    pool.in_sync().await;
    pool.warm().await;
    let (primary, replica) = shard(&pool).await;
    flushed(&pool, &replica).await;
    for host in &mut pool.hosts {
        host.kill_daemon().await;
        host.kill_servers();
    }
    pool.host(&primary.proxy_address).lose_disk();
    pool.host(&primary.proxy_address).boot();
    let back = async || match pool.boards[0].of(&primary.proxy_address).nodes.get(&primary.address) {
        Some(fact) if fact.health == Health::Lost => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the loss is seen", SOON, back).await;
    pool.host(&replica.proxy_address).boot();
    all_there(&pool, "kept").await;
    pool.end().await;
}

/// Without a replica the shard is not served empty: an operator decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lone_primary_that_lost_its_disk_waits_for_a_choice() {
    let mut pool = Pool::start(2, 1, 1, durable(1, 0)).await;
    pool.write_all("gone").unwrap();
    let primary = pool.owner("key-0").await;
    let served = async || {
        let tree = pool.tree().await;
        let shards = &tree.cluster(&pool.name).unwrap().shards;
        if shards.values().all(|seen| seen.record.established) { Ok(()) } else { Err(format!("{shards:?}")) }
    };
    eventually("it is recorded that the shard has served", SOON, served).await;
    let host = pool.host(&primary.proxy_address);
    host.kill_daemon().await;
    host.kill_servers();
    host.lose_disk();
    host.boot();
    let waits = async || match pool.waits().await.as_slice() {
        [state] if state == "lost" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the shard waits", SOON, waits).await;
    api::accept_loss(&pool.store, &pool.name, &primary.address, None).await.unwrap();
    eventually("the shard goes on, empty", SOON, async || pool.write_all("again")).await;
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d2_a_replica_that_syncs_slowly_is_waited_for() {
    let pool = Pool::start(3, 1, 1, durable(1, 1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    let (_, replica) = shard(&pool).await;
    pool.load_for(LOADS_FOR);
    pool.kill_server(&replica.address).await;
    let linked = async || {
        let now = shard(&pool).await.1;
        assert_eq!(now.address, replica.address, "the replica was replaced");
        let fact = pool.boards[0].of(&replica.proxy_address).nodes.get(&replica.address).cloned();
        let again =
            fact.as_ref().is_some_and(|fact| fact.linked && fact.replica_of.is_some() && fact.keys > 0);
        if again && fact.as_ref().is_some_and(|fact| fact.is_ready()) {
            Ok(())
        } else {
            Err(format!("{fact:?}"))
        }
    };
    // It is down, loads for five seconds, and then syncs for five more.
    let gone = async || match linked().await {
        Ok(()) => Err("it is still linked"),
        Err(_) => Ok(()),
    };
    eventually("its death is seen", SOON, gone).await;
    eventually("it follows again", SOON, linked).await;
    all_there(&pool, "kept").await;
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d3_a_host_daemon_is_away_and_comes_back() {
    let mut pool = Pool::start(2, 2, 1, durable(1, 0)).await;
    pool.write_all("kept").unwrap();
    pool.warm().await;
    let primary = pool.owner("key-0").await;
    pool.host(&primary.proxy_address).kill_daemon().await;
    pool.believed_dead().await;
    pool.host(&primary.proxy_address).boot();
    all_there(&pool, "kept").await;
    assert_eq!(pool.owner("key-0").await.address, primary.address, "a returning host gets its nodes back");
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d4_a_lone_primary_loads_for_longer_than_anybody_is_patient() {
    let timing = Timing { lone_node_down: Duration::from_secs(2), ..Timing::default() };
    let pool = Pool::with(timing, 2, 1, 1, durable(1, 0)).await;
    pool.write_all("kept").unwrap();
    let primary = pool.owner("key-0").await;
    flushed(&pool, &primary).await;
    pool.load_for(Duration::from_secs(7));
    pool.kill_server(&primary.address).await;
    all_there(&pool, "kept").await;
    assert_eq!(pool.owner("key-0").await.address, primary.address);
    pool.end().await;
}

/// A script that keeps its node busy for longer than a silent one is waited for.
const SCRIPT: &str = "local till = redis.call('TIME')[1] + 12 \
     while tonumber(redis.call('TIME')[1]) < till do end return redis.call('SET', KEYS[1], 'kept')";

/// Runs the script on the only shard, and checks that its primary stays what it is.
async fn is_busy_and_stays(replicas: u32) {
    let timing = Timing { lone_node_down: Duration::from_secs(2), ..Timing::default() };
    let mut pool = Pool::with(timing, 2, 1, 1, durable(1, replicas)).await;
    pool.write_all("kept").unwrap();
    if replicas > 0 {
        replicas_have_everything(&pool).await;
        pool.in_sync().await;
    }
    let primary = pool.owner("key-0").await;
    let mut client = pool.host(&primary.proxy_address).client().unwrap();
    client.command(&["EVAL", SCRIPT, "1", "key-0"]).unwrap();
    let is_busy = async || {
        let fact = pool.boards[0].of(&primary.proxy_address);
        match fact.nodes.get(&primary.address).map(|node| node.health) {
            Some(Health::Busy) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually("the node is seen to be busy", SOON, is_busy).await;
    client.socket().set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(client.reply().unwrap(), b"+OK\r\n", "the script ends where it began");
    all_there(&pool, "kept").await;
    assert_eq!(pool.owner("key-0").await.address, primary.address);
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d10_a_lone_primary_that_is_busy_with_a_script_is_waited_for() {
    is_busy_and_stays(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d10_a_primary_with_a_replica_that_is_busy_with_a_script_is_waited_for() {
    is_busy_and_stays(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d5_a_failover_to_a_replica_that_is_not_in_sync_is_refused() {
    let pool = Pool::start(2, 1, 1, durable(1, 1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    let (primary, replica) = shard(&pool).await;
    pool.load_for(Duration::from_secs(12));
    pool.kill_server(&replica.address).await;
    pool.out_of_sync(&replica).await;
    let answer = api::failover(&pool.store, &pool.name, &primary.address, None).await;
    let refused = answer.as_ref().is_err_and(|error| error.to_string().contains("in sync"));
    all_there(&pool, "kept").await;
    assert!(refused, "{answer:?}");
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d5_a_failover_to_a_frozen_replica_is_taken_back() {
    let pool = Pool::start(2, 1, 1, durable(1, 1)).await;
    pool.write_all("kept").unwrap();
    replicas_have_everything(&pool).await;
    pool.in_sync().await;
    let (primary, replica) = shard(&pool).await;
    let pid = pool.signal(&replica.address, Signal::SIGSTOP).await;
    api::failover(&pool.store, &pool.name, &primary.address, None).await.unwrap();
    let taken_back = async || match pool.owner("key-0").await.address {
        owner if owner == primary.address => Ok(()),
        owner => Err(owner),
    };
    eventually("the failover is taken back", SOON, taken_back).await;
    all_there(&pool, "kept").await;
    nix::sys::signal::kill(pid, Signal::SIGCONT).unwrap();
    all_there(&pool, "kept").await;
    assert_eq!(pool.owner("key-0").await.address, primary.address);
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn d9_functions_reach_the_nodes_of_a_cluster_that_grows() {
    let pool = Pool::start(2, 1, 1, ClusterSpec::of(1)).await;
    let library =
        "#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)";
    let first: std::net::SocketAddr = pool.hosts[0].address.as_str().parse().unwrap();
    let mut wire = capstan_testkit::redis::Wire::connect(first).unwrap();
    let owner = pool.owner("key-0").await.proxy_address;
    if owner != pool.hosts[0].address {
        wire = capstan_testkit::redis::Wire::connect(owner.as_str().parse().unwrap()).unwrap();
    }
    let said = wire.ask(&["FUNCTION", "LOAD", library]).unwrap();
    assert_eq!(String::from_utf8_lossy(&said), "$3\r\nlib\r\n");
    api::scale(&pool.store, &pool.name, 2).await.unwrap();
    let spread = async || {
        let shares: Vec<u32> = pool.nodes().await.iter().map(NodeRecord::slot_count).collect();
        if shares == [8192, 8192] { Ok(()) } else { Err(format!("{shares:?}")) }
    };
    eventually("both have slots", SOON, spread).await;
    for key in spread_keys() {
        let called =
            async || match capstan_testkit::redis::Wire::follow(first, &format!("FCALL twice 1 {key} 21")) {
                Ok(said) if said == ":42\r\n" => Ok(()),
                other => Err(format!("{key}: {other:?}")),
            };
        eventually("the function is there", Duration::from_secs(5), called).await;
    }
    pool.end().await;
}

/// If only an empty node could continue, the shard stays down and reports why, until an operator decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shard_whose_data_is_gone_waits_for_a_choice() {
    let pool = Pool::start(2, 1, 1, ClusterSpec::of(1)).await;
    let primary = pool.owner("key-0").await;
    let refused = api::accept_loss(&pool.store, &pool.name, &primary.address, None).await;
    assert!(refused.unwrap_err().to_string().contains("no loss to accept"));
    pool.kill_server(&primary.address).await;
    let waits = async || match pool.waits().await.as_slice() {
        [state] if state == "lost" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the shard waits", SOON, waits).await;
    let tree = pool.tree().await;
    let findings = capstan_redis::check::findings(&tree);
    let down = findings.iter().find(|finding| finding.code.as_str() == "redis-shard-down").unwrap();
    assert!(down.action.contains("accept-loss") && down.action.contains("recover"), "{down:?}");
    assert_eq!(pool.owner("key-0").await.address, primary.address, "nothing was replaced");
    api::accept_loss(&pool.store, &pool.name, &primary.address, None).await.unwrap().unwrap();
    eventually("the shard goes on, empty", SOON, async || pool.write_all("again")).await;
    pool.end().await;
}

/// Data that was given up is still on its host, and an operator can recover it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn data_that_was_given_up_is_recovered() {
    let mut pool = Pool::start(2, 1, 1, durable(1, 0)).await;
    pool.write_all("kept").unwrap();
    pool.warm().await;
    let primary = pool.owner("key-0").await;
    flushed(&pool, &primary).await;
    pool.host(&primary.proxy_address).kill_daemon().await;
    pool.host(&primary.proxy_address).kill_servers();
    let waits = async || match pool.waits().await.as_slice() {
        [state] if state == "unreachable" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the shard waits", SOON, waits).await;
    let next = api::accept_loss(&pool.store, &pool.name, &primary.address, None).await.unwrap().unwrap();
    eventually("the shard goes on, empty", SOON, async || pool.write_all("new")).await;
    pool.host(&primary.proxy_address).boot();
    let back = async || api::recover(&pool.store, &pool.name, &next, &primary.address).await;
    eventually("its old node is free", SOON, back).await;
    all_there(&pool, "kept").await;
    pool.end().await;
}
