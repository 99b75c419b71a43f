//! What the tests of this crate stand on: a store, a root of its own, hosts that keep everything in memory, releases.

#![allow(dead_code, reason = "suites pick what they need")]

pub(crate) mod memory;
pub(crate) mod releases;
pub(crate) mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use capstan_control::reconcile::Pace;
use capstan_fleet::agent::shell::WorkerOptions;
use capstan_fleet::controller::UpdaterOptions;
use capstan_fleet::history::HistoryRecord;
use capstan_fleet::release::Trust;
use capstan_fleet::spec::{ReleaseRecord, Target};
use capstan_fleet::status::{HostStatus, Request};
use capstan_fleet::{Lrn, Tree, agent, controller};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::record::{Empty, Key, Prefix};
use capstan_meta::session::SessionOptions;
use capstan_meta::view::ViewOptions;
use capstan_meta::{OwnedTask, Store};
use capstan_testkit::eventually;
use tokio_util::sync::CancellationToken;

use memory::MemoryHost;
use releases::manifest;

/// How long a condition of these tests may take on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Makes the root of each rig another one, so that they can share a store.
static ROOTS: AtomicU64 = AtomicU64::new(0);

/// A fleet on a store.
pub(crate) struct Rig {
    pub(crate) store: Store,
    pub(crate) tree: Tree,
    pub(crate) hosts: BTreeMap<Lrn, Arc<MemoryHost>>,
    running: BTreeMap<Lrn, Running>,
}

/// A process that runs.
pub(crate) struct Running {
    stop: CancellationToken,
    _task: OwnedTask,
}

impl Running {
    /// Ends it in an orderly way; it may still be under way when this returns.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

impl Rig {
    /// A fleet without hosts on this store, under a root of its own.
    pub(crate) fn on(store: Store) -> Rig {
        let root = format!("/fleet{}-{}/", std::process::id(), ROOTS.fetch_add(1, Ordering::Relaxed));
        Rig { store, tree: Tree::at(&root).unwrap(), hosts: BTreeMap::new(), running: BTreeMap::new() }
    }

    /// A fleet without hosts on a store in memory.
    pub(crate) fn in_memory() -> Rig {
        let options = Options { min_lease_ttl: Duration::from_millis(500), ..Options::default() };
        Rig::on(Store::new(Embedded::in_memory(options)))
    }

    /// Hosts join, each with a worker, an empty disk and the release 1.0.0.
    pub(crate) async fn join(&mut self, lrns: impl IntoIterator<Item = u32>) {
        for lrn in lrns.into_iter().map(Lrn) {
            self.register(lrn).await;
            self.hosts.entry(lrn).or_default();
            self.start_worker(lrn);
        }
    }

    /// A host is in the registry, without a worker.
    pub(crate) async fn register(&self, lrn: Lrn) {
        self.put(&self.tree.boot_server(lrn), &Empty).await;
    }

    pub(crate) async fn put<K: Key>(&self, key: &K, record: &K::Record) {
        self.store.put(key.put(record)).await.unwrap();
    }

    pub(crate) async fn read<K: Key>(&self, key: &K) -> Option<K::Record> {
        self.store.read(key).await.unwrap().map(|seen| seen.record)
    }

    /// Starts the worker of a host on the disk that it has.
    pub(crate) fn start_worker(&mut self, lrn: Lrn) {
        self.start_worker_on(lrn, self.store.clone());
    }

    /// The same on a way of its own to the store.
    pub(crate) fn start_worker_on(&mut self, lrn: Lrn, store: Store) {
        let host = self.hosts.entry(lrn).or_default().clone();
        let tree = self.tree.clone();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let options = WorkerOptions { session: brisk(), view: brisk_view(), ..WorkerOptions::of(lrn) };
        let task = OwnedTask::spawn(async move {
            agent::shell::run(&store, &tree, host, options, &token).await.unwrap();
        });
        self.running.insert(lrn, Running { stop, _task: task });
    }

    /// The worker of a host is gone at once: nothing of it runs on.
    pub(crate) fn kill_worker(&mut self, lrn: Lrn) {
        self.running.remove(&lrn);
    }

    /// The worker of a host ends in an orderly way.
    pub(crate) async fn stop_worker(&mut self, lrn: Lrn) {
        if let Some(running) = self.running.get(&lrn) {
            running.stop();
        }
        let lease = self.tree.host_lease(lrn);
        eventually("the lease is given back", SOON, async || match self.read(&lease).await {
            None => Ok(()),
            Some(_) => Err("still there"),
        })
        .await;
        self.running.remove(&lrn);
    }

    /// Starts an updater; it is gone at once when what is returned is dropped.
    pub(crate) fn start_updater(&self, name: &str) -> Running {
        self.start_updater_trusting(name, None)
    }

    /// The same with the keys that releases must be signed by.
    pub(crate) fn start_updater_trusting(&self, name: &str, trust: Option<Trust>) -> Running {
        let (store, tree) = (self.store.clone(), self.tree.clone());
        let stop = CancellationToken::new();
        let token = stop.clone();
        let options = UpdaterOptions {
            session: brisk(),
            view: brisk_view(),
            pace: Pace { retry: (Duration::from_millis(5), Duration::from_millis(200)), ..Pace::default() },
            trust,
            ..UpdaterOptions::named(name)
        };
        let task = OwnedTask::spawn(async move {
            controller::run(&store, &tree, options, &token).await.unwrap();
        });
        Running { stop, _task: task }
    }

    /// A release with these steps is there, for the updater and for all hosts.
    pub(crate) async fn publish(&self, version: &str, kinds: &[capstan_fleet::release::StepKind]) {
        let manifest = manifest(version, kinds);
        let record = ReleaseRecord::of(&manifest, capstan_fleet::encoding::Moment::now());
        let key = self.tree.release(capstan_fleet::keys::ReleaseName::new(version).unwrap());
        for host in self.hosts.values() {
            host.offer(manifest.clone());
        }
        self.put(&key, &record).await;
    }

    /// The calls of operators.
    pub(crate) fn fleet(&self) -> capstan_fleet::Fleet {
        capstan_fleet::Fleet::new(self.store.clone(), self.tree.clone())
    }

    /// Waits until this host's worker is up.
    pub(crate) async fn until_up(&self, lrn: u32) {
        let lease = self.tree.host_lease(Lrn(lrn));
        eventually("the worker is up", SOON, async || self.read(&lease).await.ok_or("no lease")).await;
    }

    /// Waits until a host has begun these steps of a request.
    pub(crate) async fn until_begun(&self, lrn: u32, generation: u64, steps: &[u32]) {
        let host = self.hosts[&Lrn(lrn)].clone();
        eventually("the steps are begun", SOON, async || match host.begun(generation) {
            begun if begun == steps => Ok(()),
            begun => Err(format!("{begun:?}; {}", self.tell().await)),
        })
        .await;
    }

    /// Waits until this host's lease is over.
    pub(crate) async fn until_gone(&self, lrn: u32) {
        let lease = self.tree.host_lease(Lrn(lrn));
        eventually("the lease is over", SOON, async || match self.read(&lease).await {
            None => Ok(()),
            Some(_) => Err("still there"),
        })
        .await;
    }

    /// Waits until `why` gives such reasons for a host.
    pub(crate) async fn until_why(&self, lrn: u32, wanted: impl Fn(&[String]) -> bool) {
        eventually("the reason is given", SOON, async || {
            let why = self.fleet().why(Lrn(lrn)).await.unwrap();
            if wanted(&why.reasons) { Ok(()) } else { Err(format!("{why:?}; {}", self.tell().await)) }
        })
        .await;
    }

    /// The fleet is to have this release.
    pub(crate) async fn want(&self, version: &str) {
        let target = Target { version: version.to_owned(), by: "test".to_owned(), ..Target::default() };
        self.put(&self.tree.target(), &target).await;
    }

    pub(crate) async fn request(&self) -> Option<Request> {
        self.read(&self.tree.current()).await
    }

    pub(crate) async fn status(&self, lrn: u32) -> Option<HostStatus> {
        self.read(&self.tree.host_status(Lrn(lrn))).await
    }

    pub(crate) async fn history(&self, generation: u64) -> Option<HistoryRecord> {
        self.read(&self.tree.history(generation)).await
    }

    /// Waits until the request is as wanted.
    pub(crate) async fn until_request(&self, what: &str, wanted: impl Fn(&Request) -> bool) -> Request {
        eventually(what, SOON, async || match self.request().await {
            Some(request) if wanted(&request) => Ok(request),
            other => Err(format!("{other:?}; {}", self.tell().await)),
        })
        .await
    }

    /// Waits until a host's status is as wanted.
    pub(crate) async fn until_status(
        &self,
        what: &str,
        lrn: u32,
        wanted: impl Fn(&HostStatus) -> bool,
    ) -> HostStatus {
        eventually(what, SOON, async || match self.status(lrn).await {
            Some(status) if wanted(&status) => Ok(status),
            other => Err(format!("{other:?}; {}", self.tell().await)),
        })
        .await
    }

    /// Waits until a request has ended, and says how.
    pub(crate) async fn until_ended(&self, generation: u64) -> HistoryRecord {
        eventually("the request has ended", SOON, async || match self.history(generation).await {
            Some(history) if history.outcome.is_some() => Ok(history),
            other => Err(format!("{other:?}; {}", self.tell().await)),
        })
        .await
    }

    /// Everything under the root, for messages of tests that fail.
    pub(crate) async fn tell(&self) -> String {
        let all = capstan_meta::Range::prefix(self.tree.boot_servers().path().replace("bootservers/", ""));
        let found = self.store.range(all).await.unwrap();
        let lines = found.kvs.iter().map(|kv| {
            format!(
                "{} = {}",
                kv.key_text(),
                String::from_utf8_lossy(&kv.value).chars().take(300).collect::<String>()
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A lease that ends soon, so that tests of failovers do not wait for a minute.
pub(crate) fn brisk() -> SessionOptions {
    SessionOptions {
        ttl: Duration::from_secs(2),
        margin: Duration::from_millis(300),
        retry: (Duration::from_millis(20), Duration::from_millis(200)),
        ..SessionOptions::default()
    }
}

pub(crate) fn brisk_view() -> ViewOptions {
    ViewOptions { retry: (Duration::from_millis(20), Duration::from_millis(500)), ..ViewOptions::default() }
}
