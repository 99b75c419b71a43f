//! `capstan topics consume` and `peek`: messages become lines.

use std::time::Duration;

use anyhow::Result;
use capstan_client::wire::capstan::topics::v1::Position;
use capstan_client::wire::danube::StreamMessage;
use capstan_client::{Consumer, Subscribe};
use capstan_topics::spec::TopicName;
use tokio::time::Instant;

use super::{Kind, client, place};
use crate::config::parse_span;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

/// Messages that are acknowledged together, at most; fewer when no more come at once.
const ACK_AFTER: usize = 128;
/// How long a message waits for others to be acknowledged with.
const ACK_WITHIN: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    capstan topics consume /default/orders --subscription billing --from earliest --count 100\n  \
    capstan topics consume /default/orders --subscription billing --for 10s -o json")]
pub(crate) struct ConsumeArgs {
    /// The topic
    topic: TopicName,
    /// The subscription; it is created if it is not there
    #[arg(long, value_name = "NAME")]
    subscription: String,
    /// Where a new subscription begins: earliest, latest, an offset, or @ and milliseconds since 1970
    #[arg(long, value_name = "PLACE", value_parser = place, default_value = "latest")]
    from: Position,
    /// How consumers share the subscription
    #[arg(long = "type", value_name = "TYPE", default_value = "shared")]
    kind: Kind,
    /// Stop after this many messages
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// Stop when no message came for so long (such as 10s)
    #[arg(long = "for", value_name = "SPAN", value_parser = parse_span)]
    idle: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PeekArgs {
    /// The topic
    topic: TopicName,
    /// Where to begin: earliest, latest, an offset, or @ and milliseconds since 1970
    #[arg(long, value_name = "PLACE", value_parser = place, default_value = "earliest")]
    from: Position,
    /// At most this many messages
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    count: u64,
}

pub(super) async fn run(args: ConsumeArgs, context: &mut Context) -> Result<Exit> {
    let client = client(context).await?;
    let consumer = format!("cli-{:016x}", rand::random::<u64>());
    let subscribe = Subscribe {
        topic: args.topic.to_string(),
        subscription: args.subscription,
        consumer,
        kind: args.kind.wire(),
        from: args.from,
    };
    let mut consumer = client.consumer(subscribe).await?;
    let (mut left, mut heard) = (args.count.unwrap_or(u64::MAX), Instant::now());
    let mut printed = Vec::new();
    while left > 0 {
        let wait =
            if printed.is_empty() { idle_until(args.idle, heard) } else { Instant::now() + ACK_WITHIN };
        match tokio::time::timeout_at(wait, consumer.next()).await {
            Ok(message) => {
                let message = message?;
                print(&message, context)?;
                printed.push(message.msg_id.as_ref().map_or(0, |id| id.topic_offset));
                (left, heard) = (left - 1, Instant::now());
            }
            Err(_) if printed.is_empty() => break,
            Err(_) => acknowledge(&consumer, &mut printed, context).await?,
        }
        if printed.len() >= ACK_AFTER {
            acknowledge(&consumer, &mut printed, context).await?;
        }
    }
    acknowledge(&consumer, &mut printed, context).await?;
    Ok(Exit::Done)
}

/// Without a limit: as good as never.
fn idle_until(idle: Option<Duration>, heard: Instant) -> Instant {
    heard + idle.unwrap_or(Duration::from_secs(u64::from(u32::MAX)))
}

/// Acknowledges messages after they were printed.
async fn acknowledge(consumer: &Consumer, printed: &mut Vec<u64>, context: &mut Context) -> Result<()> {
    context.out.flush()?;
    if !printed.is_empty() {
        consumer.acknowledge(std::mem::take(printed)).await?;
    }
    Ok(())
}

pub(super) async fn peek(args: PeekArgs, context: &mut Context) -> Result<Exit> {
    let client = client(context).await?;
    let mut messages = client.read(&args.topic.to_string(), args.from, args.count).await?;
    while let Some(message) = messages.message().await.map_err(super::refused)? {
        print(&message, context)?;
    }
    Ok(Exit::Done)
}

fn print(message: &StreamMessage, context: &mut Context) -> Result<()> {
    match context.out.format {
        Format::Table => {
            context.out.bytes(&message.payload)?;
            context.out.bytes(b"\n")
        }
        Format::Json => context.out.json_line(&serde_json::json!({
            "offset": message.msg_id.as_ref().map_or(0, |id| id.topic_offset),
            "key": message.routing_key,
            "payload": String::from_utf8_lossy(&message.payload),
            "producer": message.producer_name,
            "publish_time": message.publish_time,
            "attributes": message.attributes,
        })),
    }
}
