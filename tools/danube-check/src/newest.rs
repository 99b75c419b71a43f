//! The newest client, 0.16.0.

crate::common_checks!(danube_client, danube_core, super::newest::made);

use danube_core::admin_proto::topic_admin_client::TopicAdminClient;
use danube_core::admin_proto::{
    GetSubscriptionFailurePolicyRequest, NewTopicRequest, PartitionedTopicRequest,
    SetSubscriptionFailurePolicyRequest, SubscriptionFailurePolicy, TopicRequest,
};

use crate::registry;

/// What a builder of this version returns.
pub fn made<T>(built: danube_client::errors::Result<T>) -> Result<T> {
    Ok(built?)
}

pub async fn all(urls: &[&str]) -> Result<()> {
    let run = run_name()?;
    common(urls, &run).await?;
    let client = connect(urls.first().context("no url")?).await?;
    let topic = |name: &str| format!("/default/{name}-{run}");
    step("key shared", key_shared(&client, &topic("keys"))).await?;
    step("key shared, two consumers", shared_keys(&client, &topic("more-keys"))).await?;
    step("key filters", filters(&client, &topic("filters"))).await?;
    step("nack", nack(&client, &topic("nack"))).await?;
    step("dead letters", dead_letters(&client, &topic("poison"))).await?;
    step("lookup", lookup(urls, &topic("lookup"))).await?;
    step("admin", admin(&client, &topic("admin"))).await?;
    registry::all(&client, &run).await
}

async fn key_shared(client: &DanubeClient, topic: &str) -> Result<()> {
    let producer = producer(client, topic).await?;
    let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::KeyShared).await?;
    for number in 0..20 {
        let payload = number.to_string().into_bytes();
        producer.send_with_key(payload, None, &format!("key-{}", number % 4)).await?;
    }
    let all: BTreeSet<String> = take(&mut consumer, &mut messages, 20).await?.into_iter().collect();
    ensure!(all.len() == 20);
    Ok(())
}

/// Each key has one consumer, and its messages are in order.
async fn shared_keys(client: &DanubeClient, topic: &str) -> Result<()> {
    let producer = producer(client, topic).await?;
    let (mut one, mut of_one) = consumer(client, topic, "one", SubType::KeyShared).await?;
    let (mut two, mut of_two) = consumer(client, topic, "two", SubType::KeyShared).await?;
    // The stream of a consumer begins some time after `receive` has returned.
    let mut attached = [false, false];
    for number in 0.. {
        producer.send_with_key(b"warm".to_vec(), None, &format!("warm-{number}")).await?;
        let (at, consumer, message) = tokio::select! {
            message = next(&mut of_one) => (0, &mut one, message?),
            message = next(&mut of_two) => (1, &mut two, message?),
        };
        consumer.ack(&message).await?;
        attached[at] = true;
        if attached == [true, true] {
            break;
        }
        ensure!(number < 1_000, "one of two consumers gets nothing: {attached:?}");
    }
    for number in 0..64 {
        producer
            .send_with_key(number.to_string().into_bytes(), None, &format!("key-{}", number % 16))
            .await?;
    }
    let mut owners: HashMap<String, (&str, usize)> = HashMap::new();
    for _ in 0..64 {
        let (name, consumer, message) = tokio::select! {
            message = next(&mut of_one) => ("one", &mut one, message?),
            message = next(&mut of_two) => ("two", &mut two, message?),
        };
        consumer.ack(&message).await?;
        let number: usize = std::str::from_utf8(&message.payload)?.parse()?;
        let key = message.routing_key.clone().context("no key")?;
        if let Some((owner, before)) = owners.insert(key.clone(), (name, number)) {
            ensure!(owner == name && before < number, "{key}: {owner} {before}, {name} {number}");
        }
    }
    ensure!(owners.values().map(|(owner, _)| owner).collect::<BTreeSet<_>>().len() == 2, "{owners:?}");
    Ok(())
}

async fn filters(client: &DanubeClient, topic: &str) -> Result<()> {
    let producer = producer(client, topic).await?;
    let mut consumer = client
        .new_consumer()
        .with_topic(topic)
        .with_consumer_name("payments")
        .with_subscription("filtered")
        .with_subscription_type(SubType::KeyShared)
        .with_key_filter("pay*")
        .build()?;
    consumer.subscribe().await?;
    let mut messages = consumer.receive().await?;
    for key in ["shipping", "payment", "paycheck"] {
        producer.send_with_key(key.as_bytes().to_vec(), None, key).await?;
    }
    let mut found = take(&mut consumer, &mut messages, 2).await?;
    found.sort();
    ensure!(found == ["paycheck", "payment"]);
    ensure!(timeout(NOTHING, messages.recv()).await.is_err());
    Ok(())
}

async fn nack(client: &DanubeClient, topic: &str) -> Result<()> {
    let producer = producer(client, topic).await?;
    let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Shared).await?;
    send(&producer, &numbers(0..3)).await?;
    let first = next(&mut messages).await?;
    ensure!(take(&mut consumer, &mut messages, 2).await? == numbers(1..3));
    consumer.nack(&first, Some(100), Some("not now".to_owned())).await?;
    ensure!(take(&mut consumer, &mut messages, 1).await? == ["0"]);
    Ok(())
}

async fn topic_admin(client: &DanubeClient) -> Result<TopicAdminClient<tonic::transport::Channel>> {
    Ok(TopicAdminClient::new(client.get_service_channel().await?))
}

async fn dead_letters(client: &DanubeClient, topic: &str) -> Result<()> {
    let producer = producer(client, topic).await?;
    let graves = format!("{topic}-dead");
    let (mut one, mut messages) = consumer(client, topic, "one", SubType::Shared).await?;
    let policy = SubscriptionFailurePolicy {
        max_redelivery_count: 2,
        ack_timeout_ms: 30_000,
        base_redelivery_delay_ms: 50,
        max_redelivery_delay_ms: 100,
        backoff_strategy: 0,
        dead_letter_topic: Some(graves.clone()),
        poison_policy: 0,
    };
    let request = SetSubscriptionFailurePolicyRequest {
        topic: topic.to_owned(),
        subscription: "subscription".to_owned(),
        failure_policy: Some(policy.clone()),
    };
    // Policies are set where the topic is.
    let at = client.resolve_topic_broker(topic).await?;
    let channel = client.get_broker_channel(&at).await?;
    let mut admin = TopicAdminClient::new(channel);
    ensure!(admin.set_subscription_failure_policy(request).await?.into_inner().success);
    let asked = GetSubscriptionFailurePolicyRequest {
        topic: topic.to_owned(),
        subscription: "subscription".to_owned(),
    };
    let known = admin.get_subscription_failure_policy(asked).await?.into_inner();
    ensure!(known.failure_policy == Some(policy) && known.subscription_type == 1, "{known:?}");
    let mut graveyard =
        client.new_producer().with_topic(&graves).with_name("digger").with_reliable_dispatch().build()?;
    graveyard.create().await?;
    let (mut mourner, mut dead) = consumer(client, &graves, "mourner", SubType::Shared).await?;
    send(&producer, &["poison".to_owned(), "good".to_owned()]).await?;
    let mut deliveries = 0;
    let letter = loop {
        tokio::select! {
            message = next(&mut messages) => {
                let message = message?;
                if &message.payload[..] == b"poison" {
                    deliveries += 1;
                    one.nack(&message, None, Some("cannot be read".to_owned())).await?;
                } else {
                    one.ack(&message).await?;
                }
            }
            letter = next(&mut dead) => break letter?,
        }
    };
    mourner.ack(&letter).await?;
    ensure!(&letter.payload[..] == b"poison" && deliveries == 3, "{deliveries} deliveries");
    for (name, value) in [("x-original-topic", topic), ("x-original-subscription", "subscription")] {
        ensure!(letter.attributes.get(name).map(String::as_str) == Some(value), "{:?}", letter.attributes);
    }
    Ok(())
}

async fn lookup(urls: &[&str], topic: &str) -> Result<()> {
    let client = connect(urls.first().context("no url")?).await?;
    let _producer = producer(&client, topic).await?;
    let mut owners = BTreeSet::new();
    let mut connects = 0;
    for url in urls {
        let found = client.lookup_topic(&url.parse()?, topic).await?;
        ensure!(found.is_connect() || found.is_redirect());
        ensure!(found.connect_url == found.broker_url && !found.proxy);
        connects += usize::from(found.is_connect());
        owners.insert(found.connect_url.to_string());
    }
    ensure!(owners.len() == 1, "all brokers name one owner: {owners:?}");
    ensure!(connects == 1, "one of the brokers is it: {connects}");
    let missing = client.lookup_topic(&urls[0].parse()?, format!("{topic}-missing")).await;
    let missing = missing.err().context("a topic that is not there is found")?;
    let status = missing.extract_status().context("no status")?;
    ensure!(status.code() == tonic::Code::NotFound, "{status}");
    Ok(())
}

async fn admin(client: &DanubeClient, topic: &str) -> Result<()> {
    let mut admin = topic_admin(client).await?;
    let request =
        |name: &str| NewTopicRequest { name: name.to_owned(), schema_subject: None, dispatch_strategy: 1 };
    ensure!(admin.create_topic(request(topic)).await?.into_inner().success);
    let twice = admin.create_topic(request(topic)).await.err().context("created twice")?;
    ensure!(twice.code() == tonic::Code::AlreadyExists, "{twice}");
    let parts = format!("{topic}-parts");
    let partitioned = PartitionedTopicRequest {
        base_name: parts.clone(),
        partitions: 2,
        schema_subject: None,
        dispatch_strategy: 0,
    };
    ensure!(admin.create_partitioned_topic(partitioned).await?.into_inner().success);
    for name in [topic, &parts] {
        let gone = admin.delete_topic(TopicRequest { name: name.to_owned() }).await?.into_inner();
        ensure!(gone.success);
    }
    let missing =
        admin.delete_topic(TopicRequest { name: topic.to_owned() }).await.err().context("deleted twice")?;
    ensure!(missing.code() == tonic::Code::NotFound, "{missing}");
    Ok(())
}
