//! The admin wire of the public broker.

use std::sync::Arc;

use capstan_access::Verb;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::agent::{Broker, Inner, Peer};
use crate::commit;
use crate::decide::{Balance, Move, rebalance};
use crate::error::TopicsError;
use crate::facts::Facts;
use crate::keys::{Namespace, Policies, PolicyKey, SubscriptionName};
use crate::spec::{
    BackoffStrategy, BrokerMode, Delivery, FailurePolicy, NamespacePolicy, PoisonPolicy, TopicName,
};
use crate::wire::danube_admin::broker_admin_server::BrokerAdmin;
use crate::wire::danube_admin::namespace_admin_server::NamespaceAdmin;
use crate::wire::danube_admin::topic_admin_client::TopicAdminClient;
use crate::wire::danube_admin::topic_admin_server::TopicAdmin;
use crate::wire::danube_admin::{self as wire, *};

type Reply<T> = Result<Response<T>, Status>;

/// How topics are spread, in the words of the original: by their number.
const STRATEGY: &str = "fair";
/// Topics that one request moves, unless it says another number.
const DEFAULT_MOVES: usize = 10;
/// Topics that one request moves at most: each may take seconds.
const MAX_MOVES: usize = 100;
/// What consumers of a subscription may have without an acknowledgment, as in the original.
const UNACKED: std::ops::RangeInclusive<u32> = 1..=10_000;

/// Marks a request that another broker has passed on.
const PASSED_ON: &str = "x-capstan-passed-on";

#[derive(Clone)]
pub(super) struct Admin {
    broker: Broker,
}

impl Admin {
    pub(super) fn new(broker: Broker) -> Admin {
        Admin { broker }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.broker.inner
    }

    fn facts(&self) -> Facts {
        Facts::of(&self.inner().view().snapshot())
    }

    /// Creates a topic, with a schema if one is named. A subject that is not registered leaves no topic behind.
    async fn create_bound(
        &self,
        name: &TopicName,
        delivery: Delivery,
        subject: Option<&str>,
    ) -> Result<(), TopicsError> {
        let subject = subject.filter(|subject| !subject.is_empty());
        if let Some(subject) = subject {
            self.inner().check_subject(name, subject).await?;
        }
        self.inner().create(name, delivery).await?;
        match subject {
            Some(subject) => self.inner().bind_schema(name, subject).await,
            None => Ok(()),
        }
    }

    /// The broker that serves a topic, if it is another one: what a subscription is told, its broker has to know. A request
    /// is passed on once, because a topic that moves may be elsewhere again.
    async fn elsewhere<T>(
        &self,
        request: &Request<T>,
        topic: &TopicName,
    ) -> Result<Option<TopicAdminClient<Peer>>, TopicsError> {
        match self.inner().served(topic).await {
            Ok(_) => Ok(None),
            Err(TopicsError::NotHere { at: Some(at), .. }) if !request.metadata().contains_key(PASSED_ON) => {
                Ok(Some(TopicAdminClient::new(self.inner().peer(&at).await?)))
            }
            Err(error) => Err(error),
        }
    }

    fn info(facts: &Facts, name: &TopicName) -> Option<TopicInfo> {
        let record = &facts.topics.get(name)?.record;
        Some(TopicInfo {
            name: name.to_string(),
            broker_id: facts.owner(record).map(|id| id.to_string()).unwrap_or_default(),
            delivery: record.delivery.to_string(),
        })
    }
}

fn passed_on<T>(request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.metadata_mut().insert(PASSED_ON, MetadataValue::from_static("1"));
    request
}

fn namespace(text: &str) -> Result<Namespace, TopicsError> {
    Namespace::new(text).map_err(|error| TopicsError::Invalid(error.to_string()))
}

fn subscription(text: &str) -> Result<SubscriptionName, TopicsError> {
    SubscriptionName::new(text).map_err(|error| TopicsError::Invalid(error.to_string()))
}

fn broker_id(text: &str) -> Result<u64, TopicsError> {
    text.parse().map_err(|_| TopicsError::Invalid(format!("{text:?} is not the number of a broker")))
}

fn delivery(strategy: wire::DispatchStrategy) -> Delivery {
    match strategy {
        wire::DispatchStrategy::Reliable => Delivery::Reliable,
        wire::DispatchStrategy::NonReliable => Delivery::NonReliable,
    }
}

#[tonic::async_trait]
impl BrokerAdmin for Admin {
    async fn list_brokers(&self, _: Request<Empty>) -> Reply<BrokerListResponse> {
        let (facts, leader) = (self.facts(), self.inner().leader().await?);
        let mut brokers = Vec::new();
        for (id, broker) in &facts.brokers {
            let role = if leader == Some(*id) { "Cluster_Leader" } else { "Cluster_Follower" };
            brokers.push(BrokerInfo {
                broker_id: id.to_string(),
                broker_addr: broker.broker_addr.clone(),
                broker_role: role.to_owned(),
                admin_addr: broker.admin_addr.clone(),
                metrics_addr: broker.prom_exporter.clone().unwrap_or_default(),
                broker_status: self.inner().broker_mode(*id)?,
            });
        }
        Ok(Response::new(BrokerListResponse { brokers }))
    }

    async fn get_leader_broker(&self, _: Request<Empty>) -> Reply<BrokerResponse> {
        let leader = self.inner().leader().await?.map(|id| id.to_string()).unwrap_or_default();
        Ok(Response::new(BrokerResponse { leader }))
    }

    async fn list_namespaces(&self, _: Request<Empty>) -> Reply<NamespaceListResponse> {
        let policies = self.inner().view().snapshot().list(&Policies {});
        let namespaces = policies.iter().map(|(key, _)| key.namespace.to_string()).collect();
        Ok(Response::new(NamespaceListResponse { namespaces }))
    }

    async fn unload_broker(&self, request: Request<UnloadBrokerRequest>) -> Reply<UnloadBrokerResponse> {
        let request = request.into_inner();
        let id = broker_id(&request.broker_id)?;
        let facts = self.facts();
        let included = |name: &TopicName| {
            let namespace = name.namespace.to_string();
            (request.namespaces_include.is_empty() || request.namespaces_include.contains(&namespace))
                && !request.namespaces_exclude.contains(&namespace)
        };
        let topics: Vec<&TopicName> = facts
            .topics
            .iter()
            .filter(|(name, topic)| facts.owner(&topic.record) == Some(id) && included(name))
            .map(|(name, _)| name)
            .collect();
        let total = u32::try_from(topics.len()).unwrap_or(u32::MAX);
        if request.dry_run {
            return Ok(Response::new(UnloadBrokerResponse { total, pending: total, ..Default::default() }));
        }
        commit::set_broker_state(self.inner().store(), id, BrokerMode::Draining, "admin_unload").await?;
        let mut failed_topics = Vec::new();
        for topic in topics {
            if let Err(error) = self.inner().unload(topic).await {
                tracing::warn!(%topic, %error, "topic was not unloaded");
                failed_topics.push(topic.to_string());
            }
        }
        let failed = u32::try_from(failed_topics.len()).unwrap_or(u32::MAX);
        if failed == 0 {
            let reason = if total == 0 { "no_topics" } else { "drain_complete" };
            commit::set_broker_state(self.inner().store(), id, BrokerMode::Drained, reason).await?;
        }
        let succeeded = total.saturating_sub(failed);
        let reply =
            UnloadBrokerResponse { started: true, total, succeeded, failed, pending: 0, failed_topics };
        Ok(Response::new(reply))
    }

    async fn activate_broker(
        &self,
        request: Request<ActivateBrokerRequest>,
    ) -> Reply<ActivateBrokerResponse> {
        let request = request.into_inner();
        let reason = if request.reason.is_empty() { "admin_activate" } else { &request.reason };
        let id = broker_id(&request.broker_id)?;
        commit::set_broker_state(self.inner().store(), id, BrokerMode::Active, reason).await?;
        Ok(Response::new(ActivateBrokerResponse { success: true }))
    }

    async fn get_cluster_balance(&self, _: Request<ClusterBalanceRequest>) -> Reply<ClusterBalanceResponse> {
        let balance = Balance::of(&self.facts());
        let topics = || balance.load.values().copied();
        let brokers = balance.load.iter().map(|(id, topics)| BrokerLoadInfo {
            broker_id: *id,
            load: f64::from(*topics),
            topic_count: *topics,
            is_overloaded: balance.is_overloaded(*topics),
            is_underloaded: balance.is_underloaded(*topics),
        });
        Ok(Response::new(ClusterBalanceResponse {
            coefficient_of_variation: balance.variation(),
            mean_load: balance.mean,
            max_load: f64::from(topics().max().unwrap_or_default()),
            min_load: f64::from(topics().min().unwrap_or_default()),
            std_deviation: balance.deviation,
            broker_count: u32::try_from(balance.load.len()).unwrap_or(u32::MAX),
            brokers: brokers.collect(),
            assignment_strategy: STRATEGY.to_owned(),
        }))
    }

    async fn trigger_rebalance(&self, request: Request<RebalanceRequest>) -> Reply<RebalanceResponse> {
        let request = request.into_inner();
        let limit =
            request.max_moves.map_or(DEFAULT_MOVES, |moves| usize::try_from(moves).unwrap_or(MAX_MOVES));
        let moves = rebalance(&self.facts(), limit.min(MAX_MOVES));
        let mut reply = RebalanceResponse { success: true, ..RebalanceResponse::default() };
        for Move { topic, from, to } in moves {
            if !request.dry_run {
                match self.inner().move_topic(&topic, "rebalance", Some(to)).await {
                    Ok(()) => reply.moves_executed += 1,
                    Err(error) => {
                        reply.success = false;
                        reply.error_message = format!("topic {topic}: {error}");
                    }
                }
            }
            reply.proposed_moves.push(ProposedMove {
                topic_name: topic.to_string(),
                from_broker: from,
                to_broker: to,
                estimated_load: 1.0,
                reason: format!("broker {from} serves more topics than broker {to}"),
            });
        }
        Ok(Response::new(reply))
    }
}

#[tonic::async_trait]
impl NamespaceAdmin for Admin {
    async fn get_namespace_topics(&self, request: Request<NamespaceRequest>) -> Reply<TopicListResponse> {
        let name = namespace(&request.get_ref().name)?;
        self.inner().may_within(&request, Verb::View, name.as_str())?;
        let facts = self.facts();
        let topics = facts.topics.keys().filter(|topic| topic.namespace == name);
        // Without the leading slash, as the original has it.
        let topics = topics.map(|topic| format!("{}/{}", topic.namespace, topic.local)).collect();
        Ok(Response::new(TopicListResponse { topics }))
    }

    async fn get_namespace_policies(&self, request: Request<NamespaceRequest>) -> Reply<PolicyResponse> {
        let name = namespace(&request.get_ref().name)?;
        self.inner().may_within(&request, Verb::View, name.as_str())?;
        let key = PolicyKey { namespace: name.clone() };
        let policy = self.inner().store().read(&key).await.map_err(TopicsError::from)?;
        let Some(policy) = policy else {
            return Err(Status::not_found(format!("there is no namespace {name}")));
        };
        let policies =
            serde_json::to_string(&policy.record).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(PolicyResponse { policies }))
    }

    async fn create_namespace(&self, request: Request<NamespaceRequest>) -> Reply<NamespaceResponse> {
        let name = namespace(&request.get_ref().name)?;
        self.inner().may_within(&request, Verb::Operate, name.as_str())?;
        let made = commit::create_namespace(self.inner().store(), &name, &NamespacePolicy::default()).await;
        // The original has one status for every failure here.
        made.map_err(|error| Status::not_found(error.to_string()))?;
        self.inner().caught_up().await?;
        Ok(Response::new(NamespaceResponse { success: true }))
    }

    async fn delete_namespace(&self, request: Request<NamespaceRequest>) -> Reply<NamespaceResponse> {
        let name = namespace(&request.get_ref().name)?;
        self.inner().may_within(&request, Verb::Operate, name.as_str())?;
        let gone = commit::delete_namespace(self.inner().store(), &name).await;
        gone.map_err(|error| Status::not_found(error.to_string()))?;
        self.inner().caught_up().await?;
        Ok(Response::new(NamespaceResponse { success: true }))
    }
}

#[tonic::async_trait]
impl TopicAdmin for Admin {
    async fn list_namespace_topics(
        &self,
        request: Request<NamespaceRequest>,
    ) -> Reply<TopicInfoListResponse> {
        let name = namespace(&request.get_ref().name)?;
        self.inner().may_within(&request, Verb::View, name.as_str())?;
        let facts = self.facts();
        let topics = facts.topics.keys().filter(|topic| topic.namespace == name);
        let topics = topics.filter_map(|topic| Admin::info(&facts, topic)).collect();
        Ok(Response::new(TopicInfoListResponse { topics }))
    }

    async fn list_broker_topics(&self, request: Request<BrokerRequest>) -> Reply<TopicInfoListResponse> {
        let id = request.into_inner().broker_id;
        let facts = self.facts();
        let topics = facts.topics.keys().filter_map(|topic| Admin::info(&facts, topic));
        let topics = topics.filter(|topic| topic.broker_id == id).collect();
        Ok(Response::new(TopicInfoListResponse { topics }))
    }

    async fn create_topic(&self, request: Request<NewTopicRequest>) -> Reply<TopicResponse> {
        let name: TopicName = request.get_ref().name.parse()?;
        self.inner().may(&request, Verb::Operate, &name)?;
        let request = request.into_inner();
        if self.inner().record(&name)?.is_some() {
            return Err(TopicsError::Exists(format!("topic {name} exists")).into());
        }
        let (delivery, subject) = (delivery(request.dispatch_strategy()), request.schema_subject);
        self.create_bound(&name, delivery, subject.as_deref()).await?;
        Ok(Response::new(TopicResponse { success: true }))
    }

    async fn create_partitioned_topic(
        &self,
        request: Request<PartitionedTopicRequest>,
    ) -> Reply<TopicResponse> {
        let base: TopicName = request.get_ref().base_name.parse()?;
        self.inner().may(&request, Verb::Operate, &base)?;
        let request = request.into_inner();
        if request.partitions == 0 {
            return Err(
                TopicsError::Invalid("a partitioned topic has at least one partition".to_owned()).into()
            );
        }
        let (delivery, subject) = (delivery(request.dispatch_strategy()), request.schema_subject);
        for number in 0..request.partitions {
            self.create_bound(&base.partition(number)?, delivery, subject.as_deref()).await?;
        }
        Ok(Response::new(TopicResponse { success: true }))
    }

    async fn delete_topic(&self, request: Request<TopicRequest>) -> Reply<TopicResponse> {
        let name: TopicName = request.get_ref().name.parse()?;
        self.inner().may(&request, Verb::Operate, &name)?;
        if let Some((base, _)) = name.base() {
            let why = format!("{name} is a partition; delete {base}");
            return Err(TopicsError::Mismatch(why).into());
        }
        let partitions = self.inner().partition_names(&name).await?;
        if partitions.is_empty() {
            return Err(TopicsError::NoSuchTopic(name.to_string()).into());
        }
        for partition in partitions.iter().rev() {
            self.inner().delete(partition).await?;
        }
        Ok(Response::new(TopicResponse { success: true }))
    }

    async fn unload_topic(&self, request: Request<TopicRequest>) -> Reply<TopicResponse> {
        let name: TopicName = request.get_ref().name.parse()?;
        self.inner().may(&request, Verb::Operate, &name)?;
        self.inner().unload(&name).await?;
        Ok(Response::new(TopicResponse { success: true }))
    }

    async fn list_subscriptions(&self, request: Request<TopicRequest>) -> Reply<SubscriptionListResponse> {
        let name: TopicName = request.get_ref().name.parse()?;
        self.inner().may_see(&request, &name)?;
        let subscriptions = self.inner().subscription_names(&name).await?;
        Ok(Response::new(SubscriptionListResponse { subscriptions }))
    }

    async fn unsubscribe(&self, request: Request<SubscriptionRequest>) -> Reply<SubscriptionResponse> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may(&request, Verb::Operate, &topic)?;
        if let Some(mut owner) = self.elsewhere(&request, &topic).await? {
            return owner.unsubscribe(passed_on(request.into_inner())).await;
        }
        let request = request.into_inner();
        self.inner().unsubscribe(&topic, &subscription(&request.subscription)?).await?;
        Ok(Response::new(SubscriptionResponse { success: true }))
    }

    async fn describe_topic(&self, request: Request<DescribeTopicRequest>) -> Reply<DescribeTopicResponse> {
        let name: TopicName = request.get_ref().name.parse()?;
        self.inner().may_see(&request, &name)?;
        let info = Admin::info(&self.facts(), &name);
        let info = info.ok_or_else(|| TopicsError::NoSuchTopic(name.to_string()))?;
        let schema = self.inner().bound_version(&name).await?;
        let stored = schema.as_ref().map(|schema| &schema.version);
        Ok(Response::new(DescribeTopicResponse {
            name: info.name,
            subscriptions: self.inner().subscription_names(&name).await?,
            broker_id: info.broker_id,
            delivery: info.delivery,
            schema_subject: schema.as_ref().map(|schema| schema.subject.to_string()),
            schema_id: schema.as_ref().map(|schema| schema.schema_id),
            schema_version: stored.map(|version| version.version),
            schema_type: stored.map(|version| version.schema_def.schema_type().name().to_owned()),
            compatibility_mode: schema.as_ref().map(|schema| schema.mode.name().to_owned()),
        }))
    }

    async fn set_subscription_failure_policy(
        &self,
        request: Request<SetSubscriptionFailurePolicyRequest>,
    ) -> Reply<SubscriptionResponse> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may(&request, Verb::Operate, &topic)?;
        let letters =
            request.get_ref().failure_policy.as_ref().and_then(|policy| policy.dead_letter_topic.as_ref());
        if let Some(letters) = letters {
            // The broker will publish there.
            self.inner().may_any(&request, &[Verb::Produce, Verb::Operate], &letters.parse()?)?;
        }
        if let Some(mut owner) = self.elsewhere(&request, &topic).await? {
            return owner.set_subscription_failure_policy(passed_on(request.into_inner())).await;
        }
        let request = request.into_inner();
        let policy = request.failure_policy.ok_or_else(|| Status::invalid_argument("there is no policy"))?;
        let name = subscription(&request.subscription)?;
        self.inner().set_failure_policy(&topic, &name, policy_of_wire(&policy)?).await?;
        Ok(Response::new(SubscriptionResponse { success: true }))
    }

    async fn get_subscription_failure_policy(
        &self,
        request: Request<SubscriptionRequest>,
    ) -> Reply<GetSubscriptionFailurePolicyResponse> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may_see(&request, &topic)?;
        if let Some(mut owner) = self.elsewhere(&request, &topic).await? {
            return owner.get_subscription_failure_policy(passed_on(request.into_inner())).await;
        }
        let request = request.into_inner();
        let name = subscription(&request.subscription)?;
        let (partition, known) = match self.inner().subscription(&topic, &name).await {
            // Nothing was set, as the original says it.
            Err(TopicsError::NoSuchSubscription { .. }) => return Ok(Response::new(Default::default())),
            found => found?,
        };
        let policy = known.checkpoint(&partition).progress.failure_policy;
        Ok(Response::new(GetSubscriptionFailurePolicyResponse {
            failure_policy: policy.map(policy_to_wire),
            subscription_type: known.kind().number(),
        }))
    }

    async fn set_subscription_dispatch_config(
        &self,
        request: Request<SetSubscriptionDispatchConfigRequest>,
    ) -> Reply<SubscriptionResponse> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may(&request, Verb::Operate, &topic)?;
        if let Some(mut owner) = self.elsewhere(&request, &topic).await? {
            return owner.set_subscription_dispatch_config(passed_on(request.into_inner())).await;
        }
        let request = request.into_inner();
        let config = request.dispatch_config.ok_or_else(|| Status::invalid_argument("there is no config"))?;
        let limit = config.max_unacked_messages;
        if !UNACKED.contains(&limit) {
            let (least, most) = (UNACKED.start(), UNACKED.end());
            let why = format!("max_unacked_messages is {limit}, and must be between {least} and {most}");
            return Err(TopicsError::Invalid(why).into());
        }
        let name = subscription(&request.subscription)?;
        self.inner().set_max_unacked(&topic, &name, limit).await?;
        Ok(Response::new(SubscriptionResponse { success: true }))
    }

    async fn get_subscription_dispatch_config(
        &self,
        request: Request<SubscriptionRequest>,
    ) -> Reply<GetSubscriptionDispatchConfigResponse> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may_see(&request, &topic)?;
        if let Some(mut owner) = self.elsewhere(&request, &topic).await? {
            return owner.get_subscription_dispatch_config(passed_on(request.into_inner())).await;
        }
        let request = request.into_inner();
        let name = subscription(&request.subscription)?;
        let (partition, known) = match self.inner().subscription(&topic, &name).await {
            Err(TopicsError::NoSuchSubscription { .. }) => return Ok(Response::new(Default::default())),
            found => found?,
        };
        let limit = known.checkpoint(&partition).progress.max_unacked_messages;
        let dispatch_config =
            limit.map(|max_unacked_messages| SubscriptionDispatchConfig { max_unacked_messages });
        Ok(Response::new(GetSubscriptionDispatchConfigResponse { dispatch_config }))
    }
}

fn policy_of_wire(policy: &SubscriptionFailurePolicy) -> Result<FailurePolicy, TopicsError> {
    use subscription_failure_policy as values;
    if let Some(topic) = &policy.dead_letter_topic {
        topic.parse::<TopicName>()?;
    }
    Ok(FailurePolicy {
        max_redelivery_count: policy.max_redelivery_count,
        ack_timeout_ms: policy.ack_timeout_ms.max(1),
        base_redelivery_delay_ms: policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms: policy.max_redelivery_delay_ms,
        backoff: match policy.backoff_strategy() {
            values::BackoffStrategy::Fixed => BackoffStrategy::Fixed,
            values::BackoffStrategy::Exponential => BackoffStrategy::Exponential,
        },
        dead_letter_topic: policy.dead_letter_topic.clone(),
        poison: match policy.poison_policy() {
            values::PoisonPolicy::DeadLetter => PoisonPolicy::DeadLetter,
            values::PoisonPolicy::Block => PoisonPolicy::Block,
            values::PoisonPolicy::Drop => PoisonPolicy::Drop,
        },
    })
}

fn policy_to_wire(policy: FailurePolicy) -> SubscriptionFailurePolicy {
    use subscription_failure_policy as values;
    let backoff = match policy.backoff {
        BackoffStrategy::Fixed => values::BackoffStrategy::Fixed,
        BackoffStrategy::Exponential => values::BackoffStrategy::Exponential,
    };
    let poison = match policy.poison {
        PoisonPolicy::DeadLetter => values::PoisonPolicy::DeadLetter,
        PoisonPolicy::Block => values::PoisonPolicy::Block,
        PoisonPolicy::Drop => values::PoisonPolicy::Drop,
    };
    SubscriptionFailurePolicy {
        max_redelivery_count: policy.max_redelivery_count,
        ack_timeout_ms: policy.ack_timeout_ms,
        base_redelivery_delay_ms: policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms: policy.max_redelivery_delay_ms,
        backoff_strategy: backoff.into(),
        dead_letter_topic: policy.dead_letter_topic,
        poison_policy: poison.into(),
    }
}
