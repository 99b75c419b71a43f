//! Writing a base beside the running store.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use capstan_disk::Disk;

use super::base::{BaseHead, BaseWriter};
use crate::embedded::Shared;
use crate::embedded::engine::EngineError;
use crate::embedded::history::Change;
use crate::kv::{KeyRange, KeyValue, Revision};

/// Keys read under one lock; they are written after it.
const KEYS_PER_TURN: usize = 64;

/// Lets at most one base be written at a time, and the closing of the store wait for it.
#[derive(Debug, Default)]
pub(super) struct Turn {
    busy: AtomicBool,
    stop: AtomicBool,
    writing: Mutex<()>,
}

impl Turn {
    /// No base is being written when this returns, and none begins any more.
    pub(super) fn stop_and_wait(&self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(self.writing.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A base to be written: on any thread, without the writer. The tree must keep what lived at its revision meanwhile. As long
/// as it lives no other is begun: the number of the next one is known only when this one is finished.
#[derive(Debug)]
pub struct BaseJob {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    head: BaseHead,
    /// The change right after the base's revision, which the tree is read behind: it is taken back key by key.
    undone: Arc<Change>,
    turn: Arc<Turn>,
}

/// A base that is on disk.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub(super) number: u64,
    pub(super) revision: Revision,
    pub(super) bytes: u64,
}

impl BaseJob {
    pub(super) fn begin(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        head: BaseHead,
        undone: Arc<Change>,
        turn: &Arc<Turn>,
    ) -> Option<BaseJob> {
        if turn.busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(BaseJob { disk, dir, head, undone, turn: turn.clone() })
    }

    /// Writes it. `Ok(None)`: the store is being closed.
    pub fn run(&self, shared: &Shared) -> Result<Option<Written>, EngineError> {
        let _writing = self.turn.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut base = BaseWriter::begin(&*self.disk, &self.dir, &self.head)?;
        let written = match self.write_all(&mut base, shared) {
            Ok(true) => base.finish().map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        if !matches!(written, Ok(Some(_))) {
            base.discard();
        }
        let BaseHead { number, revision, .. } = self.head;
        Ok(written?.map(|bytes| Written { number, revision, bytes }))
    }

    /// Hands over every key; `false` if the store is being closed.
    fn write_all(&self, base: &mut BaseWriter<'_>, shared: &Shared) -> Result<bool, EngineError> {
        let mut touched: HashSet<&Bytes> = HashSet::new();
        for event in &self.undone.events {
            if self.turn.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            if touched.insert(&event.kv.key)
                && let Some(before) = &event.prev
            {
                base.add(before)?;
            }
        }
        let mut after = None;
        let mut some: Vec<Arc<KeyValue>> = Vec::with_capacity(KEYS_PER_TURN);
        loop {
            if self.turn.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            after = {
                let state = shared.state().map_err(|error| EngineError::Failed(error.to_string()))?;
                let at = self.undone.revision;
                let mut gather = |kv: &Arc<KeyValue>| some.push(kv.clone());
                state.tree.visit_from(&KeyRange::all(), after.as_ref(), KEYS_PER_TURN, at, &mut gather)
            };
            some.drain(..).filter(|kv| !touched.contains(&kv.key)).try_for_each(|kv| base.add(&kv))?;
            if after.is_none() {
                return Ok(true);
            }
        }
    }
}

impl Drop for BaseJob {
    fn drop(&mut self) {
        self.turn.busy.store(false, Ordering::SeqCst);
    }
}
