//! The master's side of a job: it holds the copy as it was at one moment, and cuts the batches that are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::message::Batch;
use crate::data::machine::put_pair;
use crate::storage::{StorageError, View, layout};

/// Bytes of pairs after which a batch ends; the last pair still fits in.
const BATCH_BYTES: usize = 1024 * 1024;
/// Jobs that are held at a time: as many as there can be moves of one node, and some that were given up.
const MAX_HELD: usize = 256;
/// How long a job is held that nothing is asked of.
const IDLE: Duration = Duration::from_secs(120);

/// The jobs of which this node is the master.
pub(crate) struct Desk {
    batch_bytes: usize,
    held: Mutex<HashMap<String, Held>>,
}

struct Held {
    copy: Arc<Kept>,
    used: Instant,
}

/// A copy at one moment.
struct Kept {
    view: Box<dyn View>,
    prefix: Vec<u8>,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk::new(BATCH_BYTES)
    }
}

impl Desk {
    /// One whose batches end after so many bytes.
    pub(crate) fn new(batch_bytes: usize) -> Desk {
        Desk { batch_bytes, held: Mutex::default() }
    }

    /// Holds a copy, and gives the id of its job.
    pub(crate) fn open(&self, view: Box<dyn View>, prefix: Vec<u8>) -> String {
        let id: [u8; 16] = rand::random();
        let job: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, held| held.used.elapsed() < IDLE);
        if held.len() >= MAX_HELD {
            let oldest = held.iter().min_by_key(|(_, held)| held.used).map(|(job, _)| job.clone());
            oldest.and_then(|job| held.remove(&job));
        }
        let copy = Arc::new(Kept { view, prefix });
        held.insert(job.clone(), Held { copy, used: Instant::now() });
        job
    }

    /// The batch behind a key; nothing if the job is not held any more. Blocking.
    pub(crate) fn batch(&self, job: &str, after: Option<&[u8]>) -> Option<Result<Batch, StorageError>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = held.get_mut(job)?;
        found.used = Instant::now();
        let copy = Arc::clone(&found.copy);
        drop(held);
        Some(copy.batch(after, self.batch_bytes))
    }

    /// Lets go of a job.
    pub(crate) fn close(&self, job: &str) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(job);
    }

    /// Lets go of jobs that nothing is asked of.
    pub(crate) fn expire(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, held| held.used.elapsed() < IDLE);
    }
}

impl Kept {
    fn batch(&self, after: Option<&[u8]>, most: usize) -> Result<Batch, StorageError> {
        let (first, before) = layout::whole(self.prefix.clone());
        let from = match after {
            // The first key behind it.
            Some(key) => [&self.prefix[..], key, &[0]].concat(),
            None => first,
        };
        let (mut bytes, mut last) = (Vec::new(), None);
        for pair in self.view.range(&from, &before) {
            let (key, value) = pair?;
            let key = key.slice(self.prefix.len()..);
            put_pair(&mut bytes, &key, &value);
            if bytes.len() >= most {
                last = Some(key.to_vec());
                break;
            }
        }
        Ok(Batch::new(after, bytes, last))
    }
}
