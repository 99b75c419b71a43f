//! Holders and a steward in one process, on one store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_control::keys::ServiceName;
use capstan_log::replica::Timing;
use capstan_log::{HolderId, HostOptions, LogConfig, LogName, disk, referee};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::{OwnedTask, Store};
use capstan_steward::holder::{Holder, HolderOptions, NoOwner};
use capstan_steward::{Logs, Policy, Steward, controller};
use capstan_testkit::{TempDir, eventually};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub const SOON: Duration = Duration::from_secs(60);

pub fn id(name: &str) -> HolderId {
    name.parse().unwrap()
}

pub fn log(name: &str) -> LogName {
    name.parse().unwrap()
}

pub fn service() -> ServiceName {
    "topics".parse().unwrap()
}

/// Short limits for tests.
pub fn policy() -> Policy {
    Policy { repair_after: 2, handover_within: 5, reserve_bytes: 0, ..Policy::default() }
}

pub struct Cluster {
    dir: TempDir,
    pub store: Store,
    pub logs: Logs,
    pub holders: BTreeMap<HolderId, (Holder, Session)>,
    steward: Option<OwnedTask>,
}

impl Cluster {
    pub async fn start(names: &[&str]) -> Cluster {
        let mut cluster = Cluster::without_steward(names).await;
        cluster.steward = Some(OwnedTask::spawn(steward(cluster.store.clone())));
        cluster
    }

    /// Only what holders and primaries do on their own.
    pub async fn without_steward(names: &[&str]) -> Cluster {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        let logs = Logs::open(store.clone(), policy()).await.unwrap();
        let dir = TempDir::new("steward").unwrap();
        let mut cluster = Cluster { dir, store, logs, holders: BTreeMap::new(), steward: None };
        for name in names {
            cluster.begin(name).await;
        }
        cluster.all_up(names.len()).await;
        cluster
    }

    /// Starts a holder with its former directory.
    pub async fn begin(&mut self, name: &str) {
        let session = Session::start(self.store.clone(), session_options());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = name.parse().unwrap();
        let mut options = HolderOptions::new(id(name), host, service(), self.dir.join(name));
        options.log = HostOptions { timing: timing(), ..options.log };
        options.disk = disk_options();
        let holder =
            Holder::start(options, listener, &self.store, &session, Arc::new(NoOwner)).await.unwrap();
        self.holders.insert(id(name), (holder, session));
    }

    /// Stops a holder like a killed process, except that its lease ends at once.
    pub async fn end(&mut self, name: &HolderId) {
        let (holder, session) = self.holders.remove(name).unwrap();
        session.close().await.unwrap();
        holder.stop().await.unwrap();
    }

    /// Empties the directory of a stopped holder.
    pub fn empty(&self, name: &str) {
        std::fs::remove_dir_all(self.dir.join(name)).unwrap();
    }

    pub async fn all_up(&self, count: usize) {
        eventually("all holders are up", SOON, async || {
            let up = self.logs.facts().holders.iter().filter(|holder| holder.is_up()).count();
            if up == count { Ok(()) } else { Err(up) }
        })
        .await;
    }

    pub async fn config(&self, name: &LogName) -> LogConfig {
        referee::read(&self.store, name).await.unwrap().record
    }

    /// Waits until the record of a log satisfies the condition.
    pub async fn becomes(&self, what: &str, name: &LogName, is: impl Fn(&LogConfig) -> bool) -> LogConfig {
        eventually(what, SOON, async || {
            let config = self.config(name).await;
            if is(&config) { Ok(config) } else { Err(format!("{config:?}")) }
        })
        .await
    }

    /// Appends through the primary, as soon as one accepts it.
    pub async fn append(&self, name: &LogName, text: &str) -> u64 {
        eventually("an append is committed", SOON, async || {
            let primary = self.config(name).await.primary;
            let Some((holder, _)) = self.holders.get(&primary) else {
                return Err("primary is down".to_owned());
            };
            let Some(log) = holder.opened(name) else { return Err(format!("{primary} has not opened it")) };
            let appended = log.append(vec![Bytes::from(text.to_owned())]).await;
            appended.map(|(first, _)| first.0).map_err(|error| error.to_string())
        })
        .await
    }
}

pub fn session_options() -> SessionOptions {
    let (ttl, margin) = (Duration::from_secs(2), Duration::from_millis(600));
    SessionOptions { ttl, margin, ..SessionOptions::default() }
}

pub fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(50),
        resend: Duration::from_millis(200),
        lag: Duration::from_millis(1_000),
        ..Timing::default()
    }
}

pub fn disk_options() -> disk::Options {
    disk::Options { segment_bytes: 256 * 1024, journal_file_bytes: 1 << 20, checkpoint_bytes: 1 << 20 }
}

pub async fn steward(store: Store) {
    let session = Session::start(store.clone(), session_options());
    let steward = Steward::new(policy()).answering_for(vec![service()]);
    let stop = CancellationToken::new();
    controller::run(steward, &store, &session, "steward", |_| {}, &stop).await.unwrap();
}
