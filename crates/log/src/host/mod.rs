//! How does a host run its logs? One directory, one listener, and one task per open log.
//!
//! A [`Host`] is the shell around the pure state machines: it performs the effects of each log's [`Replica`] on the
//! disk, the network and the metadata store, and returns the outcomes as events.
//!
//! [`Replica`]: crate::replica::Replica

mod budget;
mod copy;
mod gauge;
mod handle;
mod machine;
mod perform;
mod records;
mod transfer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capstan_meta::session::SessionState;
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{OwnedTask, Revision, Store};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::config::{Incarnation, LogConfig, Refused};
use crate::disk::{Disk, DiskLog};
use crate::error::LogError;
use crate::keys::{GraveKeys, HolderId, LogKeys, LogName};
use crate::net::{self, AddressBook, Links, Packet, Tls};
use crate::referee;
use crate::replica::Timing;
use budget::Budget;
use copy::{Arrived, Copy};
pub use handle::{Batch, Log, Pending, SegmentInfo, Tail};
pub use machine::{NoSnapshots, Snapshot, StateMachine};

/// Inputs that may wait for one log: more than all its clients and followers have in flight.
const QUEUE: usize = 4096;

/// Options of a host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The id of this host as a holder.
    pub me: HolderId,
    /// The timeouts of its copies.
    pub timing: Timing,
    /// How long an append waits for its copies before it fails.
    pub append_within: Duration,
    /// How long the repair of a damaged entry waits for another holder.
    pub repair_within: Duration,
    /// The maximum bytes of uncommitted appends to one log; further appends wait.
    pub log_bytes: usize,
    /// The maximum bytes of uncommitted appends to all logs of the host.
    pub host_bytes: usize,
    /// Certificates, by which holders recognize each other; without any, every peer that reaches the port is trusted.
    pub tls: Option<Tls>,
}

impl HostOptions {
    /// The default options.
    #[must_use]
    pub fn new(me: HolderId) -> HostOptions {
        HostOptions {
            me,
            timing: Timing::default(),
            append_within: Duration::from_secs(10),
            repair_within: Duration::from_secs(5),
            log_bytes: 32 * 1024 * 1024,
            host_bytes: 256 * 1024 * 1024,
            tls: None,
        }
    }
}

/// The logs of this host. Clones share them; the tasks end with the last clone.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<OwnedTask>>,
}

/// What the host's tasks share.
struct Shared {
    options: HostOptions,
    disk: Disk,
    store: Store,
    session: watch::Receiver<SessionState>,
    links: Arc<Links>,
    open: Mutex<HashMap<LogName, Opened>>,
    /// At most one log is opened or deleted at a time.
    opening: tokio::sync::Mutex<()>,
    /// Bytes of appends that are not committed yet, and of packets that were not processed yet.
    room: Arc<Semaphore>,
    inbox: Arc<Semaphore>,
    /// The next life number of a copy; each start of the host begins with a higher one.
    lives: AtomicU64,
}

/// A configuration and its revision; `None` before the first.
type Told = Option<(Box<LogConfig>, Revision)>;

struct Opened {
    /// What other holders send, and the limit of its bytes.
    packets: mpsc::Sender<Arrived>,
    inbox: Budget,
    /// Only the newest counts, so it never waits in a queue.
    configs: watch::Sender<Told>,
    log: Log,
    incarnation: Incarnation,
    _task: OwnedTask,
}

impl Opened {
    /// Passes a configuration to the log, unless it has a newer one.
    fn configure(&self, config: LogConfig, revision: Revision) {
        if config.incarnation == self.incarnation {
            self.configs.send_if_modified(|told| {
                let newer = told.as_ref().is_none_or(|(_, known)| *known < revision);
                if newer {
                    *told = Some((Box::new(config), revision));
                }
                newer
            });
        }
    }
}

/// The pace of heartbeats of logs at rest: each waits this long for every log that is open here, so that their cost does
/// not grow with their number.
const REST_PER_LOG: Duration = Duration::from_micros(500);

/// Bits for lives of copies within one start of a host.
const LIVES: u32 = 24;

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.inner.shared.options.me)
    }
}

impl Host {
    /// Starts a host with this directory, metadata store, lease and addresses. Without a listener it can only keep
    /// single-copy logs.
    pub async fn start(
        options: HostOptions,
        disk: Disk,
        store: Store,
        session: watch::Receiver<SessionState>,
        listener: Option<TcpListener>,
        book: AddressBook,
    ) -> Result<Host, LogError> {
        let starts = records::begin(&store, &options.me, &disk).await?;
        let ranges = Ranges::new().with(&LogKeys {}).with(&GraveKeys {});
        let view = View::open(store.clone(), ranges, ViewOptions::default()).await?;
        let links = Arc::new(Links::new(options.me.clone(), book, options.tls.clone()));
        let shared = Arc::new(Shared {
            room: budget::host(options.host_bytes),
            inbox: budget::host(options.host_bytes),
            options,
            disk,
            store,
            session,
            links,
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            lives: AtomicU64::new(starts << LIVES),
        });
        let mut tasks = vec![OwnedTask::spawn(records::follow(Arc::clone(&shared), view))];
        if let Some(listener) = listener {
            let tls = shared.options.tls.clone();
            tasks.push(OwnedTask::spawn(net::serve(listener, tls, Postman(Arc::clone(&shared)))));
        }
        Ok(Host { inner: Arc::new(Inner { shared, tasks: Mutex::new(tasks) }) })
    }

    /// Opens a log on this host. Its record must exist ([`crate::referee::create`]).
    pub async fn open(&self, name: &LogName, machine: Arc<dyn StateMachine>) -> Result<Log, LogError> {
        let shared = &self.inner.shared;
        let _alone = shared.opening.lock().await;
        if let Some(opened) = shared.opened(name) {
            return Ok(opened);
        }
        let found = referee::read(&shared.store, name).await?;
        let disk = shared.copy_of(name, &found.record).await?;
        let lacks = machine.applied(name).is_some_and(|applied| applied < disk.start());
        let disk = if lacks { shared.copy_anew(name, &disk).await? } else { disk };
        let found = if lacks {
            referee::read(&shared.store, name).await?
        } else if disk.is_incomplete() {
            shared.leave_in_sync_set(name).await?;
            disk.trust().await?;
            referee::read(&shared.store, name).await?
        } else {
            found
        };
        let (inputs, queue) = mpsc::channel(QUEUE);
        let (packets, arrived) = mpsc::channel(QUEUE);
        let incarnation = disk.incarnation();
        let (configs, told) = watch::channel(None);
        let copy = Copy::new(shared, disk.clone(), machine, inputs.downgrade());
        let log = Log::new(disk, inputs, copy.gauge(), copy.standing(), shared);
        let task = OwnedTask::spawn(copy.run(queue, arrived, told));
        let HostOptions { log_bytes, host_bytes, .. } = shared.options;
        let inbox = Budget::new(log_bytes, host_bytes, &shared.inbox);
        let opened = Opened { packets, inbox, configs, log: log.clone(), incarnation, _task: task };
        opened.configure(found.record, found.mod_revision);
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), opened);
        Ok(log)
    }

    /// Stops a log on this host; its copy stays on disk.
    pub fn close(&self, name: &LogName) {
        self.inner.shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Stops a log on this host and deletes its copy, if the record no longer names this host, or the log was deleted
    /// ([`crate::referee::delete`]). Otherwise refuses: a copy without a record may be the last one. A missing copy is
    /// not an error.
    pub async fn delete(&self, name: &LogName) -> Result<(), LogError> {
        self.inner.shared.delete(name).await
    }

    /// Stops a log on this host and deletes its copy whatever the records say: for an operator who has verified that it
    /// is not needed.
    pub async fn discard(&self, name: &LogName) -> Result<(), LogError> {
        let _alone = self.inner.shared.opening.lock().await;
        match self.inner.shared.disk.find(name) {
            Some(copy) => self.inner.shared.remove(name, &copy).await,
            None => Ok(()),
        }
    }

    /// The copies in this host's directory, open or not, by name.
    #[must_use]
    pub fn copies(&self) -> Vec<DiskLog> {
        let mut copies = self.inner.shared.disk.logs();
        copies.sort_by(|one, other| one.name().cmp(other.name()));
        copies
    }

    /// Holders that have not answered a message for this long.
    #[must_use]
    pub fn silent(&self, within: Duration) -> Vec<HolderId> {
        self.inner.shared.links.silent(within)
    }

    /// Whether this host's directory has a copy of a log, open or not.
    #[must_use]
    pub fn has_copy(&self, name: &LogName) -> bool {
        self.inner.shared.disk.find(name).is_some()
    }

    /// A log that is open here.
    #[must_use]
    pub fn log(&self, name: &LogName) -> Option<Log> {
        self.inner.shared.opened(name)
    }

    /// Every log that is open here, by name.
    #[must_use]
    pub fn logs(&self) -> Vec<Log> {
        let open = self.inner.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut logs: Vec<Log> = open.values().map(|opened| opened.log.clone()).collect();
        logs.sort_by(|one, other| one.name().cmp(other.name()));
        logs
    }

    /// Stops everything cleanly; the next start replays nothing.
    pub async fn stop(&self) -> Result<(), LogError> {
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.inner.shared.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(self.inner.shared.disk.close().await?)
    }
}

impl Shared {
    /// A life number larger than all before.
    fn next_life(&self) -> u64 {
        self.lives.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The maximum interval between heartbeats of a log at rest.
    fn longest_pause(&self) -> Duration {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).len();
        REST_PER_LOG * u32::try_from(open).unwrap_or(u32::MAX)
    }

    /// The copy of a log, created if missing. A copy of an earlier log of the same name blocks this until it is
    /// deleted.
    async fn copy_of(&self, name: &LogName, config: &LogConfig) -> Result<DiskLog, LogError> {
        if let Some(present) = self.disk.find(name) {
            match present.incarnation().cmp(&config.incarnation) {
                std::cmp::Ordering::Equal => return Ok(present),
                std::cmp::Ordering::Greater => return Err(LogError::FromTheFuture(name.clone())),
                std::cmp::Ordering::Less => self.clear(name, &present).await?,
            }
        }
        Ok(self.disk.create(name, config.incarnation).await?)
    }

    /// Deletes the copy of a log that has a tombstone; refuses without one.
    async fn clear(&self, name: &LogName, copy: &DiskLog) -> Result<(), LogError> {
        let grave = referee::grave(&self.store, name).await?;
        if grave.is_none_or(|grave| grave.incarnation < copy.incarnation()) {
            return Err(LogError::Orphan(name.clone()));
        }
        self.remove(name, copy).await
    }

    async fn remove(&self, name: &LogName, copy: &DiskLog) -> Result<(), LogError> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        copy.remove().await?;
        tracing::info!(log = %name, "copy deleted");
        Ok(())
    }

    async fn delete(&self, name: &LogName) -> Result<(), LogError> {
        let _alone = self.opening.lock().await;
        let Some(copy) = self.disk.find(name) else { return Ok(()) };
        let me = &self.options.me;
        match referee::read(&self.store, name).await {
            Ok(found) => {
                let config = found.record;
                let held = config.members().any(|member| member == me);
                if config.incarnation < copy.incarnation() {
                    return Err(LogError::FromTheFuture(name.clone()));
                }
                if config.incarnation > copy.incarnation() {
                    return self.clear(name, &copy).await;
                }
                if held {
                    return Err(Refused::StillHeld(me.clone()).into());
                }
                // A store that was rolled back may name holders that have dropped their copy since.
                if config.epoch < copy.history().newest() {
                    return Err(LogError::FromTheFuture(name.clone()));
                }
            }
            Err(LogError::NoSuchLog(_)) => return self.clear(name, &copy).await,
            Err(error) => return Err(error),
        }
        self.remove(name, &copy).await
    }

    /// Removes a copy that lost entries from its in-sync set before anything else; afterwards it is a lagging copy.
    async fn leave_in_sync_set(&self, name: &LogName) -> Result<(), LogError> {
        if referee::read(&self.store, name).await?.record.is_untouched() {
            return Ok(());
        }
        referee::change(&self.store, name, |config| config.distrust(&self.options.me)).await?;
        tracing::warn!(log = %name, "copy has lost entries, left the in-sync set to catch up");
        Ok(())
    }

    /// Replaces a copy whose owner has lost what dropped entries had made of its state. The new one is empty and lags:
    /// another holder sends its state. Refused if no other holder is complete.
    async fn copy_anew(&self, name: &LogName, copy: &DiskLog) -> Result<DiskLog, LogError> {
        self.leave_in_sync_set(name).await?;
        let incarnation = copy.incarnation();
        copy.remove().await?;
        tracing::warn!(log = %name, "state of the copy is lost, it begins anew from another holder");
        let disk = self.disk.create(name, incarnation).await?;
        if disk.is_incomplete() {
            disk.trust().await?;
        }
        Ok(disk)
    }

    fn opened(&self, name: &LogName) -> Option<Log> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(name).map(|opened| opened.log.clone())
    }

    /// Queues a packet for its log. Without space, or if the log is not open, it is dropped, as any packet may be: a log
    /// that is busy does not block the others.
    fn deliver(&self, from: &HolderId, name: &LogName, incarnation: Incarnation, packet: Packet) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = open.get(name).filter(|opened| opened.incarnation == incarnation) else { return };
        if let Some(room) = opened.inbox.room_now(packet.bytes()) {
            opened.packets.try_send(Box::new((from.clone(), packet, room))).ok();
        }
    }
}

/// Delivers packets to open logs.
#[derive(Clone)]
struct Postman(Arc<Shared>);

impl net::Deliver for Postman {
    async fn deliver(&self, from: &HolderId, log: LogName, incarnation: Incarnation, packet: Packet) {
        self.0.links.heard(from);
        self.0.deliver(from, &log, incarnation, packet);
    }
}
