//! Watch delivery: the time from sending a put until its event reaches each of many watchers of one prefix.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, WatchOptions, WatchStream};
use hdrhistogram::Histogram;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Size;
use super::wire::value;
use crate::load::{histogram, median, nanos};
use crate::peer::Peer;
use crate::{Row, progress};

/// Watchers per connection; each has its own stream.
const STREAMS_PER_CONNECTION: usize = 100;
/// Timeout for the delivery of an event.
const DELIVERY_DEADLINE: Duration = Duration::from_secs(10);

/// The rows for p50 and p99.
pub(super) async fn rows(size: Size, ours: &Peer, etcd: &Peer, version: &str) -> Result<Vec<Row>> {
    let (mut our_figures, mut their_figures) = (Vec::new(), Vec::new());
    for round in 0..size.rounds {
        progress(&format!("wire: watch, {} watchers, round {}", size.watchers, round + 1));
        our_figures.push(measure(ours, size).await?);
        their_figures.push(measure(etcd, size).await?);
    }
    let row = |quantile: f64, name: &str| {
        let at = |figures: &[Histogram<u64>]| {
            median(figures.iter().map(|times| times.value_at_quantile(quantile) as f64 / 1e6).collect())
        };
        let name = format!("wire: watch delivery {name}, {} watchers of one prefix", size.watchers);
        Row::new(&name, at(&our_figures), version, at(&their_figures), "ms")
    };
    Ok(vec![row(0.5, "p50"), row(0.99, "p99")])
}

/// The times of all deliveries of all puts; the next put is sent when all watchers have the previous one.
async fn measure(peer: &Peer, size: Size) -> Result<Histogram<u64>> {
    let (seen, mut reports) = mpsc::channel(size.watchers);
    let mut watchers = JoinSet::new();
    for first in (0..size.watchers).step_by(STREAMS_PER_CONNECTION) {
        let client = peer.client().await?;
        for _ in first..size.watchers.min(first + STREAMS_PER_CONNECTION) {
            watchers.spawn(watcher(begin(client.clone()).await?, seen.clone()));
        }
    }
    let mut client = peer.client().await?;
    let mut times = histogram()?;
    let end = Instant::now() + size.cell;
    for number in 0u64.. {
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        client.put(format!("/bench/watched/{}", number % 10), value(), None).await?;
        for _ in 0..size.watchers {
            let at: Instant = tokio::time::timeout(DELIVERY_DEADLINE, reports.recv())
                .await
                .context("an event was not delivered")?
                .context("the watchers are gone")?;
            times.record(nanos(at.saturating_duration_since(sent)))?;
        }
    }
    Ok(times)
}

async fn begin(mut client: Client) -> Result<WatchStream> {
    let mut stream = client.watch("/bench/watched/", Some(WatchOptions::new().with_prefix())).await?;
    match stream.message().await? {
        Some(created) if created.created() => Ok(stream),
        Some(_) | None => bail!("a watch was not created"),
    }
}

async fn watcher(mut stream: WatchStream, seen: mpsc::Sender<Instant>) {
    while let Ok(Some(message)) = stream.message().await {
        let at = Instant::now();
        for _ in message.events() {
            if seen.send(at).await.is_err() {
                return;
            }
        }
    }
}
