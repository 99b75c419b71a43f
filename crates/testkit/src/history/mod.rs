//! Was it linearizable? Records the requests and responses of clients, and checks them against one order of events.
//!
//! No search is needed: every response of the store carries a revision, so the order is known and only has to be
//! verified. [`check`] replays the writes in revision order on a model and checks: each revision belongs to one write,
//! each guard held where the store reported so, each read equals the model at its revision, the order respects real
//! time, and the watch log agrees. Writes with an unknown outcome are settled by the watch log. The cost is that of
//! sorting, so it works for millions of operations.
//!
//! Record all writers of the watched keys, use a unique value for every put, and read the watch log from before the
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

/// The type of a key or a value.
pub trait Datum: Ord + Clone + Debug {}
impl<T: Ord + Clone + Debug> Datum for T {}

/// One effect on one key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change<K, V> {
    /// The key has this value.
    Put(K, V),
    /// The key was deleted.
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

/// A condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard<K, V> {
    /// The key exists with this value.
    Value(K, V),
    /// The key was last written at this revision; 0: it does not exist.
    Modified(K, u64),
}

/// A request of a client.
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

/// The response to a client. Each `revision` is the one in the response header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<K, V> {
    /// The keys that were found, with their values.
    Found {
        /// The revision of the state that was read.
        revision: u64,
        /// In any order.
        entries: Vec<(K, Seen<V>)>,
    },
    /// The guards held and something changed.
    Committed {
        /// The revision of the change.
        revision: u64,
    },
    /// The guards held, and nothing changed (a delete of a missing key).
    Unchanged {
        /// The revision of the state that was read.
        revision: u64,
    },
    /// A guard failed.
    Refused {
        /// The revision of the state that was read.
        revision: u64,
    },
    /// It definitely did not happen (the connection was refused, the request was invalid).
    Failed,
    /// It may have happened, or may still happen (a timeout, a broken connection).
    Unknown,
}

/// One operation of one client.
#[derive(Debug, Clone)]
pub struct Operation<K, V> {
    /// When the client sent the request: a number that grows with time.
    pub invoked: u64,
    /// When it got the response; meaningless for [`Outcome::Unknown`].
    pub returned: u64,
    /// The request.
    pub call: Call<K, V>,
    /// The response.
    pub outcome: Outcome<K, V>,
}

/// One entry of a watch log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event<K, V> {
    /// Its revision.
    pub revision: u64,
    /// The change.
    pub change: Change<K, V>,
}

/// Collects operations of concurrent clients. Time is a counter, not a clock, so it always advances.
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
    /// An empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs one operation and records it; `perform` turns the response into an [`Outcome`], which is returned. An
    /// operation that is dropped before it ends is recorded as unknown.
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

/// An operation in progress; recorded when it ends or is dropped.
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
