//! The daemon's side: a log directory on one host, registered with the steward and the other holders.
//!
//! A [`Holder`] registers itself under the lease of its host, keeps the addresses of the other holders up to date, and
//! opens, closes and deletes copies according to the records. One process may contain several holders, each with its
//! own directory and name.

mod duty;
mod follow;
mod report;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::keys::{HostId, ServiceName};
use capstan_log::net::AddressBook;
use capstan_log::{Disk, HolderId, Host, HostOptions, Log, LogName, NoSnapshots, Snapshots, disk};
use capstan_meta::record::Key;
use capstan_meta::session::Session;
use capstan_meta::settle::{Next, settle};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{OwnedTask, Store, Txn};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::error::StewardError;
use crate::keys::HolderKey;
use crate::spec::HolderRecord;

/// How often a log that should be open is looked up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The service behind the logs of a holder. Called from the holder's task: must not block.
pub trait Owner: Send + Sync + 'static {
    /// The state machine of a log. Called before the log is opened.
    fn snapshots(&self, log: &LogName) -> Arc<dyn Snapshots> {
        let _ = log;
        Arc::new(NoSnapshots)
    }

    /// Called when a log was opened here; it may lead or follow.
    fn opened(&self, log: &Log) {
        let _ = log;
    }

    /// Called when a log was closed here: this holder no longer keeps it, or it was deleted.
    fn closed(&self, log: &LogName) {
        let _ = log;
    }
}

/// For logs without a state machine; use [`Holder::log`] to get them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOwner;

impl Owner for NoOwner {}

/// How does a holder that appears for the first time take part?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joining {
    /// By itself: it may get copies at once.
    #[default]
    AtOnce,
    /// When an operator adds it ([`Logs::keep`](crate::Logs::keep)).
    WhenAdded,
}

/// Options of a holder.
#[derive(Clone, Debug)]
pub struct HolderOptions {
    /// The host that it runs on.
    pub host: HostId,
    /// The service whose logs it keeps.
    pub service: ServiceName,
    /// Its failure domain; by default its host.
    pub domain: Option<String>,
    /// How it takes part if it has no record yet.
    pub joining: Joining,
    /// Its directory.
    pub dir: PathBuf,
    /// The address for other holders, if it differs from the listening one.
    pub advertise: Option<SocketAddr>,
    /// Options of its copies; contains its name.
    pub log: HostOptions,
    /// Options of its directory.
    pub disk: disk::Options,
}

impl HolderOptions {
    /// A holder of this name with default options.
    #[must_use]
    pub fn new(id: HolderId, host: HostId, service: ServiceName, dir: PathBuf) -> HolderOptions {
        HolderOptions {
            host,
            service,
            domain: None,
            joining: Joining::default(),
            dir,
            advertise: None,
            log: HostOptions::new(id),
            disk: disk::Options::default(),
        }
    }
}

/// The default name of a service's holder on a host. It is valid in a certificate.
pub fn id_of(host: &HostId, service: &ServiceName) -> Result<HolderId, capstan_meta::record::InvalidName> {
    HolderId::new(format!("{service}.{host}"))
}

/// A running holder. Clones share it; its tasks end with the last clone.
#[derive(Clone)]
pub struct Holder {
    inner: Arc<Inner>,
}

struct Inner {
    id: HolderId,
    host: Host,
    view: Arc<View>,
    /// Counts opened and closed logs.
    turns: watch::Receiver<u64>,
    _tasks: Vec<OwnedTask>,
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Holder({})", self.inner.id)
    }
}

impl Holder {
    /// Opens the directory, registers the holder as long as the session lives, and starts to keep logs.
    pub async fn start(
        options: HolderOptions,
        listener: TcpListener,
        store: &Store,
        session: &Session,
        owner: Arc<dyn Owner>,
    ) -> Result<Holder, StewardError> {
        let (at, disk) = (options.dir.clone(), options.disk);
        let opened = tokio::task::spawn_blocking(move || Disk::open(&at, disk)).await;
        let disk = opened
            .map_err(|error| StewardError::Io(error.to_string()))?
            .map_err(|error| StewardError::Log(error.into()))?;
        Holder::start_on(options, disk, listener, store, session, owner).await
    }

    /// The same with a directory that is open already.
    pub async fn start_on(
        options: HolderOptions,
        disk: Disk,
        listener: TcpListener,
        store: &Store,
        session: &Session,
        owner: Arc<dyn Owner>,
    ) -> Result<Holder, StewardError> {
        let HolderOptions { host, service, domain, joining, dir, advertise, log, disk: _ } = options;
        let id = log.me.clone();
        let address = match advertise {
            Some(address) => address,
            None => listener.local_addr().map_err(|error| StewardError::Io(error.to_string()))?,
        };
        let waiting = joining == Joining::WhenAdded;
        introduce(store, &id, HolderRecord { domain, waiting, ..HolderRecord::new(host, service) }).await?;
        let view = View::open(store.clone(), follow::ranges(), ViewOptions::default()).await?;
        let (view, book) = (Arc::new(view), AddressBook::default());
        follow::fill(&book, &view.snapshot());
        let host =
            Host::start(log, disk, store.clone(), session.state(), Some(listener), book.clone()).await?;
        let (turned, turns) = watch::channel(0);
        let reporter =
            report::Reporter { me: id.clone(), address, dir, session: session.clone(), host: host.clone() };
        let follower = follow::Follower::new(id.clone(), host.clone(), owner, book, turned);
        let tasks = vec![OwnedTask::spawn(follower.run(view.clone())), OwnedTask::spawn(reporter.run())];
        Ok(Holder { inner: Arc::new(Inner { id, host, view, turns, _tasks: tasks }) })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &HolderId {
        &self.inner.id
    }

    /// The logs that are open here.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.inner.host
    }

    /// The view of all log records that this holder follows.
    #[must_use]
    pub fn view(&self) -> &Arc<View> {
        &self.inner.view
    }

    /// A log that is open here now.
    #[must_use]
    pub fn opened(&self, name: &LogName) -> Option<Log> {
        self.inner.host.log(name)
    }

    /// A log, as soon as it is open here.
    pub async fn log(&self, name: &LogName) -> Log {
        let mut turns = self.inner.turns.clone();
        loop {
            turns.borrow_and_update();
            if let Some(log) = self.opened(name) {
                return log;
            }
            if turns.changed().await.is_err() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Stops keeping logs; copies stay on disk. The registration ends with the session.
    pub async fn stop(&self) -> Result<(), StewardError> {
        Ok(self.inner.host.stop().await?)
    }
}

/// Writes the holder's record, or corrects it. Does not change whether it is retiring or waits to be added.
async fn introduce(store: &Store, id: &HolderId, record: HolderRecord) -> Result<(), StewardError> {
    let key = HolderKey { holder: id.clone() };
    let what = format!("holder {id}");
    let read = || async { Ok::<_, StewardError>(store.read(&key).await?) };
    settle(store, &what, read, |seen, _| {
        let next = match seen {
            None => record.clone(),
            Some(seen) => HolderRecord {
                host: record.host.clone(),
                service: record.service.clone(),
                domain: record.domain.clone(),
                ..seen.record.clone()
            },
        };
        if seen.as_ref().is_some_and(|seen| seen.record == next) {
            return Ok(Next::Done(()));
        }
        Ok(Next::Commit(Txn::new().when(key.as_seen(seen.as_ref())).then(key.put(&next))))
    })
    .await
}
