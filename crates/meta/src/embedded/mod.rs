//! The embedded store: etcd's model in one process, durable, for one machine (or in memory, for simulations).
//!
//! Everything is in memory: `tree` holds every key's versions, `history` what changed when. One `writer` changes
//! them, in groups that are durable before anyone is told (`desk`: on whose thread); readers share them under a lock
//! and read at the newest durable revision; `hub` tells watchers.

mod check;
mod codec;
mod compaction;
mod desk;
mod durable;
mod engine;
mod eval;
mod history;
mod hub;
mod lessor;
mod read;
mod recovery;
mod snapshot;
mod tree;
mod watcher;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use capstan_disk::{Disk, Os};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use check::{MAX_REQUEST_BYTES, MAX_TXN_OPS};
use desk::{Desk, Medium};
pub use engine::OpenError;
pub use snapshot::{RESTORE_RAISE, RestoreError, restore, restore_on};
use writer::{Alone, Command, Reply, Writer};

use crate::error::{MetaError, Result};
use crate::kv::{LeaseId, Revision};
use crate::request::*;
use crate::store::{Backend, WatchStream};
use crate::task::OwnedTask;

/// How often leases are looked at; etcd's own interval.
const TICK: Duration = Duration::from_millis(500);

/// Keys visited before a long read lets the writer in between.
const READ_CHUNK: usize = 4096;

/// The version of etcd whose behaviour this store follows.
pub const ETCD_VERSION: &str = "3.6.6";

/// How an embedded store behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Revisions of history to keep; older ones are compacted away by itself. Zero: any number.
    pub history: u64,
    /// Bytes of history to keep, at most a quarter of the quota. Zero: any number.
    pub history_bytes: u64,
    /// Bytes of keys, values and history after which puts are refused and etcd's alarm `NOSPACE` is raised. Zero: any
    /// number.
    pub quota_bytes: u64,
    /// Bytes of keys and values that one request may have.
    pub request_bytes: usize,
    /// Bytes of a file of the log before the next one begins.
    pub log_file_bytes: u64,
    /// Shorter leases are made this long.
    pub min_lease_ttl: Duration,
    /// Makes lease and store ids repeatable, for simulations.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            history: 100_000,
            history_bytes: 256 << 20,
            quota_bytes: 2 << 30,
            request_bytes: MAX_REQUEST_BYTES,
            log_file_bytes: 16 << 20,
            min_lease_ttl: Duration::from_secs(2),
            seed: None,
        }
    }
}

/// The embedded store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    cluster_id: u64,
    bounds: Bounds,
    _tasks: Vec<OwnedTask>,
}

/// What the options allow.
#[derive(Clone, Copy)]
struct Bounds {
    request_bytes: usize,
    quota_bytes: u64,
}

impl Bounds {
    fn of(options: &Options) -> Bounds {
        Bounds { request_bytes: options.request_bytes, quota_bytes: options.quota_bytes }
    }
}

/// What readers, watchers and the writer share.
struct Shared {
    state: RwLock<State>,
    hub: Mutex<hub::Hub>,
    failure: OnceLock<MetaError>,
    /// Cancelled when `failure` is set.
    failing: CancellationToken,
    /// The alarm `NOSPACE` is raised: nothing is put until it is disarmed.
    alarm: AtomicBool,
}

/// The store as it is in memory.
struct State {
    tree: tree::Tree,
    history: history::History,
    /// The newest durable revision: what readers read at.
    visible: Revision,
    compacted: Revision,
}

impl State {
    /// Drops the oldest change from memory if it may not be read any more; returns how many events it had.
    fn trim_one(&mut self) -> Option<usize> {
        let change = self.history.pop_before(self.compacted)?;
        change.events.iter().for_each(|event| self.tree.compact(&event.kv.key, self.compacted));
        Some(change.events.len())
    }
}

impl Shared {
    fn has_alarm(&self) -> bool {
        self.alarm.load(Ordering::Relaxed)
    }

    /// Raises or disarms the alarm; returns whether it was raised before.
    fn set_alarm(&self, raised: bool) -> bool {
        let before = self.alarm.swap(raised, Ordering::Relaxed);
        if raised && !before {
            tracing::warn!(
                "alarm NOSPACE raised: puts are refused until keys are deleted and it is disarmed"
            );
        }
        before
    }

    fn state(&self) -> Result<RwLockReadGuard<'_, State>> {
        self.failure().map_or(Ok(()), Err)?;
        Ok(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn state_mut(&self) -> Result<RwLockWriteGuard<'_, State>> {
        self.failure().map_or(Ok(()), Err)?;
        Ok(self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn hub(&self) -> MutexGuard<'_, hub::Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn visible(&self) -> Revision {
        self.state.read().unwrap_or_else(PoisonError::into_inner).visible
    }

    /// Nothing is answered any more; the first reason stays.
    fn fail(&self, reason: MetaError) {
        self.failure.get_or_init(|| reason);
        self.failing.cancel();
        self.hub().dissolve();
    }

    fn failure(&self) -> Option<MetaError> {
        self.failure.get().cloned()
    }
}

impl Embedded {
    /// A store that forgets everything when the last handle is gone. Runs on the current runtime and its clock.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn in_memory(options: Options) -> Embedded {
        let writer = recovery::Recovered::empty().writer(Box::new(engine::Memory), &options);
        Embedded::assemble(writer, Medium::Memory, options.seed.unwrap_or(1), Bounds::of(&options))
    }

    /// Opens the store in a directory, or makes one there. Everything acknowledged before is in it.
    pub async fn open(dir: &Path, options: Options) -> Result<Embedded, OpenError> {
        Embedded::open_on(Arc::new(Os), dir, options).await
    }

    /// The same on a given disk.
    pub async fn open_on(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<Embedded, OpenError> {
        let (path, bounds) = (dir.to_owned(), Bounds::of(&options));
        let opened = tokio::task::spawn_blocking(move || recovery::open(disk, &path, &options)).await;
        let unusable = |what: String| OpenError::Unusable { dir: dir.display().to_string(), what };
        let (writer, cluster_id) = opened.map_err(|error| unusable(error.to_string()))??;
        Ok(Embedded::assemble(writer, Medium::Disk, cluster_id, bounds))
    }

    fn assemble(writer: Writer, medium: Medium, cluster_id: u64, bounds: Bounds) -> Embedded {
        let shared = writer.shared.clone();
        let desk = Arc::new(Desk::new(writer, medium));
        let mut tasks = vec![OwnedTask::spawn(tick(Arc::downgrade(&desk)))];
        if medium == Medium::Memory {
            tasks.push(OwnedTask::spawn(desk::serve_memory(Arc::downgrade(&desk))));
        }
        Embedded { inner: Arc::new(Inner { shared, desk, cluster_id, bounds, _tasks: tasks }) }
    }

    /// Stops the store: what was acknowledged is on disk, the directory is free when this returns.
    pub async fn close(&self) -> Result<()> {
        self.ask(|reply| Command::Alone(Alone::Close(reply))).await
    }

    /// Why the store stopped answering, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<MetaError> {
        self.inner.shared.failure()
    }

    /// Waits until the disk fails or a write panics: nothing is answered any more, and the process should end. A store that
    /// is closed does not fail.
    pub async fn failed(&self) -> MetaError {
        self.inner.shared.failing.cancelled().await;
        match self.failure() {
            Some(error) if error != MetaError::Stopped => error,
            Some(_) | None => std::future::pending().await,
        }
    }

    /// How many watches are open.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.inner.shared.hub().watchers()
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let stopped = || self.inner.shared.failure().unwrap_or(MetaError::Stopped);
        self.inner.desk.hand_in(command(reply)).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    async fn write(&self, op: Op) -> Result<OpResult> {
        check::check(&op, self.inner.bounds.request_bytes)?;
        if check::is_read_only(&op) {
            let state = self.inner.shared.state()?;
            let context =
                eval::Context { head: state.visible, compacted: state.compacted, lease_exists: &|_| true };
            return eval::evaluate_read_only(&state.tree, &op, &context);
        }
        self.ask(|reply| Command::Write(op, reply)).await
    }

    /// Reads in chunks, at one revision, so that a long read does not hold up the writer. Whoever asks for the newest
    /// revision gets it: if that is compacted on the way, everything is read at once.
    fn read(&self, range: &Range) -> Result<RangeResult> {
        check::check_range(range)?;
        match self.read_chunks(range, READ_CHUNK) {
            Err(MetaError::Compacted { .. }) if range.revision.0 <= 0 => self.read_chunks(range, usize::MAX),
            outcome => outcome,
        }
    }

    fn read_chunks(&self, range: &Range, chunk: usize) -> Result<RangeResult> {
        let mut collector = read::Collector::new(range);
        let mut after: Option<Bytes> = None;
        let mut at = Revision::ZERO;
        loop {
            let state = self.inner.shared.state()?;
            if after.is_none() {
                read::check_revision(range.revision, state.visible, state.compacted)?;
                at = read::effective(range.revision, state.visible);
            } else if at < state.compacted {
                return Err(MetaError::Compacted { oldest: state.compacted });
            }
            after =
                state.tree.visit_from(&range.keys, after.as_ref(), chunk, at, &mut |kv| collector.add(kv));
            if after.is_none() {
                let head = if range.revision.0 > 0 { state.visible } else { at };
                return Ok(collector.finish(head));
            }
        }
    }
}

/// Lets the writer know that time passes, as long as the store lives.
async fn tick(desk: Weak<Desk>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(desk) = desk.upgrade() else { return };
        desk.tick().await;
    }
}

fn unexpected() -> MetaError {
    MetaError::Rejected("the store answered another question".into())
}

#[async_trait]
impl Backend for Embedded {
    async fn range(&self, range: Range) -> Result<RangeResult> {
        self.read(&range)
    }

    async fn put(&self, put: Put) -> Result<PutResult> {
        match self.write(Op::Put(put)).await? {
            OpResult::Put(result) => Ok(result),
            OpResult::Range(_) | OpResult::Delete(_) | OpResult::Txn(_) => Err(unexpected()),
        }
    }

    async fn delete(&self, delete: Delete) -> Result<DeleteResult> {
        match self.write(Op::Delete(delete)).await? {
            OpResult::Delete(result) => Ok(result),
            OpResult::Range(_) | OpResult::Put(_) | OpResult::Txn(_) => Err(unexpected()),
        }
    }

    async fn commit(&self, txn: Txn) -> Result<TxnResult> {
        match self.write(Op::Txn(txn)).await? {
            OpResult::Txn(result) => Ok(result),
            OpResult::Range(_) | OpResult::Put(_) | OpResult::Delete(_) => Err(unexpected()),
        }
    }

    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>> {
        Ok(Box::new(watcher::Watcher::open(self.inner.shared.clone(), &watch)?))
    }

    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease> {
        self.ask(|reply| Command::LeaseGrant(id, ttl, reply)).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision> {
        self.ask(|reply| Command::LeaseRevoke(id, reply)).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration> {
        self.ask(|reply| Command::LeaseKeepAlive(id, reply)).await
    }

    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.ask(|reply| Command::LeaseInfo(id, reply)).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>> {
        self.ask(Command::Leases).await
    }

    async fn compact(&self, revision: Revision) -> Result<Revision> {
        self.ask(|reply| Command::Compact(revision, reply)).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        let size = self.ask(|reply| Command::Alone(Alone::Size(reply))).await?;
        let state = self.inner.shared.state()?;
        Ok(StoreStatus {
            revision: state.visible,
            compacted: state.compacted,
            version: ETCD_VERSION.into(),
            db_size: size.total,
            db_size_in_use: size.in_use,
            db_size_quota: self.inner.bounds.quota_bytes,
            cluster_id: self.inner.cluster_id,
            member_id: self.inner.cluster_id.rotate_left(32) | 1,
            term: 2,
        })
    }

    async fn snapshot(&self) -> Result<mpsc::Receiver<Result<Bytes>>> {
        snapshot::save(self).await
    }

    async fn defragment(&self) -> Result<()> {
        self.ask(|reply| Command::Alone(Alone::Defragment(reply))).await
    }

    async fn has_no_space_alarm(&self) -> Result<bool> {
        Ok(self.inner.shared.has_alarm())
    }

    async fn set_no_space_alarm(&self, raised: bool) -> Result<()> {
        self.ask(|reply| Command::SetAlarm(raised, reply)).await
    }

    async fn users(&self) -> Result<Bytes> {
        Ok(self.ask(|reply| Command::Alone(Alone::Present(reply))).await?.users)
    }

    async fn set_users(&self, record: Bytes) -> Result<()> {
        self.ask(|reply| Command::SetUsers(record, reply)).await
    }
}

/// Where ids come from: the machine, or a seed.
fn ids(options: &Options) -> StdRng {
    options.seed.map_or_else(|| StdRng::from_rng(&mut rand::rng()), StdRng::seed_from_u64)
}
