//! `capstan topics produce`: lines of stdin become messages.

use std::io::{self, BufRead as _, BufReader};
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_client::Acknowledged;
use capstan_client::wire::capstan::topics::v1::Record;
use capstan_meta::clock;
use capstan_topics::spec::TopicName;
use tokio::sync::mpsc;

use super::client;
use crate::config::parse_span;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// Lines of one batch, and their bytes.
const BATCH_LINES: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  capstan topics produce /default/orders < orders.txt\n  \
    echo 42:hello | capstan topics produce /default/orders --key-separator :")]
pub(crate) struct ProduceArgs {
    /// The topic; it is created if it is not there
    topic: TopicName,
    /// The text before this separator in a line is the message's key
    #[arg(long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// Deliver the messages only after this time (such as 30s or 10m)
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    delay: Option<Duration>,
}

pub(super) async fn run(args: ProduceArgs, context: &mut Context) -> Result<Exit> {
    let client = client(context).await?;
    // A name of its own: sequences begin with it.
    let name = format!("cli-{:016x}", rand::random::<u64>());
    let mut producer = client.producer(&args.topic.to_string(), &name);
    let mut lines = stdin_lines();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    let mut acknowledged = Vec::new();
    while let Some(line) = lines.recv().await {
        let line = line.context("cannot read stdin")?;
        bytes += line.len();
        batch.push(record(line, args.key_separator.as_deref(), args.delay));
        if batch.len() >= BATCH_LINES || bytes >= BATCH_BYTES {
            acknowledged.extend(producer.send(std::mem::take(&mut batch)).await?);
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        acknowledged.extend(producer.send(batch).await?);
    }
    acknowledged.extend(producer.flush().await?);
    report(&args.topic, &acknowledged, context)
}

/// The lines of stdin, read by a thread of their own.
fn stdin_lines() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, lines) = mpsc::channel(BATCH_LINES);
    tokio::task::spawn_blocking(move || {
        for line in BufReader::new(io::stdin()).split(b'\n') {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn record(mut line: Vec<u8>, separator: Option<&str>, delay: Option<Duration>) -> Record {
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let created_at = u64::try_from(clock::since_epoch().as_millis()).unwrap_or_default();
    let cut = separator.filter(|separator| !separator.is_empty()).and_then(|separator| {
        let at = line.windows(separator.len()).position(|window| window == separator.as_bytes())?;
        Some((at, at + separator.len()))
    });
    let (key, value) = match cut {
        Some((end, begin)) => (Some(line[..end].to_vec().into()), line[begin..].to_vec()),
        None => (None, line),
    };
    let later = |delay: Duration| created_at + u64::try_from(delay.as_millis()).unwrap_or_default();
    let deliver_at = delay.map(later).unwrap_or_default();
    Record { key, value: Some(value.into()), created_at, deliver_at, ..Record::default() }
}

fn report(topic: &TopicName, acknowledged: &[Acknowledged], context: &mut Context) -> Result<Exit> {
    let published: usize = acknowledged.iter().map(|batch| batch.records).sum();
    let first = acknowledged.iter().map(|batch| batch.offset).min();
    let last = acknowledged.iter().map(|batch| batch.offset + batch.records as u64).max().map(|end| end - 1);
    match context.out.format {
        Format::Json => context.out.json(&serde_json::json!({
            "topic": topic.to_string(), "published": published, "first_offset": first, "last_offset": last,
        }))?,
        Format::Table => say(format!("published {published} messages to {topic}")),
    }
    Ok(Exit::Done)
}
