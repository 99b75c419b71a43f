//! A host is killed with everything that it runs, and comes back. Are its nodes used again, with the data that is there?

use std::net::SocketAddr;

use capstan_redis::spec::{Acks, Persistence};
use capstan_redis::status::NodeRecord;
use capstan_testkit::eventually;
use capstan_testkit::redis::Wire;
use capstan_testkit::seed::soak;

use super::installation::{Installation, SOON};
use super::{NODES, spec};

const VALUE: usize = 1 << 20;
/// Bytes of a node: a gigabyte in the long form.
fn values() -> usize {
    soak(24, 1024)
}

/// Appends as many large values as asked to the primary of one slot, and waits until the kernel has them.
async fn fill(run: &Installation) -> NodeRecord {
    let proxies = run.proxies();
    let value = vec![b'x'; VALUE];
    // A host without nodes of the cluster does not have the database.
    let serves =
        |proxy: &&SocketAddr| Wire::follow(**proxy, "GET {large}0").is_ok_and(|said| !said.starts_with('-'));
    let mut at = *proxies.iter().find(serves).unwrap();
    for number in 0..values() {
        let key = format!("{{large}}{number}");
        let mut said = Wire::connect(at).unwrap().ask(&[b"SET", key.as_bytes(), &value]).unwrap();
        if let Some(moved) = String::from_utf8_lossy(&said).strip_prefix("-MOVED ") {
            at = moved.trim().split(' ').nth(1).unwrap().parse().unwrap();
            said = Wire::connect(at).unwrap().ask(&[b"SET", key.as_bytes(), &value]).unwrap();
        }
        assert_eq!(String::from_utf8_lossy(&said), "+OK\r\n");
    }
    let nodes = run.nodes().await.unwrap();
    let filled = nodes.into_iter().find(|node| keys(run, node).is_ok_and(|keys| keys >= values())).unwrap();
    let written = async || match info(run, &filled, "persistence") {
        Ok(info)
            if info.contains("aof_buffer_length:0\r\n") && info.contains("aof_rewrite_in_progress:0\r\n") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    };
    eventually("the kernel has everything", SOON, written).await;
    filled
}

fn keys(run: &Installation, node: &NodeRecord) -> Result<usize, String> {
    let said = run.hosts[run.host_of(node)].node(&node.address).and_then(|mut wire| wire.say("DBSIZE"));
    let said = said.map_err(|error| error.to_string())?;
    said.trim_start_matches(':').trim().parse().map_err(|_| said)
}

fn info(run: &Installation, node: &NodeRecord, section: &str) -> anyhow::Result<String> {
    run.hosts[run.host_of(node)].node(&node.address)?.say(&format!("INFO {section}"))
}

/// Full synchronizations that a node has sent, and bytes that it has received from a primary.
fn copied(run: &Installation, node: &NodeRecord) -> Result<(u64, u64), String> {
    let info = info(run, node, "stats").map_err(|error| error.to_string())?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    field("sync_full:").zip(field("total_net_repl_input_bytes:")).ok_or(info)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_host_returns_with_its_nodes_and_nothing_is_copied() {
    let mut run = Installation::start(2, NODES, &spec(0, Persistence::Aof, Acks::Primary)).await;
    let node = fill(&run).await;
    let (at, before) = (run.host_of(&node), run.nodes().await.unwrap());
    run.hosts[at].kill_daemon();
    run.hosts[at].kill_servers();
    let waits = async || {
        let tree = run.tree().await?;
        let shards = tree.clusters[&run.name()].shards.values();
        let waiting: Vec<_> = shards.filter_map(|seen| seen.record.waiting.clone()).collect();
        if waiting.iter().any(|waiting| waiting.state == "unreachable") {
            Ok(())
        } else {
            Err(format!("{waiting:?}"))
        }
    };
    eventually("the shard waits for its host", SOON, waits).await;
    run.hosts[at].boot().await;
    run.healthy().await;
    assert_eq!(run.nodes().await.unwrap(), before, "the same nodes with the same slots");
    assert!(keys(&run, &node).unwrap() >= values());
    for node in &before {
        assert_eq!(copied(&run, node).unwrap(), (0, 0), "{} copied data", node.address);
    }
}
