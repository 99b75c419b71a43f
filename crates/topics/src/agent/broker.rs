//! A broker: finds the topic of a request, loads it when this host leads its log, and says where it is otherwise.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use capstan_access::secret::Token;
use capstan_control::keys::ServiceName;
use capstan_log::keys::LogKey;
use capstan_log::{Log, Standing};
use capstan_meta::session::Session;
use capstan_meta::view::{Snapshot, View, ViewOptions};
use capstan_meta::{OwnedTask, Store};
use capstan_steward::{Holder, Logs, Policy};
use tokio_util::sync::CancellationToken;

use super::clients::{Clients, Consumer, consumer_id, producer_id};
use super::options::BrokerOptions;
use super::peers::new_token;
use super::schemas::Schemas;
use super::shelf::Shelf;
use super::watchdog::Watchdog;
use super::{news, upkeep, uploads};
use crate::commit::{self, Begin};
use crate::controller::{self, SERVICE};
use crate::data::now_ms;
use crate::data::partition::{Partition, lacks_lease};
use crate::data::seats::Seat;
use crate::data::subscription::{Join, Messages, Subscription, Surroundings};
use crate::error::TopicsError;
use crate::facts::Facts;
use crate::keys::{PolicyKey, ProducerKey, RegisterKey, Registrations, SubscriptionName};
use crate::metrics::TopicsMetrics;
use crate::spec::{Delivery, NamespacePolicy, StoragePolicy, SubscriptionKind, TopicName, TopicRecord};
use crate::status::{ProducerRecord, Progress, Registration};
use crate::tier::{Tier, TierOfTopic};

/// How long a request waits until a topic that was just created or moved is served. Clients give up after 1.5 seconds
/// at the earliest, and try again.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
/// How long a view may take to show what was written.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// Copies of a topic where there are enough brokers.
const COPIES: usize = 3;
/// How long a stream is left alone when its consumer asks for another one without subscribing again.
const REPLACE_AFTER: Duration = Duration::from_millis(500);
/// How often a topic that is being recovered is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A broker that runs. Clones are the same broker; its tasks end with the last of them.
#[derive(Clone)]
pub struct Broker {
    pub(crate) inner: Arc<Inner>,
    _tasks: Arc<Vec<OwnedTask>>,
}

pub(crate) struct Inner {
    pub(super) me: Weak<Inner>,
    pub(super) id: u64,
    pub(super) options: BrokerOptions,
    pub(super) url: String,
    pub(super) store: Store,
    pub(super) session: Session,
    pub(super) view: Arc<View>,
    pub(super) logs: Logs,
    pub(super) holder: Holder,
    shelf: Arc<Shelf>,
    slots: Mutex<HashMap<TopicName, Arc<Slot>>>,
    pub(super) clients: Clients,
    pub(super) schemas: Schemas,
    pub(super) tier: Option<Tier>,
    watchdog: Mutex<Watchdog>,
    /// By which other brokers know this one.
    pub(super) token: Token,
}

/// The place of a topic: what is led here, if it is.
#[derive(Default)]
struct Slot {
    current: ArcSwapOption<Partition>,
    loading: tokio::sync::Mutex<()>,
}

/// Where a topic is served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one per request, never stored")]
pub(crate) enum Whereabouts {
    /// By this broker.
    Here,
    /// By a broker that is found there.
    At(Registration),
    /// By none at the moment.
    Nowhere,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Broker({})", self.inner.id)
    }
}

impl Broker {
    /// Registers the broker for as long as the session lives, and begins to lead topics whose logs the holder keeps. The
    /// shelf is the holder's owner.
    pub async fn start(
        options: BrokerOptions,
        holder: Holder,
        shelf: Arc<Shelf>,
        store: &Store,
        session: &Session,
        policy: Policy,
    ) -> Result<Broker, TopicsError> {
        let id = commit::found(store, &options.cluster, &options.host).await?;
        let logs = Logs::open(store.clone(), policy).await?;
        let view = Arc::new(View::open(store.clone(), Facts::ranges(), ViewOptions::default()).await?);
        let schemas = Schemas::open(store).await?;
        let tier = options.tier.clone().map(Tier::open).transpose()?;
        let inner = Arc::new_cyclic(|me| Inner {
            me: me.clone(),
            id,
            url: options.url(),
            store: store.clone(),
            session: session.clone(),
            view,
            logs,
            holder,
            shelf,
            slots: Mutex::default(),
            clients: Clients::default(),
            schemas,
            tier,
            watchdog: Mutex::default(),
            token: new_token(),
            options,
        });
        session.register(&RegisterKey { broker: id }, &inner.registration()).await;
        let tasks = vec![
            OwnedTask::spawn(load_manager(inner.clone())),
            OwnedTask::spawn(upkeep::run(inner.clone())),
            OwnedTask::spawn(uploads::run(inner.clone())),
            OwnedTask::spawn(news::run(inner.clone())),
        ];
        tracing::info!(broker = id, url = %inner.url, "serving topics");
        Ok(Broker { inner, _tasks: Arc::new(tasks) })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Where clients find it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Writes every cursor and ends every stream. The registration ends with the session, the logs with the holder.
    pub async fn stop(&self) -> Result<(), TopicsError> {
        for partition in self.inner.partitions() {
            for subscription in partition.all_subscriptions() {
                self.inner.save(subscription.checkpoint(&partition)).await?;
            }
            partition.end_now();
        }
        Ok(())
    }
}

async fn load_manager(inner: Arc<Inner>) {
    let Ok(service) = SERVICE.parse::<ServiceName>() else { return };
    let (store, session, view, logs) =
        (inner.store.clone(), inner.session.clone(), inner.view.clone(), inner.logs.clone());
    controller::run(store, session, view, logs, service, inner.id, CancellationToken::new()).await;
}

impl Inner {
    fn registration(&self) -> Registration {
        let url = self.url.clone();
        Registration {
            admin_addr: self.options.admin.clone().unwrap_or_else(|| url.clone()),
            advertised_addr: self.options.advertise.clone(),
            broker_addr: url.clone(),
            prom_exporter: self.options.metrics.clone(),
            broker_url: url.clone(),
            connect_url: url,
            holder: self.holder.id().clone(),
            token_hash: Some(self.token.hash()),
            extra: Default::default(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<TopicName, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is loaded.
    pub(crate) fn partitions(&self) -> Vec<Arc<Partition>> {
        self.slots().values().filter_map(|slot| slot.current.load_full()).collect()
    }

    pub(crate) fn forget(&self, topic: &TopicName) {
        self.slots().remove(topic);
    }

    /// The topic's record, as the view shows it.
    pub(crate) fn record(&self, name: &TopicName) -> Result<Option<TopicRecord>, TopicsError> {
        self.record_in(&self.view.snapshot(), name)
    }

    fn record_in(&self, snapshot: &Snapshot, name: &TopicName) -> Result<Option<TopicRecord>, TopicsError> {
        let found = snapshot.get(&name.record_key()).map_err(|bad| TopicsError::Corrupt(bad.to_string()))?;
        Ok(found.map(|stored| stored.record.clone()))
    }

    pub(crate) fn policy(&self, name: &TopicName) -> NamespacePolicy {
        let key = PolicyKey { namespace: name.namespace.clone() };
        match self.view.snapshot().get(&key) {
            Ok(Some(stored)) => stored.record.clone(),
            // A policy that cannot be read limits nothing but the size; a finding says so.
            Ok(None) | Err(_) => NamespacePolicy::default(),
        }
    }

    /// How long the messages of a topic stay.
    pub(crate) fn storage_of(&self, name: &TopicName) -> Result<StoragePolicy, TopicsError> {
        let own = self.record(name)?.map(|record| record.storage).unwrap_or_default();
        Ok(own.or(self.policy(name).storage))
    }

    /// Where a topic is served, as the view shows it.
    pub(crate) fn whereabouts(&self, name: &TopicName) -> Result<Whereabouts, TopicsError> {
        let snapshot = self.view.snapshot();
        let record = self.record_in(&snapshot, name)?;
        let record = record.ok_or_else(|| TopicsError::NoSuchTopic(name.to_string()))?;
        if self.leading(&record).is_some() {
            return Ok(Whereabouts::Here);
        }
        let config =
            snapshot.get(&LogKey { log: record.log }).map_err(|bad| TopicsError::Corrupt(bad.to_string()))?;
        let Some(config) = config else { return Ok(Whereabouts::Nowhere) };
        let brokers = snapshot.list(&Registrations {});
        let owner = brokers.iter().find(|(_, broker)| broker.record.holder == config.record.primary);
        Ok(match owner {
            Some((key, _)) if key.broker == self.id => Whereabouts::Nowhere,
            Some((_, broker)) => Whereabouts::At(broker.record.clone()),
            None => Whereabouts::Nowhere,
        })
    }

    /// The topic's log, if it leads here. A broker that is cut off from the store leads nothing: another one may.
    pub(super) fn leading(&self, record: &TopicRecord) -> Option<Log> {
        let log = self.shelf.get(&record.log)?;
        let leads = matches!(*log.standing().borrow(), Standing::Leading { .. });
        (leads && !lacks_lease(&log)).then_some(log)
    }

    /// A topic that is served here, loaded if need be.
    pub(crate) async fn partition(&self, name: &TopicName) -> Result<Arc<Partition>, TopicsError> {
        let record = self.record(name)?.ok_or_else(|| TopicsError::NoSuchTopic(name.to_string()))?;
        let known = self.slots().get(name).and_then(|slot| slot.current.load_full());
        // A topic that was deleted, or created again since, is another one although its log may still lead here: what is
        // published to the old log goes with it.
        if let Some(partition) = known
            && !partition.is_over()
            && partition.record.id == record.id
        {
            return Ok(partition);
        }
        let Some(log) = self.leading(&record) else {
            let at = match self.whereabouts(name)? {
                Whereabouts::At(broker) => Some(broker.connect_url),
                Whereabouts::Here | Whereabouts::Nowhere => None,
            };
            return Err(TopicsError::NotHere { topic: name.to_string(), at });
        };
        let slot = self.slots().entry(name.clone()).or_default().clone();
        let _loading = slot.loading.lock().await;
        if let Some(partition) = slot.current.load_full()
            && !partition.is_over()
            && partition.record.id == record.id
        {
            return Ok(partition);
        }
        let tier = match &self.tier {
            Some(tier) if record.delivery == Delivery::Reliable => {
                Some(TierOfTopic::load(tier, &self.store, name, record.id).await?)
            }
            Some(_) | None => None,
        };
        let partition = Partition::load(name.clone(), record, log, self.url.clone(), tier).await?;
        slot.current.store(Some(partition.clone()));
        Ok(partition)
    }

    /// The same, waiting for a topic that is about to be served here.
    pub(crate) async fn served(&self, name: &TopicName) -> Result<Arc<Partition>, TopicsError> {
        if self.record(name)?.is_none() {
            // It may have been created through another broker a moment ago.
            self.view.catch_up(SEEN_WITHIN).await?;
        }
        let until = tokio::time::Instant::now() + SERVED_WITHIN;
        let mut openings = self.shelf.openings();
        loop {
            openings.borrow_and_update();
            let refused = match self.partition(name).await {
                Ok(partition) => return Ok(partition),
                Err(refused @ (TopicsError::NotHere { at: None, .. } | TopicsError::NotReady(_))) => refused,
                Err(error) => return Err(error),
            };
            if tokio::time::Instant::now() >= until {
                return Err(refused);
            }
            // Leading begins a moment after opening, and nothing says so to all that wait.
            drop(tokio::time::timeout(LOOK_AGAIN, openings.changed()).await);
        }
    }

    /// How many copies a new topic gets.
    pub(crate) fn copies(&self) -> usize {
        let up = self.view.snapshot().list(&Registrations {}).entries.len();
        self.options.copies.unwrap_or(if up >= COPIES { COPIES } else { 1 })
    }

    /// Creates a topic, if it is not there, and waits until the view shows it.
    pub(crate) async fn create(&self, name: &TopicName, delivery: Delivery) -> Result<(), TopicsError> {
        if let Some(known) = self.record(name)? {
            return delivers(name, &known, delivery);
        }
        commit::create_topic(&self.store, name, delivery, self.copies()).await?;
        self.view.catch_up(SEEN_WITHIN).await?;
        Ok(())
    }

    /// Registers a producer and says its number. A topic that is not there is created, unless its namespace forbids it.
    pub(crate) async fn add_producer(
        &self,
        topic: &TopicName,
        producer: &str,
        delivery: Delivery,
    ) -> Result<u64, TopicsError> {
        if self.policy(topic).forbid_auto_create == 0 {
            self.create(topic, delivery).await?;
        } else {
            delivers(topic, &self.existing(topic).await?, delivery)?;
        }
        let partition = self.served(topic).await?;
        let id = producer_id(topic, producer);
        self.enlist(&partition, id, producer)?;
        Ok(id)
    }

    pub(super) fn enlist(&self, partition: &Partition, id: u64, producer: &str) -> Result<(), TopicsError> {
        if self.clients.heard_of_producer(id) {
            return Ok(());
        }
        let topic = &partition.name;
        let limit = self.policy(topic).max_producers_per_topic;
        let known = self.clients.producers_of(topic);
        if limit > 0 && known >= usize::try_from(limit).unwrap_or(usize::MAX) {
            let why = format!("topic {topic} has {known} producers, the limit of its namespace");
            return Err(TopicsError::Limit(why));
        }
        self.clients.add_producer(id, topic.clone());
        let record = ProducerRecord {
            access_mode: 0,
            producer_id: id,
            producer_name: producer.to_owned(),
            status: true,
            topic_name: topic.to_string(),
        };
        let (namespace, local) = (topic.namespace.clone(), topic.local.clone());
        self.session.declare(&ProducerKey { namespace, topic: local, producer: id }, &record);
        Ok(())
    }

    /// Registers a consumer and says its number. A subscription that is not there begins behind the last message.
    pub(crate) async fn add_consumer(
        self: &Arc<Inner>,
        topic: &TopicName,
        subscription: &SubscriptionName,
        consumer: &str,
        kind: SubscriptionKind,
        filters: Vec<String>,
    ) -> Result<u64, TopicsError> {
        let partition = self.served(topic).await?;
        let policy = self.policy(topic);
        let begin = Begin {
            consumer: consumer.to_owned(),
            kind,
            progress: progress_at(&partition, partition.end()),
            limit: policy.max_subscriptions_per_topic,
        };
        let known = partition.subscription(subscription);
        let found = match known {
            Some(known) if known.kind() == kind => known,
            _ => self.subscribe(&partition, subscription, &begin).await?,
        };
        let id = consumer_id(topic, subscription, consumer);
        let limit = policy.max_consumers_per_topic;
        let others = partition.consumers();
        if limit > 0 && others >= usize::try_from(limit).unwrap_or(usize::MAX) && !found.heard_of(id) {
            let why = format!("topic {topic} has {others} consumers, the limit of its namespace");
            return Err(TopicsError::Limit(why));
        }
        let seat = Seat::new(id, consumer.to_owned(), filters.clone());
        found.join(Join { seat, kind, limit: policy.max_consumers_per_subscription })?;
        let (topic, subscription) = (topic.clone(), subscription.clone());
        let (name, heard) = (consumer.to_owned(), now_ms());
        self.clients.add_consumer(id, Consumer { topic, subscription, name, kind, filters, heard });
        Ok(id)
    }

    /// Stores a subscription and keeps it.
    pub(crate) async fn subscribe(
        self: &Arc<Inner>,
        partition: &Arc<Partition>,
        name: &SubscriptionName,
        begin: &Begin,
    ) -> Result<Arc<Subscription>, TopicsError> {
        let known = partition.subscription(name);
        if let Some(known) = &known
            && known.kind() != begin.kind
            && !known.consumers().is_empty()
        {
            let why = format!("subscription {name} is {} and has consumers", known.kind());
            return Err(TopicsError::Mismatch(why));
        }
        let stored = commit::subscribe(&self.store, &partition.name, name, begin).await?;
        Ok(self.keep(partition, name, stored.kind, stored.progress))
    }

    fn keep(
        self: &Arc<Inner>,
        partition: &Arc<Partition>,
        name: &SubscriptionName,
        kind: SubscriptionKind,
        progress: Progress,
    ) -> Arc<Subscription> {
        let surroundings: Arc<dyn Surroundings> = self.clone();
        partition.keep(Subscription::new(name.clone(), kind, progress, partition, surroundings))
    }

    /// A subscription of a topic that is served here, loaded if need be.
    pub(crate) async fn subscription(
        self: &Arc<Inner>,
        topic: &TopicName,
        name: &SubscriptionName,
    ) -> Result<(Arc<Partition>, Arc<Subscription>), TopicsError> {
        let partition = self.partition(topic).await?;
        if let Some(known) = partition.subscription(name) {
            return Ok((partition, known));
        }
        let stored = commit::stored_subscription(&self.store, topic, partition.record.id, name).await?;
        let missing =
            || TopicsError::NoSuchSubscription { topic: topic.to_string(), subscription: name.to_string() };
        let stored = stored.ok_or_else(missing)?;
        let kept = self.keep(&partition, name, stored.kind, stored.progress);
        Ok((partition, kept))
    }

    /// The messages of a consumer.
    pub(crate) async fn receive(
        self: &Arc<Inner>,
        id: u64,
        peer: Option<SocketAddr>,
    ) -> Result<Messages, TopicsError> {
        let missing = || TopicsError::NotRegistered(format!("consumer {id}"));
        let consumer = self.clients.consumer(id).ok_or_else(missing)?;
        // The topic is kept until the stream is attached.
        let (_partition, subscription) = self.subscription(&consumer.topic, &consumer.subscription).await?;
        if let Some(rival) = subscription.rival(id) {
            let same = peer.is_some() && rival.peer == peer;
            // On another connection the stream may be one that broke unnoticed. On the same one it is alive, and what asks
            // right after a replacement is what was replaced: the two would replace each other without end.
            let waits = !same || rival.is_successor;
            let ended = waits && tokio::time::timeout(REPLACE_AFTER, rival.ended()).await.is_ok();
            if same && rival.is_successor && !ended {
                let why = format!("consumer {id} has another stream on this connection since a moment ago");
                return Err(TopicsError::Mismatch(why));
            }
        }
        let limit = self.policy(&consumer.topic).max_consumers_per_subscription;
        let seat = Seat::new(id, consumer.name, consumer.filters);
        subscription.attach(Join { seat, kind: consumer.kind, limit }, peer)
    }

    /// Notes that a client is alive; whether it is registered here.
    pub(crate) fn heard_of(&self, id: u64, is_producer: bool) -> bool {
        if is_producer {
            return self.clients.heard_of_producer(id);
        }
        let Some(consumer) = self.clients.consumer(id) else { return false };
        let partition = self.slots().get(&consumer.topic).and_then(|slot| slot.current.load_full());
        match partition.filter(|partition| !partition.is_over()) {
            None => false,
            Some(partition) => {
                partition.subscription(&consumer.subscription).is_some_and(|known| known.heard_of(id))
            }
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn logs(&self) -> &Logs {
        &self.logs
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        &self.view
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn counters(&self) -> &TopicsMetrics {
        &self.options.counters
    }

    pub(crate) fn producers_of(&self, topic: &TopicName) -> usize {
        self.clients.producers_of(topic)
    }
}

/// Whether a topic delivers as a producer wants it to.
fn delivers(name: &TopicName, known: &TopicRecord, wanted: Delivery) -> Result<(), TopicsError> {
    let is = known.delivery;
    if is == wanted {
        return Ok(());
    }
    Err(TopicsError::Mismatch(format!("topic {name} is {is}, not {wanted}")))
}

/// Progress of a subscription that begins at an offset.
pub(crate) fn progress_at(partition: &Partition, floor: u64) -> Progress {
    Progress {
        epoch: partition.epoch,
        topic_id: partition.record.id,
        floor,
        acknowledged: Default::default(),
        seeks: 0,
        failure_policy: None,
        max_unacked_messages: None,
    }
}
