//! A topic that this broker leads, in one epoch of its log.
//!
//! When the log gets another epoch, this value is over: publishes fail, subscriptions end their streams, and the broker
//! makes another one if it leads again. An idle partition has no task.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_log::{Log, LogEpoch, LogError, Standing};
use tokio::sync::{Notify, watch};

use super::producers::Producers;
use super::publish::Queue;
use super::read;
use super::recent::Recent;
use super::subscription::Subscription;
use super::throttle::Throttle;
use crate::error::TopicsError;
use crate::keys::SubscriptionName;
use crate::spec::{Delivery, TopicName, TopicRecord};
use crate::tier::TierOfTopic;

/// A topic that is led here.
pub(crate) struct Partition {
    pub(crate) name: TopicName,
    /// The name as text, for every delivered message.
    pub(crate) text: String,
    /// Where clients find this broker, for every delivered message.
    pub(crate) broker_url: String,
    pub(crate) record: TopicRecord,
    pub(crate) log: Log,
    pub(crate) epoch: LogEpoch,
    /// Where its old messages are, if there is such a place.
    pub(crate) tier: Option<TierOfTopic>,
    pub(super) queue: Mutex<Queue>,
    pub(super) more: Notify,
    pub(super) tip: tokio::sync::Mutex<Tip>,
    pub(super) recent: Mutex<Recent>,
    /// The offset behind the last committed message.
    pub(super) high: watch::Sender<u64>,
    pub(super) rate: Throttle,
    over: AtomicBool,
    /// Messages that consumers of a NonReliable topic missed.
    pub(crate) dropped: AtomicU64,
    /// Messages that subscriptions did not deliver because they were too old.
    pub(crate) expired: AtomicU64,
    subscriptions: Mutex<HashMap<SubscriptionName, Arc<Subscription>>>,
    /// The end when it was loaded, and whether all of its subscriptions were loaded since.
    loaded_at: u64,
    pub(crate) loaded_all: AtomicBool,
}

/// Where the next message goes. Changed by the one task that drains the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Tip {
    /// The offset of the next message.
    pub(super) next: u64,
    pub(super) producers: Producers,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Partition({} in epoch {})", self.text, self.epoch)
    }
}

impl Partition {
    /// Rebuilds the state from the end of the log. The log must lead here.
    pub(crate) async fn load(
        name: TopicName,
        record: TopicRecord,
        log: Log,
        broker_url: String,
        tier: Option<TierOfTopic>,
    ) -> Result<Arc<Partition>, TopicsError> {
        let standing = log.standing().borrow().clone();
        let Standing::Leading { epoch, .. } = standing else {
            return Err(TopicsError::NotHere { topic: name.to_string(), at: None });
        };
        // What an earlier life of this partition has submitted must be settled: its offsets are taken.
        let status = log.status().await?;
        if status.epoch != epoch || status.end != status.committed {
            return Err(TopicsError::NotReady(format!("topic {name} is being recovered")));
        }
        let (next, producers) = read::tip(&log, status.committed).await?;
        Ok(Arc::new(Partition {
            text: name.to_string(),
            name,
            broker_url,
            record,
            log,
            epoch,
            tier,
            queue: Mutex::default(),
            more: Notify::new(),
            tip: tokio::sync::Mutex::new(Tip { next, producers }),
            recent: Mutex::default(),
            high: watch::Sender::new(next),
            rate: Throttle::default(),
            over: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            subscriptions: Mutex::default(),
            loaded_at: next,
            loaded_all: AtomicBool::new(false),
        }))
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.record.delivery == Delivery::Reliable
    }

    /// The offset behind the last message that consumers may have.
    pub(crate) fn end(&self) -> u64 {
        *self.high.borrow()
    }

    /// Whether messages have come that subscriptions may lack which nobody has asked for yet.
    pub(crate) fn grew(&self) -> bool {
        self.end() > self.loaded_at && !self.loaded_all.load(Ordering::Relaxed)
    }

    pub(crate) fn ends(&self) -> watch::Receiver<u64> {
        self.high.subscribe()
    }

    /// Whether this broker leads the topic in another epoch, or not at all. Without a lease another one may lead, and
    /// clients that stay would wait for messages that come there.
    pub(crate) fn is_over(&self) -> bool {
        let leads =
            matches!(*self.log.standing().borrow(), Standing::Leading { epoch, .. } if epoch == self.epoch);
        !leads || self.over.load(Ordering::Relaxed) || lacks_lease(&self.log)
    }

    /// Ends this value: what was decided on may not hold any more.
    pub(crate) fn end_now(&self) {
        self.over.store(true, Ordering::Relaxed);
        for subscription in self.all_subscriptions() {
            subscription.wake();
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<SubscriptionName, Arc<Subscription>>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscription(&self, name: &SubscriptionName) -> Option<Arc<Subscription>> {
        self.subscriptions().get(name).cloned()
    }

    pub(crate) fn all_subscriptions(&self) -> Vec<Arc<Subscription>> {
        self.subscriptions().values().cloned().collect()
    }

    /// Keeps a subscription; one that is there stays.
    pub(crate) fn keep(&self, subscription: Arc<Subscription>) -> Arc<Subscription> {
        self.subscriptions().entry(subscription.name.clone()).or_insert(subscription).clone()
    }

    pub(crate) fn forget(&self, name: &SubscriptionName) {
        self.subscriptions().remove(name);
    }

    pub(crate) fn consumers(&self) -> usize {
        self.all_subscriptions().iter().map(|subscription| subscription.consumers().len()).sum()
    }
}

/// Whether a log that leads here may not be served, because the lease of its host is not good.
pub(crate) fn lacks_lease(log: &Log) -> bool {
    matches!(log.committed(), Err(LogError::NoLease(_)))
}
