//! What does a primary do? Assigns offsets, ships entries, counts acknowledgments, and maintains the in-sync set.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::Revision;

use super::message::Message;
use super::{Aim, Append, Effect, Moment, Refusal, Replica, Role, Shipment, Timing};
use crate::config::LogConfig;
use crate::entry::{Entry, EntryKind, History, LogEpoch, Offset};
use crate::keys::HolderId;

/// The state of a primary besides its log.
#[derive(Clone, Debug)]
pub(super) struct Primary {
    pub(super) epoch: LogEpoch,
    /// The offset after the first entry of the epoch: a copy with everything before it has every committed entry.
    pub(super) begun: Offset,
    peers: BTreeMap<HolderId, Peer>,
    /// A change that was proposed to the store and may have been committed.
    proposal: Option<Proposal>,
    /// Why no more appends are accepted, and since when.
    aim: Option<(Aim, Moment)>,
}

#[derive(Clone, Debug)]
struct Proposal {
    guard: Revision,
    config: LogConfig,
}

#[derive(Clone, Debug)]
struct Peer {
    contact: Contact,
    /// Its life: acknowledgments of an earlier one do not count.
    life: u64,
    /// When it last acknowledged anything.
    heard: Option<Moment>,
    /// Durable there and matching the primary's log.
    acked: Offset,
    /// When it last made progress, or was up to date.
    progressed: Moment,
    /// The last moment whose log end it has reached.
    caught_up: Moment,
    /// The end of the log at a later moment: reaching it means having caught up with that moment.
    mark: (Offset, Moment),
    /// When something was last sent, and the committed offset in it.
    sent: Moment,
    told: Offset,
    /// Since when it owes an answer: the first message after its last progress.
    owes: Option<Moment>,
    /// The interval until the next heartbeat, if the log is at rest.
    pause: Duration,
}

/// What is known about where a follower's log matches the primary's.
#[derive(Clone, Copy, Debug)]
enum Contact {
    /// Nothing was received in this epoch: only heartbeats are sent.
    Probing,
    /// Matches up to `floor`; `next` is sent next.
    Streaming { floor: Offset, next: Offset },
    /// Receives a snapshot; entries from here on are kept for it.
    Copying { start: Offset },
}

impl Peer {
    fn new(now: Moment, life: u64) -> Peer {
        Peer {
            contact: Contact::Probing,
            life,
            heard: None,
            acked: Offset::ZERO,
            progressed: now,
            caught_up: now,
            mark: (Offset::ZERO, now),
            sent: Moment::ZERO,
            told: Offset::ZERO,
            owes: None,
            pause: Duration::ZERO,
        }
    }

    /// Makes a heartbeat due at once.
    fn hurry(&mut self) {
        (self.sent, self.pause) = (Moment::ZERO, Duration::ZERO);
    }

    /// Records that a message with this committed offset was sent.
    fn note_sent(&mut self, committed: Offset, now: Moment) {
        self.sent = now;
        self.told = committed;
        self.owes.get_or_insert(now);
    }

    /// Whether it has everything up to this end, and was told that all of it is committed.
    fn is_at_rest(&self, end: Offset) -> bool {
        self.acked == end && self.told == end && matches!(self.contact, Contact::Streaming { .. })
    }

    /// Sets the mark to the current end, if the follower has reached the last one.
    fn note_mark(&mut self, end: Offset, now: Moment) {
        if self.acked >= self.mark.0 {
            self.caught_up = self.mark.1;
            self.mark = (end, now);
        }
    }
}

impl Primary {
    pub(super) fn forget_proposal(&mut self, guard: Revision) {
        if self.proposal.as_ref().is_some_and(|proposal| proposal.guard == guard) {
            self.proposal = None;
        }
    }

    /// When the next heartbeat is due; `None` unless the log is at rest.
    pub(super) fn next_heartbeat(
        &self,
        end: Offset,
        committed: Offset,
        config: &LogConfig,
    ) -> Option<Moment> {
        let busy = committed < end || self.aim.is_some() || self.proposal.is_some();
        let rests = |(holder, peer): (&HolderId, &Peer)| config.is_in_sync(holder) && peer.is_at_rest(end);
        if busy || !self.peers.iter().all(rests) {
            return None;
        }
        self.peers.values().map(|peer| peer.sent + peer.pause).min()
    }

    /// The in-sync follower with the most recent answer within this time.
    pub(super) fn liveliest(&self, now: Moment, within: Duration, config: &LogConfig) -> Option<&HolderId> {
        let lively = self.peers.iter().filter_map(|(holder, peer)| Some((peer.heard?, holder)));
        let lively =
            lively.filter(|(heard, holder)| now.saturating_sub(*heard) < within && config.is_in_sync(holder));
        lively.max().map(|(_, holder)| holder)
    }

    pub(super) fn lags(&self, end: Offset) -> Vec<(HolderId, u64)> {
        self.peers.iter().map(|(holder, peer)| (holder.clone(), end.since(peer.acked))).collect()
    }
}

impl Replica {
    /// Begins an epoch with an empty entry, which distinguishes this primary's log from every other tail.
    pub(super) fn lead(&mut self, epoch: LogEpoch, effects: &mut Vec<Effect>) {
        self.depose(effects);
        let at = self.local.history.end();
        let (kind, time) = (EntryKind::Begin, self.newest_time);
        let begin = Entry { epoch, offset: at, kind, time, data: Bytes::new() };
        self.local.history.extend(epoch, 1);
        effects.push(Effect::Write(self.local.generation, vec![begin]));
        let begun = self.local.history.end();
        let primary = Primary { epoch, begun, peers: BTreeMap::new(), proposal: None, aim: None };
        self.role = Role::Primary(Box::new(primary));
        self.reconfigure(effects);
    }

    /// Applies a configuration change within the epoch.
    pub(super) fn reconfigure(&mut self, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&mut self.role, &self.known) else { return };
        if primary.proposal.as_ref().is_some_and(|proposal| proposal.guard < known.revision) {
            primary.proposal = None;
        }
        let members: Vec<HolderId> = known.config.members().filter(|m| **m != self.me).cloned().collect();
        primary.peers.retain(|holder, _| members.contains(holder));
        for member in members {
            primary.peers.entry(member).or_insert_with(|| Peer::new(self.now, 0));
        }
        self.ship_all(effects);
        self.advance(effects);
        self.pursue(effects);
    }

    /// The epoch in which an append is placed now, or why it is rejected.
    fn appending(&self) -> Result<LogEpoch, Refusal> {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else {
            return Err(Refusal::NotPrimary);
        };
        let sealing = primary.proposal.as_ref().is_some_and(|proposal| proposal.config.sealed.is_some());
        match () {
            () if known.config.sealed.is_some() => Err(Refusal::Sealed),
            () if !self.may_act() => Err(Refusal::NoLease),
            () if primary.aim.is_some() || sealing => Err(Refusal::Draining),
            () => Ok(primary.epoch),
        }
    }

    pub(super) fn append(&mut self, appends: Vec<Append>, effects: &mut Vec<Effect>) {
        let appending = self.appending();
        self.note_caught_up();
        let mut entries = Vec::new();
        for Append { ticket, epoch: wanted, time, batch } in appends {
            let fits = |epoch: LogEpoch| match wanted {
                Some(wanted) if wanted != epoch => Err(Refusal::OtherEpoch(epoch, wanted)),
                Some(_) | None => Ok(epoch),
            };
            let epoch = match appending.and_then(fits) {
                Ok(epoch) => epoch,
                Err(why) => {
                    effects.push(Effect::Refused(ticket, why));
                    continue;
                }
            };
            let first = self.local.history.end();
            self.newest_time = self.newest_time.max(whole_millis(time));
            let (kind, time) = (EntryKind::Data, self.newest_time);
            let entry = |(index, data)| Entry { epoch, offset: first.plus(index), kind, time, data };
            self.local.history.extend(epoch, batch.len());
            entries.extend(batch.into_iter().enumerate().map(entry));
            effects.push(Effect::Placed(ticket, first, self.local.history.end()));
        }
        if !entries.is_empty() {
            effects.push(Effect::Write(self.local.generation, entries));
            self.ship_all(effects);
        }
    }

    /// Before the log grows: copies at its end have caught up with this moment, even if they were last heard long ago.
    fn note_caught_up(&mut self) {
        let (now, end) = (self.now, self.local.history.end());
        if let Role::Primary(primary) = &mut self.role {
            primary.peers.values_mut().filter(|peer| peer.acked == end).for_each(|peer| peer.caught_up = now);
        }
    }

    /// Begins to hand over or to seal, or cancels it.
    pub(super) fn take_aim(&mut self, aim: Option<Aim>, effects: &mut Vec<Effect>) {
        let now = self.now;
        if let Role::Primary(primary) = &mut self.role {
            primary.aim = aim.map(|aim| (aim, now));
            // A heartbeat at once, so that the followers answer now.
            primary.peers.values_mut().for_each(Peer::hurry);
            self.tend(effects);
        }
    }

    /// Ends the epoch, or the log, once everything placed is committed.
    pub(super) fn pursue(&mut self, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return };
        let end = self.local.history.end();
        if self.committed < end {
            return;
        }
        let next = match &primary.aim {
            None => return,
            // It has everything and has answered since: the lead is not handed to a dead holder.
            Some((Aim::HandOver(to), since)) if self.acked_by(to) == end && self.heard_since(to, *since) => {
                known.config.elect(to)
            }
            Some((Aim::HandOver(_), _)) => return,
            Some((Aim::Seal, _)) if known.config.sealed.is_none() => known.config.seal(end),
            Some((Aim::Seal, _)) => return,
        };
        if let Ok(next) = next {
            self.propose(next, effects);
        }
    }

    fn heard_since(&self, holder: &HolderId, since: Moment) -> bool {
        let Role::Primary(primary) = &self.role else { return false };
        primary.peers.get(holder).and_then(|peer| peer.heard).is_some_and(|heard| heard > since)
    }

    /// Registers a follower's life. Returns whether to process the message: those of earlier lives are ignored.
    pub(super) fn meet(&mut self, from: &HolderId, life: u64) -> bool {
        let now = self.now;
        let Role::Primary(primary) = &mut self.role else { return false };
        let Some(peer) = primary.peers.get_mut(from) else { return false };
        if life > peer.life {
            *peer = Peer::new(now, life);
        }
        life == peer.life
    }

    /// The offset from which entries are kept because an incomplete copy is about to need them.
    pub(super) fn held_for_copies(&self) -> Offset {
        let Role::Primary(primary) = &self.role else { return Offset(u64::MAX) };
        let held = primary.peers.values().filter_map(|peer| match peer.contact {
            Contact::Copying { start } => Some(start),
            Contact::Streaming { floor, .. } => {
                let moving = self.now.saturating_sub(peer.progressed) < self.timing.lag;
                moving.then_some(floor.max(peer.acked))
            }
            Contact::Probing => None,
        });
        held.min().unwrap_or(Offset(u64::MAX))
    }

    /// A snapshot has arrived or was given up: asks the follower for its history.
    pub(super) fn snapshot_ended(&mut self, to: &HolderId, effects: &mut Vec<Effect>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(to) else { return };
        if let Contact::Copying { .. } = peer.contact {
            peer.contact = Contact::Probing;
            peer.progressed = self.now;
            // A heartbeat at once, which it answers.
            peer.hurry();
            self.tend(effects);
        }
    }

    pub(super) fn acknowledged(&mut self, from: &HolderId, durable: Offset, effects: &mut Vec<Effect>) {
        let end = self.local.history.end();
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(from) else { return };
        let durable = durable.min(end);
        if durable > peer.acked || durable == end {
            peer.progressed = self.now;
            peer.owes = (durable < end).then_some(self.now);
        }
        peer.acked = peer.acked.max(durable);
        peer.note_mark(end, self.now);
        peer.heard = Some(self.now);
        let acked = peer.acked;
        peer.contact = match peer.contact {
            Contact::Probing => Contact::Streaming { floor: acked, next: acked },
            Contact::Streaming { floor, next } => {
                Contact::Streaming { floor: floor.max(acked), next: next.max(acked) }
            }
            Contact::Copying { start } if acked >= start => Contact::Streaming { floor: acked, next: acked },
            Contact::Copying { start } => Contact::Copying { start },
        };
        self.ship(from, effects);
        self.advance(effects);
        self.pursue(effects);
        self.consider_growing(from, effects);
    }

    /// A follower's log does not match: continues from where the two agree.
    pub(super) fn behind(&mut self, from: &HolderId, theirs: &History, effects: &mut Vec<Effect>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(peer) = primary.peers.get_mut(from) else { return };
        let agreement = self.local.history.agreement(theirs).max(peer.acked);
        // One snapshot at a time: until it has arrived, this copy has what it had before.
        if matches!(peer.contact, Contact::Copying { start } if agreement < start) {
            return;
        }
        peer.contact = Contact::Streaming { floor: agreement, next: agreement };
        peer.pause = Duration::ZERO;
        self.ship(from, effects);
    }

    fn ship_all(&mut self, effects: &mut Vec<Effect>) {
        let Role::Primary(primary) = &self.role else { return };
        let holders: Vec<HolderId> = primary.peers.keys().cloned().collect();
        holders.iter().for_each(|holder| self.ship(holder, effects));
    }

    /// Sends what a follower lacks, as far as the window allows.
    fn ship(&mut self, to: &HolderId, effects: &mut Vec<Effect>) {
        let (committed, timing, now) = (self.committed, self.timing, self.now);
        let Local { start, history } = Local { start: self.local.start, history: &self.local.history };
        let Role::Primary(primary) = &mut self.role else { return };
        let epoch = primary.epoch;
        let Some(peer) = primary.peers.get_mut(to) else { return };
        loop {
            let Contact::Streaming { floor, next } = peer.contact else { return };
            if next < start {
                effects.push(Effect::ShipSnapshot(to.clone(), epoch));
                peer.contact = Contact::Copying { start };
                peer.note_sent(committed, now);
                return;
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
            peer.note_sent(committed, now);
            peer.pause = Duration::ZERO;
        }
    }

    /// Sends heartbeats, resends, and removes lagging copies from the set.
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
        let longest = self.longest_pause();
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(epoch_before) = self.local.history.epoch_before(end) else { return };
        for (holder, peer) in &mut primary.peers {
            let at_rest = self.committed == end && peer.is_at_rest(end);
            let pause = if at_rest { peer.pause.clamp(timing.heartbeat, longest) } else { timing.heartbeat };
            if now.saturating_sub(peer.sent) >= pause {
                let (epoch, committed) = (primary.epoch, self.committed);
                let alive =
                    Message::Append { epoch, epoch_before, from: end, entries: Vec::new(), committed };
                effects.push(Effect::Send(holder.clone(), alive));
                peer.note_sent(committed, now);
                peer.pause = if at_rest { (pause * 2).min(longest) } else { timing.heartbeat };
            }
        }
        self.consider_shrinking(effects);
        self.pursue(effects);
        let holders: Vec<HolderId> = self.peers_out_of_sync();
        holders.iter().for_each(|holder| self.consider_growing(holder, effects));
    }

    fn peers_out_of_sync(&self) -> Vec<HolderId> {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return Vec::new() };
        primary.peers.keys().filter(|holder| !known.config.is_in_sync(holder)).cloned().collect()
    }

    /// Commits what every in-sync holder has durably, including holders whose joining may have been committed.
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
            self.apply_floor(effects);
            self.pursue(effects);
        }
    }

    fn acked_by(&self, holder: &HolderId) -> Offset {
        let Role::Primary(primary) = &self.role else { return Offset::ZERO };
        primary.peers.get(holder).map_or(Offset::ZERO, |peer| peer.acked)
    }

    /// Adds a complete copy to the set. It must have everything that existed when the epoch began (this primary cannot
    /// know how much of that was committed before) and everything committed since.
    fn consider_growing(&mut self, holder: &HolderId, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return };
        // An acknowledgment older than the lag limit does not readmit a copy. One that was too slow must keep up for a
        // while.
        let Some(peer) = primary.peers.get(holder) else { return };
        let lively = peer.heard.is_some_and(|heard| self.now.saturating_sub(heard) < self.timing.lag)
            && self.now.saturating_sub(peer.caught_up) < self.timing.behind / 2;
        let complete = lively && self.acked_by(holder) >= primary.begun.max(self.committed);
        let config = &known.config;
        let wanted = !config.is_in_sync(holder) && config.leaving.as_ref() != Some(holder);
        if wanted
            && complete
            && let Ok(next) = config.grow(holder)
        {
            self.propose(next, effects);
        }
    }

    /// Removes copies that make no progress, or too little, if enough remain.
    fn consider_shrinking(&mut self, effects: &mut Vec<Effect>) {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return };
        let (Timing { lag, behind, .. }, end) = (self.timing, self.local.history.end());
        let stuck = |peer: &Peer| {
            peer.owes.is_some_and(|since| self.now.saturating_sub(since) >= lag)
                || peer.acked < end && self.now.saturating_sub(peer.caught_up) >= behind
        };
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

/// Rounded to the precision of a record.
fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

/// The parts of the own log that shipping needs, borrowed separately from the role.
struct Local<'a> {
    start: Offset,
    history: &'a History,
}
