//! What do the owners of a log hold? A handle: append, read, tail, truncate, status.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::session::SessionState;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Shared;
use super::copy::Input;
use super::gauge::{Gauge, Standing};
use crate::disk::{DiskError, DiskLog, MAX_DATA};
use crate::entry::{Entry, EntryKind, Offset};
use crate::error::LogError;
use crate::keys::LogName;
use crate::replica::Status;

/// Entries of one append; its bytes are bounded as one entry's are.
const MAX_BATCH: usize = 4096;
/// Damaged entries that one read has repaired before it gives up.
const MAX_REPAIRS: usize = 256;

/// A log that is open on this host. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    name: LogName,
    disk: DiskLog,
    inputs: mpsc::Sender<Input>,
    gauge: Arc<Gauge>,
    session: watch::Receiver<SessionState>,
    append_within: Duration,
    repair_within: Duration,
}

/// Some committed entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What was appended; offsets may skip the places where an epoch began.
    pub entries: Vec<Entry>,
    /// Where to read on.
    pub next: Offset,
}

impl Log {
    pub(super) fn new(
        name: LogName,
        disk: DiskLog,
        inputs: mpsc::Sender<Input>,
        gauge: Arc<Gauge>,
        shared: &Arc<Shared>,
    ) -> Log {
        let session = shared.session.clone();
        let (append_within, repair_within) = (shared.options.append_within, shared.options.repair_within);
        Log { name, disk, inputs, gauge, session, append_within, repair_within }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LogName {
        &self.name
    }

    /// Appends entries one behind the other and waits until they are committed. Answers with the first offset and the
    /// one behind the last.
    pub async fn append(&self, batch: Vec<Bytes>) -> Result<(Offset, Offset), LogError> {
        let bytes: usize = batch.iter().map(Bytes::len).sum();
        if batch.is_empty() {
            return Err(LogError::Empty);
        }
        if bytes > MAX_DATA || batch.len() > MAX_BATCH {
            return Err(LogError::TooLong(bytes));
        }
        let (reply, answer) = oneshot::channel();
        let waited = tokio::time::timeout(self.append_within, async {
            self.inputs.send(Input::Append(batch, reply)).await.map_err(|_| self.closed())?;
            answer.await.map_err(|_| self.closed())?
        });
        match waited.await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.not_committed().await),
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

    /// Up to where entries may be shown now.
    pub fn committed(&self) -> Result<Offset, LogError> {
        let progress = self.gauge.read();
        match progress.standing {
            Standing::Primary if self.session.borrow().lease_at(Instant::now()).is_none() => {
                Err(LogError::NoLease(self.name.clone()))
            }
            Standing::Primary | Standing::Other => Ok(progress.committed),
        }
    }

    /// Committed entries from this offset on: about so many bytes, none if there is none yet. A damaged entry is
    /// repaired from another holder if one has it.
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

    /// Drops entries before this offset on this host, whole segments at a time; committed ones only.
    pub async fn truncate_before(&self, offset: Offset) -> Result<(), LogError> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Truncate(offset, reply)).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())?
    }

    /// Where this copy stands.
    pub async fn status(&self) -> Result<Status, LogError> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Status(reply)).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())
    }
}

fn batch(entries: Vec<Entry>, from: Offset, committed: Offset) -> Batch {
    let shown = entries.into_iter().take_while(|entry| entry.offset < committed);
    let mut next = from;
    let entries =
        shown.inspect(|entry| next = entry.offset.plus(1)).filter(|e| e.kind == EntryKind::Data).collect();
    Batch { entries, next }
}

/// A reader that waits for more.
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
            let batch = self.log.read(self.next, max_bytes).await?;
            self.next = batch.next;
            if !batch.entries.is_empty() {
                return Ok(batch.entries);
            }
        }
    }

    /// What is read next.
    #[must_use]
    pub fn position(&self) -> Offset {
        self.next
    }
}
