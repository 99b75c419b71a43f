//! Add Host, Remove Host, and the end of a node's quarantine.

use std::collections::BTreeSet;

use capstan_control::epoch::Epoch;
use capstan_meta::record::{Key, Prefix};
use capstan_meta::settle::Progress;

use super::draft::Draft;
use crate::address::Address;
use crate::commit::Next;
use crate::error::BrokerError;
use crate::facts::{HostTree, Tree};
use crate::keys::*;
use crate::status::{Owner, Place};

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The change was made.
    Made,
    /// It was already made.
    Already,
}

impl Change {
    pub(crate) fn found(progress: Progress) -> Change {
        if progress.maybe_ours() { Change::Made } else { Change::Already }
    }
}

pub(crate) fn plan_add(
    tree: &Tree,
    proxy: &Address,
    nodes: &BTreeSet<Address>,
    progress: Progress,
) -> Result<Next<Change>, BrokerError> {
    if let Some(host) = tree.host(proxy) {
        let same = host.owners.keys().eq(nodes.iter());
        return if same {
            Ok(Next::Done(Change::found(progress)))
        } else {
            Err(BrokerError::HostDiffers(proxy.clone()))
        };
    }
    for (other, host) in tree.hosts.iter().filter(|(other, _)| *other != proxy) {
        if let Some(node) = host.owners.keys().find(|node| nodes.contains(*node)) {
            return Err(BrokerError::NodeElsewhere { node: node.clone(), proxy: other.clone() });
        }
    }
    let (epoch, last) = (HostEpochKey { proxy: proxy.clone() }, LastHostEpochKey { proxy: proxy.clone() });
    let before = tree.hosts.get(proxy).and_then(|host| host.last_epoch.clone());
    let first = before.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record).next();
    let mut draft = Draft::new(format!("add host {proxy} with {} nodes", nodes.len()));
    draft.guard(epoch.absent()).guard(last.as_seen(before.as_deref())).nothing_new(&Owners {}, tree);
    draft.then(epoch.put(&first)).then(last.delete());
    for node in nodes {
        let key = OwnerKey { proxy: proxy.clone(), node: node.clone() };
        draft.guard(key.absent()).then(key.put(&Owner(None)));
    }
    Ok(Next::Commit(draft))
}

pub(crate) fn plan_remove(
    tree: &Tree,
    proxy: &Address,
    progress: Progress,
) -> Result<Next<Change>, BrokerError> {
    let Some(host) = tree.host(proxy) else {
        return if progress.maybe_ours() {
            Ok(Next::Done(Change::Made))
        } else {
            Err(BrokerError::NoHost(proxy.clone()))
        };
    };
    let users = users(tree, proxy, host);
    if !users.is_empty() {
        return Err(BrokerError::HostInUse {
            proxy: proxy.clone(),
            users: users.into_iter().collect::<Vec<_>>().join(", "),
        });
    }
    let key = HostEpochKey { proxy: proxy.clone() };
    let mut draft = Draft::new(format!("remove host {proxy}"));
    let epoch = host.epoch.as_deref();
    draft.guard(key.as_seen(epoch));
    for (node, owner) in &host.owners {
        draft.guard(OwnerKey { proxy: proxy.clone(), node: node.clone() }.unchanged(owner));
    }
    draft
        .nothing_new(&OwnersOf { proxy: proxy.clone() }, tree)
        .then(LastHostEpochKey { proxy: proxy.clone() }.put(&epoch.map_or(Epoch(1), |seen| seen.record)))
        .then(key.delete())
        .then(OwnersOf { proxy: proxy.clone() }.delete_all())
        .then(QuarantinesOf { proxy: proxy.clone() }.delete_all())
        .then(HostNodesOf { proxy: proxy.clone() }.delete_all());
    Ok(Next::Commit(draft))
}

fn users<'t>(tree: &'t Tree, proxy: &Address, host: &'t HostTree) -> BTreeSet<&'t str> {
    let owners = host.owners.values().filter_map(|owner| owner.record.0.as_ref());
    let listed =
        tree.clusters.iter().filter(|(_, cluster)| cluster.proxies().contains(proxy)).map(|(name, _)| name);
    owners.chain(listed).map(ClusterName::as_str).collect()
}

/// Frees an emptied node. `emptied_at` is the host's epoch at which it was emptied: a node that was used and
/// released again since stays in quarantine.
#[must_use]
pub fn plan_end_quarantine(tree: &Tree, place: &Place, emptied_at: Epoch) -> Option<Draft> {
    let host = tree.host(&place.proxy)?;
    let quarantine = host.quarantine.get(&place.node)?;
    let owner = host.owners.get(&place.node)?;
    let in_use = owner.record.0.is_some() || host.copies.contains_key(&place.node);
    if in_use || quarantine.record.epoch > emptied_at {
        return None;
    }
    let key = QuarantineKey { proxy: place.proxy.clone(), node: place.node.clone() };
    let mut draft = Draft::new(format!("free the emptied node {place}"));
    draft
        .guard(key.unchanged(quarantine))
        .guard(OwnerKey { proxy: place.proxy.clone(), node: place.node.clone() }.unchanged(owner))
        .then(key.delete());
    Some(draft)
}

/// Raises the epoch of a host above this one; `None` if it is higher already.
pub(crate) fn plan_raise_epoch(
    tree: &Tree,
    proxy: &Address,
    known: Epoch,
) -> Result<Option<Draft>, BrokerError> {
    let host = tree.host(proxy).ok_or_else(|| BrokerError::NoHost(proxy.clone()))?;
    if host.epoch.as_ref().is_none_or(|seen| seen.record > known) {
        return Ok(None);
    }
    let key = HostEpochKey { proxy: proxy.clone() };
    let mut draft = Draft::new(format!("raise the epoch of host {proxy} above {known}"));
    draft.guard(key.as_seen(host.epoch.as_deref())).then(key.put(&known.next()));
    Ok(Some(draft))
}
