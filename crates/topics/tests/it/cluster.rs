//! Brokers and a steward in one process, on one store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capstan_access::policy::Policy as AccessPolicy;
use capstan_access::{Anonymous, Guard};
use capstan_control::findings::Finding;
use capstan_log::replica::Timing;
use capstan_log::{HostOptions, disk};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::{OwnedTask, Store};
use capstan_steward::holder::{self, Holder, HolderOptions};
use capstan_steward::{Policy, Steward, controller};
use capstan_testkit::disk::SimDisk;
use capstan_testkit::{TempDir, eventually};
use capstan_topics::agent::Shelf;
use capstan_topics::check;
use capstan_topics::facts::Facts;
use capstan_topics::tier::TierOptions;
use capstan_topics::wire::capstan::topics::v1::topics_client::TopicsClient;
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube::consumer_service_client::ConsumerServiceClient;
use capstan_topics::wire::danube::discovery_client::DiscoveryClient;
use capstan_topics::wire::danube::producer_service_client::ProducerServiceClient;
use capstan_topics::wire::danube::{
    AckRequest, ConsumerRequest, MsgId, NackRequest, ProducerRequest, ReceiveRequest, StreamMessage,
    TopicLookupRequest,
};
use capstan_topics::wire::danube_admin::topic_admin_client::TopicAdminClient;
use capstan_topics::{Broker, BrokerOptions, BrokerTls, SERVICE, api};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

pub const SOON: Duration = Duration::from_secs(60);
pub const RELIABLE: i32 = 1;
pub const NON_RELIABLE: i32 = 0;

/// A broker with everything around it.
pub struct Node {
    pub broker: Broker,
    pub holder: Holder,
    pub session: Session,
    _server: OwnedTask,
}

pub struct Cluster {
    dir: TempDir,
    pub store: Store,
    pub nodes: BTreeMap<String, Node>,
    tier: Option<TierOptions>,
    guard: Guard,
    tls: Option<BrokerTls>,
    _steward: OwnedTask,
}

pub fn policy() -> Policy {
    Policy { repair_after: 2, handover_within: 5, reserve_bytes: 0, ..Policy::default() }
}

/// A lease that a busy machine does not end: brokers that end give theirs back, and no test waits for one to run out.
fn session_options() -> SessionOptions {
    let (ttl, margin) = (Duration::from_secs(30), Duration::from_secs(5));
    SessionOptions { ttl, margin, ..SessionOptions::default() }
}

impl Cluster {
    pub async fn start(names: &[&str]) -> Cluster {
        Cluster::start_with(names, None).await
    }

    /// The same on a store that is there.
    pub async fn on(store: Store, names: &[&str]) -> Cluster {
        Cluster::on_with(store, names, None).await
    }

    /// The same with a place for old messages.
    pub async fn start_with(names: &[&str], tier: Option<TierOptions>) -> Cluster {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        Cluster::on_with(store, names, tier).await
    }

    async fn on_with(store: Store, names: &[&str], tier: Option<TierOptions>) -> Cluster {
        let steward = OwnedTask::spawn(steward(store.clone()));
        let dir = TempDir::new("topics").unwrap();
        let guard = Guard::fixed(AccessPolicy::default(), Anonymous::Admin);
        let nodes = BTreeMap::new();
        let mut cluster = Cluster { dir, store, nodes, tier, guard, tls: None, _steward: steward };
        for name in names {
            cluster.begin(name).await;
        }
        cluster
    }

    /// Brokers that let only those in that may, and speak TLS.
    pub async fn start_closed(names: &[&str], tls: Option<BrokerTls>) -> Cluster {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        let mut cluster = Cluster::on(store.clone(), &[]).await;
        cluster.guard = Guard::open(store, Anonymous::Refused).await.unwrap();
        cluster.tls = tls;
        for name in names {
            cluster.begin(name).await;
        }
        cluster
    }

    /// Starts a broker, with the directory that it had before.
    pub async fn begin(&mut self, name: &str) {
        self.begin_on(name, None).await;
    }

    /// The same on a device of its own.
    pub async fn begin_on(&mut self, name: &str, device: Option<SimDisk>) {
        let session = Session::start(self.store.clone(), session_options());
        let service = SERVICE.parse().unwrap();
        let id = holder::id_of(&name.parse().unwrap(), &service).unwrap();
        let mut options = HolderOptions::new(id, name.parse().unwrap(), service, self.dir.join(name));
        let timing = Timing {
            heartbeat: Duration::from_millis(50),
            resend: Duration::from_millis(200),
            lag: Duration::from_millis(1_000),
            ..Timing::default()
        };
        options.log = HostOptions { timing, ..options.log };
        options.disk = disk::Options {
            segment_bytes: 256 * 1024,
            journal_file_bytes: 1 << 20,
            checkpoint_bytes: 1 << 20,
        };
        let shelf = Arc::new(Shelf::default());
        let replication = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (store, owner) = (&self.store, shelf.clone());
        let holder = match device {
            None => Holder::start(options, replication, store, &session, owner).await.unwrap(),
            Some(device) => {
                let at = options.disk;
                let disk = move || capstan_log::Disk::open_on(Arc::new(device), Path::new("/logs"), at);
                let disk = tokio::task::spawn_blocking(disk).await.unwrap().unwrap();
                std::fs::create_dir_all(&options.dir).unwrap();
                Holder::start_on(options, disk, replication, store, &session, owner).await.unwrap()
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = BrokerOptions::new(
            name.parse().unwrap(),
            "test".parse().unwrap(),
            listener.local_addr().unwrap(),
        );
        let options = BrokerOptions {
            tier: self.tier.clone(),
            guard: self.guard.clone(),
            tls: self.tls.clone(),
            ..options
        };
        let broker =
            Broker::start(options, holder.clone(), shelf, &self.store, &session, policy()).await.unwrap();
        let served = broker.clone();
        let server = OwnedTask::spawn(async move {
            api::serve(served, listener, CancellationToken::new()).await.unwrap();
        });
        self.nodes.insert(name.to_owned(), Node { broker, holder, session, _server: server });
    }

    /// Ends a broker as a killed process would, except that its lease ends at once.
    pub async fn end(&mut self, name: &str) {
        let node = self.nodes.remove(name).unwrap();
        drop(node._server);
        node.session.close().await.unwrap();
        node.holder.stop().await.unwrap();
    }

    /// Ends a broker whose device has failed: nothing can be written any more.
    pub async fn lose(&mut self, name: &str) {
        let node = self.nodes.remove(name).unwrap();
        drop(node._server);
        node.session.close().await.unwrap();
        // It fails with its device.
        drop(node.holder.stop().await);
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.nodes.values().next().unwrap().broker.url()).await
    }

    pub async fn client_of(&self, name: &str) -> Client {
        Client::connect(self.nodes[name].broker.url()).await
    }

    /// Where a topic is served, as soon as it is.
    pub async fn owner(&self, topic: &str) -> String {
        let client = self.client().await;
        let url = client.locate(topic).await;
        let found = self.nodes.iter().find(|(_, node)| node.broker.url() == url);
        found.unwrap_or_else(|| panic!("{url} is no broker")).0.clone()
    }

    /// Our own client, which finds every broker.
    pub fn own_client(&self) -> capstan_client::Client {
        capstan_client::Client::new(self.nodes.values().map(|node| node.broker.url().to_owned()))
    }

    /// What is wrong, as `capstan status` would show it.
    pub async fn findings(&self) -> Vec<Finding> {
        let facts = Facts::read(&self.store).await.unwrap();
        check::findings(&facts, capstan_meta::clock::since_epoch().as_secs())
    }

    /// The value of a key, as text.
    pub async fn value(&self, key: &str) -> Option<String> {
        let found = self.store.get(key.to_owned()).await.unwrap()?;
        Some(String::from_utf8(found.value.to_vec()).unwrap())
    }
}

async fn steward(store: Store) {
    let session = Session::start(store.clone(), session_options());
    let steward = Steward::new(policy()).answering_for(vec![SERVICE.parse().unwrap()]);
    let stop = CancellationToken::new();
    controller::run(steward, &store, &session, "steward", |_| {}, &stop).await.unwrap();
}

/// A client that follows topics as the public one does: looks up, tries again when a broker is not ready.
#[derive(Clone)]
pub struct Client {
    url: String,
    discovery: DiscoveryClient<Channel>,
}

pub fn channel(url: &str) -> Channel {
    Channel::from_shared(url.to_owned()).unwrap().connect_lazy()
}

impl Client {
    pub async fn connect(url: &str) -> Client {
        Client { url: url.to_owned(), discovery: DiscoveryClient::new(channel(url)) }
    }

    pub fn own(&self) -> TopicsClient<Channel> {
        TopicsClient::new(channel(&self.url))
    }

    pub fn admin(&self) -> TopicAdminClient<Channel> {
        TopicAdminClient::new(channel(&self.url))
    }

    pub fn discovery(&self) -> DiscoveryClient<Channel> {
        self.discovery.clone()
    }

    pub async fn locate(&self, topic: &str) -> String {
        eventually("a topic is served", SOON, async || {
            let request = TopicLookupRequest { request_id: 1, topic: topic.to_owned() };
            let found = self.discovery.clone().topic_lookup(request).await;
            found.map(|found| found.into_inner().connect_url).map_err(|status| status.to_string())
        })
        .await
    }

    pub async fn producer(&self, topic: &str, name: &str, strategy: i32) -> Producer {
        let mut producer = Producer {
            client: self.clone(),
            topic: topic.to_owned(),
            name: name.to_owned(),
            strategy,
            id: 0,
            at: None,
        };
        producer.create().await;
        producer
    }

    pub async fn try_producer(&self, topic: &str, name: &str, strategy: i32) -> Result<u64, Status> {
        let request = ProducerRequest {
            producer_name: name.to_owned(),
            topic_name: topic.to_owned(),
            dispatch_strategy: strategy,
            ..ProducerRequest::default()
        };
        let made = ProducerServiceClient::new(channel(&self.url)).create_producer(request).await?;
        Ok(made.into_inner().producer_id)
    }

    pub async fn consumer(
        &self,
        topic: &str,
        subscription: &str,
        name: &str,
        kind: SubscriptionType,
    ) -> Consumer {
        eventually("a consumer has its place", SOON, async || {
            let at = self.locate(topic).await;
            let client = Client::connect(&at).await;
            client.try_consumer(topic, subscription, name, kind).await.map_err(|status| status.to_string())
        })
        .await
    }

    pub async fn try_consumer(
        &self,
        topic: &str,
        subscription: &str,
        name: &str,
        kind: SubscriptionType,
    ) -> Result<Consumer, Status> {
        self.try_filtered(topic, subscription, name, kind, &[]).await
    }

    pub async fn try_filtered(
        &self,
        topic: &str,
        subscription: &str,
        name: &str,
        kind: SubscriptionType,
        filters: &[&str],
    ) -> Result<Consumer, Status> {
        let mut client = ConsumerServiceClient::new(channel(&self.url));
        let request = ConsumerRequest {
            request_id: 7,
            topic_name: topic.to_owned(),
            consumer_name: name.to_owned(),
            subscription: subscription.to_owned(),
            subscription_type: kind.into(),
            key_filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
        };
        let joined = client.subscribe(request).await?.into_inner();
        assert_eq!((joined.request_id, joined.consumer_name.as_str()), (7, name));
        let request = ReceiveRequest { request_id: 8, consumer_id: joined.consumer_id };
        let messages = client.receive_messages(request).await?.into_inner();
        Ok(Consumer { client, messages, subscription: subscription.to_owned() })
    }
}

/// A producer that registers again when its topic has moved.
pub struct Producer {
    client: Client,
    pub topic: String,
    name: String,
    strategy: i32,
    pub id: u64,
    at: Option<ProducerServiceClient<Channel>>,
}

impl Producer {
    async fn create(&mut self) {
        let (client, topic, name, strategy) = (&self.client, &self.topic, &self.name, self.strategy);
        let (id, at) = eventually("a producer is registered", SOON, async || {
            let request = TopicLookupRequest { request_id: 0, topic: topic.clone() };
            let found = client.discovery.clone().topic_lookup(request).await;
            let url = found.map_or_else(|_| client.url.clone(), |found| found.into_inner().connect_url);
            let there = Client::connect(&url).await;
            match there.try_producer(topic, name, strategy).await {
                Ok(id) => Ok((id, url)),
                Err(status) => Err(status.to_string()),
            }
        })
        .await;
        (self.id, self.at) = (id, Some(ProducerServiceClient::new(channel(&at))));
    }

    pub fn message(&self, text: &str) -> StreamMessage {
        let msg_id = MsgId { producer_id: self.id, topic_name: self.topic.clone(), ..MsgId::default() };
        StreamMessage {
            request_id: 1,
            msg_id: Some(msg_id),
            payload: text.to_owned().into(),
            publish_time: 1,
            producer_name: self.name.clone(),
            ..StreamMessage::default()
        }
    }

    pub async fn try_send(&mut self, message: StreamMessage) -> Result<(), Status> {
        let at = self.at.as_mut().unwrap();
        at.send_message(message).await.map(|sent| assert_eq!(sent.into_inner().request_id, 1))
    }

    /// Sends until it is acknowledged.
    pub async fn send(&mut self, text: &str) {
        self.send_message(self.message(text)).await;
    }

    pub async fn send_keyed(&mut self, text: &str, key: &str) {
        self.send_message(StreamMessage { routing_key: Some(key.to_owned()), ..self.message(text) }).await;
    }

    async fn send_message(&mut self, message: StreamMessage) {
        let until = tokio::time::Instant::now() + SOON;
        loop {
            match self.try_send(message.clone()).await {
                Ok(()) => return,
                Err(status) if status.code() == Code::Unavailable => {}
                // The broker has stopped.
                Err(status) if status.code() == Code::Unknown || status.code() == Code::Cancelled => {}
                Err(status) => panic!("{status}"),
            }
            assert!(tokio::time::Instant::now() < until, "a message is not acknowledged");
            // tidy: allow, because this is the pace of a client that tries again
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.create().await;
        }
    }
}

pub struct Consumer {
    client: ConsumerServiceClient<Channel>,
    messages: Streaming<StreamMessage>,
    subscription: String,
}

pub fn text(message: &StreamMessage) -> String {
    String::from_utf8(message.payload.to_vec()).unwrap()
}

pub fn offset(message: &StreamMessage) -> u64 {
    message.msg_id.as_ref().unwrap().topic_offset
}

impl Consumer {
    pub async fn try_next(&mut self, within: Duration) -> Option<StreamMessage> {
        match tokio::time::timeout(within, self.messages.message()).await {
            Ok(Ok(message)) => message,
            Ok(Err(status)) => panic!("{status}"),
            Err(_) => None,
        }
    }

    pub async fn next(&mut self) -> StreamMessage {
        self.try_next(SOON).await.expect("a message comes")
    }

    /// How the stream ends, messages before it left aside.
    pub async fn end(&mut self) -> Status {
        tokio::time::timeout(SOON, async {
            loop {
                match self.messages.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Status::ok("ended"),
                    Err(status) => return status,
                }
            }
        })
        .await
        .expect("the stream ends")
    }

    pub async fn ack(&mut self, message: &StreamMessage) {
        let request = AckRequest {
            request_id: message.request_id,
            msg_id: message.msg_id.clone(),
            subscription_name: self.subscription.clone(),
        };
        self.client.ack(request).await.unwrap();
    }

    pub async fn nack(&mut self, message: &StreamMessage, delay_ms: Option<u64>) {
        self.nack_because(message, delay_ms, None).await;
    }

    pub async fn nack_because(&mut self, message: &StreamMessage, delay_ms: Option<u64>, why: Option<&str>) {
        let request = NackRequest {
            request_id: message.request_id,
            msg_id: message.msg_id.clone(),
            subscription_name: self.subscription.clone(),
            delay_ms,
            reason: why.map(ToOwned::to_owned),
        };
        self.client.nack(request).await.unwrap();
    }

    /// Receives and acknowledges messages up to the one with this offset. On a busy machine some may come twice: the time
    /// for an acknowledgment includes the wait in the stream.
    pub async fn take_through(&mut self, last: u64) {
        loop {
            let message = self.next().await;
            self.ack(&message).await;
            if offset(&message) == last {
                return;
            }
        }
    }

    /// Receives and acknowledges so many messages.
    pub async fn take(&mut self, count: usize) -> Vec<String> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let message = self.next().await;
            self.ack(&message).await;
            taken.push(text(&message));
        }
        taken
    }
}
