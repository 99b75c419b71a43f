//! How does a store come back? From the base and the log that the engine kept, replayed into memory.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use rand::RngExt as _;
use tokio::time::Instant;

use super::compaction::Compaction;
use super::engine::{Engine, Loaded, OpenError};
use super::history::{Change, History};
use super::hub::Hub;
use super::lessor::Lessor;
use super::sqlite::Sqlite;
use super::tree::Tree;
use super::writer::Writer;
use super::{Options, Shared, State, ids};
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, Revision};
use crate::request::Event;

/// Opens a data directory and rebuilds what it holds. Blocking.
pub fn open(dir: &Path, options: &Options) -> Result<(Writer, u64), OpenError> {
    let mut engine = Sqlite::open(dir, ids(options).random())?;
    let loaded = engine.load().map_err(|error| OpenError::from_engine(dir, error))?;
    if let Some(torn) = &loaded.torn {
        tracing::warn!(dir = %dir.display(), what = %torn, "cut off a torn write: it was never acknowledged");
    }
    let cluster_id = loaded.cluster_id;
    let corrupt =
        |error: MetaError| OpenError::Corrupt { dir: dir.display().to_string(), what: error.to_string() };
    let recovered = Recovered::replay(loaded, options).map_err(corrupt)?;
    Ok((recovered.writer(Box::new(engine), options), cluster_id))
}

/// A store as it was.
pub struct Recovered {
    state: State,
    lessor: Lessor,
    keep: u64,
}

impl Recovered {
    /// A store that nothing was ever written to.
    pub fn empty(options: &Options) -> Recovered {
        let state = State {
            tree: Tree::default(),
            history: History::starting_at(Revision::FIRST.next()),
            visible: Revision::FIRST,
            compacted: Revision(-1),
        };
        Recovered { state, lessor: Lessor::default(), keep: options.history }
    }

    /// Applies the log to the base.
    pub fn replay(loaded: Loaded, options: &Options) -> Result<Recovered> {
        let now = Instant::now();
        let mut lessor = Lessor::default();
        for (id, ttl) in loaded.leases {
            lessor.grant(id, ttl, now)?;
        }
        let mut state = State {
            tree: Tree::from_sorted(loaded.base),
            history: History::starting_at(loaded.base_revision.next()),
            visible: loaded.base_revision,
            compacted: loaded.compacted,
        };
        for (revision, versions) in loaded.log {
            let mut events = Vec::with_capacity(versions.len());
            for kv in versions {
                let prev = state.tree.get(&kv.key, revision).cloned();
                state.tree.push(kv.clone());
                events.push(Event { kv, prev });
            }
            state.history.push(Arc::new(Change { revision, events: events.into() }));
            state.visible = revision;
        }
        state.tree.visit(&KeyRange::all(), state.visible, |kv| lessor.attach(kv.lease, &kv.key));
        Ok(Recovered { state, lessor, keep: options.history })
    }

    /// The writer that goes on with it.
    pub fn writer(self, engine: Box<dyn Engine>, options: &Options) -> Writer {
        let head = self.state.visible;
        let compaction = Compaction::new(self.state.compacted, self.keep);
        let shared = Shared {
            hub: Mutex::new(Hub::new(head)),
            state: RwLock::new(self.state),
            failure: OnceLock::new(),
        };
        Writer {
            shared: Arc::new(shared),
            engine: Some(engine),
            lessor: self.lessor,
            compaction,
            head,
            min_lease_ttl: options.min_lease_ttl,
            ids: ids(options),
        }
    }
}
