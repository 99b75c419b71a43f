//! NATS JetStream under measurement: publishers with many messages in flight.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::{PAYLOAD, PRODUCERS, Reached, WINDOW};
use crate::load::{histogram, nanos};
use crate::nats::{Connection, Nats, Version};

const WARM_UP_SHARE: u32 = 5;

/// Starts a server and publishes to it.
pub(super) async fn publish(dir: &Path, version: &Version, time: Duration) -> Result<Reached> {
    let nats = Nats::start(dir, version)?;
    let reached = run(&nats, time).await;
    nats.stop().await?;
    reached
}

async fn run(nats: &Nats, time: Duration) -> Result<Reached> {
    let mut tasks = JoinSet::new();
    for number in 0..PRODUCERS {
        let subject = format!("b.{number}");
        nats.create_stream(&format!("s{number}"), &subject).await?;
        let connection = Connection::dial(nats.port, &format!("_INBOX.p{number}")).await?;
        tasks.spawn(publisher(connection, subject, time));
    }
    let mut all = histogram()?;
    while let Some(done) = tasks.join_next().await {
        all.add(done??)?;
    }
    let rate = all.len() as f64 / time.as_secs_f64();
    Ok(Reached { rate, p99_ms: all.value_at_quantile(0.99) as f64 / 1e6 })
}

async fn publisher(mut connection: Connection, subject: String, time: Duration) -> Result<Histogram<u64>> {
    let payload = vec![7; PAYLOAD];
    let begin = Instant::now() + time / WARM_UP_SHARE;
    let end = begin + time;
    let (mut times, mut sent) = (histogram()?, VecDeque::new());
    while Instant::now() < end {
        while sent.len() < WINDOW {
            connection.publish(&subject, &payload).await?;
            sent.push_back(Instant::now());
        }
        connection.acknowledgment().await?;
        let now = Instant::now();
        if let Some(since) = sent.pop_front().filter(|_| now >= begin && now <= end) {
            times.record(nanos(now - since))?;
        }
    }
    Ok(times)
}
