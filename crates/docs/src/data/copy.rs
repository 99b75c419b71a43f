//! One token on this node: it applies the log to the engine, and evaluates writes while it leads.
//!
//! One task owns a copy. While it leads, it takes commands in batches: evaluates them one after the other on what is
//! applied, appends their changes in its epoch, and answers when they are committed and applied. Commands are not
//! evaluated on anything that may yet be undone: if the fate of an append is open, the task waits until it is known.

mod lead;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use bytes::Bytes;
use capstan_log::{Log, LogError, Offset, Standing, StateMachine as _};
use capstan_meta::OwnedTask;
use tokio::sync::{mpsc, oneshot, watch};

use super::command::{Changed, Command, Read, Reply, Target, Write};
use super::entry;
use super::find::{Allowance, Question, digest, read, read_little, weigh};
use super::known::{Known, is_remembered};
use super::machine::Machine;
use super::state::{Collection, TokenView, parse};
use crate::error::DocsError;
use crate::id::Token;
use crate::language::text_of_key;
use crate::metrics::DocsMetrics;
use crate::spec::CollectionId;
use crate::storage::{Change, Engine, layout, layout::Applied};

/// Commands that wait for one token; more are refused as busy.
const QUEUE: usize = 1_024;
/// Bytes of log entries that are read at a time.
const READ_BYTES: usize = 1024 * 1024;
/// How long a read waits until its copy has applied everything that was acknowledged.
const APPLY_WITHIN: Duration = Duration::from_secs(5);
/// How long a request for changes waits for news.
const NEWS_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of log entries that one request for changes looks at.
const CHANGES_BYTES: usize = 256 * 1024;
/// Pause after an error that may pass.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes that are applied before the log is shortened.
const SHORTEN_BYTES: usize = 64 * 1024 * 1024;
/// Entries that stay in the log, for holders that are a little behind.
const KEEP_ENTRIES: u64 = 20_000;

/// The first offset that can have data: the entry before it begins the log's first epoch.
const FIRST_DATA: Offset = Offset(1);

/// The data of a token on this node, and how far it was applied.
pub(crate) struct Data {
    pub(super) token: Token,
    pub(super) engine: Arc<dyn Engine>,
    /// One change of the data at a time.
    alone: Mutex<()>,
    /// One copy at a time is installed beside the present one.
    installing: Mutex<()>,
    applied: watch::Sender<Applied>,
    known: Arc<Known>,
    metrics: DocsMetrics,
    /// What comes now belongs to a move of the token to this node. A copy of which there is nothing yet begins so.
    is_moving: AtomicBool,
    /// The log has lost entries that were applied here: writes are refused.
    is_ahead: AtomicBool,
}

impl Data {
    pub(crate) fn open(
        token: Token,
        engine: Arc<dyn Engine>,
        metrics: DocsMetrics,
    ) -> Result<Data, DocsError> {
        let record = engine.get(&Applied::key(token))?;
        let applied = record.as_deref().map(Applied::decode).transpose()?.unwrap_or_default();
        let is_moving = AtomicBool::new(applied.next == 0);
        let applied = watch::Sender::new(applied);
        let (alone, installing, is_ahead) = (Mutex::new(()), Mutex::new(()), AtomicBool::new(false));
        let known = Arc::default();
        Ok(Data { token, engine, alone, installing, applied, known, metrics, is_moving, is_ahead })
    }

    /// Counts bytes that came with a move of the token.
    pub(super) fn count_moved(&self, bytes: usize) {
        self.metrics.moved_bytes(bytes);
    }

    pub(super) fn applied(&self) -> Applied {
        *self.applied.borrow()
    }

    /// What is applied now. A copy that is replaced meanwhile is looked at again.
    pub(super) fn view(&self) -> TokenView {
        loop {
            let (stamp, generation) = (self.known.stamp(), self.applied().generation);
            let view = TokenView::new(&*self.engine, self.token, generation);
            if self.applied().generation == generation {
                return match stamp {
                    Some(stamp) if self.known.stamp() == Some(stamp) => view.knowing(&self.known, stamp),
                    Some(_) | None => view,
                };
            }
        }
    }

    /// Applies what was read from one offset up to another. What was applied before is left out.
    pub(super) fn apply(&self, from: u64, entries: &[(u64, Bytes)], next: u64) -> Result<(), DocsError> {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = self.applied();
        if next <= applied.next {
            return Ok(());
        }
        if from > applied.next {
            let have = applied.next;
            return Err(DocsError::Broken(format!(
                "token {}: entries {have} to {from} are missing",
                self.token
            )));
        }
        let prefix = layout::copy_prefix(self.token, applied.generation);
        let (mut changes, mut changing) = (Vec::new(), None);
        for (offset, bytes) in entries.iter().filter(|(offset, _)| *offset >= applied.next) {
            let decoded = entry::decode(bytes.clone())?;
            if changing.is_none() && decoded.iter().any(is_remembered) {
                changing = Some(self.known.change());
            }
            // The engine deletes ranges before it puts: what was put by earlier entries must be there by then.
            let has_range = decoded.iter().any(|change| matches!(change, Change::DeletePrefix(_)));
            if has_range {
                self.write(std::mem::take(&mut changes), Applied { next: *offset, ..applied })?;
            }
            changes.extend(decoded.into_iter().map(|change| prefixed(&prefix, change)));
            if has_range {
                self.write(std::mem::take(&mut changes), Applied { next: *offset + 1, ..applied })?;
            }
        }
        let applied = Applied { next, ..applied };
        self.write(changes, applied)?;
        self.applied.send_replace(applied);
        Ok(())
    }

    fn write(&self, mut changes: Vec<Change>, applied: Applied) -> Result<(), DocsError> {
        changes.push(Change::Put(Applied::key(self.token), applied.encode()));
        Ok(self.engine.write(changes)?)
    }

    /// Installs another copy of the data: `write` puts its pairs below the prefix that it gets, and the copy counts when
    /// all of them are there. A copy that was cut off is removed first, so that nothing of it is mixed in.
    pub(super) fn install(&self, next: u64, write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let _installing = self.installing.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: DocsError| io::Error::other(error.to_string());
        let before = self.applied();
        let generation = before.generation.wrapping_add(1);
        let prefix = layout::copy_prefix(self.token, generation);
        self.engine
            .write(vec![Change::DeletePrefix(prefix.clone().into())])
            .map_err(|error| failed(error.into()))?;
        write(&prefix)?;
        self.replace(before.generation, Applied { next, generation }).map_err(failed)
    }

    /// Makes another copy of the data the one that counts.
    fn replace(&self, generation: u32, applied: Applied) -> Result<(), DocsError> {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.applied();
        if before.generation != generation {
            let text = format!("token {} was deleted here while a copy of it came", self.token);
            return Err(DocsError::Busy(text));
        }
        let changing = self.known.change();
        self.write(Vec::new(), applied)?;
        self.engine.sync()?;
        self.applied.send_replace(applied);
        drop(changing);
        let old = layout::copy_prefix(self.token, before.generation);
        Ok(self.engine.write(vec![Change::DeletePrefix(old.into())])?)
    }

    /// Keeps copies from being installed; nothing while one is.
    fn between_copies(&self) -> Option<MutexGuard<'_, ()>> {
        match self.installing.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Makes nothing of what this node has of the token count any more. [`Data::sweep`] deletes it.
    pub(super) fn discard(&self) -> Result<(), DocsError> {
        let Some(_installing) = self.between_copies() else {
            return Err(DocsError::Busy(format!("a copy of token {} has not ended yet", self.token)));
        };
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        // Behind the generation that a copy which was cut off may have left.
        let fresh = Applied { next: 0, generation: self.applied().generation.wrapping_add(2) };
        let _changing = self.known.change();
        self.write(Vec::new(), fresh)?;
        self.applied.send_replace(fresh);
        Ok(())
    }

    /// Deletes a generation of the data that does not count: it was replaced, cut off or discarded.
    pub(super) fn sweep(&self, generation: u32) -> Result<(), DocsError> {
        // A copy that comes now is the one that will count.
        let Some(_installing) = self.between_copies() else { return Ok(()) };
        if self.applied().generation == generation {
            return Ok(());
        }
        let old = layout::copy_prefix(self.token, generation);
        Ok(self.engine.write(vec![Change::DeletePrefix(old.into())])?)
    }

    /// Makes what is applied durable. Entries of the log before the answer may be dropped.
    pub(super) fn save(&self) -> Result<Offset, DocsError> {
        let next = self.applied().next;
        self.engine.sync()?;
        Ok(Offset(next))
    }
}

/// [`Data::save`], on a thread of its own.
async fn save(data: &Arc<Data>) -> Result<Offset, DocsError> {
    let data = Arc::clone(data);
    let saved = tokio::task::spawn_blocking(move || data.save()).await;
    saved.map_err(|error| DocsError::Broken(error.to_string()))?
}

fn prefixed(prefix: &[u8], change: Change) -> Change {
    let full = |key: Bytes| Bytes::from([prefix, &key].concat());
    match change {
        Change::Put(key, value) => Change::Put(full(key), value),
        Change::Delete(key) => Change::Delete(full(key)),
        Change::DeletePrefix(key) => Change::DeletePrefix(full(key)),
    }
}

/// What a change of a key means for the documents of a collection.
fn changed(collection: CollectionId, offset: u64, change: &Change) -> Result<Option<Changed>, DocsError> {
    let offset = i64::try_from(offset).unwrap_or(i64::MAX);
    let is_document = |key: &[u8]| matches!(layout::split(key), Some((b'd', id, _)) if id == collection);
    Ok(match change {
        Change::Put(key, value) if is_document(key) => {
            let document: bson::Document = parse(value)?;
            let id = document.get("_id").cloned();
            Some(Changed { offset, document: Some(document), id })
        }
        Change::Delete(key) if is_document(key) => {
            let id = layout::split(key).and_then(|(_, _, rest)| text_of_key(rest));
            Some(Changed { offset, document: None, id })
        }
        Change::DeletePrefix(key) if is_document(key) => Some(Changed { offset, document: None, id: None }),
        Change::Put(..) | Change::Delete(_) | Change::DeletePrefix(_) => None,
    })
}

/// A write that waits for its evaluation.
struct Job {
    target: Target,
    write: Write,
    reply: oneshot::Sender<Result<Reply, DocsError>>,
}

/// A token that is open on this node.
#[derive(Clone)]
pub(crate) struct Copy {
    data: Arc<Data>,
    log: Log,
    jobs: mpsc::Sender<Job>,
    _task: Arc<OwnedTask>,
}

impl Copy {
    pub(crate) fn start(data: Arc<Data>, log: Log) -> Copy {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let standing = log.standing();
        let worker = Worker { data: data.clone(), log: log.clone(), standing, queue, unsaved: 0 };
        Copy { data, log, jobs, _task: Arc::new(OwnedTask::spawn(worker.run())) }
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.log.is_leading()
    }

    /// Carries out a command as the primary.
    pub(crate) async fn carry_out(&self, command: Command) -> Result<Reply, DocsError> {
        match command {
            Command::Write(target, write) => self.write(target, write).await,
            Command::Read(target, what) => {
                self.wait_until_current().await?;
                self.look(target, what).await
            }
            Command::Digest => self.digest().await,
            Command::Changes { collection, from } => self.changes(collection, from).await,
            Command::Position {} => Ok(Reply::Count(i64::try_from(self.position()).unwrap_or(i64::MAX))),
        }
    }

    /// Whether an index of some collection is not complete yet.
    pub(crate) fn is_building(&self) -> bool {
        let view = self.data.view();
        let collections = view.prefixed(layout::COLLECTIONS.to_vec()).filter_map(Result::ok);
        let mut known = collections.filter_map(|(_, value)| parse::<Collection>(&value).ok());
        known.any(|collection| collection.building().is_some())
    }

    /// Makes nodes that have nothing of the token begin with a snapshot, if this copy leads: the log sends one to every
    /// copy that lacks a dropped entry, and the first entry of a log has no data. True once it is so.
    pub(crate) async fn prefer_snapshots(&self) -> bool {
        let dropped = self.drop_first_entry().await;
        if let Err(error) = &dropped {
            tracing::debug!(token = %self.data.token, %error, "the first entry was not dropped; trying again");
        }
        dropped.is_ok() && self.log.status().await.is_ok_and(|status| status.start >= FIRST_DATA)
    }

    async fn drop_first_entry(&self) -> Result<(), DocsError> {
        // Without the entry the engine cannot begin anew: after a power cut it must be behind it.
        if save(&self.data).await? < FIRST_DATA {
            return Ok(());
        }
        Ok(self.log.truncate_before(FIRST_DATA).await?)
    }

    /// Whether the log has lost entries that were applied here.
    pub(crate) fn is_ahead(&self) -> bool {
        self.data.is_ahead.load(Ordering::Relaxed)
    }

    /// Notes whether the token is moving to this node.
    pub(crate) fn set_moving(&self, is_moving: bool) {
        self.data.is_moving.store(is_moving, Ordering::Relaxed);
    }

    /// Log entries that the copy which is furthest behind lacks, as the primary sees it.
    pub(crate) async fn lag(&self) -> u64 {
        let followers = self.log.status().await.map(|status| status.followers).unwrap_or_default();
        followers.into_iter().map(|(_, lacks)| lacks).max().unwrap_or(0)
    }

    /// Documents and bytes of what is applied here.
    pub(crate) async fn weigh(&self) -> Result<(u64, u64), DocsError> {
        let view = self.data.view();
        let found = tokio::task::spawn_blocking(move || weigh(&view)).await;
        found.map_err(|error| DocsError::Broken(error.to_string()))?
    }

    /// The first offset of the log that was not applied here.
    pub(crate) fn position(&self) -> u64 {
        self.data.applied().next
    }

    /// What changed in a collection from an offset on, as soon as there is something, or after a while.
    async fn changes(&self, collection: CollectionId, from: i64) -> Result<Reply, DocsError> {
        let from = u64::try_from(from).map_err(|_| DocsError::refused("an offset is not negative"))?;
        let from = from.max(FIRST_DATA.0);
        if self.log.status().await?.start.0 > from {
            return Err(DocsError::Gone("these changes are not kept any more; begin anew".to_owned()));
        }
        let mut tail = self.log.tail(Offset(from));
        let entries = match tokio::time::timeout(NEWS_WITHIN, tail.next(CHANGES_BYTES)).await {
            Ok(entries) => entries?,
            Err(_) => Vec::new(),
        };
        let mut changes = Vec::new();
        for found in &entries {
            for change in entry::decode(found.data.clone())? {
                changes.extend(changed(collection, found.offset.0, &change)?);
            }
        }
        let next = i64::try_from(tail.position().0.max(from)).unwrap_or(i64::MAX);
        Ok(Reply::Changes { changes, next })
    }

    /// Everything that the token has at one moment after everything that was acknowledged, as a stream of pairs.
    pub(crate) async fn dump(&self) -> Result<capstan_log::Snapshot, DocsError> {
        self.wait_until_current().await?;
        let dumped = Machine::direct(Arc::clone(&self.data)).snapshot(self.log.name(), Offset(0));
        dumped.map_err(|error| DocsError::Broken(error.to_string()))
    }

    async fn write(&self, target: Target, write: Write) -> Result<Reply, DocsError> {
        let (reply, answer) = oneshot::channel();
        let busy = |_| DocsError::Busy(format!("too many writes wait for token {}", self.data.token));
        self.jobs.try_send(Job { target, write, reply }).map_err(busy)?;
        let gone = |_| DocsError::Unknown(format!("token {} was closed on this node", self.data.token));
        answer.await.map_err(gone)?
    }

    /// Waits until everything that was acknowledged before this call is applied here; on the primary only.
    pub(crate) async fn wait_until_current(&self) -> Result<(), DocsError> {
        let index = self.log.read_index().await?;
        if self.data.applied().next >= index.0 {
            return Ok(());
        }
        let mut applied = self.data.applied.subscribe();
        let reached = applied.wait_for(|applied| applied.next >= index.0);
        match tokio::time::timeout(APPLY_WITHIN, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                Err(DocsError::Busy(format!("token {} is behind its log", self.data.token)))
            }
        }
    }

    /// Reads what is applied here, however old it is. Blocking: a read may go through all documents.
    pub(crate) fn read_now(&self, target: &Target, what: &Question<'_>) -> Result<Reply, DocsError> {
        read(&self.data.view(), target, what)
    }

    /// The same if it takes little, as in a task it has to; nothing if it takes more.
    pub(crate) fn read_little(
        &self,
        target: &Target,
        what: &Question<'_>,
        left: &mut Allowance,
    ) -> Result<Option<Reply>, DocsError> {
        read_little(&self.data.view(), target, what, left)
    }

    /// The same from a task.
    pub(crate) async fn look(&self, target: Target, what: Read) -> Result<Reply, DocsError> {
        match what {
            Read::Get(_) | Read::Chunk { .. } | Read::Reservation { .. } => {
                self.read_now(&target, &Question::of(&what)?)
            }
            Read::Find(_) | Read::Count(_) | Read::Group { .. } => {
                let copy = self.clone();
                let read = move || copy.read_now(&target, &Question::of(&what)?);
                let found = tokio::task::spawn_blocking(read).await;
                found.map_err(|error| DocsError::Broken(error.to_string()))?
            }
        }
    }

    /// Count and digest of what is applied here, on any holder.
    async fn digest(&self) -> Result<Reply, DocsError> {
        let (applied, view) = (self.data.applied(), self.data.view());
        let found = tokio::task::spawn_blocking(move || digest(&view)).await;
        let (documents, digest) = found.map_err(|error| DocsError::Broken(error.to_string()))??;
        Ok(Reply::Digest { documents, digest, applied: i64::try_from(applied.next).unwrap_or(i64::MAX) })
    }
}

/// The task of a copy.
struct Worker {
    data: Arc<Data>,
    log: Log,
    standing: watch::Receiver<Standing>,
    queue: mpsc::Receiver<Job>,
    /// Bytes that were applied since the log was shortened.
    unsaved: usize,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let standing = self.standing.borrow_and_update().clone();
            match standing {
                Standing::Leading { epoch, begun } => self.lead(epoch, begun).await,
                Standing::Following { .. } | Standing::Out => self.follow().await,
            }
            if self.standing.has_changed().is_err() || self.queue.is_closed() {
                return;
            }
        }
    }

    /// Applies what is committed until this copy stands differently.
    async fn follow(&mut self) {
        let mut tail = self.log.tail(Offset(self.data.applied().next));
        loop {
            let from = tail.position();
            tokio::select! {
                changed = self.standing.changed() => {
                    if changed.is_err() { tokio::time::sleep(PAUSE).await; }
                    return;
                }
                job = self.queue.recv() => match job {
                    Some(job) => drop(job.reply.send(Err(self.not_primary()))),
                    None => return,
                },
                entries = tail.next(READ_BYTES) => match entries {
                    Ok(entries) => {
                        let entries: Vec<_> = entries.into_iter().map(|e| (e.offset.0, e.data)).collect();
                        if self.data.is_moving.load(Ordering::Relaxed) {
                            self.data.count_moved(entries.iter().map(|(_, bytes)| bytes.len()).sum());
                        }
                        self.apply(from.0, &entries, tail.position().0).await;
                    }
                    Err(error) => {
                        if !matches!(error, LogError::Closed(_)) {
                            tracing::debug!(token = %self.data.token, %error, "cannot follow the log; trying again");
                        }
                        tokio::time::sleep(PAUSE).await;
                        // A snapshot may have been installed meanwhile.
                        tail = self.log.tail(Offset(self.data.applied().next));
                    }
                },
            }
        }
    }

    async fn apply(&mut self, from: u64, entries: &[(u64, Bytes)], next: u64) -> bool {
        if let Err(error) = self.data.apply(from, entries, next) {
            tracing::error!(token = %self.data.token, %error, "log entries cannot be applied; trying again");
            tokio::time::sleep(PAUSE).await;
            return false;
        }
        self.unsaved += entries.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        if self.unsaved > SHORTEN_BYTES {
            self.unsaved = 0;
            self.shorten().await;
        }
        true
    }

    /// Drops old entries of this copy's log, after what they made is durable.
    async fn shorten(&self) {
        let dropped = match save(&self.data).await {
            Ok(saved) => {
                let before = Offset(saved.0.saturating_sub(KEEP_ENTRIES));
                self.log.truncate_before(before).await.map_err(DocsError::from)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = dropped {
            tracing::warn!(token = %self.data.token, %error, "log was not shortened");
        }
    }

    fn not_primary(&self) -> DocsError {
        DocsError::NotPrimary(self.data.token.to_string())
    }
}
