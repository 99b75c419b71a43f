//! Who is told first when slots change hands? Pure.
//!
//! After a move the source has let go, so the target is told first and clients are never turned away. When slots are
//! taken from a proxy that may live (its node died, or hands over to a replica), that proxy is told first: nobody serves
//! for a moment, rather than two. What counts is what the other proxy itself has said, behind a fence: what it was told
//! by others, and what of it has been let go. If it cannot be asked from here, everybody waits until whatever it was
//! granted is over, unless enough coordinators have reported it: then it is over already.

use std::collections::BTreeSet;

use capstan_control::epoch::Epoch;
use capstan_control::failure::{Quorum, verdicts};

use super::board::{Board, Held};
use super::content::Content;
use crate::address::Address;
use crate::broker::{Tree, overlap};
use crate::keys::ClusterName;
use crate::nmctl::{Claim, Entry};
use crate::slots::SlotRange;

/// Who would gain what.
pub(super) struct Gain<'g> {
    pub tree: &'g Tree,
    pub board: &'g Board,
    pub quorum: Quorum,
    pub proxy: &'g Address,
    /// What the proxy has, if that is known here.
    pub held: Option<&'g Held>,
    /// What it is to know.
    pub content: &'g Content,
}

impl Gain<'_> {
    /// Why the proxy is not told yet; nothing if it is its turn.
    pub fn must_wait(&self) -> Option<String> {
        let dead = dead(self.tree, self.quorum);
        self.target_not_told(&dead).or_else(|| self.owner_not_told(&dead))
    }

    /// The source of a move that is over keeps its clients waiting until the target knows: a source that sends them
    /// there earlier makes them run to and fro. Slots that went elsewhere are not a move that is over.
    fn target_not_told(&self, dead: &BTreeSet<Address>) -> Option<String> {
        let facts = self.board.all();
        let had = self.held.into_iter().flat_map(|held| &held.holding.own.entries);
        let moved = had.filter_map(|entry| moves_to(&entry.claim).map(|to| (entry, to)));
        let lost = moved.filter(|(entry, _)| !owns_all(self.content, &entry.db, entry.claim.range()));
        lost.filter(|(_, to)| !dead.contains(to)).find_map(|(entry, to)| {
            let (db, range) = (&entry.db, entry.claim.range());
            let arrives =
                Content::unsettled(self.tree, to).is_some_and(|content| owns_all(&content, db, range));
            let told = facts.get(to).and_then(|fact| fact.held.as_deref());
            let waits = arrives && !told.is_some_and(|told| covers(&owned(told), db, range));
            waits.then(|| unaware(db, range, to))
        })
    }

    /// Why what this proxy gains may still be served elsewhere.
    fn owner_not_told(&self, dead: &BTreeSet<Address>) -> Option<String> {
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

    /// What it is to have and has not had until now. What it had before a gap in what it was told counts as new: it may
    /// have been somebody else's meanwhile.
    fn gained(&self) -> Vec<(ClusterName, SlotRange)> {
        let without_gap = self.held.filter(|held| held.epoch().next() >= self.content.epoch);
        let had = without_gap.map(owned).unwrap_or_default();
        let gained = self.content.owned().filter(|(db, range, _)| !covers(&had, db, *range));
        gained.map(|(db, range, _)| (db.clone(), range)).collect()
    }
}

/// The proxies that enough coordinators have reported.
fn dead(tree: &Tree, quorum: Quorum) -> BTreeSet<Address> {
    let judged = verdicts(&tree.reports(), &tree.alive(), quorum).into_iter();
    judged.filter(|verdict| verdict.is_dead()).map(|verdict| verdict.suspect).collect()
}

/// Why nobody is sent yet to the owners that this content names: one of them answers and has not been told that it is
/// one. It would send clients back to where they come from. Until then whoever had the slots, and knows of no other
/// owner, lets them wait.
pub(super) fn owner_unaware(tree: &Tree, board: &Board, quorum: Quorum, content: &Content) -> Option<String> {
    let (facts, dead) = (board.all(), dead(tree, quorum));
    content.peers.iter().find_map(|Entry { db, address: owner, claim }| {
        let fact = facts.get(owner).filter(|fact| fact.reached && !dead.contains(owner))?;
        let knows = fact.held.as_deref().is_some_and(|held| covers(&owned(held), db, claim.range()));
        (!knows).then(|| unaware(db, claim.range(), owner))
    })
}

fn unaware(db: &ClusterName, range: SlotRange, owner: &Address) -> String {
    format!("slots {range} of {db}: {owner} has not been told that they are its own")
}

/// Why another proxy, whose host has this epoch, may serve what is gained.
fn may_serve(
    other: &Address,
    held: Option<&Held>,
    epoch: Epoch,
    gained: &[(ClusterName, SlotRange)],
) -> Option<String> {
    let Some(held) = held else {
        return Some(format!("nobody here knows what {other} serves"));
    };
    let overlaps = |entry: &&Entry| {
        gained.iter().any(|(db, range)| *db == entry.db && overlap(*range, entry.claim.range()).is_some())
    };
    if let Some(Entry { db, claim, .. }) = held.holding.serves().find(overlaps) {
        return Some(format!("slots {} of {db}: {other} has not been told to let go", claim.range()));
    }
    let unknown = || format!("nobody here knows what {other} was told before epoch {epoch}");
    (!held.knows_all_until(epoch)).then(unknown)
}

/// The proxy that a range is on its way to.
fn moves_to(claim: &Claim) -> Option<&Address> {
    match claim {
        Claim::Migrating { to, .. } => Some(to),
        Claim::Stable(_) | Claim::Importing { .. } => None,
    }
}

/// The ranges that a proxy was told to be its own, let go or not.
fn owned(held: &Held) -> Vec<(ClusterName, SlotRange)> {
    let own = held.holding.own.entries.iter().filter(|entry| entry.claim.owns());
    own.map(|entry| (entry.db.clone(), entry.claim.range())).collect()
}

/// Whether all of a range is among these.
fn covers(ranges: &[(ClusterName, SlotRange)], db: &ClusterName, range: SlotRange) -> bool {
    let shared = ranges.iter().filter(|(of, _)| of == db).filter_map(|(_, kept)| overlap(range, *kept));
    shared.map(SlotRange::len).sum::<u32>() >= range.len()
}

/// Whether a content says that all of a range is its proxy's.
pub(super) fn owns_all(content: &Content, db: &ClusterName, range: SlotRange) -> bool {
    let owned = content.owned().filter(|(of, ..)| *of == db);
    owned.filter_map(|(_, kept, _)| overlap(range, kept)).map(SlotRange::len).sum::<u32>() >= range.len()
}

/// Whether a replica here that becomes primary lacks writes that its old primary, which follows it now, still has.
fn lags(tree: &Tree, board: &Board, other: &Address, proxy: &Address, content: &Content) -> Option<String> {
    let (here, there) = (board.of(proxy), board.of(other));
    for role in content.roles.iter().filter(|role| role.proxy == *other) {
        let Some(primary) = role.replica_of.as_ref() else { continue };
        let ours = content.roles.iter().any(|node| node.node == *primary && node.proxy == *proxy);
        let (Some(old), Some(new)) = (there.nodes.get(&role.node), here.nodes.get(primary)) else { continue };
        // Only a handover that is under way: the old primary still writes, the new one still follows.
        let under_way = ours && tree.draining.contains(other) && new.linked;
        if under_way && old.is_ready() && new.offset < old.offset && recent(&here, &there) {
            return Some(format!("{primary} is {} bytes behind {}", old.offset - new.offset, role.node));
        }
    }
    None
}

/// Facts that were taken at about the same time; older ones say nothing.
fn recent(one: &super::board::ProxyFact, other: &super::board::ProxyFact) -> bool {
    matches!((one.nodes_at, other.nodes_at), (Some(one), Some(other)) if one.max(other).duration_since(one.min(other)).as_secs() < 2)
}
