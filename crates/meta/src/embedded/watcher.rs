//! How does one watch follow the store? It replays history up to where it joined, then takes its group's deliveries,
//! and goes back to the history whenever it was too slow for them.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::Shared;
use super::hub::{Delivery, Interest};
use crate::error::{MetaError, Result};
use crate::kv::Revision;
use crate::request::{Event, Watch, WatchMessage};
use crate::store::WatchStream;

/// Revisions looked at in one go of a replay; etcd's own bound for one message.
const REPLAY_REVISIONS: usize = 1000;

/// A message may hold more than this only if one revision does.
const REPLAY_BYTES: usize = 1024 * 1024;

/// An open watch of the embedded store.
pub struct Watcher {
    shared: Arc<Shared>,
    interest: Interest,
    deliveries: broadcast::Receiver<Arc<Delivery>>,
    /// Everything before this was delivered (or not asked for).
    next: Revision,
    /// The last delivery that was taken.
    taken: u64,
    /// History up to here must be read before deliveries are.
    replay_through: Revision,
    progress_wanted: bool,
}

impl Watcher {
    /// Joins the group; fails if the range can hold no key or the first revision is compacted.
    pub fn open(shared: Arc<Shared>, watch: &Watch) -> Result<Watcher> {
        if watch.keys.is_empty() {
            return Err(MetaError::EmptyWatchRange);
        }
        let interest = Interest::of(watch);
        let (deliveries, published, taken) = {
            let mut hub = shared.hub();
            (hub.join(&interest), hub.published(), hub.delivered(&interest))
        };
        let next = if watch.from == Revision::ZERO { published.next() } else { watch.from };
        let watcher = Watcher {
            shared,
            interest,
            deliveries,
            next,
            taken,
            replay_through: published,
            progress_wanted: false,
        };
        let compacted = watcher.shared.state()?.compacted;
        watcher.check_compaction(compacted)?;
        Ok(watcher)
    }

    fn check_compaction(&self, compacted: Revision) -> Result<()> {
        let passed = self.next < compacted && self.next <= self.replay_through;
        if passed || self.next < Revision::ZERO {
            return Err(MetaError::Compacted { oldest: compacted });
        }
        Ok(())
    }

    /// Reads some history; `None` if what was read holds nothing of interest.
    fn replay(&mut self) -> Result<Option<WatchMessage>> {
        let mut events = Vec::new();
        let mut bytes = 0;
        let state = self.shared.state()?;
        self.check_compaction(state.compacted)?;
        if self.next < state.history.first() {
            // A store that never changed is at revision 1 and has no history of it. Anything else would be a gap.
            if self.next > Revision::FIRST {
                return Err(MetaError::Compacted { oldest: state.history.first() });
            }
            self.next = state.history.first();
        }
        for change in state.history.from(self.next, REPLAY_REVISIONS) {
            if change.revision > self.replay_through || bytes > REPLAY_BYTES {
                break;
            }
            for mut event in change.events.iter().filter_map(|event| self.interest.select(event)) {
                if change.revision <= state.compacted {
                    // The version before it is as good as gone, though memory may still hold it.
                    event.prev = None;
                }
                bytes += event.kv.key.len() + event.kv.value.len();
                events.push(event);
            }
            self.next = change.revision.next();
        }
        Ok(message(events))
    }

    /// A delivery without what this watch has had already.
    fn accept(&mut self, delivery: &Delivery) -> Option<WatchMessage> {
        self.taken = delivery.number;
        if delivery.revision < self.next {
            return None;
        }
        let known = |event: &Event| event.kv.mod_revision < self.next;
        let message = if delivery.events.first().is_some_and(known) {
            message(delivery.events.iter().filter(|event| !known(event)).cloned().collect())
        } else {
            Some(WatchMessage::Events { revision: delivery.revision, events: delivery.events.clone() })
        };
        self.next = delivery.revision.next();
        message
    }

    /// What is there without waiting: a message, or the proof that there is none.
    fn poll_progress(&mut self) -> Result<Option<WatchMessage>> {
        let published = self.shared.hub().published();
        match self.deliveries.try_recv() {
            Ok(delivery) => Ok(self.accept(&delivery)),
            Err(TryRecvError::Empty) => {
                self.progress_wanted = false;
                self.next = self.next.max(published.next());
                Ok(Some(WatchMessage::Progress(published)))
            }
            Err(TryRecvError::Lagged(_)) => {
                self.fall_back();
                Ok(None)
            }
            Err(TryRecvError::Closed) => Err(MetaError::Stopped),
        }
    }

    /// Was too slow for the ring: goes on from the history, behind the revisions in which its keys did not change. They may
    /// have been compacted meanwhile, and nothing of them is missed.
    fn fall_back(&mut self) {
        let (published, first_missed) = {
            let hub = self.shared.hub();
            (hub.published(), hub.next_after(&self.interest, self.taken))
        };
        self.next = first_missed.map_or(self.next, |first| self.next.max(first));
        self.replay_through = published;
    }
}

fn message(events: Vec<Event>) -> Option<WatchMessage> {
    let revision = events.last()?.kv.mod_revision;
    Some(WatchMessage::Events { revision, events: events.into() })
}

#[async_trait]
impl WatchStream for Watcher {
    async fn next(&mut self) -> Result<WatchMessage> {
        loop {
            // A watch that always has something to say must not keep its thread from others.
            tokio::task::coop::consume_budget().await;
            let message = if self.next <= self.replay_through {
                self.replay()?
            } else if self.progress_wanted {
                self.poll_progress()?
            } else {
                match self.deliveries.recv().await {
                    Ok(delivery) => self.accept(&delivery),
                    Err(RecvError::Lagged(_)) => {
                        self.fall_back();
                        None
                    }
                    Err(RecvError::Closed) => return Err(MetaError::Stopped),
                }
            };
            if let Some(message) = message {
                return Ok(message);
            }
        }
    }

    async fn request_progress(&mut self) -> Result<()> {
        self.progress_wanted = true;
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The receiver counts as a member until it is gone: swap it for one of nobody's group.
        self.deliveries = broadcast::channel(1).1;
        self.shared.hub().leave(&self.interest);
    }
}
