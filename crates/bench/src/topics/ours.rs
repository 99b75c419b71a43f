//! Our own broker under measurement.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use capstan_client::wire::capstan::topics::v1::{Position, Record, position};
use capstan_client::wire::danube::producer_service_client::ProducerServiceClient;
use capstan_client::wire::danube::{MsgId, ProducerRequest, StreamMessage};
use capstan_client::{Client, Producer};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::{PAYLOAD, PRODUCERS, Reached, Size, WINDOW};
use crate::cluster::Cluster;
use crate::load::{histogram, load, nanos};

/// The part of a cell that is not counted.
const WARM_UP_SHARE: u32 = 5;
/// Messages of a backlog that are published together.
const BATCH: usize = 100;

/// A broker and the cluster that it belongs to.
pub(super) struct Brokers {
    cluster: Cluster,
    url: String,
}

/// What publishers reached over many topics.
pub(super) struct Spread {
    pub(super) topics: usize,
    pub(super) reached: Reached,
}

/// What a reader reached.
pub(super) struct CaughtUp {
    pub(super) bytes: usize,
    /// Megabytes a second.
    pub(super) rate: f64,
}

impl Brokers {
    pub(super) async fn start(dir: &Path) -> Result<Brokers> {
        let mut cluster = Cluster::start(dir).await?;
        // Everything is on a loopback address: clients need no key.
        let endpoints = cluster.host("h", "topics", &["access.anonymous=admin".to_owned()]).await?;
        Ok(Brokers { cluster, url: endpoints["topics"].as_str().context("no broker")?.to_owned() })
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.cluster.stop().await
    }

    fn client(&self) -> Client {
        Client::new([self.url.clone()])
    }

    /// Eight producers with many messages in flight, over this number of topics or as many as are created in time.
    pub(super) async fn publish(&self, label: &str, topics: usize, size: Size) -> Result<Spread> {
        let until = Instant::now() + size.topics_within;
        let mut creating = JoinSet::new();
        for number in 0..PRODUCERS {
            let names = (number..topics).step_by(PRODUCERS).map(|topic| format!("/default/{label}-{topic}"));
            let (client, names) = (self.client(), names.collect());
            creating.spawn(create(client, names, format!("p{number}"), until));
        }
        let (mut topics, mut shares) = (0, Vec::new());
        while let Some(created) = creating.join_next().await {
            let share = created??;
            topics += share.len();
            shares.push(share);
        }
        let mut tasks = JoinSet::new();
        for producers in shares {
            tasks.spawn(stream(producers, size.cell));
        }
        let mut all = histogram()?;
        while let Some(done) = tasks.join_next().await {
            all.add(done??)?;
        }
        let rate = all.len() as f64 / size.cell.as_secs_f64();
        let reached = Reached { rate, p99_ms: all.value_at_quantile(0.99) as f64 / 1e6 };
        Ok(Spread { topics, reached })
    }

    /// Eight producers on the wire of the public client, each with one message on its way.
    pub(super) async fn publish_singly(&self, time: Duration) -> Result<Reached> {
        let mut clients = Vec::new();
        for number in 0..PRODUCERS {
            let mut client = ProducerServiceClient::connect(self.url.clone()).await?;
            let (topic_name, producer_name) = (format!("/default/single-{number}"), format!("s{number}"));
            let request = ProducerRequest {
                producer_name: producer_name.clone(),
                topic_name: topic_name.clone(),
                dispatch_strategy: 1,
                ..ProducerRequest::default()
            };
            let producer_id = client.create_producer(request).await?.into_inner().producer_id;
            let msg_id = Some(MsgId { producer_id, topic_name, ..MsgId::default() });
            let payload = vec![7; PAYLOAD].into();
            clients
                .push((client, StreamMessage { msg_id, producer_name, payload, ..StreamMessage::default() }));
        }
        let clients = std::sync::Arc::new(clients);
        let done = load(PRODUCERS, time, move |client, number| {
            let (mut client, mut message) = clients[client].clone();
            message.request_id = number;
            async move {
                client.send_message(message).await?;
                Ok(())
            }
        });
        let done = done.await?;
        Ok(Reached { rate: done.rate, p99_ms: done.p99_ms })
    }

    /// Reads a topic from its first message on.
    pub(super) async fn catch_up(&self, size: Size) -> Result<CaughtUp> {
        let (client, topic) = (self.client(), "/default/backlog");
        let mut producer = client.producer(topic, "p");
        let (begin, mut messages) = (Instant::now(), 0);
        while messages < size.backlog && begin.elapsed() < size.backlog_within {
            producer.send(vec![record(); BATCH]).await?;
            messages += BATCH;
        }
        producer.flush().await?;
        let begin = Instant::now();
        let from = Position { at: Some(position::At::Earliest(true)) };
        let mut read = client.read(topic, from, messages as u64).await?;
        let mut bytes = 0;
        while begin.elapsed() < size.backlog_within
            && let Some(message) = read.message().await?
        {
            bytes += message.payload.len();
        }
        let took = begin.elapsed();
        if bytes < messages * PAYLOAD && took < size.backlog_within {
            bail!("only {bytes} bytes of the backlog were read");
        }
        Ok(CaughtUp { bytes, rate: bytes as f64 / took.as_secs_f64() / 1e6 })
    }
}

/// Makes a producer for each topic, as long as there is time, and for one topic at least.
async fn create(client: Client, topics: Vec<String>, name: String, until: Instant) -> Result<Vec<Producer>> {
    let mut producers = Vec::new();
    for topic in topics {
        if !producers.is_empty() && Instant::now() >= until {
            break;
        }
        let mut producer = client.producer(&topic, &name);
        producer.send(vec![record()]).await?;
        producer.flush().await?;
        producers.push(producer);
    }
    Ok(producers)
}

fn record() -> Record {
    Record { value: Some(vec![7; PAYLOAD].into()), ..Record::default() }
}

/// Publishes to topics in turn; the time of each message from sending to acknowledgment.
async fn stream(mut producers: Vec<Producer>, time: Duration) -> Result<Histogram<u64>> {
    let begin = Instant::now() + time / WARM_UP_SHARE;
    let end = begin + time;
    let mut times = histogram()?;
    let mut sent: VecDeque<(usize, Instant)> = VecDeque::new();
    let mut turn = 0;
    while Instant::now() < end {
        let at = turn % producers.len();
        turn += 1;
        sent.push_back((at, Instant::now()));
        producers[at].send(vec![record()]).await?;
        while sent.len() >= WINDOW
            && let Some((at, since)) = sent.pop_front()
        {
            producers[at].acknowledged().await?;
            let now = Instant::now();
            if now >= begin && now <= end {
                times.record(nanos(now - since))?;
            }
        }
    }
    for producer in &mut producers {
        producer.flush().await?;
    }
    Ok(times)
}
