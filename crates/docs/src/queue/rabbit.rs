//! The connection of a node to RabbitMQ: declare, publish with confirms, consume with acknowledgments, reconnect.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Post, Shared, Verdict, now};
use crate::status::QueueReport;

/// How long a connection, a declaration or a confirm may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Seconds between heartbeats; a RabbitMQ that misses two of them counts as gone.
const HEARTBEAT: u16 = 5;
/// The first pause before a new connection, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Messages that are delivered and not acknowledged, of each queue: what is in memory.
const PREFETCH: u16 = 16;
/// Deliveries of a message before it is a dead letter.
const DELIVERIES: i64 = 8;
/// Messages and bytes that a queue keeps. The oldest go first: what is lost is asked for again.
const KEPT: (i64, i64) = (1_024, 256 * 1024 * 1024);
/// How long the queue of a node stays that does not come back, in milliseconds: a week.
const UNUSED: i64 = 7 * 24 * 3_600 * 1_000;
/// The delivery mode of messages that are kept on disk.
const PERSISTENT: u8 = 2;

/// What is known about the connection.
pub(super) struct Link {
    channel: watch::Sender<Option<Channel>>,
    report: watch::Sender<QueueReport>,
}

impl Link {
    pub(super) fn new() -> Link {
        let report = QueueReport { reachable: false, since: now(), error: "not connected yet".to_owned() };
        Link { channel: watch::Sender::new(None), report: watch::Sender::new(report) }
    }

    pub(super) fn report(&self) -> QueueReport {
        self.report.borrow().clone()
    }

    fn up(&self, channel: Channel) {
        self.channel.send_replace(Some(channel));
        self.report.send_replace(QueueReport { reachable: true, since: now(), error: String::new() });
    }

    fn down(&self, error: String) {
        self.channel.send_replace(None);
        self.report.send_if_modified(|report| {
            let since = if report.reachable { now() } else { report.since };
            let changed = report.reachable || report.error != error;
            *report = QueueReport { reachable: false, since, error };
            changed
        });
    }
}

#[async_trait]
impl Post for Link {
    /// Waits for the confirm.
    async fn publish(&self, queue: &str, bytes: Vec<u8>) -> Result<(), String> {
        let channel = self.channel.borrow().clone().ok_or("RabbitMQ is not reachable")?;
        let publish = async {
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
            channel.basic_publish("".into(), queue.into(), options, &bytes, properties).await?.await
        };
        match timeout(ANSWER_WITHIN, publish).await {
            Ok(Ok(Confirmation::Ack(None))) => Ok(()),
            Ok(Ok(Confirmation::Ack(Some(_)))) => Err(format!("there is no queue {queue} yet")),
            Ok(Ok(Confirmation::Nack(_) | Confirmation::NotRequested)) => {
                Err("RabbitMQ did not take the message".to_owned())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("RabbitMQ did not confirm in time".to_owned()),
        }
    }
}

/// Whether this is the address of a RabbitMQ.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with("amqp://") && text.parse::<AMQPUri>().is_ok()
}

/// Keeps a connection.
pub(super) async fn run(url: String, shared: Arc<Shared>, link: Arc<Link>) {
    let mut pause = PAUSE.0;
    loop {
        let begun = tokio::time::Instant::now();
        let error = connected(&url, &shared, &link).await;
        if link.report().reachable {
            tracing::warn!(error, "connection to RabbitMQ lost; reconnecting");
        }
        link.down(error);
        // One that held for a while is tried again at once.
        pause = if begun.elapsed() > PAUSE.1 { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
    }
}

/// One connection, until it ends; says why it did.
async fn connected(url: &str, shared: &Arc<Shared>, link: &Link) -> String {
    let opened = match timeout(ANSWER_WITHIN, open(url, shared)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(why)) => return why,
        Err(_) => return "RabbitMQ did not answer in time".to_owned(),
    };
    let Opened { connection, publishing, mut jobs, mut batches } = opened;
    link.up(publishing);
    tracing::info!(node = shared.node, "connected to RabbitMQ");
    let mut tasks = JoinSet::new();
    let why = loop {
        let delivery = tokio::select! {
            delivery = jobs.next() => delivery,
            delivery = batches.next() => delivery,
            _ = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        match delivery {
            Some(Ok(delivery)) => drop(tasks.spawn(attend(Arc::clone(shared), delivery))),
            Some(Err(error)) => break error.to_string(),
            None => break "RabbitMQ has ended the consumer".to_owned(),
        }
    };
    link.down(why.clone());
    // Closed in order if it still can be: deliveries that were not acknowledged come again.
    timeout(ANSWER_WITHIN, connection.close(200, "reconnecting".into())).await.map(drop).ok();
    why
}

struct Opened {
    connection: Connection,
    publishing: Channel,
    jobs: lapin::Consumer,
    batches: lapin::Consumer,
}

async fn open(url: &str, shared: &Shared) -> Result<Opened, String> {
    // What is wrong with it is not repeated: it has a password.
    let mut uri: AMQPUri = url.parse().map_err(|_| "docs.queue cannot be read")?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    let name = format!("capstan docs {}", shared.node);
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let opened = async {
        let connection = Connection::connect_uri(uri, properties).await?;
        let publishing = connection.create_channel().await?;
        publishing.confirm_select(ConfirmSelectOptions::default()).await?;
        let dead = shared.names.dead();
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        publishing.queue_declare(dead.as_str().into(), durable, bounds()).await?;
        let consuming = connection.create_channel().await?;
        consuming.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let mut consumers = Vec::new();
        for queue in [shared.names.jobs(&shared.node), shared.names.batches(&shared.node)] {
            consuming.queue_declare(queue.as_str().into(), durable, arguments(&dead)).await?;
            let (tag, options) = (queue.as_str().into(), BasicConsumeOptions::default());
            let consumer =
                consuming.basic_consume(queue.as_str().into(), tag, options, FieldTable::default());
            consumers.push(consumer.await?);
        }
        Ok((connection, publishing, consumers))
    };
    let (connection, publishing, consumers) =
        opened.await.map_err(|error: lapin::Error| error.to_string())?;
    let [jobs, batches] = <[_; 2]>::try_from(consumers).map_err(|_| "two queues have two consumers")?;
    Ok(Opened { connection, publishing, jobs, batches })
}

/// What every queue is: replicated where RabbitMQ is a cluster, and bounded.
fn bounds() -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    table.insert("x-max-length".into(), AMQPValue::LongLongInt(KEPT.0));
    table.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(KEPT.1));
    table
}

/// What a queue of a node is.
fn arguments(dead: &str) -> FieldTable {
    let mut table = bounds();
    table.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERIES));
    table.insert("x-expires".into(), AMQPValue::LongLongInt(UNUSED));
    table.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
    table.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(dead.into()));
    table
}

/// Acts on a delivery, and acknowledges it after its effect.
async fn attend(shared: Arc<Shared>, delivery: Delivery) {
    let verdict = shared.deliver(&delivery.data).await;
    let refused = |requeue| BasicNackOptions { requeue, ..BasicNackOptions::default() };
    let answered = match verdict {
        Verdict::Done => delivery.ack(BasicAckOptions::default()).await,
        Verdict::Again => delivery.nack(refused(true)).await,
        Verdict::Invalid => {
            tracing::warn!(bytes = delivery.data.len(), "a message of RabbitMQ cannot be read");
            delivery.nack(refused(false)).await
        }
    };
    if let Err(error) = answered {
        tracing::debug!(%error, "a message was not acknowledged; it comes again");
    }
}
