//! Changes become guarded transactions: one for each, so that a crash leaves it done or not done.

use capstan_control::keys::HostId;
use capstan_log::LogName;
use capstan_meta::record::{Extra, Key, Null, Prefix, Stored};
use capstan_meta::settle::{Next, settle};
use capstan_meta::{Store, Txn, clock};

use crate::data::subscription::Checkpoint;
use crate::error::TopicsError;
use crate::keys::{
    AssignmentKey, Assignments, BrokerKey, BrokerStateKey, ClusterKey, ClusterName, CursorKey, Namespace,
    NextBrokerKey, PolicyKey, ProgressKey, SubscriptionKey, SubscriptionName, TombstoneKey,
};
use crate::spec::{
    BrokerMode, BrokerState, Delivery, NamespacePolicy, Partitions, StoragePolicy, SubscriptionKind,
    SubscriptionSpec, TopicName, TopicRecord,
};
use crate::status::{BrokerRecord, Progress, Tombstone, Unassigned};

/// Namespaces that every cluster has.
const FIRST_NAMESPACES: [&str; 2] = ["default", "system"];
/// Words under `/cluster` that are no names of clusters.
const RESERVED: [&str; 5] = ["register", "brokers", "load", "leader", "unassigned"];

/// What is known about a topic that is to be created.
struct Ground {
    policy: Option<Stored<NamespacePolicy>>,
    root: Option<Stored<Partitions>>,
    record: Option<Stored<TopicRecord>>,
    /// The root and the record of the partitioned topic that it would be a part of.
    #[allow(clippy::type_complexity, reason = "read in one place")]
    base: Option<(TopicName, u32, Option<Stored<Partitions>>, Option<Stored<TopicRecord>>)>,
}

/// Creates a topic; one that is there and delivers in the same way is left alone. Its log is made by the leader.
pub async fn create_topic(
    store: &Store,
    name: &TopicName,
    delivery: Delivery,
    copies: usize,
) -> Result<TopicRecord, TopicsError> {
    let what = format!("topic {name}");
    let id = rand::random::<u64>() >> 1;
    settle(
        store,
        &what,
        || survey(store, name),
        |ground: &Ground, _| {
            if let Some(known) = &ground.record {
                return if known.record.delivery == delivery {
                    Ok(Next::Done(known.record.clone()))
                } else {
                    let is = known.record.delivery;
                    Err(TopicsError::Mismatch(format!("topic {name} exists and is {is}, not {delivery}")))
                };
            }
            plan_topic(name, ground, &new_record(name, id, delivery, copies)?).map(Next::Commit)
        },
    )
    .await
}

async fn survey(store: &Store, name: &TopicName) -> Result<Ground, TopicsError> {
    let base = match name.base() {
        None => None,
        Some((base, number)) => {
            let root = store.read(&base.root_key()).await?;
            let record = store.read(&base.record_key()).await?;
            Some((base, number, root, record))
        }
    };
    Ok(Ground {
        policy: store.read(&PolicyKey { namespace: name.namespace.clone() }).await?,
        root: store.read(&name.root_key()).await?,
        record: store.read(&name.record_key()).await?,
        base,
    })
}

fn new_record(
    name: &TopicName,
    id: u64,
    delivery: Delivery,
    copies: usize,
) -> Result<TopicRecord, TopicsError> {
    let log = LogName::new(format!("{}.{}.{id:016x}", name.namespace, name.local))
        .map_err(|_| TopicsError::InvalidTopic(name.to_string()))?;
    let created_at = clock::since_epoch().as_secs();
    let storage = StoragePolicy::default();
    Ok(TopicRecord { id, log, delivery, copies, created_at, storage, extra: Extra::default() })
}

fn plan_topic(name: &TopicName, ground: &Ground, record: &TopicRecord) -> Result<Txn, TopicsError> {
    let namespace = PolicyKey { namespace: name.namespace.clone() };
    let Some(policy) = &ground.policy else {
        return Err(TopicsError::NoSuchNamespace(name.namespace.to_string()));
    };
    if ground.root.is_some() {
        return Err(TopicsError::Exists(format!("{name} is a partitioned topic")));
    }
    let mut txn = Txn::new()
        .when(namespace.same_life(policy))
        .when(name.record_key().absent())
        .when(name.root_key().absent())
        .then(name.record_key().put(record))
        .then(name.root_key().put(&Partitions(0)))
        .then(name.delivery_key().put(&record.delivery))
        .then(name.listed_key().put(&Null))
        .then(name.unassigned_key().put(&Unassigned::default()));
    if let Some((base, number, root, plain)) = &ground.base {
        if plain.is_some() {
            return Err(TopicsError::Exists(format!("{base} is a topic without partitions")));
        }
        let known = root.as_ref().map_or(0, |root| root.record.0);
        txn = txn.when(base.root_key().as_seen(root.as_ref()));
        if *number >= known {
            txn = txn.then(base.root_key().put(&Partitions(number + 1)));
        }
    }
    Ok(txn)
}

/// Deletes a topic and everything that belongs to it. Its log is deleted by the leader. One that is not there counts as
/// deleted.
pub async fn delete_topic(store: &Store, name: &TopicName) -> Result<(), TopicsError> {
    let what = format!("topic {name}");
    let read = || async {
        let record = store.read(&name.record_key()).await?;
        let assigned = store.list(&Assignments {}).await?;
        let base = match name.base() {
            Some((base, number)) => store.read(&base.root_key()).await?.map(|root| (base, number, root)),
            None => None,
        };
        Ok::<_, TopicsError>((record, assigned, base))
    };
    settle(store, &what, read, |(record, assigned, base), _| {
        let Some(record) = record else { return Ok(Next::Done(())) };
        let tombstone = Tombstone { log: record.record.log.clone(), topic: name.to_string() };
        let mut txn = Txn::new()
            .when(name.record_key().unchanged(record))
            .then(TombstoneKey { id: record.record.id }.put(&tombstone))
            .then(name.record_key().delete())
            .then(name.root_key().delete())
            .then(name.tree().delete_all())
            .then(name.progress().delete_all())
            .then(name.storage().delete_all())
            .then(name.listed_key().delete())
            .then(name.unassigned_key().delete());
        for (key, _) in assigned.iter().filter(|(key, _)| is_assignment_of(key, name)) {
            txn = txn.then(key.delete());
        }
        if let Some((base, number, root)) = base {
            // The number of partitions falls with the last one only: names are never used for another one.
            if root.record.0 == number + 1 {
                let put = |left: u32| base.root_key().put(&Partitions(left));
                txn = txn.when(base.root_key().unchanged(root));
                txn = if *number == 0 { txn.then(base.root_key().delete()) } else { txn.then(put(*number)) };
            }
        }
        Ok(Next::Commit(txn))
    })
    .await
}

pub(crate) fn is_assignment_of(key: &AssignmentKey, name: &TopicName) -> bool {
    key.namespace == name.namespace && key.topic == name.local
}

/// A subscription, as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredSubscription {
    pub(crate) kind: SubscriptionKind,
    pub(crate) progress: Progress,
}

/// The keys of one subscription.
pub(crate) struct SubscriptionKeys {
    pub(crate) spec: SubscriptionKey,
    pub(crate) progress: ProgressKey,
    pub(crate) cursor: CursorKey,
}

impl SubscriptionKeys {
    pub(crate) fn of(topic: &TopicName, subscription: &SubscriptionName) -> SubscriptionKeys {
        let (namespace, topic) = (topic.namespace.clone(), topic.local.clone());
        let subscription = subscription.clone();
        SubscriptionKeys {
            spec: SubscriptionKey {
                namespace: namespace.clone(),
                topic: topic.clone(),
                subscription: subscription.clone(),
            },
            progress: ProgressKey {
                namespace: namespace.clone(),
                topic: topic.clone(),
                subscription: subscription.clone(),
            },
            cursor: CursorKey { namespace, topic, subscription },
        }
    }
}

/// What a subscription begins with.
#[derive(Clone, Debug)]
pub(crate) struct Begin {
    pub(crate) consumer: String,
    pub(crate) kind: SubscriptionKind,
    /// Where a new subscription begins, and in which epoch of which topic.
    pub(crate) progress: Progress,
    /// Subscriptions that a topic may have; zero: no limit.
    pub(crate) limit: u32,
}

/// Stores a subscription with its cursor, or notes who subscribed to one that is there. From then on it loses nothing.
pub(crate) async fn subscribe(
    store: &Store,
    topic: &TopicName,
    subscription: &SubscriptionName,
    begin: &Begin,
) -> Result<StoredSubscription, TopicsError> {
    let keys = SubscriptionKeys::of(topic, subscription);
    let what = format!("subscription {subscription} of topic {topic}");
    let read = || async {
        let record = store.read(&topic.record_key()).await?;
        let spec = store.read(&keys.spec).await?;
        let progress = store.read(&keys.progress).await?;
        let others = store.list(&topic.subscriptions()).await?.entries.len();
        Ok::<_, TopicsError>((record, spec, progress, others))
    };
    settle(store, &what, read, |(record, spec, progress, others), _| {
        let Some(record) = record.as_ref().filter(|record| record.record.id == begin.progress.topic_id)
        else {
            return Err(TopicsError::NoSuchTopic(topic.to_string()));
        };
        let wanted = SubscriptionSpec {
            consumer_id: None,
            consumer_name: begin.consumer.clone(),
            subscription_name: subscription.to_string(),
            subscription_type: begin.kind,
            extra: spec.as_ref().map(|spec| spec.record.extra.clone()).unwrap_or_default(),
        };
        let usable = progress.as_ref().filter(|known| known.record.topic_id == begin.progress.topic_id);
        if let (Some(spec), Some(progress)) = (spec, usable)
            && spec.record == wanted
        {
            let progress = progress.record.clone();
            return Ok(Next::Done(StoredSubscription { kind: spec.record.subscription_type, progress }));
        }
        if spec.is_none() && begin.limit > 0 && *others >= usize::try_from(begin.limit).unwrap_or(usize::MAX)
        {
            let why = format!("topic {topic} has {others} subscriptions, the limit of its namespace");
            return Err(TopicsError::Taken(why));
        }
        let mut txn = Txn::new()
            .when(topic.record_key().same_life(record))
            .when(keys.spec.as_seen(spec.as_ref()))
            .when(keys.progress.as_seen(progress.as_ref()))
            .then(keys.spec.put(&wanted));
        if usable.is_none() {
            txn = put_progress(txn, &keys, &begin.progress);
        }
        Ok(Next::Commit(txn))
    })
    .await
}

fn put_progress(txn: Txn, keys: &SubscriptionKeys, progress: &Progress) -> Txn {
    let txn = txn.then(keys.progress.put(progress));
    match progress.floor.checked_sub(1) {
        Some(last) => txn.then(keys.cursor.put(&last)),
        None => txn.then(keys.cursor.delete()),
    }
}

/// A stored subscription of this topic, if there is one.
pub(crate) async fn stored_subscription(
    store: &Store,
    topic: &TopicName,
    topic_id: u64,
    subscription: &SubscriptionName,
) -> Result<Option<StoredSubscription>, TopicsError> {
    let keys = SubscriptionKeys::of(topic, subscription);
    let Some(spec) = store.read(&keys.spec).await? else { return Ok(None) };
    let progress = store.read(&keys.progress).await?.filter(|known| known.record.topic_id == topic_id);
    Ok(progress.map(|progress| StoredSubscription {
        kind: spec.record.subscription_type,
        progress: progress.record,
    }))
}

/// Writes a checkpoint, unless a later epoch has written or the subscription is gone. The floor never falls, except by a
/// seek.
pub(crate) async fn save(store: &Store, checkpoint: &Checkpoint) -> Result<bool, TopicsError> {
    let Checkpoint { topic, subscription, progress } = checkpoint;
    let keys = SubscriptionKeys::of(topic, subscription);
    let what = format!("cursor of subscription {subscription} of topic {topic}");
    let read = || async { Ok::<_, TopicsError>(store.read(&keys.progress).await?) };
    settle(store, &what, read, |seen, _| {
        let Some(seen) = seen.as_ref().filter(|seen| seen.record.topic_id == progress.topic_id) else {
            return Ok(Next::Done(false));
        };
        let known = &seen.record;
        if *known == *progress {
            return Ok(Next::Done(true));
        }
        let behind = (known.seeks, known.floor) > (progress.seeks, progress.floor);
        if known.epoch > progress.epoch || behind {
            return Ok(Next::Done(false));
        }
        let txn = Txn::new().when(keys.progress.unchanged(seen));
        Ok(Next::Commit(put_progress(txn, &keys, progress)))
    })
    .await
}

/// Removes a subscription with its cursor. One that is not there counts as removed.
pub async fn unsubscribe(
    store: &Store,
    topic: &TopicName,
    subscription: &SubscriptionName,
) -> Result<(), TopicsError> {
    let keys = SubscriptionKeys::of(topic, subscription);
    let txn = Txn::new().then(keys.spec.delete()).then(keys.progress.delete()).then(keys.cursor.delete());
    store.commit(txn).await?;
    Ok(())
}

/// Creates a namespace.
pub async fn create_namespace(
    store: &Store,
    namespace: &Namespace,
    policy: &NamespacePolicy,
) -> Result<(), TopicsError> {
    if !crate::spec::is_part(namespace.as_str()) {
        let why = format!("{namespace:?} is not a namespace: write letters, digits, _ and -");
        return Err(TopicsError::Invalid(why));
    }
    let key = PolicyKey { namespace: namespace.clone() };
    let made = store.commit(Txn::new().when(key.absent()).then(key.put(policy))).await?;
    if made.succeeded { Ok(()) } else { Err(TopicsError::Exists(format!("namespace {namespace} exists"))) }
}

/// Deletes a namespace that has no topics.
pub async fn delete_namespace(store: &Store, namespace: &Namespace) -> Result<(), TopicsError> {
    let key = PolicyKey { namespace: namespace.clone() };
    let what = format!("namespace {namespace}");
    let read = || async {
        let policy = store.read(&key).await?;
        let topics = store.list(&crate::keys::Listed { namespace: namespace.clone() }).await?.entries.len();
        Ok::<_, TopicsError>((policy, topics))
    };
    settle(store, &what, read, |(policy, topics), progress| match policy {
        None if progress.maybe_ours() => Ok(Next::Done(())),
        None => Err(TopicsError::NoSuchNamespace(namespace.to_string())),
        Some(_) if *topics > 0 => Err(TopicsError::Mismatch(format!(
            "namespace {namespace} has {topics} topics; delete them first"
        ))),
        // A topic that is created meanwhile compares the policy's life, and fails.
        Some(policy) => Ok(Next::Last(Txn::new().when(key.unchanged(policy)).then(key.delete()), ())),
    })
    .await
}

/// Changes the policy of a namespace.
pub async fn set_policy(
    store: &Store,
    namespace: &Namespace,
    change: impl Fn(&NamespacePolicy) -> NamespacePolicy,
) -> Result<NamespacePolicy, TopicsError> {
    let key = PolicyKey { namespace: namespace.clone() };
    let what = format!("policy of namespace {namespace}");
    let read = || async { Ok::<_, TopicsError>(store.read(&key).await?) };
    settle(store, &what, read, |seen, _| {
        let seen = seen.as_ref().ok_or_else(|| TopicsError::NoSuchNamespace(namespace.to_string()))?;
        let next = change(&seen.record);
        if next == seen.record {
            return Ok(Next::Done(next));
        }
        Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.put(&next))))
    })
    .await
}

/// Changes how long the messages of one topic stay.
pub async fn set_storage(
    store: &Store,
    topic: &TopicName,
    change: impl Fn(StoragePolicy) -> StoragePolicy,
) -> Result<StoragePolicy, TopicsError> {
    let key = topic.record_key();
    let what = format!("topic {topic}");
    let read = || async { Ok::<_, TopicsError>(store.read(&key).await?) };
    settle(store, &what, read, |seen, _| {
        let seen = seen.as_ref().ok_or_else(|| TopicsError::NoSuchTopic(topic.to_string()))?;
        let storage = change(seen.record.storage);
        if storage == seen.record.storage {
            return Ok(Next::Done(storage));
        }
        let next = TopicRecord { storage, ..seen.record.clone() };
        Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next))))
    })
    .await
}

/// Makes what every cluster has, and a number for this broker, the same in every life of its host.
pub(crate) async fn found(store: &Store, cluster: &ClusterName, host: &HostId) -> Result<u64, TopicsError> {
    if RESERVED.contains(&cluster.as_str()) {
        return Err(TopicsError::Invalid(format!("a cluster cannot be called {cluster}")));
    }
    for namespace in FIRST_NAMESPACES {
        let namespace = Namespace::new(namespace).map_err(|error| TopicsError::Invalid(error.to_string()))?;
        match create_namespace(store, &namespace, &NamespacePolicy::default()).await {
            Ok(()) | Err(TopicsError::Exists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let name = ClusterKey { cluster: cluster.clone() };
    store.commit(Txn::new().when(name.absent()).then(name.put(&Null))).await?;
    let id = broker_id(store, host).await?;
    let state = BrokerStateKey { broker: id };
    let boot = BrokerState { mode: BrokerMode::Active, reason: "boot".to_owned(), extra: Extra::default() };
    // A broker that an operator drains stays drained when it is started again.
    store.commit(Txn::new().when(state.absent()).then(state.put(&boot))).await?;
    Ok(id)
}

async fn broker_id(store: &Store, host: &HostId) -> Result<u64, TopicsError> {
    let (key, counter) = (BrokerKey { host: host.clone() }, NextBrokerKey {});
    let read = || async { Ok::<_, TopicsError>((store.read(&key).await?, store.read(&counter).await?)) };
    settle(store, "broker number", read, |(known, next), _| {
        if let Some(known) = known {
            return Ok(Next::Done(known.record.id));
        }
        let id = next.as_ref().map_or(1, |next| next.record);
        let txn = Txn::new()
            .when(key.absent())
            .when(counter.as_seen(next.as_ref()))
            .then(key.put(&BrokerRecord { id }))
            .then(counter.put(&(id + 1)));
        Ok(Next::Commit(txn))
    })
    .await
}

/// Sets whether a broker takes topics.
pub async fn set_broker_state(
    store: &Store,
    broker: u64,
    mode: BrokerMode,
    reason: &str,
) -> Result<(), TopicsError> {
    let state = BrokerState { mode, reason: reason.to_owned(), extra: Extra::default() };
    store.commit(Txn::new().then(BrokerStateKey { broker }.put(&state))).await?;
    Ok(())
}
