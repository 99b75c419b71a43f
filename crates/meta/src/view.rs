//! How does everyone read the metadata? From a view: a snapshot of some ranges at one revision, kept up to date by
//! list-then-watch.
//!
//! **Promised.** A snapshot equals the store at exactly its revision, for all ranges of the view. Its revision never
//! falls. No change is lost or reordered. Read-your-writes: [`View::wait_for`] the revision of your write. When
//! history was compacted away, the view lists anew and says so ([`Delta::resynced`]). [`View::staleness`] is the time
//! since the store last proved that nothing newer exists.
//!
//! **Not promised.** Freshness without waiting for a revision, agreement between two views, and history: several
//! changes of a key may be seen as one.
//!
//! A store that was set back to an older revision (restored from a backup) is reported as an error and not followed:
//! whoever restores a store restarts its users.

mod follow;
mod merge;
mod pulse;
mod snapshot;
mod tree;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

pub use snapshot::{Change, Delta, Snapshot};

use crate::clock::Moment;
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, Revision};
use crate::latest;
use crate::record::Prefix;
use crate::request::{Detail, Range};
use crate::store::Store;
use crate::task::OwnedTask;

/// How a view keeps in touch with the store.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// A watch is asked for a sign of life this often, also if it brings something all the time.
    pub heartbeat: Duration,
    /// A watch that does not answer for so long is opened anew.
    pub answer_within: Duration,
    /// A list that takes longer is given up and begun anew.
    pub list_within: Duration,
    /// While somebody waits for a revision, the store is asked for progress this often.
    pub ask_awaited: Duration,
    /// Waits between attempts to reach the store: the first, and the longest.
    pub retry: (Duration, Duration),
    /// Where the jitter of these waits comes from.
    pub seed: u64,
}

impl Default for ViewOptions {
    fn default() -> ViewOptions {
        ViewOptions {
            heartbeat: Duration::from_secs(5),
            answer_within: Duration::from_secs(5),
            list_within: Duration::from_secs(30),
            ask_awaited: Duration::from_millis(100),
            retry: (Duration::from_millis(50), Duration::from_secs(5)),
            seed: rand::random(),
        }
    }
}

/// The ranges that a view covers.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<KeyRange>);

impl Ranges {
    /// No range yet.
    #[must_use]
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Everything under a prefix as well.
    #[must_use]
    pub fn with<P: Prefix>(self, prefix: &P) -> Ranges {
        self.with_range(Prefix::range(prefix))
    }

    /// These keys as well. A range that another one encloses costs nothing.
    #[must_use]
    pub fn with_range(mut self, keys: KeyRange) -> Ranges {
        if !self.0.iter().any(|range| snapshot::encloses(range, &keys)) {
            self.0.retain(|range| !snapshot::encloses(&keys, range));
            self.0.push(keys);
        }
        self
    }
}

/// A snapshot of some ranges that follows the store. Lives as long as this value.
#[derive(Debug)]
pub struct View {
    store: Store,
    shared: Arc<Shared>,
    published: latest::Receiver<Revision>,
    _task: OwnedTask,
}

/// What the view and the task that feeds it share.
#[derive(Debug)]
struct Shared {
    current: ArcSwap<Snapshot>,
    /// The highest revision that anybody waits for.
    wanted: latest::Sender<Revision>,
    /// When the store last proved that the snapshot was complete.
    proven_at: Mutex<Moment>,
}

/// The view does not show the revision that was waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the view is at revision {at} and did not reach {wanted} in time")]
pub struct Behind {
    /// What it shows.
    pub at: Revision,
    /// What was waited for.
    pub wanted: Revision,
}

impl View {
    /// Lists the ranges, then follows them. Tries until the store answers; an error is one that no waiting cures.
    pub async fn open(store: Store, ranges: Ranges, options: ViewOptions) -> Result<View> {
        let follower = follow::Follower::open(store.clone(), ranges.0.into(), options).await?;
        let (shared, published) = follower.outlets();
        Ok(View { store, shared, published, _task: OwnedTask::spawn(follower.run()) })
    }

    /// What the view shows now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.current.load_full()
    }

    /// The snapshot once it shows this revision or a later one.
    pub async fn wait_for(&self, wanted: Revision, within: Duration) -> Result<Arc<Snapshot>, Behind> {
        let mut published = self.published.clone();
        self.shared.wanted.set_if(|highest| {
            let raise = wanted > *highest;
            *highest = wanted.max(*highest);
            raise
        });
        let reached = published.wait_for(|revision| *revision >= wanted);
        match tokio::time::timeout(within, reached).await {
            Ok(Ok(_)) => Ok(self.snapshot()),
            Ok(Err(_)) | Err(_) => Err(Behind { at: self.snapshot().revision(), wanted }),
        }
    }

    /// The snapshot once it shows everything that was written before this call.
    pub async fn catch_up(&self, within: Duration) -> Result<Arc<Snapshot>> {
        let anything = Range::one("/").detail(Detail::CountOnly);
        let asked = tokio::time::timeout(within, self.store.range(anything)).await;
        let newest = asked.map_err(|_| MetaError::Unavailable("no answer in time".to_owned()))??.revision;
        self.wait_for(newest, within).await.map_err(|behind| MetaError::Unavailable(behind.to_string()))
    }

    /// How long ago the store proved that the snapshot was complete; the time in which the machine was suspended counts.
    #[must_use]
    pub fn staleness(&self) -> Duration {
        self.shared.proven_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// What changes from now on. Slow readers see several changes as one and never hold anybody up.
    #[must_use]
    pub fn changes(&self) -> Changes {
        let mut published = self.published.clone();
        published.see();
        Changes { shared: self.shared.clone(), published, seen: self.snapshot() }
    }
}

/// The changes of a view since the last look.
#[derive(Debug)]
pub struct Changes {
    shared: Arc<Shared>,
    published: latest::Receiver<Revision>,
    seen: Arc<Snapshot>,
}

impl Changes {
    /// Waits until some key differs from what was last seen; nothing once the view is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delta> {
        loop {
            self.published.changed().await.ok()?;
            let after = self.shared.current.load_full();
            if !after.tree.same_as(&self.seen.tree) || after.resyncs != self.seen.resyncs {
                let before = std::mem::replace(&mut self.seen, after.clone());
                return Some(Delta { before, after });
            }
        }
    }

    /// What the view shows now; from here on it counts as seen.
    pub fn mark_seen(&mut self) -> Arc<Snapshot> {
        self.published.see();
        self.seen = self.shared.current.load_full();
        self.seen.clone()
    }
}
