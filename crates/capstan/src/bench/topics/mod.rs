//! Area `topics`: durable publishing and catching up, beside RabbitMQ and NATS JetStream.

mod amqp;
mod nats;
mod ours;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::load::median;
use super::nats::Version;
use super::workdir::WorkDir;
use super::{Row, Scale, progress};
use ours::Brokers;

/// How the figures were made, in one paragraph.
pub(crate) const METHOD: &str = "\
Messages of 1 KiB, one broker, one copy, over loopback, clients and servers on the same machine. Every message is \
acknowledged for itself. Eight producers publish to one topic each, with up to 64 messages on their way, on our streaming \
wire in publications of one message; RabbitMQ is `rabbitmq-server` from the PATH with one quorum queue of one member for \
each producer, persistent messages and publisher confirms, which syncs before it confirms as we do before we acknowledge; \
NATS JetStream is `nats-server` from the PATH with file storage and one stream for each producer, and versions before 2.10 \
acknowledge before they sync. One at a time: each of eight producers waits for its acknowledgment before it sends the next \
message, ours on the wire of the public client. Catching up reads a topic from its first message on, beside reading the \
same number of bytes from a file in the page cache. Cells run in turn, three times, and medians are shown.";

const PAYLOAD: usize = 1024;
const PRODUCERS: usize = 8;
/// Messages of a producer on their way.
const WINDOW: usize = 64;

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    cell: Duration,
    /// Messages that are caught up with.
    backlog: usize,
    /// Topics that are published to in turn.
    topics: usize,
}

impl Size {
    fn of(scale: Scale) -> Size {
        match scale {
            Scale::Full => Size { rounds: 3, cell: Duration::from_secs(5), backlog: 400_000, topics: 1_000 },
            Scale::Quick => Size { rounds: 1, cell: Duration::from_millis(500), backlog: 2_000, topics: 10 },
        }
    }
}

/// What publishers reached.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    /// Messages a second.
    rate: f64,
    /// From sending to acknowledgment, in milliseconds.
    p99_ms: f64,
}

/// Figures of several rounds.
#[derive(Debug, Default)]
struct Cells {
    rates: Vec<f64>,
    p99s: Vec<f64>,
}

impl Cells {
    fn push(&mut self, reached: Reached) {
        self.rates.push(reached.rate);
        self.p99s.push(reached.p99_ms);
    }

    fn median(self) -> Reached {
        Reached { rate: median(self.rates), p99_ms: median(self.p99s) }
    }
}

/// Measures the whole area; files go below `dir`.
pub(crate) async fn rows(scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let size = Size::of(scale);
    let work = WorkDir::below(dir, "topics")?;
    let (rabbit, nats) = (amqp::version(), Version::installed());
    if nats.is_none() {
        without("NATS JetStream", "nats-server");
    }
    let (mut ours, mut single, mut many) = (Cells::default(), Cells::default(), Cells::default());
    let (mut theirs, mut theirs_single, mut jet) = (Cells::default(), Cells::default(), Cells::default());
    for round in 0..size.rounds {
        progress(&format!("topics, round {}", round + 1));
        let brokers = Brokers::start(&work.0.join(format!("ours-{round}"))).await?;
        ours.push(brokers.publish("stream", PRODUCERS, size.cell).await?);
        single.push(brokers.publish_singly(size.cell).await?);
        many.push(brokers.publish("many", size.topics, size.cell).await?);
        brokers.stop().await?;
        if rabbit.is_some() {
            progress("RabbitMQ");
            let server = amqp::Server::start(&work.0.join(format!("rabbit-{round}"))).await?;
            theirs.push(server.publish(WINDOW, size.cell).await?);
            theirs_single.push(server.publish(1, size.cell).await?);
            server.stop().await?;
        }
        if let Some(version) = &nats {
            progress("NATS JetStream");
            jet.push(nats::publish(&work.0.join(format!("nats-{round}")), version, size.cell).await?);
        }
    }
    let (ours, single, many) = (ours.median(), single.median(), many.median());
    let mut rows = Vec::new();
    if let Some(version) = rabbit {
        let peer = format!("RabbitMQ {version}, quorum queues, synced before confirmed");
        let (theirs, theirs_single) = (theirs.median(), theirs_single.median());
        rows.push(Row::new("Durable publish, 8 producers", ours.rate, &peer, theirs.rate, "messages/s"));
        rows.push(Row::new("Durable publish, 8 producers, p99", ours.p99_ms, &peer, theirs.p99_ms, "ms"));
        let singly = "Durable publish one at a time, 8 producers";
        rows.push(Row::new(singly, single.rate, &peer, theirs_single.rate, "messages/s"));
        let singly = "Durable publish one at a time, 8 producers, p99";
        rows.push(Row::new(singly, single.p99_ms, &peer, theirs_single.p99_ms, "ms"));
    }
    if let Some(version) = nats {
        let (peer, jet) = (version.peer(), jet.median());
        rows.push(Row::new("Durable publish, 8 producers", ours.rate, &peer, jet.rate, "messages/s"));
        rows.push(Row::new("Durable publish, 8 producers, p99", ours.p99_ms, &peer, jet.p99_ms, "ms"));
    }
    let topics = format!("Durable publish, {} topics", size.topics);
    rows.push(Row::new(&topics, many.rate, "8 topics", ours.rate, "messages/s"));
    rows.push(catch_up(size, &work.0).await?);
    Ok(rows)
}

async fn catch_up(size: Size, dir: &Path) -> Result<Row> {
    progress("catching up");
    let brokers = Brokers::start(&dir.join("backlog")).await?;
    let rate = brokers.catch_up(size.backlog).await?;
    brokers.stop().await?;
    let path = dir.join("file");
    std::fs::write(&path, vec![7; size.backlog * PAYLOAD])?;
    let begin = std::time::Instant::now();
    let bytes = std::fs::read(&path)?.len();
    let bare = bytes as f64 / begin.elapsed().as_secs_f64() / 1e6;
    Ok(Row::new("Catching up with a backlog", rate, "reading a file", bare, "MB/s"))
}

/// Why a peer is left out.
fn without(peer: &str, package: &str) {
    progress(&format!("no {peer}: it is not in the PATH (Debian: apt-get install {package})"));
}
