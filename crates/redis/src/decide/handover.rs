//! Which proxy gets the push first when slots change owner? Pure.
//!
//! After a move the source has released, so the target is first and clients get no errors. When slots are
//! taken from a proxy that may be alive (its node died, or hands over to a replica), that proxy is first: for
//! a moment the slots are not served, rather than served twice. What counts is what the other proxy itself
//! reported behind a fence: what was pushed to it, and what of it is released. If it cannot be reached from
//! here, the push waits until its grants have expired, unless enough coordinators have reported it: then they
//! have.

use std::collections::BTreeSet;

use capstan_control::epoch::Epoch;
use capstan_control::failure::Quorum;

use super::content::Content;
use super::verdict::dead_addresses;
use crate::address::Address;
use crate::board::{Board, Held};
use crate::facts::Tree;
use crate::keys::ClusterName;
use crate::nmctl::{Claim, Entry};
use crate::shard::Succession;
use crate::slots::{SlotRange, overlap};

/// A proxy that would gain slots.
pub(crate) struct Gain<'g> {
    pub tree: &'g Tree,
    pub board: &'g Board,
    pub quorum: Quorum,
    pub proxy: &'g Address,
    /// What the proxy holds, if it is known here.
    pub held: Option<&'g Held>,
    /// The content to push.
    pub content: &'g Content,
}

impl Gain<'_> {
    /// Why the push has to wait; `None` if it is this proxy's turn.
    pub fn must_wait(&self) -> Option<String> {
        let dead = dead_addresses(self.tree, self.quorum);
        self.target_unconfirmed(&dead).or_else(|| self.old_owner_may_serve(&dead))
    }

    /// The same after all grants of registered coordinators from before the change have ended. It waits only for proxies
    /// that coordinators without the store could still grant; `is_ours` tells that they need this coordinator for it.
    pub fn must_wait_longer(&self, is_ours: impl Fn(&Address) -> bool) -> Option<String> {
        let mut over = dead_addresses(self.tree, self.quorum);
        over.extend(self.tree.registered().map(|(other, _)| other).filter(|other| is_ours(other)).cloned());
        self.old_owner_may_serve(&over)
    }

    /// The source of a completed move keeps its clients waiting until the target has the slots: redirecting them earlier
    /// would bounce them back and forth. Slots that went elsewhere are not part of a completed move.
    fn target_unconfirmed(&self, dead: &BTreeSet<Address>) -> Option<String> {
        let facts = self.board.all();
        let had = self.held.into_iter().flat_map(|held| &held.holding.own.entries);
        let moved = had.filter_map(|entry| moves_to(&entry.claim).map(|to| (entry, to)));
        let lost = moved.filter(|(entry, _)| !owns_all(self.content, &entry.db, entry.claim.range()));
        lost.filter(|(_, to)| !dead.contains(to)).find_map(|(entry, to)| {
            let (db, range) = (&entry.db, entry.claim.range());
            let arrives =
                Content::unsettled(self.tree, to).is_some_and(|content| owns_all(&content, db, range));
            let held = facts.get(to).and_then(|fact| fact.held.as_deref());
            let waits = arrives && !held.is_some_and(|held| covers(&owned(held), db, range));
            waits.then(|| unconfirmed(db, range, to))
        })
    }

    /// Why the slots that this proxy gains may still be served elsewhere.
    fn old_owner_may_serve(&self, dead: &BTreeSet<Address>) -> Option<String> {
        let gained = self.gained();
        if gained.is_empty() {
            return None;
        }
        let facts = self.board.all();
        let others =
            self.tree.registered().filter(|(other, _)| *other != self.proxy && !dead.contains(other));
        others.into_iter().find_map(|(other, host)| {
            let epoch = host.epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record);
            let held = facts.get(other).and_then(|fact| fact.held.as_deref());
            may_serve(other, held, epoch, &gained)
                .or_else(|| lags(self.tree, self.board, other, self.proxy, self.content))
        })
    }

    /// The slots that it gains. Slots that it held before a gap in its epochs count as gained: they may have
    /// had another owner meanwhile.
    fn gained(&self) -> Vec<(ClusterName, SlotRange)> {
        let without_gap = self.held.filter(|held| held.epoch().next() >= self.content.epoch);
        let had = without_gap.map(owned).unwrap_or_default();
        let gained = self.content.owned().filter(|(db, range, _)| !covers(&had, db, *range));
        gained.map(|(db, range, _)| (db.clone(), range)).collect()
    }
}

/// Why the owners in this content are not pushed to other proxies yet: one of them is reachable and does not have its
/// slots yet. It would redirect clients back. Until then the previous owner, which has no other owner for the slots,
/// holds their commands.
pub(crate) fn owner_unconfirmed(
    tree: &Tree,
    board: &Board,
    quorum: Quorum,
    content: &Content,
) -> Option<String> {
    let (facts, dead) = (board.all(), dead_addresses(tree, quorum));
    content.peers.iter().find_map(|Entry { db, address: owner, claim }| {
        let fact = facts.get(owner).filter(|fact| fact.reached && !dead.contains(owner))?;
        let confirmed = fact.held.as_deref().is_some_and(|held| covers(&owned(held), db, claim.range()));
        (!confirmed).then(|| unconfirmed(db, claim.range(), owner))
    })
}

/// Whether every node that loses its slots by this content hands over to a successor that waits for everything it
/// has executed: then its last replies are valid. A node that was found dead and replaced may still reply.
pub(crate) fn is_planned(tree: &Tree, held: Option<&Held>, content: &Content) -> bool {
    let before = held.into_iter().flat_map(|held| &held.holding.own.entries);
    let keeps = |node: &Address| content.own.iter().any(|entry| entry.claim.owns() && entry.address == *node);
    let mut lost = before.filter(|entry| entry.claim.owns() && !keeps(&entry.address));
    lost.all(|Entry { db, address: node, .. }| {
        let Some(cluster) = tree.cluster(db) else { return false };
        match cluster.nodes.get(node).map(|seen| seen.record.replica_of.as_ref()) {
            // Its slots were moved: no command is in flight any more.
            Some(None) => true,
            Some(Some(successor)) => {
                let shard = cluster.shards.get(successor);
                shard.is_some_and(|seen| seen.record.succession == Succession::Agreed)
            }
            None => false,
        }
    })
}

fn unconfirmed(db: &ClusterName, range: SlotRange, owner: &Address) -> String {
    format!("slots {range} of {db}: {owner} has not confirmed them yet")
}

/// Why another proxy, whose host has this epoch, may serve gained slots.
fn may_serve(
    other: &Address,
    held: Option<&Held>,
    epoch: Epoch,
    gained: &[(ClusterName, SlotRange)],
) -> Option<String> {
    let Some(held) = held else {
        return Some(format!("what {other} serves is unknown here"));
    };
    let overlaps = |entry: &&Entry| {
        gained.iter().any(|(db, range)| *db == entry.db && overlap(*range, entry.claim.range()).is_some())
    };
    if let Some(Entry { db, claim, .. }) = held.holding.serves().find(overlaps) {
        return Some(format!("slots {} of {db}: {other} has not given them up", claim.range()));
    }
    let unknown = || format!("what was pushed to {other} before epoch {epoch} is unknown here");
    (!held.covers_until(epoch)).then(unknown)
}

/// The target of a migrating range.
fn moves_to(claim: &Claim) -> Option<&Address> {
    match claim {
        Claim::Migrating { to, .. } => Some(to),
        Claim::Stable(_) | Claim::Importing { .. } => None,
    }
}

/// The ranges that were pushed to a proxy as its own, released or not.
fn owned(held: &Held) -> Vec<(ClusterName, SlotRange)> {
    let own = held.holding.own.entries.iter().filter(|entry| entry.claim.owns());
    own.map(|entry| (entry.db.clone(), entry.claim.range())).collect()
}

/// Whether these cover all of a range.
fn covers(ranges: &[(ClusterName, SlotRange)], db: &ClusterName, range: SlotRange) -> bool {
    let shared = ranges.iter().filter(|(of, _)| of == db).filter_map(|(_, kept)| overlap(range, *kept));
    shared.map(SlotRange::len).sum::<u32>() >= range.len()
}

/// Whether a content assigns all of a range to its proxy.
pub(crate) fn owns_all(content: &Content, db: &ClusterName, range: SlotRange) -> bool {
    let owned = content.owned().filter(|(of, ..)| *of == db);
    owned.filter_map(|(_, kept, _)| overlap(range, kept)).map(SlotRange::len).sum::<u32>() >= range.len()
}

/// Whether a replica here that is being promoted lacks writes of its old primary, which becomes its replica.
fn lags(tree: &Tree, board: &Board, other: &Address, proxy: &Address, content: &Content) -> Option<String> {
    let (here, there) = (board.of(proxy), board.of(other));
    for role in content.roles.iter().filter(|role| role.proxy == *other) {
        let Some(primary) = role.replica_of.as_ref() else { continue };
        let ours = content.roles.iter().any(|node| node.node == *primary && node.proxy == *proxy);
        let (Some(old), Some(new)) = (there.nodes.get(&role.node), here.nodes.get(primary)) else { continue };
        // Only a handover in progress: the old primary still writes, the new one still replicates.
        let under_way = ours && tree.draining.contains(other) && new.linked;
        if under_way && old.is_ready() && new.offset < old.offset && recent(&here, &there) {
            return Some(format!("{primary} is {} bytes behind {}", old.offset - new.offset, role.node));
        }
    }
    None
}

/// Whether the facts were reported at about the same time; older ones are not comparable.
fn recent(one: &crate::board::ProxyFact, other: &crate::board::ProxyFact) -> bool {
    matches!((one.nodes_at, other.nodes_at), (Some(one), Some(other)) if one.max(other).duration_since(one.min(other)).as_secs() < 2)
}
