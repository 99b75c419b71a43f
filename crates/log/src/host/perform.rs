//! What do the effects of a copy do to the world? Writes, sends, proposals, answers, and repairs of damaged entries.

use bytes::Bytes;
use capstan_meta::Revision;
use std::time::Duration;
use tokio::sync::oneshot;

use super::copy::{Copy, Notice, Placed};
use crate::config::LogConfig;
use crate::disk::{DiskError, Done};
use crate::entry::{Entry, History, Offset};
use crate::error::LogError;
use crate::keys::HolderId;
use crate::net::{Frame, Packet};
use crate::referee::{self, Outcome};
use crate::replica::{Effect, Message, Refusal, Shipment};

/// Bytes of entries in one frame.
const FRAME_BYTES: usize = 1024 * 1024;
/// Bytes of durable entries kept in memory for followers; one that is further behind is served from the page cache.
const RECENT_BYTES: usize = 1024 * 1024;
/// Bytes lent for one repair.
const LEND_BYTES: usize = 256 * 1024;
/// Pause before a proposal with an unknown outcome is asked about again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Copy {
    pub(super) async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Write(generation, entries) => self.write(generation, entries).await,
            Effect::Cut(generation, from) => {
                self.recent.retain(|entry| entry.offset < from);
                self.recent_bytes = self.recent.iter().map(|entry| entry.data.len()).sum();
                let done = self.report(generation, from);
                let queued = self.disk.cut(from, done).await;
                self.queued(queued);
            }
            Effect::Reset(generation, history, snapshot) => self.reset(generation, history, snapshot).await,
            Effect::Truncate(before) => {
                if let Err(error) = self.disk.truncate(before).await {
                    self.end_life(error);
                }
            }
            Effect::Send(to, message) => self.send(&to, Packet::Message(message)),
            Effect::Ship(to, shipment) => self.ship(&to, shipment).await,
            Effect::ShipSnapshot(to, epoch, history) => {
                let snapshot = self.snapshots.take(&self.name, history.end());
                self.send(&to, Packet::Message(Message::Install { epoch, history, snapshot }));
            }
            Effect::Propose(guard, config) => self.propose(guard, config),
            Effect::Placed(ticket, first, end) => {
                if let Some(reply) = self.reply_to(ticket) {
                    self.placed.push_back(Placed { first, end, reply });
                }
            }
            Effect::Refused(ticket, why) => {
                let error = match why {
                    Refusal::NotPrimary => LogError::NotPrimary(self.name.clone()),
                    Refusal::NoLease => LogError::NoLease(self.name.clone()),
                };
                if let Some(reply) = self.reply_to(ticket) {
                    reply.send(Err(error)).ok();
                }
            }
            Effect::Committed(upto) => self.committed(upto),
            Effect::Deposed => {
                for placed in self.placed.drain(..) {
                    placed.reply.send(Err(LogError::Deposed(self.name.clone()))).ok();
                }
            }
            Effect::Diverged(at) => {
                tracing::error!(log = %self.name, %at, "the primary contradicts what is committed here; copy halted");
            }
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

    /// Keeps what is not durable, and some of what is, for followers. Who comes later is served from the disk.
    fn remember(&mut self, entries: &[Entry]) {
        if self.is_alone() {
            self.recent.clear();
            self.recent_bytes = 0;
            return;
        }
        self.recent_bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        self.recent.extend(entries.iter().cloned());
        let durable = self.replica.durable_end();
        while self.recent_bytes > RECENT_BYTES && self.recent.front().is_some_and(|e| e.offset < durable) {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |entry| entry.data.len());
        }
    }

    /// Told when the disk is done; brings the outcome back to the loop.
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

    async fn reset(&mut self, generation: u64, history: History, snapshot: Bytes) {
        let (snapshots, name, start) = (self.snapshots.clone(), self.name.clone(), history.end());
        let installed = tokio::task::spawn_blocking(move || snapshots.install(&name, start, snapshot)).await;
        if let Ok(Err(why)) | Err(why) = installed.map_err(|error| error.to_string()) {
            self.end_life(DiskError::Failed(format!("the snapshot could not be installed: {why}")));
            return;
        }
        self.recent.clear();
        self.recent_bytes = 0;
        let done = self.report(generation, start);
        let queued = self.disk.reset(history, done).await;
        self.queued(queued);
    }

    pub(super) fn send(&self, to: &HolderId, packet: Packet) {
        self.links.send(to, &Frame::About(self.name.clone(), packet));
    }

    async fn ship(&mut self, to: &HolderId, shipment: Shipment) {
        let Shipment { epoch, mut epoch_before, mut from, upto, committed } = shipment;
        while from < upto {
            let entries = match self.own(from, upto).await {
                Ok(entries) if !entries.is_empty() => entries,
                Ok(_) => return,
                // Repaired in the background; the follower's silence has it shipped again.
                Err(DiskError::Damaged { offset, .. }) => return self.ask_for(offset, oneshot::channel().0),
                Err(_) => return,
            };
            let Some(last) = entries.last() else { return };
            let (next, last_epoch) = (last.offset.plus(1), last.epoch);
            let append = Message::Append { epoch, epoch_before, from, entries, committed };
            self.send(to, Packet::Message(append));
            (from, epoch_before) = (next, last_epoch);
        }
    }

    /// Some of the own entries: from memory, else from disk. While this copy leads nothing of them can change.
    async fn own(&self, from: Offset, upto: Offset) -> Result<Vec<Entry>, DiskError> {
        let mut bytes = 0;
        if let Some(first) = self.recent.front().map(|entry| entry.offset).filter(|first| *first <= from) {
            let skipped = from.since(first) as usize;
            let fits = |entry: &&Entry| {
                bytes += entry.data.len();
                entry.offset < upto && (bytes <= FRAME_BYTES || entry.offset == from)
            };
            return Ok(self.recent.iter().skip(skipped).take_while(fits).cloned().collect());
        }
        let disk = self.disk.clone();
        let read = tokio::task::spawn_blocking(move || disk.read(from, FRAME_BYTES)).await;
        let mut entries = read.map_err(|error| DiskError::Failed(error.to_string()))??;
        entries.retain(|entry| entry.offset < upto);
        Ok(entries)
    }

    /// Asks the store for a change until it is known what became of it.
    fn propose(&mut self, guard: Revision, config: LogConfig) {
        let (store, name, notices) = (self.store.clone(), self.name.clone(), self.notices.clone());
        self.background.spawn(async move {
            let notice = loop {
                match referee::propose(&store, &name, guard, &config).await {
                    Outcome::Made(revision) => break Notice::Configured(Box::new(config), revision),
                    Outcome::Stale => match referee::read(&store, &name).await {
                        Ok(found) if found.mod_revision != guard => {
                            break Notice::Configured(Box::new(found.record), found.mod_revision);
                        }
                        Ok(_) | Err(_) => tokio::time::sleep(ASK_AGAIN).await,
                    },
                    Outcome::NotDone => {
                        tokio::time::sleep(ASK_AGAIN).await;
                        break Notice::NotProposed(guard);
                    }
                    Outcome::Unknown => tokio::time::sleep(ASK_AGAIN).await,
                }
            };
            notices.send(notice).ok();
        });
    }

    fn committed(&mut self, upto: Offset) {
        // Whoever is told that an append is committed can read it.
        self.publish();
        while self.placed.front().is_some_and(|placed| placed.end <= upto) {
            if let Some(Placed { first, end, reply }) = self.placed.pop_front() {
                reply.send(Ok((first, end))).ok();
            }
        }
    }

    /// Asks the other holders for an entry that is damaged here.
    pub(super) fn ask_for(&mut self, offset: Offset, reply: oneshot::Sender<()>) {
        let config = self.replica.status(self.now()).config;
        let others = config.iter().flat_map(LogConfig::members).filter(|holder| **holder != self.me);
        others.for_each(|holder| self.send(holder, Packet::Fetch(offset)));
        self.repairs.retain(|(_, waiting)| !waiting.is_closed());
        self.repairs.push((offset, reply));
    }

    /// Another holder has damaged entries; it gets what is committed here.
    pub(super) async fn lend(&mut self, to: &HolderId, from: Offset) {
        let (disk, committed) = (self.disk.clone(), self.replica.committed());
        let read = tokio::task::spawn_blocking(move || disk.read(from, LEND_BYTES)).await;
        if let Ok(Ok(mut entries)) = read {
            entries.retain(|entry| entry.offset < committed);
            self.send(to, Packet::Fetched(entries));
        }
    }

    /// Writes what was lent over what is damaged. The disk refuses what is not the same entry.
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
