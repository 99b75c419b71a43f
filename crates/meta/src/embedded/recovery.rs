//! How does a store come back? From the base and the log that the engine kept, replayed into memory.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use capstan_disk::Disk;
use rand::RngExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::codec::damaged;
use super::compaction::Compaction;
use super::engine::{Beside, Engine, EngineError, Loaded, Logged, OpenError};
use super::history::{Change, History};
use super::hub::Hub;
use super::lessor::Lessor;
use super::tree::Tree;
use super::writer::Writer;
use super::{Options, Shared, State, durable, ids};
use crate::kv::{KeyRange, KeyValue, Revision};
use crate::request::Event;

/// Opens a data directory and rebuilds what it holds. Blocking.
pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<(Writer, u64), OpenError> {
    let (engine, recovered) = durable::open(disk, dir, options.log_file_bytes, ids(options).random())?;
    let cluster_id = engine.cluster_id();
    Ok((recovered.writer(Box::new(engine), options), cluster_id))
}

/// A store as it was.
pub struct Recovered {
    state: State,
    lessor: Lessor,
    base_revision: Revision,
    beside: Beside,
    now: Instant,
}

impl Recovered {
    /// A store that nothing was ever written to.
    pub fn empty() -> Recovered {
        let (base_revision, compacted) = (Revision::FIRST, Revision(-1));
        let beside = Beside::default();
        Recovered::begin(Loaded { base: Vec::new(), base_revision, leases: Vec::new(), compacted, beside })
    }

    /// The store as its base has it.
    pub fn begin(loaded: Loaded) -> Recovered {
        let state = State {
            tree: Tree::from_versions(loaded.base),
            history: History::starting_at(loaded.base_revision.next()),
            visible: loaded.base_revision,
            compacted: loaded.compacted,
        };
        let (lessor, now) = (Lessor::default(), Instant::now());
        let Loaded { base_revision, beside, .. } = loaded;
        let mut recovered = Recovered { state, lessor, base_revision, beside, now };
        loaded.leases.into_iter().for_each(|(id, ttl)| recovered.lessor.replay_grant(id, ttl, now));
        recovered
    }

    /// The newest revision so far.
    pub fn revision(&self) -> Revision {
        self.state.visible
    }

    /// Applies the next entry of the log. Leases of the base may be newer than the entry; what the log says of one last is
    /// what holds.
    pub fn apply(&mut self, logged: Logged) -> Result<(), EngineError> {
        match logged {
            // The file began before the base did.
            Logged::Change(revision, _) if revision <= self.base_revision => {}
            Logged::Change(revision, versions) => self.change(revision, versions)?,
            Logged::LeaseGranted(id, ttl) => self.lessor.replay_grant(id, ttl, self.now),
            Logged::LeaseEnded(id) => drop(self.lessor.remove(id)),
            Logged::Users(record) => self.beside.users = record,
            Logged::Alarm(raised) => self.beside.alarm = raised,
            Logged::Compacted(revision) => {
                self.state.compacted = self.state.compacted.max(revision);
                while self.state.trim_one().is_some() {}
            }
        }
        Ok(())
    }

    fn change(&mut self, revision: Revision, versions: Vec<Arc<KeyValue>>) -> Result<(), EngineError> {
        let State { tree, history, visible, .. } = &mut self.state;
        if revision != visible.next() {
            return Err(damaged(format!("revision {visible} is followed by {revision}")));
        }
        let mut events = Vec::with_capacity(versions.len());
        for kv in versions {
            let prev = tree.get(&kv.key, revision).cloned();
            tree.push(kv.clone());
            events.push(Event { kv, prev });
        }
        history.push(Arc::new(Change { revision, events: events.into() }));
        *visible = revision;
        Ok(())
    }

    /// The writer that goes on with it.
    pub fn writer(mut self, engine: Box<dyn Engine>, options: &Options) -> Writer {
        let head = self.state.visible;
        let compaction = Compaction::new(self.state.compacted, options);
        let lessor = &mut self.lessor;
        self.state.tree.visit(&KeyRange::all(), head, |kv| lessor.attach(kv.lease, &kv.key));
        let shared = Shared {
            hub: Mutex::new(Hub::new(head)),
            state: RwLock::new(self.state),
            failure: OnceLock::new(),
            failing: CancellationToken::new(),
            alarm: AtomicBool::new(self.beside.alarm),
        };
        Writer {
            shared: Arc::new(shared),
            engine: Some(engine),
            lessor: self.lessor,
            compaction,
            head,
            min_lease_ttl: options.min_lease_ttl,
            users: self.beside.users,
            quota_bytes: options.quota_bytes,
            change_bytes: durable::MAX_CHANGE,
            base_after: None,
            ids: ids(options),
        }
    }
}
