//! What keeps a view up to date? One task: list at R, watch from R + 1, publish whole revisions; after a break resume
//! where it was, after a compaction list anew. The decisions are in [`super::merge`] and [`super::pulse`].

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use futures_util::future::select_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::merge::{Merge, Misfit};
use super::pulse::{Need, Pulse, Rhythm};
use super::tree::{Entry, Tree};
use super::{Shared, Snapshot, ViewOptions};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{MetaError, Remedy, Result};
use crate::kv::{KeyRange, KeyValue, Revision};
use crate::latest;
use crate::record::list_pages;
use crate::request::{Watch, WatchMessage};
use crate::store::{Store, WatchStream};

/// Feeds one view.
pub(super) struct Follower {
    store: Store,
    ranges: Arc<[KeyRange]>,
    options: ViewOptions,
    backoff: Backoff,
    shared: Arc<Shared>,
    published: latest::Sender<Revision>,
    wanted: latest::Receiver<Revision>,
}

/// Why the watches are followed no further.
enum End {
    /// Open them again where they were.
    Resume(MetaError),
    /// History is gone or not to be believed: list anew.
    Relist(String),
}

impl From<MetaError> for End {
    fn from(error: MetaError) -> End {
        match error {
            MetaError::Compacted { .. } => End::Relist(error.to_string()),
            other => End::Resume(other),
        }
    }
}

/// An open watch with its signs of life.
struct Lane {
    stream: Box<dyn WatchStream>,
    pulse: Pulse,
}

impl Follower {
    /// Lists for the first time.
    pub(super) async fn open(
        store: Store,
        ranges: Arc<[KeyRange]>,
        options: ViewOptions,
    ) -> Result<Follower> {
        let mut backoff = Backoff::new(options.retry.0, options.retry.1, options.seed);
        let (listed_at, revision, kvs) = loop {
            let asked_at = Moment::now();
            match list(&store, &ranges, &options).await {
                Ok((revision, kvs)) => break (asked_at, revision, kvs),
                Err(error) if matches!(error.remedy(), Remedy::Reject | Remedy::Report) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "view cannot be listed yet");
                    sleep(backoff.next_wait()).await;
                }
            }
        };
        backoff.reset();
        let tree = Tree::from_sorted(kvs.into_iter().map(Entry::new).collect());
        let snapshot = Snapshot { ranges: ranges.clone(), revision, resyncs: 0, tree };
        let (wanted_sender, wanted) = latest::channel(Revision::ZERO);
        let shared = Arc::new(Shared {
            current: ArcSwap::from_pointee(snapshot),
            wanted: wanted_sender,
            proven_at: Mutex::new(listed_at),
        });
        let published = latest::Sender::new(revision);
        Ok(Follower { store, ranges, options, backoff, shared, published, wanted })
    }

    pub(super) fn outlets(&self) -> (Arc<Shared>, latest::Receiver<Revision>) {
        (self.shared.clone(), self.published.subscribe())
    }

    /// Follows for ever; the view aborts it.
    pub(super) async fn run(mut self) {
        loop {
            match self.follow().await {
                End::Resume(error) => tracing::debug!(%error, "watches of a view broke"),
                End::Relist(reason) => self.relist(&reason).await,
            }
            sleep(self.backoff.next_wait()).await;
        }
    }

    /// Opens all watches behind what is shown and follows them until one breaks. They break together: what waits for
    /// a broken one would only pile up, and the store has it still.
    async fn follow(&mut self) -> End {
        let shown = self.shared.current.load_full();
        let mut merge = Merge::new(self.ranges.len(), shown.revision);
        let mut lanes = match self.open_lanes(shown.revision).await {
            Ok(lanes) => lanes,
            Err(error) => return error.into(),
        };
        if lanes.is_empty() {
            std::future::pending::<()>().await;
        }
        loop {
            if let Err(error) = self.ask_for_progress(&merge, &mut lanes).await {
                return error.into();
            }
            let Some(wake_at) = self.wake_at(&merge, &lanes) else { return silence(&lanes) };
            let (message, lane) = tokio::select! {
                biased;
                (message, lane, _) = select_all(lanes.iter_mut().map(|lane| lane.stream.next())) => (message, lane),
                () = sleep_until(wake_at) => continue,
                Ok(()) = self.wanted.changed() => continue,
            };
            if let Err(end) = self.take(&mut merge, &mut lanes, lane, message) {
                return end;
            }
        }
    }

    async fn open_lanes(&self, shown: Revision) -> Result<Vec<Lane>> {
        let rhythm = Rhythm {
            heartbeat: self.options.heartbeat,
            answer_within: self.options.answer_within,
            ask_awaited: self.options.ask_awaited,
        };
        let mut lanes = Vec::with_capacity(self.ranges.len());
        for range in self.ranges.iter() {
            let opening = self.store.watch(Watch::from(range.clone(), shown.next()));
            let stream = timeout(self.options.answer_within, opening).await.map_err(|_| no_answer())??;
            lanes.push(Lane { stream, pulse: Pulse::new(rhythm, Instant::now()) });
        }
        Ok(lanes)
    }

    /// Takes one message, and shows what it completes.
    fn take(
        &mut self,
        merge: &mut Merge,
        lanes: &mut [Lane],
        lane: usize,
        message: Result<WatchMessage>,
    ) -> Result<(), End> {
        let message = message?;
        let shown = self.shared.current.load_full();
        merge.offer(lane, &message, &shown.tree).map_err(|misfit| match misfit {
            Misfit::TooFarApart => End::Resume(MetaError::Unavailable(misfit.to_string())),
            Misfit::Contradiction { .. } | Misfit::WentBack { .. } => End::Relist(misfit.to_string()),
        })?;
        self.backoff.reset();
        if let Some(lane) = lanes.get_mut(lane) {
            match message {
                WatchMessage::Progress(_) => lane.pulse.answered(Instant::now()),
                WatchMessage::Events { .. } => lane.pulse.heard(Instant::now()),
            }
        }
        if let Some((revision, changes)) = merge.ready() {
            let mut tree = shown.tree.clone();
            tree.apply(changes);
            self.publish(Snapshot { revision, tree, ..(*shown).clone() });
        }
        // What is shown is only as fresh as the lane with the oldest proof; without one (`None` is least) it has none.
        if let Some(proof) = lanes.iter().map(|lane| lane.pulse.proven_at()).min().flatten() {
            self.prove(proof);
        }
        Ok(())
    }

    fn publish(&self, snapshot: Snapshot) {
        let revision = snapshot.revision;
        self.shared.current.store(Arc::new(snapshot));
        self.published.set(revision);
    }

    fn prove(&self, at: Moment) {
        let mut proven_at = self.shared.proven_at.lock().unwrap_or_else(PoisonError::into_inner);
        *proven_at = at.max(*proven_at);
    }

    async fn ask_for_progress(&self, merge: &Merge, lanes: &mut [Lane]) -> Result<()> {
        let now = Moment::now();
        for (at, lane) in lanes.iter_mut().enumerate() {
            if lane.pulse.ask_at(self.need(merge, at)) <= now.at {
                let asking = lane.stream.request_progress();
                timeout(self.options.answer_within, asking).await.map_err(|_| no_answer())??;
                lane.pulse.asked(now);
            }
        }
        Ok(())
    }

    fn need(&self, merge: &Merge, lane: usize) -> Need {
        if merge.lags(lane, Revision::ZERO) {
            Need::Lagging
        } else if merge.lags(lane, self.wanted.get()) {
            Need::Awaited
        } else {
            Need::Heartbeat
        }
    }

    /// When to look again if nothing comes; nothing if a watch has been silent for too long.
    fn wake_at(&self, merge: &Merge, lanes: &[Lane]) -> Option<Instant> {
        let asks =
            lanes.iter().enumerate().map(|(at, lane)| lane.pulse.ask_at(self.need(merge, at))).min()?;
        let broken = lanes.iter().filter_map(|lane| lane.pulse.broken_at()).min();
        match broken {
            Some(broken) if broken <= Instant::now() => None,
            Some(broken) => Some(asks.min(broken)),
            None => Some(asks),
        }
    }

    /// Lists everything again and shows the result as one step. A store that went back in time (it was restored from an
    /// older copy) is shown as it is: what was shown is history that never was. It counts as an error, and its users see
    /// a resync.
    async fn relist(&mut self, reason: &str) {
        let shown = self.shared.current.load_full();
        tracing::info!(reason, revision = %shown.revision, "view lists anew");
        loop {
            let asked_at = Moment::now();
            match list(&self.store, &self.ranges, &self.options).await {
                Ok((revision, kvs)) => {
                    if revision < shown.revision {
                        tracing::error!(shown = %shown.revision, store = %revision, "metadata store went back in time");
                    }
                    let tree = Tree::from_sorted(kvs.into_iter().map(|kv| keep(&shown.tree, kv)).collect());
                    let resyncs = shown.resyncs + 1;
                    self.publish(Snapshot { ranges: self.ranges.clone(), revision, resyncs, tree });
                    self.prove(asked_at);
                    return;
                }
                Err(error) => tracing::warn!(%error, "view cannot be listed"),
            }
            sleep(self.backoff.next_wait()).await;
        }
    }
}

/// A watch that fell silent is opened again. One that could be opened and then said nothing at all would do the same
/// again (a server may be unable to prove progress across a compaction): a list says what it cannot.
fn silence(lanes: &[Lane]) -> End {
    let text = "a watch gave no sign of life".to_owned();
    match lanes.iter().any(|lane| lane.pulse.is_mute()) {
        true => End::Relist(text),
        false => End::Resume(MetaError::Unavailable(text)),
    }
}

/// The entry of a key that did not change stays the same one: it is not decoded again and not seen as a change.
fn keep(shown: &Tree, kv: Arc<KeyValue>) -> Arc<Entry> {
    match shown.get(&kv.key) {
        // The whole version counts: in a store that went back the same revision may have written something else.
        Some(entry) if entry.kv == kv => entry.clone(),
        _ => Entry::new(kv),
    }
}

fn no_answer() -> MetaError {
    MetaError::Unavailable("no answer in time".to_owned())
}

/// All ranges at one revision, in key order.
async fn list(
    store: &Store,
    ranges: &[KeyRange],
    options: &ViewOptions,
) -> Result<(Revision, Vec<Arc<KeyValue>>)> {
    let listing = async {
        let mut at = Revision::ZERO;
        let mut all = Vec::new();
        for range in ranges {
            let (revision, kvs) = list_pages(store, range, at).await?;
            at = revision;
            all.extend(kvs);
        }
        all.sort_by(|one: &Arc<KeyValue>, two| one.key.cmp(&two.key));
        Ok((at, all))
    };
    timeout(options.list_within, listing).await.map_err(|_| no_answer())?
}
