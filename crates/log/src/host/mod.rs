//! How does a host keep its logs? One directory, one listener, and one task for each log that is open here.
//!
//! A [`Host`] is the shell around everything pure: it performs the effects of each log's [`Replica`] on the disk, the
//! wire and the metadata store, and brings the outcomes back.
//!
//! [`Replica`]: crate::replica::Replica

mod copy;
mod gauge;
mod handle;
mod perform;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::record::Key;
use capstan_meta::session::SessionState;
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{OwnedTask, Store};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::disk::Disk;
use crate::entry::Offset;
use crate::error::LogError;
use crate::keys::{HolderId, LogKey, LogKeys, LogName};
use crate::net::{self, AddressBook, Links, Packet, Tls};
use crate::referee;
use crate::replica::Timing;
use copy::{Copy, Input};
pub use handle::{Batch, Log, Tail};

/// What waits for one log: more than all its clients and followers have on the way at a time.
const QUEUE: usize = 4096;

/// What a log's owner keeps beside the log. The log calls it when a copy cannot be brought up to date by entries alone.
pub trait Snapshots: Send + Sync + 'static {
    /// What the owner made of every entry before this offset; at most [`net::MAX_MESSAGE`], in memory on both ends.
    fn take(&self, log: &LogName, before: Offset) -> Bytes;
    /// Replaces what the owner has by this; durable when it returns.
    fn install(&self, log: &LogName, before: Offset, snapshot: Bytes) -> Result<(), String>;
}

/// For logs that are nothing but their entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSnapshots;

impl Snapshots for NoSnapshots {
    fn take(&self, _: &LogName, _: Offset) -> Bytes {
        Bytes::new()
    }

    fn install(&self, _: &LogName, _: Offset, _: Bytes) -> Result<(), String> {
        Ok(())
    }
}

/// How a host behaves.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Who this host is.
    pub me: HolderId,
    /// How patient its copies are.
    pub timing: Timing,
    /// How long an append waits for its copies before it fails.
    pub append_within: Duration,
    /// How long a damaged entry waits for another holder.
    pub repair_within: Duration,
    /// Certificates, with which holders know each other; without any, whoever reaches the port is believed.
    pub tls: Option<Tls>,
}

impl HostOptions {
    /// The usual patience.
    #[must_use]
    pub fn new(me: HolderId) -> HostOptions {
        HostOptions {
            me,
            timing: Timing::default(),
            append_within: Duration::from_secs(10),
            repair_within: Duration::from_secs(5),
            tls: None,
        }
    }
}

/// The logs of this host. Clones are the same host; its tasks end with the last of them.
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
}

struct Opened {
    inputs: mpsc::Sender<Input>,
    log: Log,
    _task: OwnedTask,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.inner.shared.options.me)
    }
}

impl Host {
    /// Begins to keep logs: with this directory, this metadata store, this host's lease, and where others listen.
    /// Without a listener it can only keep logs alone.
    pub async fn start(
        options: HostOptions,
        disk: Disk,
        store: Store,
        session: watch::Receiver<SessionState>,
        listener: Option<TcpListener>,
        book: AddressBook,
    ) -> Result<Host, LogError> {
        let view = View::open(store.clone(), Ranges::new().with(&LogKeys {}), ViewOptions::default()).await?;
        let links = Arc::new(Links::new(options.me.clone(), book, options.tls.clone()));
        let shared = Arc::new(Shared { options, disk, store, session, links, open: Mutex::default() });
        let mut tasks = vec![OwnedTask::spawn(follow_configs(Arc::clone(&shared), view))];
        if let Some(listener) = listener {
            let tls = shared.options.tls.clone();
            tasks.push(OwnedTask::spawn(net::serve(listener, tls, Postman(Arc::clone(&shared)))));
        }
        Ok(Host { inner: Arc::new(Inner { shared, tasks: Mutex::new(tasks) }) })
    }

    /// Opens a log on this host. It must be known to the metadata store ([`crate::referee::create`]).
    pub async fn open(&self, name: &LogName, snapshots: Arc<dyn Snapshots>) -> Result<Log, LogError> {
        let shared = &self.inner.shared;
        if let Some(opened) = shared.opened(name) {
            return Ok(opened);
        }
        let disk = shared.disk.log(name).await?;
        if disk.is_incomplete() {
            shared.leave_in_sync_set(name).await?;
            disk.trust().await?;
        }
        let (inputs, queue) = mpsc::channel(QUEUE);
        let copy = Copy::new(shared, disk.clone(), snapshots, inputs.downgrade());
        let log = Log::new(name.clone(), disk, inputs.clone(), copy.gauge(), shared);
        let found = referee::read(&shared.store, name).await?;
        let task = OwnedTask::spawn(copy.run(queue));
        let config = Input::Configured(Box::new(found.record), found.mod_revision);
        inputs.send(config).await.map_err(|_| LogError::Closed(name.clone()))?;
        let mut open = shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = open.entry(name.clone()).or_insert(Opened { inputs, log, _task: task });
        Ok(opened.log.clone())
    }

    /// Stops a log on this host; its copy stays on disk.
    pub fn close(&self, name: &LogName) {
        self.inner.shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Every log that is open here, by name.
    #[must_use]
    pub fn logs(&self) -> Vec<Log> {
        let open = self.inner.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut logs: Vec<Log> = open.values().map(|opened| opened.log.clone()).collect();
        logs.sort_by(|one, other| one.name().cmp(other.name()));
        logs
    }

    /// Stops everything; the next start replays nothing.
    pub async fn stop(&self) -> Result<(), LogError> {
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.inner.shared.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(self.inner.shared.disk.close().await?)
    }
}

impl Shared {
    /// A copy that lost entries does this before anything else, and for good: from then on it is one that lags.
    async fn leave_in_sync_set(&self, name: &LogName) -> Result<(), LogError> {
        if referee::read(&self.store, name).await?.record.is_untouched() {
            return Ok(());
        }
        referee::change(&self.store, name, |config| config.distrust(&self.options.me)).await?;
        tracing::warn!(log = %name, "copy has lost entries, left the in-sync set and learns them anew");
        Ok(())
    }

    fn opened(&self, name: &LogName) -> Option<Log> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(name).map(|opened| opened.log.clone())
    }

    fn inputs(&self, name: &LogName) -> Option<mpsc::Sender<Input>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(name).map(|opened| opened.inputs.clone())
    }
}

/// Tells every open log when its configuration changes.
async fn follow_configs(shared: Arc<Shared>, view: View) {
    let mut changes = view.changes();
    while let Some(delta) = changes.next().await {
        for change in delta.changes() {
            let Some(kv) = change.after else { continue };
            let Some(key) = LogKey::parse(&kv.key_text()) else { continue };
            let Some(inputs) = shared.inputs(&key.log) else { continue };
            match capstan_meta::record::Stored::decode::<LogKey>(kv) {
                Ok(stored) => {
                    let config = Box::new(stored.record);
                    inputs.send(Input::Configured(config, stored.mod_revision)).await.ok();
                }
                Err(bad) => tracing::error!(log = %key.log, %bad, "configuration of log cannot be read"),
            }
        }
    }
}

/// Brings packets to open logs; packets for others are lost, like everything on the wire may be.
#[derive(Clone)]
struct Postman(Arc<Shared>);

impl net::Deliver for Postman {
    async fn deliver(&self, from: &HolderId, log: LogName, packet: Packet) {
        if let Some(inputs) = self.0.inputs(&log) {
            inputs.send(Input::Packet(Box::new((from.clone(), packet)))).await.ok();
        }
    }
}
