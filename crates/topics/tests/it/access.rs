//! Who gets in? Credentials, grants, TLS, and brokers among themselves.

use std::time::Duration;

use capstan_access::api::{NewIdentity, NewKey, identity_create, key_create, key_revoke};
use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Authority, HostNames, KeyRequest};
use capstan_access::spec::IdentityKind;
use capstan_client::wire::capstan::topics::v1::{Position, Record, SeekRequest, position};
use capstan_client::wire::danube::auth_service_client::AuthServiceClient;
use capstan_client::wire::danube::consumer_request::SubscriptionType;
use capstan_client::wire::danube::{AuthRequest, TopicLookupRequest};
use capstan_client::wire::danube_admin::topic_admin_client::TopicAdminClient;
use capstan_client::wire::danube_admin::{NewTopicRequest, TopicRequest};
use capstan_client::{Access, Client, ClientError, Subscribe};
use capstan_testkit::{TempDir, eventually};
use capstan_topics::BrokerTls;
use tonic::Code;

use crate::cluster::{Cluster, SOON, channel};

const TOPIC: &str = "/orders/new";
const HOUR: Duration = Duration::from_secs(3_600);

/// A new account with these grants. Returns the id and the text of its key.
async fn account(cluster: &Cluster, name: &str, grants: &[&str]) -> (String, String) {
    let new = NewIdentity {
        name: name.parse().unwrap(),
        kind: IdentityKind::Account,
        password: None,
        roles: Vec::new(),
        grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
    };
    identity_create(&cluster.store, &new, "test").await.unwrap();
    let key = NewKey { identity: name.parse().unwrap(), note: String::new(), scope: None, ttl: None };
    let issued = key_create(&cluster.store, &key, "test").await.unwrap();
    (issued.id.to_string(), issued.text.reveal().to_owned())
}

fn client(cluster: &Cluster, key: &str) -> Client {
    cluster.own_client().with_access(Access::default().with_key(key).unwrap())
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Code {
    match result.unwrap_err() {
        ClientError::Refused(status) => status.code(),
        other => panic!("{other}"),
    }
}

async fn publish(client: &Client, text: &str) -> Result<u64, ClientError> {
    let mut producer = client.producer(TOPIC, "p");
    let record = Record { value: Some(text.to_owned().into()), ..Record::default() };
    producer.send(vec![record]).await?;
    Ok(producer.flush().await?[0].offset)
}

fn subscribe() -> Subscribe {
    Subscribe {
        topic: TOPIC.to_owned(),
        subscription: "s".to_owned(),
        consumer: "c".to_owned(),
        kind: SubscriptionType::Exclusive,
        from: Position { at: Some(position::At::Earliest(true)) },
    }
}

async fn create(client: &Client, url: &str) -> Result<(), Code> {
    let request = NewTopicRequest { name: TOPIC.to_owned(), schema_subject: None, dispatch_strategy: 1 };
    let made = TopicAdminClient::new(client.channel(url).unwrap()).create_topic(request).await;
    made.map(drop).map_err(|status| status.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_needs_a_credential_and_a_grant() {
    let cluster = Cluster::start_closed(&["a"], None).await;
    let url = cluster.nodes["a"].broker.url().to_owned();
    let namespace = "orders".parse().unwrap();
    capstan_topics::commit::create_namespace(&cluster.store, &namespace, &Default::default()).await.unwrap();
    let nobody = cluster.own_client();
    assert_eq!(create(&nobody, &url).await.unwrap_err(), Code::Unauthenticated);
    assert_eq!(code(nobody.locate(TOPIC).await), Code::Unauthenticated);
    let wrong = client(&cluster, &format!("csk_{}_{}", "0".repeat(16), "0".repeat(64)));
    assert_eq!(code(wrong.locate(TOPIC).await), Code::Unauthenticated);

    let (_, operator) = account(&cluster, "operator", &["topics:namespace/orders:view,operate"]).await;
    let (_, producer) = account(&cluster, "producer", &["topics:namespace/orders:produce"]).await;
    let (revoked, consumer) = account(&cluster, "consumer", &["topics:namespace/orders/new:consume"]).await;
    let (_, other) = account(&cluster, "other", &["topics:namespace/default:*"]).await;
    let [operator, producer, consumer_client, other] =
        [&operator, &producer, &consumer, &other].map(|key| client(&cluster, key));
    for refused in [&producer, &consumer_client, &other] {
        assert_eq!(create(refused, &url).await.unwrap_err(), Code::PermissionDenied);
    }
    create(&operator, &url).await.unwrap();
    for refused in [&operator, &consumer_client, &other] {
        assert_eq!(code(publish(refused, "no").await), Code::PermissionDenied);
    }
    assert_eq!(publish(&producer, "one").await.unwrap(), 0);
    for refused in [&operator, &producer, &other] {
        assert_eq!(code(refused.consumer(subscribe()).await), Code::PermissionDenied);
        let position = Some(Position { at: Some(position::At::Earliest(true)) });
        let seek = SeekRequest {
            topic: TOPIC.to_owned(),
            subscription: "s".to_owned(),
            to: position,
            ..SeekRequest::default()
        };
        assert_eq!(code(refused.seek(seek).await), Code::PermissionDenied);
    }
    let mut receiving = consumer_client.consumer(subscribe()).await.unwrap();
    assert_eq!(receiving.next().await.unwrap().payload, "one");
    receiving.acknowledge(vec![0]).await.unwrap();
    assert!(consumer_client.stats(TOPIC).await.is_ok() && producer.stats(TOPIC).await.is_ok());
    assert_eq!(code(other.stats(TOPIC).await), Code::PermissionDenied);
    for refused in [&producer, &consumer_client, &other] {
        let request = TopicRequest { name: TOPIC.to_owned() };
        let deleted = TopicAdminClient::new(refused.channel(&url).unwrap()).delete_topic(request).await;
        assert_eq!(deleted.unwrap_err().code(), Code::PermissionDenied);
    }

    // Clients of the document's time turn a key into a token first.
    let mut auth = AuthServiceClient::new(channel(&url));
    let token =
        auth.authenticate(AuthRequest { api_key: consumer.clone() }).await.unwrap().into_inner().token;
    assert!(client(&cluster, &token).locate(TOPIC).await.unwrap().is_some());
    let refused = auth.authenticate(AuthRequest { api_key: "guessed".to_owned() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);

    // A stream ends with its key, although it is open.
    key_revoke(&cluster.store, &revoked.parse().unwrap(), "test").await.unwrap();
    eventually("the key is refused", SOON, async || match consumer_client.locate(TOPIC).await {
        Err(ClientError::Refused(status)) if status.code() == Code::Unauthenticated => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
    eventually("the stream ends", SOON, async || {
        publish(&producer, "more").await.map_err(|error| error.to_string())?;
        match receiving.next().await {
            Err(ClientError::Refused(status)) if status.code() == Code::Unauthenticated => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
}

/// The files of a broker on the loopback address.
fn certificates(dir: &TempDir) -> (BrokerTls, String) {
    let (authority, _) = Authority::create("test authority", 1_000 * HOUR).unwrap();
    let KeyRequest { key, request } = KeyRequest::generate().unwrap();
    let names = HostNames { host: "a".parse().unwrap(), addresses: vec!["127.0.0.1".parse().unwrap()] };
    let chain = authority.sign(&request, &names, HOUR).unwrap();
    let (own, roots) = (dir.join("own.pem"), dir.join("ca.pem"));
    files::replace(&own, &(chain + key.reveal()), Readers::Owner).unwrap();
    files::replace(&roots, authority.certificate(), Readers::All).unwrap();
    (BrokerTls::open(own.clone(), own, roots).unwrap(), authority.certificate().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_speak_tls_with_clients_and_with_each_other() {
    let dir = TempDir::new("topics-tls").unwrap();
    let (tls, authority) = certificates(&dir);
    let cluster = Cluster::start_closed(&["a", "b"], Some(tls)).await;
    let namespace = "orders".parse().unwrap();
    capstan_topics::commit::create_namespace(&cluster.store, &namespace, &Default::default()).await.unwrap();
    let (_, key) = account(&cluster, "all", &["topics:*"]).await;
    let urls: Vec<String> = cluster.nodes.values().map(|node| node.broker.url().to_owned()).collect();
    assert!(urls.iter().all(|url| url.starts_with("https://127.0.0.1:")), "{urls:?}");
    let access = Access::default().with_key(&key).unwrap();
    let client = cluster.own_client().with_access(access.clone().with_authority(&authority));
    for number in 0..5 {
        assert_eq!(publish(&client, &number.to_string()).await.unwrap(), number);
    }
    // Both brokers name the same owner; the other one asks it where the topic ends before it hands over.
    let owner = client.locate(TOPIC).await.unwrap().unwrap();
    let other = urls.iter().find(|url| **url != owner).unwrap();
    let request = TopicRequest { name: TOPIC.to_owned() };
    eventually("the topic is unloaded by the other broker", SOON, async || {
        let mut admin = TopicAdminClient::new(client.channel(other).unwrap());
        admin.unload_topic(request.clone()).await.map(drop).map_err(|status| status.to_string())
    })
    .await;
    let mut consumer = client.consumer(subscribe()).await.unwrap();
    for number in 0..5 {
        assert_eq!(consumer.next().await.unwrap().payload, number.to_string());
    }
    // Neither a client of another authority nor one without TLS gets as far as a request.
    let (stranger, _) = Authority::create("another", HOUR).unwrap();
    for (access, url) in [
        (access.clone().with_authority(stranger.certificate()), owner.clone()),
        (access, owner.replace("https:", "http:")),
    ] {
        let stranger = Client::new([url.clone()]).with_access(access);
        let mut discovery = capstan_client::wire::danube::discovery_client::DiscoveryClient::new(
            stranger.channel(&url).unwrap(),
        );
        let lookup = TopicLookupRequest { request_id: 1, topic: TOPIC.to_owned() };
        // The transport fails, before there is a status of the broker.
        let refused = discovery.topic_lookup(lookup).await.unwrap_err();
        assert!(std::error::Error::source(&refused).is_some(), "{url}: {refused}");
    }
}

/// Requests whose first text is a topic or a namespace, by where it stands.
mod shapes {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct First {
        #[prost(string, tag = "1")]
        pub text: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Second {
        #[prost(string, tag = "2")]
        pub text: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Third {
        #[prost(string, tag = "3")]
        pub text: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct OfMessage {
        #[prost(message, optional, tag = "2")]
        pub id: Option<Second>,
    }
}

/// Calls a method with a request of any shape. Every kind of method can be called with one request.
async fn call<M: prost::Message + Clone + 'static>(
    link: capstan_client::Link,
    path: &str,
    request: M,
) -> Code {
    let mut client = tonic::client::Grpc::new(link);
    client.ready().await.unwrap();
    let (path, codec) = (path.parse().unwrap(), tonic_prost::ProstCodec::<M, ()>::default());
    let requests = tonic::Request::new(tokio_stream::iter([request]));
    match client.streaming(requests, path, codec).await {
        Err(status) => status.code(),
        Ok(reply) => reply.into_inner().message().await.err().map_or(Code::Ok, |status| status.code()),
    }
}

async fn call_by_shape(link: capstan_client::Link, path: &str) -> Code {
    let topic = || TOPIC.to_owned();
    let method = path.rsplit('/').next().unwrap();
    match method {
        "SendMessage" | "Ack" | "Nack" => {
            call(link, path, shapes::OfMessage { id: Some(shapes::Second { text: topic() }) }).await
        }
        "CreateProducer" => call(link, path, shapes::Third { text: topic() }).await,
        "TopicLookup" | "TopicPartitions" | "Subscribe" => {
            call(link, path, shapes::Second { text: topic() }).await
        }
        "HealthCheck" | "ReceiveMessages" => call(link, path, ()).await,
        _ if path.contains("NamespaceAdmin") || method == "ListNamespaceTopics" => {
            call(link, path, shapes::First { text: "orders".to_owned() }).await
        }
        _ if path.contains("BrokerAdmin") || path.contains("ClusterAdmin") => call(link, path, ()).await,
        "GetSchema" | "ListSubjects" => call(link, path, ()).await,
        _ => call(link, path, shapes::First { text: topic() }).await,
    }
}

/// The paths of all methods.
fn methods() -> Vec<String> {
    let texts = [
        include_str!("../../proto/danube.proto"),
        include_str!("../../proto/danube_admin.proto"),
        include_str!("../../proto/danube_schema.proto"),
        include_str!("../../proto/capstan_topics.proto"),
    ];
    let word = |line: &str| line.split([' ', '(', ';', '{']).nth(1).unwrap().to_owned();
    let mut found = Vec::new();
    for text in texts {
        let (mut package, mut service) = (String::new(), String::new());
        for line in text.lines().map(str::trim) {
            match line.split(' ').next() {
                Some("package") => package = word(line),
                Some("service") => service = word(line),
                Some("rpc") => found.push(format!("/{package}.{service}/{}", word(line))),
                _ => {}
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_refuses_callers_without_a_credential_and_without_a_grant() {
    let cluster = Cluster::start_closed(&["a"], None).await;
    let url = cluster.nodes["a"].broker.url().to_owned();
    let namespace = "orders".parse().unwrap();
    capstan_topics::commit::create_namespace(&cluster.store, &namespace, &Default::default()).await.unwrap();
    let (_, key) = account(&cluster, "operator", &["topics:*"]).await;
    create(&client(&cluster, &key), &url).await.unwrap();
    let (_, key) = account(&cluster, "stranger", &["topics:namespace/default:*"]).await;
    let (nobody, stranger) = (cluster.own_client(), client(&cluster, &key));
    for path in methods() {
        let code = call_by_shape(nobody.channel(&url).unwrap(), &path).await;
        assert_eq!(code, Code::Unauthenticated, "{path}");
        let code = call_by_shape(stranger.channel(&url).unwrap(), &path).await;
        let expected = match path.rsplit('/').next().unwrap() {
            "Authenticate" => Code::Unauthenticated,
            // They name no topic, only a client that there is not.
            "HealthCheck" => Code::NotFound,
            "ReceiveMessages" => Code::Unavailable,
            _ => Code::PermissionDenied,
        };
        assert_eq!(code, expected, "{path}");
    }
    assert_eq!(
        call_by_shape(stranger.channel(&url).unwrap(), "/danube.Other/Method").await,
        Code::PermissionDenied
    );
}
