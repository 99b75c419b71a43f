//! Who is told first when slots change hands? Pure.
//!
//! After a move the source has let go, so the target is told first and clients are never turned away. When slots are
//! taken from a proxy that may live (its node died, or hands over to a replica), that proxy is told first: nobody serves
//! for a moment, rather than two. If it cannot be told from here, everybody waits until whatever it was granted is over,
//! unless enough coordinators have reported it: then it is over already.

use std::collections::BTreeSet;

use capstan_control::failure::{Quorum, verdicts};

use super::board::Board;
use super::content::Content;
use crate::address::Address;
use crate::broker::{Tree, overlap};
use crate::keys::ClusterName;
use crate::nmctl::Claim;
use crate::slots::SlotRange;

/// Who would gain what.
pub(super) struct Gain<'g> {
    pub tree: &'g Tree,
    pub board: &'g Board,
    pub quorum: Quorum,
    pub proxy: &'g Address,
    /// What the proxy knows, if that is known here.
    pub known: Option<&'g Content>,
    /// What it is to know.
    pub content: &'g Content,
}

impl Gain<'_> {
    /// Why the proxy is not told yet; nothing if it is its turn.
    pub fn must_wait(&self) -> Option<String> {
        let judged = verdicts(&self.tree.reports(), &self.tree.alive(), self.quorum);
        let dead: BTreeSet<&Address> =
            judged.iter().filter(|verdict| verdict.is_dead()).map(|verdict| &verdict.suspect).collect();
        self.target_not_told(&dead).or_else(|| self.owner_not_told(&dead))
    }

    /// The source of a move that is over keeps its clients waiting until the target knows: a source that sends them
    /// there earlier makes them run to and fro. Slots that went elsewhere are not a move that is over.
    fn target_not_told(&self, dead: &BTreeSet<&Address>) -> Option<String> {
        let facts = self.board.all();
        let lost = self
            .known
            .into_iter()
            .flat_map(Content::owned)
            .filter(|(db, range, _)| !owns(self.content, db, *range));
        let moved = lost.filter_map(|(db, range, claim)| moves_to(claim).map(|to| (db, range, to)));
        moved.filter(|(_, _, to)| !dead.contains(to)).find_map(|(db, range, to)| {
            let arrives = Content::unsettled(self.tree, to).is_some_and(|content| owns(&content, db, range));
            let told = facts.get(to).and_then(|fact| fact.confirmed.as_deref());
            let waits = arrives && !told.is_some_and(|told| owns(told, db, range));
            waits.then(|| format!("slots {range} of {db}: {to} has not been told that they are its own"))
        })
    }

    /// Why what this proxy gains may still be served elsewhere.
    fn owner_not_told(&self, dead: &BTreeSet<&Address>) -> Option<String> {
        let gained = gained(self.known, self.content);
        if gained.is_empty() {
            return None;
        }
        let facts = self.board.all();
        let others = self.tree.registered().map(|(other, _)| other).filter(|other| *other != self.proxy);
        others.filter(|other| !dead.contains(other)).find_map(|other| {
            let confirmed = facts.get(other).and_then(|fact| fact.confirmed.as_deref());
            self.may_serve(other, confirmed, &gained)
                .or_else(|| lags(self.tree, self.board, other, self.proxy, self.content))
        })
    }

    /// Why another proxy may still serve what this one gains.
    fn may_serve(
        &self,
        other: &Address,
        confirmed: Option<&Content>,
        gained: &[(ClusterName, SlotRange)],
    ) -> Option<String> {
        let Some(confirmed) = confirmed else {
            return Some(format!("nobody here knows what {other} serves"));
        };
        let (db, range, _) = confirmed.owned().find(|(db, range, claim)| {
            gained.iter().any(|(of, part)| of == *db && overlap(*range, *part).is_some())
                && !is_leaving(claim, self.proxy)
        })?;
        Some(format!("slots {range} of {db}: {other} has not been told to let go"))
    }
}

/// Whether a range is on its way to this proxy: its source let go before the move was committed.
fn is_leaving(claim: &Claim, to: &Address) -> bool {
    moves_to(claim) == Some(to)
}

/// The proxy that a range is on its way to.
fn moves_to(claim: &Claim) -> Option<&Address> {
    match claim {
        Claim::Migrating { to, .. } => Some(to),
        Claim::Stable(_) | Claim::Importing { .. } => None,
    }
}

/// Whether a content says that all of a range is its proxy's.
fn owns(content: &Content, db: &ClusterName, range: SlotRange) -> bool {
    let owned = content.owned().filter(|(of, ..)| *of == db);
    owned.filter_map(|(_, kept, _)| overlap(range, kept)).map(SlotRange::len).sum::<u32>() >= range.len()
}

fn gained(known: Option<&Content>, content: &Content) -> Vec<(ClusterName, SlotRange)> {
    let had = |db: &ClusterName, range| known.is_some_and(|known| owns(known, db, range));
    let gained = content.owned().filter(|(db, range, _)| !had(db, *range));
    gained.map(|(db, range, _)| (db.clone(), range)).collect()
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
