//! The logs that are open here, by name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use capstan_log::{Log, LogName};
use capstan_steward::Owner;
use tokio::sync::watch;

/// What a broker's holder has opened. Give it to the holder as its owner, and both to the broker.
#[derive(Debug)]
pub struct Shelf {
    logs: Mutex<HashMap<LogName, Log>>,
    /// Counts openings, for those who wait for one.
    opened: watch::Sender<u64>,
}

impl Default for Shelf {
    fn default() -> Shelf {
        Shelf { logs: Mutex::default(), opened: watch::Sender::new(0) }
    }
}

impl Shelf {
    fn logs(&self) -> MutexGuard<'_, HashMap<LogName, Log>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, name: &LogName) -> Option<Log> {
        self.logs().get(name).cloned()
    }

    pub(super) fn openings(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }
}

impl Owner for Shelf {
    fn opened(&self, log: &Log) {
        self.logs().insert(log.name().clone(), log.clone());
        self.opened.send_modify(|count| *count += 1);
    }

    fn closed(&self, log: &LogName) {
        self.logs().remove(log);
    }
}
