//! What is wrong with Redis clusters, from a user's point of view? Findings from the metadata alone:
//! coordinators record in it what a shard waits for. Pure.

use capstan_control::failure::{Quorum, verdicts};
use capstan_control::findings::{Code, Finding, Severity};
use capstan_meta::record::Key;

use crate::address::Address;
use crate::decide::settings_of;
use crate::facts::{ClusterTree, Tree};
use crate::keys::{ClusterName, ConfigKey};
use crate::shard::{ShardRecord, Waiting};

/// A shard that is not served.
pub const SHARD_DOWN: Code = Code::new("redis-shard-down");
/// A shard with fewer copies in sync than were asked for.
pub const REPLICAS_NOT_IN_SYNC: Code = Code::new("redis-replicas-not-in-sync");
/// A proxy that a majority of the coordinators cannot reach.
pub const PROXY_UNREACHABLE: Code = Code::new("redis-proxy-unreachable");

/// Why the configuration of a cluster cannot be used, if it cannot. Its proxies then admit no client.
#[must_use]
pub fn config_unreadable(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Option<String> {
    let path = ConfigKey { cluster: name.clone() }.path();
    match &cluster.config {
        None => tree.bad.iter().find(|bad| bad.key == path).map(|bad| bad.reason.clone()),
        Some(config) => settings_of(&config.record.serving).err().map(|error| error.to_string()),
    }
}

/// What coordinators have written down about shards and proxies.
#[must_use]
pub fn findings(tree: &Tree) -> Vec<Finding> {
    let shards = tree.active().flat_map(|(name, cluster)| shards(tree, name, cluster));
    shards.chain(proxies(tree)).collect()
}

fn object(name: &ClusterName, primary: &Address) -> String {
    format!("redis cluster {name}, shard of {primary}")
}

fn shards(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Vec<Finding> {
    let shards = cluster.shards.iter().map(|(primary, seen)| (primary, &seen.record));
    let found = shards.filter_map(|(primary, shard)| {
        let proxy = cluster.nodes.get(primary).map(|seen| &seen.record.proxy_address);
        let host = proxy.and_then(|proxy| tree.host_of(proxy));
        Some(shard_finding(name, cluster, primary, shard)?.on(host))
    });
    found.collect()
}

fn shard_finding(
    name: &ClusterName,
    cluster: &ClusterTree,
    primary: &Address,
    shard: &ShardRecord,
) -> Option<Finding> {
    if let Some(Waiting { state, cause, since }) = &shard.waiting {
        let action = choices(name, primary, state);
        let finding = Finding::new(SHARD_DOWN, Severity::Critical, object(name, primary), cause, action);
        return Some(finding.since(*since));
    }
    let (has, wanted) = (shard.in_sync.len(), cluster.wanted_replicas() + 1);
    (has < wanted && cluster.creating.is_none()).then(|| {
        let cause = format!("{} of {wanted} nodes are in sync: only those can be promoted without loss", has);
        let action =
            format!("wait for the others to catch up; `capstan redis show {name}` shows their state");
        Finding::new(REPLICAS_NOT_IN_SYNC, Severity::Degraded, object(name, primary), cause, action)
    })
}

/// What an operator can do about a shard that is not served.
fn choices(name: &ClusterName, primary: &Address, state: &str) -> String {
    let accept = format!("`capstan redis accept-loss {name} {primary}` continues without its data");
    match state {
        "loading" | "taking-over" => format!("wait: it is making progress; {accept}"),
        "busy" => format!("wait, or kill the script with SCRIPT KILL; {accept}"),
        "lost" => format!(
            "`capstan redis recover {name} {primary} --from NODE` recovers data that a host has set aside; {accept}"
        ),
        _ => {
            format!("wait until its host is back; {accept}, and `capstan redis recover` recovers it later")
        }
    }
}

/// Proxies that a majority reports, with nodes of a cluster behind them.
fn proxies(tree: &Tree) -> Vec<Finding> {
    let judged = verdicts(&tree.reports(), &tree.alive(), Quorum { at_least: 1 }).into_iter();
    let dead = judged.filter(|verdict| verdict.is_dead()).map(|verdict| verdict.suspect);
    let used = |proxy: &Address| tree.active().any(|(_, cluster)| cluster.proxies().contains(proxy));
    let finding = |proxy: Address| {
        let cause = "a majority of the coordinators cannot reach it";
        let action = "start its host, or check the network; the host keeps its nodes";
        let object = format!("redis proxy {proxy}");
        Finding::new(PROXY_UNREACHABLE, Severity::Degraded, object, cause, action).on(tree.host_of(&proxy))
    };
    dead.filter(used).map(finding).collect()
}
