//! How are the effects of a copy performed? Writes, sends, proposals, replies, and repairs of damaged entries.

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::Revision;
use tokio::sync::{mpsc, oneshot};

use super::copy::{Copy, Notice, Placed};
use crate::config::LogConfig;
use crate::disk::{DiskError, DiskLog, Done};
use crate::entry::{Entry, Offset};
use crate::error::LogError;
use crate::keys::{HolderId, LogName};
use crate::net::{Frame, Links, Packet};
use crate::referee::{self, Outcome};
use crate::replica::{Effect, Message, Refusal, Shipment};

/// Bytes of entries in one frame.
const FRAME_BYTES: usize = 1024 * 1024;
/// Bytes of durable entries kept in memory for followers; slower ones are served from the page cache.
const RECENT_BYTES: usize = 1024 * 1024;
/// Bytes sent for one repair.
const LEND_BYTES: usize = 256 * 1024;
/// Shipments to one copy that may wait for the disk: one window.
const READS: usize = 16;
/// Pause before a proposal with an unknown outcome is checked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Copy {
    pub(super) async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Write(generation, entries) => self.write(generation, entries).await,
            Effect::Cut(generation, from) => {
                self.recent.retain(|entry| entry.offset < from);
                self.recent_bytes = self.recent.iter().map(weight).sum();
                let done = self.report(generation, from);
                let queued = self.disk.cut(from, done).await;
                self.queued(queued);
            }
            Effect::Reset(generation, history, _) => {
                self.recent.clear();
                self.recent_bytes = 0;
                let done = self.report(generation, history.end());
                let queued = self.disk.reset(history, done).await;
                self.queued(queued);
            }
            Effect::Truncate(before) => {
                if let Err(error) = self.disk.truncate(before).await {
                    self.end_life(error);
                }
            }
            Effect::Send(to, message) => self.send(&to, Packet::Message(message)),
            Effect::Ship(to, shipment) => self.ship(&to, shipment),
            Effect::ShipSnapshot(to, epoch) => self.ship_snapshot(to, epoch),
            Effect::Propose(guard, config) => self.propose(guard, config),
            Effect::Placed(ticket, first, end) => {
                if let Some(mut reply) = self.reply_to(ticket) {
                    reply.place(first, end);
                    self.placed.push_back(Placed { first, end, reply });
                }
            }
            Effect::Refused(ticket, why) => {
                if let Some(reply) = self.reply_to(ticket) {
                    reply.refuse(self.refusal(why));
                }
            }
            Effect::Committed(upto) => self.committed(upto),
            Effect::Deposed => {
                for placed in self.placed.drain(..) {
                    placed.reply.finish(Err(LogError::Deposed(self.name.clone())));
                }
            }
            Effect::Diverged(at) => {
                tracing::error!(log = %self.name, %at, "primary contradicts committed entries, copy halted");
            }
        }
    }

    fn refusal(&self, why: Refusal) -> LogError {
        let log = self.name.clone();
        match why {
            Refusal::NotPrimary => LogError::NotPrimary(log),
            Refusal::NoLease => LogError::NoLease(log),
            Refusal::OtherEpoch(present, wanted) => LogError::OtherEpoch { log, wanted, present },
            Refusal::Draining => LogError::Draining(log),
            Refusal::Sealed => LogError::Sealed(log),
        }
    }

    async fn write(&mut self, generation: u64, entries: Vec<Entry>) {
        let Some(last) = entries.last() else { return };
        let upto = last.offset.plus(1);
        self.remember(&entries);
        let done = self.report(generation, upto);
        let queued = self.disk.append(entries, done).await;
        self.queued(queued);
    }

    /// Keeps the entries that are not durable, and some older ones, for followers. Slower followers are served from
    /// disk.
    fn remember(&mut self, entries: &[Entry]) {
        if self.is_alone() {
            self.recent.clear();
            self.recent_bytes = 0;
            return;
        }
        self.recent_bytes += entries.iter().map(weight).sum::<usize>();
        self.recent.extend(entries.iter().cloned());
        // Only a primary ships.
        self.forget_recent(if self.replica.is_primary() { RECENT_BYTES } else { 0 });
    }

    /// Keeps at most this many bytes of durable entries in memory.
    pub(super) fn forget_recent(&mut self, most: usize) {
        let durable = self.replica.durable_end();
        while self.recent_bytes > most && self.recent.front().is_some_and(|e| e.offset < durable) {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |entry| weight(&entry));
        }
    }

    /// A callback for the disk that reports the outcome to the loop.
    fn report(&mut self, generation: u64, upto: Offset) -> Done {
        self.writing += 1;
        let (life, notices) = (self.life, self.notices.clone());
        Box::new(move |outcome| {
            let outcome = outcome.map_err(Box::new);
            notices.send(Notice::Written { life, generation, upto, outcome }).ok();
        })
    }

    fn queued(&mut self, queued: Result<(), DiskError>) {
        if let Err(error) = queued {
            self.writing -= 1;
            self.end_life(error);
        }
    }

    pub(super) fn send(&self, to: &HolderId, packet: Packet) {
        self.links.send(to, &Frame::About(self.name.clone(), self.disk.incarnation(), packet));
    }

    /// Sends from memory. Older entries are read by a separate task, so that appends do not wait for a copy that is far
    /// behind.
    fn ship(&mut self, to: &HolderId, shipment: Shipment) {
        let mut rest = shipment;
        while rest.from < rest.upto {
            let Some(entries) = self.recent(rest.from, rest.upto) else {
                return self.ship_from_disk(to, rest);
            };
            let Some(append) = next_part(&mut rest, entries) else { return };
            self.send(to, Packet::Message(append));
        }
    }

    /// Some of the own entries from memory; `None` if they are not there.
    fn recent(&self, from: Offset, upto: Offset) -> Option<Vec<Entry>> {
        let first = self.recent.front().map(|entry| entry.offset).filter(|first| *first <= from)?;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.data.len();
            entry.offset < upto && (bytes <= FRAME_BYTES || entry.offset == from)
        };
        Some(self.recent.iter().skip(from.since(first) as usize).take_while(fits).cloned().collect())
    }

    fn ship_from_disk(&mut self, to: &HolderId, shipment: Shipment) {
        let reader = match self.readers.get(to).filter(|reader| !reader.is_closed()) {
            Some(reader) => reader.clone(),
            None => self.start_reader(to),
        };
        // An excess shipment is dropped; the follower's silence triggers another one.
        reader.try_send(shipment).ok();
    }

    fn start_reader(&mut self, to: &HolderId) -> mpsc::Sender<Shipment> {
        let (reader, shipments) = mpsc::channel(READS);
        self.readers.insert(to.clone(), reader.clone());
        let reading = Reading {
            log: self.name.clone(),
            to: to.clone(),
            disk: self.disk.clone(),
            links: Arc::clone(&self.links),
            notices: self.notices.clone(),
        };
        self.background.spawn(reading.run(shipments));
        reader
    }

    /// Proposes a change to the store and retries until the outcome is known.
    pub(super) fn propose(&mut self, guard: Revision, config: LogConfig) {
        let (store, name, notices) = (self.store.clone(), self.name.clone(), self.notices.clone());
        self.background.spawn(async move {
            // Once it may have happened, only the store can tell that it did not.
            let mut unknown = false;
            let notice = loop {
                match referee::propose(&store, &name, guard, &config).await {
                    Outcome::Made(revision) => break Notice::Configured(Box::new(config), revision),
                    Outcome::Stale => match referee::read(&store, &name).await {
                        Ok(found) if found.mod_revision != guard => {
                            break Notice::Configured(Box::new(found.record), found.mod_revision);
                        }
                        Ok(_) | Err(_) => tokio::time::sleep(ASK_AGAIN).await,
                    },
                    Outcome::NotDone if !unknown => {
                        tokio::time::sleep(ASK_AGAIN).await;
                        break Notice::NotProposed(guard);
                    }
                    Outcome::NotDone | Outcome::Unknown => {
                        unknown = true;
                        tokio::time::sleep(ASK_AGAIN).await;
                    }
                }
            };
            notices.send(notice).ok();
        });
    }

    fn committed(&mut self, upto: Offset) {
        self.failures = 0;
        // A client can read its append once it is acknowledged.
        self.publish();
        while self.placed.front().is_some_and(|placed| placed.end <= upto) {
            if let Some(Placed { first, end, reply }) = self.placed.pop_front() {
                reply.finish(Ok((first, end)));
            }
        }
    }

    /// Requests a damaged entry from the other holders.
    pub(super) fn ask_for(&mut self, offset: Offset, reply: oneshot::Sender<()>) {
        let config = self.replica.status(self.now()).config;
        let others = config.iter().flat_map(LogConfig::members).filter(|holder| **holder != self.me);
        others.for_each(|holder| self.send(holder, Packet::Fetch(offset)));
        self.repairs.retain(|(_, waiting)| !waiting.is_closed());
        self.repairs.push((offset, reply));
    }

    /// Sends committed entries to a holder that has damaged ones.
    pub(super) fn lend(&mut self, to: HolderId, from: Offset) {
        let (disk, committed) = (self.disk.clone(), self.replica.committed());
        let (links, log) = (Arc::clone(&self.links), self.name.clone());
        self.background.spawn(async move {
            let incarnation = disk.incarnation();
            let read = tokio::task::spawn_blocking(move || disk.read(from, LEND_BYTES)).await;
            if let Ok(Ok(mut entries)) = read {
                entries.retain(|entry| entry.offset < committed);
                links.send(&to, &Frame::About(log, incarnation, Packet::Fetched(entries)));
            }
        });
    }

    /// Overwrites damaged entries with received ones. The disk rejects entries that differ.
    pub(super) fn borrowed(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.offset) else { return };
        if !self.repairs.iter().any(|(offset, _)| *offset == first) {
            return;
        }
        let (disk, notices, name) = (self.disk.clone(), self.notices.clone(), self.name.clone());
        self.background.spawn(async move {
            match disk.repair(entries).await {
                Ok(()) => drop(notices.send(Notice::Repaired(first))),
                Err(error) => tracing::warn!(log = %name, %error, "damaged entry could not be repaired"),
            }
        });
    }

    pub(super) fn repaired(&mut self, repaired: Offset) {
        tracing::info!(log = %self.name, offset = %repaired, "damaged entry repaired from another holder");
        let (done, waiting) =
            std::mem::take(&mut self.repairs).into_iter().partition(|(o, _)| *o == repaired);
        self.repairs = waiting;
        let done: Vec<(Offset, oneshot::Sender<()>)> = done;
        for (_, reply) in done {
            reply.send(()).ok();
        }
    }
}

/// Bytes of an entry in memory.
fn weight(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.data.len()
}

/// The next message of a shipment, with these entries from its beginning. `None` without entries, or if the log has a
/// new primary: then the entries do not belong to this shipment.
fn next_part(rest: &mut Shipment, entries: Vec<Entry>) -> Option<Message> {
    let last = entries.last()?;
    let (next, last_epoch) = (last.offset.plus(1), last.epoch);
    if last_epoch > rest.epoch {
        return None;
    }
    let Shipment { epoch, epoch_before, from, committed, .. } = *rest;
    (rest.from, rest.epoch_before) = (next, last_epoch);
    Some(Message::Append { epoch, epoch_before, from, entries, committed })
}

/// Reads the disk for one copy that is far behind.
struct Reading {
    log: LogName,
    to: HolderId,
    disk: DiskLog,
    links: Arc<Links>,
    notices: mpsc::UnboundedSender<Notice>,
}

impl Reading {
    async fn run(self, mut shipments: mpsc::Receiver<Shipment>) {
        while let Some(shipment) = shipments.recv().await {
            match self.ship(shipment).await {
                Ok(()) => {}
                // Repaired in the background; the follower's silence triggers another shipment.
                Err(DiskError::Damaged { offset, .. }) => drop(self.notices.send(Notice::Damaged(offset))),
                Err(error) => {
                    tracing::debug!(log = %self.log, to = %self.to, %error, "cannot read entries")
                }
            }
        }
    }

    async fn ship(&self, mut rest: Shipment) -> Result<(), DiskError> {
        while rest.from < rest.upto {
            let (disk, from) = (self.disk.clone(), rest.from);
            let read = tokio::task::spawn_blocking(move || disk.read(from, FRAME_BYTES)).await;
            let mut entries = read.map_err(|error| DiskError::Failed(error.to_string()))??;
            entries.retain(|entry| entry.offset < rest.upto);
            let Some(append) = next_part(&mut rest, entries) else { return Ok(()) };
            let frame = Frame::About(self.log.clone(), self.disk.incarnation(), Packet::Message(append));
            self.links.send(&self.to, &frame);
        }
        Ok(())
    }
}
