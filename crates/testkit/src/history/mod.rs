//! Was it linearizable? Records what clients asked and were told, and checks it against one order of events.
//!
//! No search is needed: every answer of the store carries a revision, so the order is known and only has to be true.
//! [`check`] replays the writes in the order of their revisions on a model and asks: is each revision one write's
//! alone, did each guard hold where it was said to hold, does each read equal the model at its revision, does the order
//! respect real time, and does the watch log say the same? Writes whose outcome the client never learned are settled by
//! the watch log. The cost is that of sorting, so it runs on millions of operations.
//!
//! Record all writers of the watched keys, give every put a value of its own, and read the watch log from before the
//! first operation to after the last.

mod check;
mod model;
mod violation;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub use check::{assert_linearizable, check, check_resumed};
pub use model::Seen;
pub use violation::{Checked, Rule, Violation};

/// What can be a key or a value here.
pub trait Datum: Ord + Clone + Debug {}
impl<T: Ord + Clone + Debug> Datum for T {}

/// One effect on one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change<K, V> {
    /// The key has this value.
    Put(K, V),
    /// The key is gone.
    Delete(K),
}

impl<K, V> Change<K, V> {
    /// The key it concerns.
    pub fn key(&self) -> &K {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// What must be so for a write to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard<K, V> {
    /// The key exists with this value.
    Value(K, V),
    /// The key was last written at this revision; 0: it does not exist.
    Modified(K, u64),
}

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call<K, V> {
    /// A linearizable read of one key.
    Get(K),
    /// A linearizable read of all keys from the first to before the last.
    Range(Range<K>),
    /// All changes or none, if all guards hold; a plain put is a commit without guards.
    Commit {
        /// All of these must hold.
        guards: Vec<Guard<K, V>>,
        /// At most one change for a key.
        changes: Vec<Change<K, V>>,
    },
}

/// What a client was told. Each `revision` is the one in the answer's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<K, V> {
    /// The keys that were found, with their values.
    Found {
        /// Of the state that was read.
        revision: u64,
        /// In any order.
        entries: Vec<(K, Seen<V>)>,
    },
    /// The guards held and something changed.
    Committed {
        /// Of the change.
        revision: u64,
    },
    /// The guards held, and there was nothing to change (a delete of what does not exist).
    Unchanged {
        /// Of the state that was looked at.
        revision: u64,
    },
    /// A guard did not hold.
    Refused {
        /// Of the state that was looked at.
        revision: u64,
    },
    /// It certainly did not happen (the connection was refused, the request was invalid).
    Failed,
    /// It may have happened, or may yet happen (a timeout, a broken connection).
    Unknown,
}

/// One operation of one client.
#[derive(Debug, Clone)]
pub struct Operation<K, V> {
    /// A number that grows with time: when the client asked.
    pub invoked: u64,
    /// When it was told; meaningless for [`Outcome::Unknown`].
    pub returned: u64,
    /// What it asked for.
    pub call: Call<K, V>,
    /// What it was told.
    pub outcome: Outcome<K, V>,
}

/// One line of a watch log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event<K, V> {
    /// When it happened.
    pub revision: u64,
    /// What happened.
    pub change: Change<K, V>,
}

/// Collects operations of concurrent clients. Real time is a ticket counter, not a clock: it cannot stand still.
#[derive(Debug)]
pub struct Recorder<K, V> {
    tickets: AtomicU64,
    operations: Mutex<Vec<Operation<K, V>>>,
}

impl<K, V> Default for Recorder<K, V> {
    fn default() -> Self {
        Self { tickets: AtomicU64::new(0), operations: Mutex::new(Vec::new()) }
    }
}

impl<K: Datum, V: Datum> Recorder<K, V> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs one operation and records it; `perform` turns the answer into an [`Outcome`], which is handed back. An
    /// operation that is dropped half-way (its client was stopped) is recorded as unknown.
    pub async fn record(
        &self,
        call: Call<K, V>,
        perform: impl Future<Output = Outcome<K, V>>,
    ) -> Outcome<K, V> {
        let mut pending = Pending { recorder: self, invoked: self.ticket(), call, outcome: Outcome::Unknown };
        pending.outcome = perform.await;
        pending.outcome.clone()
    }

    /// Everything recorded so far, in the order in which operations ended.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation<K, V>> {
        self.operations.lock().expect("a recorder's lock").clone()
    }

    fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::SeqCst)
    }
}

/// An operation under way; recorded when it ends, however it ends.
struct Pending<'a, K: Datum, V: Datum> {
    recorder: &'a Recorder<K, V>,
    invoked: u64,
    call: Call<K, V>,
    outcome: Outcome<K, V>,
}

impl<K: Datum, V: Datum> Drop for Pending<'_, K, V> {
    fn drop(&mut self) {
        let returned = self.recorder.ticket();
        let (call, outcome) = (self.call.clone(), self.outcome.clone());
        let operation = Operation { invoked: self.invoked, returned, call, outcome };
        if let Ok(mut operations) = self.recorder.operations.lock() {
            operations.push(operation);
        }
    }
}
