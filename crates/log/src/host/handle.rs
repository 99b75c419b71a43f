//! The handle of a log: append, submit, read, tail, hand over, seal, truncate, status.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::session::SessionState;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Shared;
use super::budget::{Budget, Room};
use super::copy::{Input, Reply};
use super::gauge::{Duty, Gauge};
use crate::config::Incarnation;
use crate::disk::{DiskError, DiskLog, MAX_DATA};
use crate::entry::{Entry, EntryKind, LogEpoch, Offset};
use crate::error::LogError;
use crate::keys::{HolderId, LogName};
use crate::replica::{Aim, Standing, Status};

/// Entries per append; its bytes are limited like those of one entry.
const MAX_BATCH: usize = 4096;
/// Damaged entries that one read repairs before it gives up.
const MAX_REPAIRS: usize = 256;
/// Bytes to read for one entry.
const ONE_ENTRY: usize = 1;

/// A log that is open on this host. Clones share it.
#[derive(Clone, Debug)]
pub struct Log {
    name: LogName,
    disk: DiskLog,
    inputs: mpsc::Sender<Input>,
    gauge: Arc<Gauge>,
    standing: watch::Receiver<Standing>,
    budget: Budget,
    session: watch::Receiver<SessionState>,
    append_within: Duration,
    repair_within: Duration,
}

/// Some committed entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The entries; offsets skip the first entry of each epoch.
    pub entries: Vec<Entry>,
    /// The offset to continue from.
    pub next: Offset,
}

/// A closed segment of a log: everything in it is committed, and the log continues in another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its first offset.
    pub first: Offset,
    /// The offset after its last entry.
    pub end: Offset,
    /// Bytes on disk.
    pub bytes: u64,
}

/// An append that has its offsets and is not committed yet.
#[derive(Debug)]
pub struct Pending {
    log: Log,
    first: Offset,
    end: Offset,
    outcome: oneshot::Receiver<Result<(Offset, Offset), LogError>>,
    until: Instant,
}

impl Pending {
    /// The first offset, and the one after the last.
    #[must_use]
    pub fn offsets(&self) -> (Offset, Offset) {
        (self.first, self.end)
    }

    /// Waits until it is committed. After an error its outcome is given by [`LogError::fate`].
    pub async fn committed(self) -> Result<(Offset, Offset), LogError> {
        match tokio::time::timeout_at(self.until, self.outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(self.log.gone()),
            Err(_) => Err(self.log.not_committed().await),
        }
    }
}

impl Log {
    pub(super) fn new(
        disk: DiskLog,
        inputs: mpsc::Sender<Input>,
        gauge: Arc<Gauge>,
        standing: watch::Receiver<Standing>,
        shared: &Arc<Shared>,
    ) -> Log {
        let options = &shared.options;
        Log {
            name: disk.name().clone(),
            disk,
            inputs,
            gauge,
            standing,
            budget: Budget::new(options.log_bytes, options.host_bytes, &shared.room),
            session: shared.session.clone(),
            append_within: options.append_within,
            repair_within: options.repair_within,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LogName {
        &self.name
    }

    /// Distinguishes the log from earlier ones of the same name.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.disk.incarnation()
    }

    /// Appends consecutive entries and waits until they are committed. Returns the first offset and the one after the
    /// last. After an error, [`LogError::fate`] tells whether they may be in the log.
    pub async fn append(&self, batch: Vec<Bytes>) -> Result<(Offset, Offset), LogError> {
        self.append_when(None, batch).await
    }

    /// The same, only in this epoch: for an owner whose decision is valid only while it leads.
    pub async fn append_in(&self, epoch: LogEpoch, batch: Vec<Bytes>) -> Result<(Offset, Offset), LogError> {
        self.append_when(Some(epoch), batch).await
    }

    async fn append_when(
        &self,
        epoch: Option<LogEpoch>,
        batch: Vec<Bytes>,
    ) -> Result<(Offset, Offset), LogError> {
        let until = Instant::now() + self.append_within;
        let room = self.room(&batch, until).await?;
        let (outcome, answer) = oneshot::channel();
        let reply = Reply { placed: None, outcome, room };
        self.queue(Input::Append(epoch, batch, reply), until).await?;
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(self.not_committed().await),
        }
    }

    /// Appends entries in this epoch and returns as soon as they have offsets; [`Pending`] resolves when they are
    /// committed. Submissions of one task keep their order in the log. Waits while too many bytes are in flight
    /// ([`HostOptions::log_bytes`](super::HostOptions::log_bytes)).
    pub async fn submit(&self, epoch: LogEpoch, batch: Vec<Bytes>) -> Result<Pending, LogError> {
        let until = Instant::now() + self.append_within;
        let room = self.room(&batch, until).await?;
        let ((placed, place), (outcome, answer)) = (oneshot::channel(), oneshot::channel());
        let reply = Reply { placed: Some(placed), outcome, room };
        self.queue(Input::Append(Some(epoch), batch, reply), until).await?;
        match tokio::time::timeout_at(until, place).await {
            Ok(Ok(Ok((first, end)))) => Ok(Pending { log: self.clone(), first, end, outcome: answer, until }),
            Ok(Ok(Err(refused))) => Err(refused),
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(self.not_committed().await),
        }
    }

    async fn room(&self, batch: &[Bytes], until: Instant) -> Result<Room, LogError> {
        let bytes: usize = batch.iter().map(Bytes::len).sum();
        if batch.is_empty() {
            return Err(LogError::Empty);
        }
        if bytes > MAX_DATA || batch.len() > MAX_BATCH {
            return Err(LogError::TooLong(bytes));
        }
        match tokio::time::timeout_at(until, self.budget.room(batch)).await {
            Ok(Some(room)) => Ok(room),
            Ok(None) => Err(self.closed()),
            Err(_) => Err(LogError::Busy(self.name.clone())),
        }
    }

    /// Queues an input. After an error it was not queued.
    async fn queue(&self, input: Input, until: Instant) -> Result<(), LogError> {
        match tokio::time::timeout_at(until, self.inputs.send(input)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.closed()),
            Err(_) => Err(LogError::Busy(self.name.clone())),
        }
    }

    async fn not_committed(&self) -> LogError {
        let config = self.status().await.ok().and_then(|status| status.config);
        let (in_sync, min_copies) = config.map_or((0, 0), |config| (config.in_sync.len(), config.min_copies));
        LogError::NotCommitted { log: self.name.clone(), in_sync, min_copies }
    }

    fn closed(&self) -> LogError {
        LogError::Closed(self.name.clone())
    }

    /// The error of an append in flight when the log was closed.
    fn gone(&self) -> LogError {
        LogError::Uncertain { log: self.name.clone(), why: "the log was closed on this host".to_owned() }
    }

    /// The role of this copy, now and on every change. The lease is not part of it: appends and reads of a primary
    /// check it themselves.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Whether this copy is the primary, as far as it has received.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(*self.standing.borrow(), Standing::Leading { .. })
    }

    /// The offset up to which entries are readable now.
    pub fn committed(&self) -> Result<Offset, LogError> {
        let progress = self.gauge.read();
        match progress.duty {
            Duty::Primary if !self.is_leased() => Err(LogError::NoLease(self.name.clone())),
            Duty::Beginning => Err(LogError::Beginning(self.name.clone())),
            Duty::Primary | Duty::Follower => Ok(progress.committed),
        }
    }

    /// Whether the host's lease is valid and is the one under which this copy acts: while a new lease is granted,
    /// another primary may have been elected without this copy having received it.
    fn is_leased(&self) -> bool {
        self.session.borrow().lease_now().is_some_and(|lease| lease == self.gauge.lease())
    }

    /// An offset after everything acknowledged before this call, by this primary or an earlier one: a state that has
    /// applied every entry before it answers linearizable reads. On the primary only; waits until it serves.
    pub async fn read_index(&self) -> Result<Offset, LogError> {
        if self.gauge.read().duty == Duty::Beginning {
            match tokio::time::timeout(self.append_within, self.gauge.begins()).await {
                Ok(true) => {}
                Ok(false) => return Err(self.closed()),
                Err(_) => return Err(LogError::Beginning(self.name.clone())),
            }
        }
        let progress = self.gauge.read();
        match progress.duty {
            Duty::Follower => Err(LogError::NotPrimary(self.name.clone())),
            Duty::Beginning => Err(LogError::Beginning(self.name.clone())),
            // The lease is checked after the offset is read: if it is valid now, no other primary has acknowledged
            // anything.
            Duty::Primary if self.is_leased() => Ok(progress.committed),
            Duty::Primary => Err(LogError::NoLease(self.name.clone())),
        }
    }

    /// Committed entries from this offset on: about this many bytes, empty if there are none yet. A damaged entry is
    /// repaired from another holder if possible.
    pub async fn read(&self, from: Offset, max_bytes: usize) -> Result<Batch, LogError> {
        let committed = self.committed()?;
        if from >= committed {
            return Ok(Batch { entries: Vec::new(), next: from });
        }
        for _ in 0..MAX_REPAIRS {
            let disk = self.disk.clone();
            let read = tokio::task::spawn_blocking(move || disk.read(from, max_bytes)).await;
            match read.map_err(|_| self.closed())? {
                Ok(entries) => return Ok(batch(entries, from, committed)),
                Err(DiskError::Truncated { start, .. }) => return Err(LogError::Truncated(start)),
                Err(error @ DiskError::Damaged { offset, .. }) => self.repair(offset, error).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.closed())
    }

    async fn repair(&self, offset: Offset, error: DiskError) -> Result<(), LogError> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Repair(offset, reply)).await.map_err(|_| self.closed())?;
        match tokio::time::timeout(self.repair_within, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(error.into()),
        }
    }

    /// Follows the log from this offset on.
    #[must_use]
    pub fn tail(&self, from: Offset) -> Tail {
        Tail { log: self.clone(), next: from }
    }

    /// The first committed offset whose entry was accepted at this time (since 1970) or later; the end if there is
    /// none. Times never decrease along a log, and are as accurate as the clocks of its primaries.
    pub async fn offset_at(&self, time: Duration) -> Result<Offset, LogError> {
        let (mut low, mut high) = (self.disk.start(), self.committed()?);
        while low < high {
            let middle = Offset(low.0 + high.since(low) / 2);
            let disk = self.disk.clone();
            let read = tokio::task::spawn_blocking(move || disk.read(middle, ONE_ENTRY)).await;
            match read.map_err(|_| self.closed())? {
                Ok(entries) => match entries.first() {
                    Some(entry) if entry.time < time => low = middle.plus(1),
                    Some(_) | None => high = middle,
                },
                Err(DiskError::Truncated { start, .. }) => low = start.max(low.plus(1)),
                Err(error @ DiskError::Damaged { offset, .. }) => self.repair(offset, error).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(low)
    }

    /// The closed segments of this copy, oldest first: what a tier can upload.
    pub fn closed_segments(&self) -> Result<Vec<SegmentInfo>, LogError> {
        let committed = self.committed()?;
        let segments = self.disk.segments();
        let pairs = segments.iter().zip(segments.iter().skip(1));
        let closed =
            pairs.map(|((first, bytes), (end, _))| SegmentInfo { first: *first, end: *end, bytes: *bytes });
        Ok(closed.take_while(|segment| segment.end <= committed).collect())
    }

    /// Hands the lead over to another in-sync holder: accepts no more appends, waits until all are committed and the
    /// other holder has everything, and elects it in a new epoch. After a timeout the log continues as before and the
    /// call fails.
    pub async fn hand_over(&self, to: &HolderId, within: Duration) -> Result<LogEpoch, LogError> {
        self.drain(Aim::HandOver(to.clone()), within).await.map(|drained| drained.epoch)
    }

    /// Seals the log: accepts no more appends, waits until all are committed, and records the end. Returns the offset
    /// after the last entry. A sealed log stays sealed.
    pub async fn seal(&self) -> Result<Offset, LogError> {
        self.drain(Aim::Seal, self.append_within).await.map(|drained| drained.end)
    }

    async fn drain(&self, aim: Aim, within: Duration) -> Result<Drained, LogError> {
        let (reply, answer) = oneshot::channel();
        let input = Input::Drain(aim, Instant::now() + within, reply);
        self.inputs.send(input).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| LogError::NotDrained(self.name.clone()))?
    }

    /// Drops committed entries before this offset on this host, in whole segments. To drop them on every holder, raise
    /// the floor in the record ([`LogConfig::raise_floor`](crate::LogConfig::raise_floor)).
    pub async fn truncate_before(&self, offset: Offset) -> Result<(), LogError> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Truncate(offset, reply)).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())?
    }

    /// The status of this copy.
    pub async fn status(&self) -> Result<Status, LogError> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Status(reply)).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())
    }
}

/// The result of a handover or a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drained {
    pub(super) epoch: LogEpoch,
    pub(super) end: Offset,
}

fn batch(entries: Vec<Entry>, from: Offset, committed: Offset) -> Batch {
    let shown = entries.into_iter().take_while(|entry| entry.offset < committed);
    let mut next = from;
    let entries =
        shown.inspect(|entry| next = entry.offset.plus(1)).filter(|e| e.kind == EntryKind::Data).collect();
    Batch { entries, next }
}

/// A reader that waits for new entries.
#[derive(Clone, Debug)]
pub struct Tail {
    log: Log,
    next: Offset,
}

impl Tail {
    /// The next entries, as soon as there are some. Cancel-safe.
    pub async fn next(&mut self, max_bytes: usize) -> Result<Vec<Entry>, LogError> {
        loop {
            if !self.log.gauge.passes(self.next).await {
                return Err(self.log.closed());
            }
            let batch = match self.log.read(self.next, max_bytes).await {
                // This copy became the primary in between and will serve soon.
                Err(LogError::Beginning(_)) => continue,
                read => read?,
            };
            self.next = batch.next;
            if !batch.entries.is_empty() {
                return Ok(batch.entries);
            }
        }
    }

    /// The offset that is read next.
    #[must_use]
    pub fn position(&self) -> Offset {
        self.next
    }
}
