//! `bump_epoch_for_cluster_hosts`: how do the hosts that a change did not touch get it?

use capstan_meta::record::Key;

use super::draft::Draft;
use crate::address::Address;
use crate::facts::{ClusterTree, Tree};
use crate::keys::*;

/// Hosts that one transaction bumps: a compare and a put each, of the 128 that etcd accepts.
const HOSTS_PER_TXN: usize = 100;

/// The next transaction of the task. Hosts that were bumped with the change, or after it, need no second
/// bump; the last transaction removes the task, unless it was triggered again in between.
#[must_use]
pub fn plan_bump(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Option<Draft> {
    let task = cluster.bump.as_ref()?;
    let key = BumpTaskKey { cluster: name.clone() };
    let behind = |proxy: &&Address| {
        let epoch = tree.host(proxy).and_then(|host| host.epoch.as_ref());
        epoch.is_some_and(|epoch| epoch.mod_revision < task.mod_revision)
    };
    let hosts: Vec<&Address> = cluster.proxies().into_iter().filter(behind).collect();
    let what = match hosts.len() {
        0 => format!("all hosts of cluster {name} have its change"),
        hosts => format!("bump {hosts} more hosts of cluster {name}"),
    };
    let mut draft = Draft::new(what);
    draft.guard(key.unchanged(task));
    for proxy in hosts.iter().take(HOSTS_PER_TXN) {
        draft.bump_host(tree, proxy);
    }
    if hosts.len() <= HOSTS_PER_TXN {
        draft.then(key.delete());
    }
    Some(draft)
}
