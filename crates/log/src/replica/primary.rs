//! What does a primary do? Gives offsets, ships entries, counts acknowledgments, and keeps the in-sync set honest.

use std::collections::BTreeMap;

use bytes::Bytes;
use capstan_meta::Revision;

use super::message::Message;
use super::{Effect, Moment, Refusal, Replica, Role, Shipment, Ticket};
use crate::config::LogConfig;
use crate::entry::{Entry, EntryKind, History, LogEpoch, Offset};
use crate::keys::HolderId;

/// What a primary knows beside its own log.
#[derive(Clone, Debug)]
pub(super) struct Primary {
    pub(super) epoch: LogEpoch,
    /// Behind the first entry of the epoch: whoever has everything up to here has all that was ever committed.
    begun: Offset,
    peers: BTreeMap<HolderId, Peer>,
    /// A change that was sent to the store and may have happened.
    proposal: Option<Proposal>,
}

#[derive(Clone, Debug)]
struct Proposal {
    guard: Revision,
    config: LogConfig,
}

#[derive(Clone, Debug)]
struct Peer {
    contact: Contact,
    /// Durable there, as the primary has it.
    acked: Offset,
    /// When it last made progress, or had nothing left to do.
    progressed: Moment,
    /// When something was last sent.
    sent: Moment,
}

/// How much is known about where a follower's log agrees with the primary's.
#[derive(Clone, Copy, Debug)]
enum Contact {
    /// Nothing has been heard in this epoch: only signs of life are sent.
    Probing,
    /// Agrees up to `floor`; `next` is sent next.
    Streaming { floor: Offset, next: Offset },
}

impl Primary {
    pub(super) fn forget_proposal(&mut self, guard: Revision) {
        if self.proposal.as_ref().is_some_and(|proposal| proposal.guard == guard) {
            self.proposal = None;
        }
    }

    pub(super) fn lags(&self, end: Offset) -> Vec<(HolderId, u64)> {
        self.peers.iter().map(|(holder, peer)| (holder.clone(), end.since(peer.acked))).collect()
    }
}

impl Replica {
    /// Begins to lead an epoch: an empty entry, from which on everybody else's tail can be told from this one.
    pub(super) fn lead(&mut self, epoch: LogEpoch, effects: &mut Vec<Effect>) {
        self.depose(effects);
        let at = self.local.history.end();
        let begin = Entry { epoch, offset: at, kind: EntryKind::Begin, data: Bytes::new() };
        self.local.history.extend(epoch, 1);
        effects.push(Effect::Write(self.local.generation, vec![begin]));
        let begun = self.local.history.end();
        self.role = Role::Primary(Primary { epoch, begun, peers: BTreeMap::new(), proposal: None });
        self.reconfigure(effects);
    }

    /// The configuration changed within the epoch.
    pub(super) fn reconfigure(&mut self, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&mut self.role, &self.known) else { return };
        if primary.proposal.as_ref().is_some_and(|proposal| proposal.guard < known.revision) {
            primary.proposal = None;
        }
        let members: Vec<HolderId> = known.config.members().filter(|m| **m != self.me).cloned().collect();
        primary.peers.retain(|holder, _| members.contains(holder));
        for member in members {
            primary.peers.entry(member).or_insert(Peer {
                contact: Contact::Probing,
                acked: Offset::ZERO,
                progressed: self.now,
                sent: Moment::ZERO,
            });
        }
        self.ship_all(effects);
        self.advance(effects);
    }

    pub(super) fn append(&mut self, appends: Vec<(Ticket, Vec<Bytes>)>, effects: &mut Vec<Effect>) {
        let epoch = match &self.role {
            Role::Primary(primary) if self.may_act() => primary.epoch,
            Role::Primary(_) => return refuse(&appends, Refusal::NoLease, effects),
            Role::Idle | Role::Claiming | Role::Follower(_) | Role::Halted => {
                return refuse(&appends, Refusal::NotPrimary, effects);
            }
        };
        let mut entries = Vec::new();
        for (ticket, batch) in appends {
            let first = self.local.history.end();
            let entry =
                |(index, data)| Entry { epoch, offset: first.plus(index), kind: EntryKind::Data, data };
            self.local.history.extend(epoch, batch.len());
            entries.extend(batch.into_iter().enumerate().map(entry));
            effects.push(Effect::Placed(ticket, first, self.local.history.end()));
        }
        effects.push(Effect::Write(self.local.generation, entries));
        self.ship_all(effects);
    }

    pub(super) fn acknowledged(&mut self, from: &HolderId, durable: Offset, effects: &mut Vec<Effect>) {
        let end = self.local.history.end();
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(from) else { return };
        let durable = durable.min(end);
        if durable > peer.acked || durable == end {
            peer.progressed = self.now;
        }
        peer.acked = peer.acked.max(durable);
        let acked = peer.acked;
        peer.contact = match peer.contact {
            Contact::Probing => Contact::Streaming { floor: acked, next: acked },
            Contact::Streaming { floor, next } => {
                Contact::Streaming { floor: floor.max(acked), next: next.max(acked) }
            }
        };
        self.ship(from, effects);
        self.advance(effects);
        self.consider_growing(from, effects);
    }

    /// A follower does not fit: goes on from where the two logs agree.
    pub(super) fn behind(&mut self, from: &HolderId, theirs: &History, effects: &mut Vec<Effect>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(from) else { return };
        let agreement = self.local.history.agreement(theirs).max(peer.acked);
        peer.contact = Contact::Streaming { floor: agreement, next: agreement };
        self.ship(from, effects);
    }

    fn ship_all(&mut self, effects: &mut Vec<Effect>) {
        let Role::Primary(primary) = &self.role else { return };
        let holders: Vec<HolderId> = primary.peers.keys().cloned().collect();
        holders.iter().for_each(|holder| self.ship(holder, effects));
    }

    /// Sends what a follower lacks, as far as the window lets it.
    fn ship(&mut self, to: &HolderId, effects: &mut Vec<Effect>) {
        let (committed, timing, now) = (self.committed, self.timing, self.now);
        let Local { start, history } = Local { start: self.local.start, history: &self.local.history };
        let Role::Primary(primary) = &mut self.role else { return };
        let epoch = primary.epoch;
        let Some(peer) = primary.peers.get_mut(to) else { return };
        loop {
            let Contact::Streaming { floor, next } = peer.contact else { return };
            if next < start {
                let mut past = history.clone();
                past.cut(start);
                effects.push(Effect::ShipSnapshot(to.clone(), epoch, past));
                peer.contact = Contact::Streaming { floor, next: start };
                peer.sent = now;
                continue;
            }
            let upto = history.end().min(next.plus(timing.shipment as usize));
            let in_window = upto.since(floor.max(peer.acked)) <= timing.window;
            if upto <= next || !in_window {
                return;
            }
            let Some(epoch_before) = history.epoch_before(next) else { return };
            let shipment = Shipment { epoch, epoch_before, from: next, upto, committed };
            effects.push(Effect::Ship(to.clone(), shipment));
            peer.contact = Contact::Streaming { floor, next: upto };
            peer.sent = now;
        }
    }

    /// Time passes: signs of life, sending again, and taking laggards out.
    pub(super) fn tend(&mut self, effects: &mut Vec<Effect>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let (now, timing, end) = (self.now, self.timing, self.local.history.end());
        for peer in primary.peers.values_mut() {
            let silent = now.saturating_sub(peer.progressed.max(peer.sent)) >= timing.resend;
            if let Contact::Streaming { floor, next } = peer.contact
                && silent
                && next > floor.max(peer.acked)
            {
                peer.contact = Contact::Streaming { floor, next: floor.max(peer.acked) };
            }
        }
        self.ship_all(effects);
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(epoch_before) = self.local.history.epoch_before(end) else { return };
        for (holder, peer) in &mut primary.peers {
            if now.saturating_sub(peer.sent) >= timing.heartbeat {
                let (epoch, committed) = (primary.epoch, self.committed);
                let alive =
                    Message::Append { epoch, epoch_before, from: end, entries: Vec::new(), committed };
                effects.push(Effect::Send(holder.clone(), alive));
                peer.sent = now;
            }
        }
        self.consider_shrinking(effects);
        let holders: Vec<HolderId> = self.peers_out_of_sync();
        holders.iter().for_each(|holder| self.consider_growing(holder, effects));
    }

    fn peers_out_of_sync(&self) -> Vec<HolderId> {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return Vec::new() };
        primary.peers.keys().filter(|holder| !known.config.is_in_sync(holder)).cloned().collect()
    }

    /// Commits what every in-sync holder has durably, the ones that may just have been added included.
    pub(super) fn advance(&mut self, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return };
        if !self.may_act() || known.config.in_sync.len() < known.config.min_copies {
            return;
        }
        let added = primary.proposal.iter().flat_map(|proposal| &proposal.config.in_sync);
        let durable = known
            .config
            .in_sync
            .iter()
            .chain(added)
            .map(|holder| if *holder == self.me { self.local.durable } else { self.acked_by(holder) });
        let committed = durable.min().unwrap_or(Offset::ZERO);
        if committed > self.committed {
            self.committed = committed;
            effects.push(Effect::Committed(committed));
        }
    }

    fn acked_by(&self, holder: &HolderId) -> Offset {
        let Role::Primary(primary) = &self.role else { return Offset::ZERO };
        primary.peers.get(holder).map_or(Offset::ZERO, |peer| peer.acked)
    }

    /// A copy that has everything joins the set. "Everything" is what was there when the epoch began (this primary
    /// cannot know how much of that was committed before) and what was committed since.
    fn consider_growing(&mut self, holder: &HolderId, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return };
        let complete = self.acked_by(holder) >= primary.begun.max(self.committed);
        let config = &known.config;
        let wanted = !config.is_in_sync(holder) && config.leaving.as_ref() != Some(holder);
        if wanted
            && complete
            && let Ok(next) = config.grow(holder)
        {
            self.propose(next, effects);
        }
    }

    /// Copies that make no progress leave the set, if enough are left.
    fn consider_shrinking(&mut self, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return };
        let stuck = |peer: &Peer| self.now.saturating_sub(peer.progressed) >= self.timing.lag;
        let lagging =
            primary.peers.iter().filter(|(holder, peer)| known.config.is_in_sync(holder) && stuck(peer));
        let lagging: Vec<HolderId> = lagging.map(|(holder, _)| holder.clone()).collect();
        if !lagging.is_empty()
            && let Ok(next) = known.config.shrink(&lagging)
        {
            self.propose(next, effects);
        }
    }

    fn propose(&mut self, config: LogConfig, effects: &mut Vec<Effect>) {
        if !self.may_act() {
            return;
        }
        let (Role::Primary(primary), Some(known)) = (&mut self.role, &self.known) else { return };
        if primary.proposal.is_none() {
            primary.proposal = Some(Proposal { guard: known.revision, config: config.clone() });
            effects.push(Effect::Propose(known.revision, config));
        }
    }
}

fn refuse(appends: &[(Ticket, Vec<Bytes>)], why: Refusal, effects: &mut Vec<Effect>) {
    effects.extend(appends.iter().map(|(ticket, _)| Effect::Refused(*ticket, why)));
}

/// The parts of the own log that shipping needs, borrowed beside the role.
struct Local<'a> {
    start: Offset,
    history: &'a History,
}
