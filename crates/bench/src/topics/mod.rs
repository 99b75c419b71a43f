//! Area `topics`: durable publishing and catching up, beside RabbitMQ and NATS JetStream.

mod amqp;
mod nats;
mod ours;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::load::median;
use super::nats::Version;
use super::workdir::WorkDir;
use super::{Row, Scale, progress};
use ours::{Brokers, CaughtUp, Spread};

/// How the figures were made, in one paragraph.
pub(crate) const METHOD: &str = "\
Messages of 1 KiB, one broker, one copy, over loopback, clients and servers on the same machine. Every message is \
acknowledged for itself. Eight producers publish to one topic each, with up to 64 messages on their way, on our streaming \
wire in publications of one message; RabbitMQ is `rabbitmq-server` from the PATH with one quorum queue of one member for \
each producer, persistent messages and publisher confirms, which syncs before it confirms as we do before we acknowledge; \
NATS JetStream is `nats-server` from the PATH with file storage and one stream for each producer, and versions before 2.10 \
acknowledge before they sync. One at a time: each of eight producers waits for its acknowledgment before it sends the next \
message, ours on the wire of the public client. Catching up reads a topic from its first message on, beside reading the \
same number of bytes from a file in the page cache. Cells of 2 s run in turn, three times if 95 s are enough for that, and \
medians are shown. Publishing to many topics and catching up run once, with as many topics as are created in 15 s and as \
much backlog as is published in 10 s.";

const PAYLOAD: usize = 1024;
const PRODUCERS: usize = 8;
/// Messages of a producer on their way.
const WINDOW: usize = 64;

/// Sizes of one run: every row has a bound in number and in time, so that a slow machine measures less, not longer.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    /// No round begins that would end later than this, by the time that the longest one took.
    rounds_within: Duration,
    cell: Duration,
    /// RabbitMQ takes longer to start than a quick run.
    with_rabbit: bool,
    /// Messages that are caught up with, and the longest time to publish and to read them.
    backlog: usize,
    backlog_within: Duration,
    /// Topics that are published to in turn, and the longest time to create them.
    topics: usize,
    topics_within: Duration,
}

impl Size {
    fn of(scale: Scale) -> Size {
        match scale {
            Scale::Full => Size {
                rounds: 3,
                rounds_within: Duration::from_secs(95),
                cell: Duration::from_secs(2),
                with_rabbit: true,
                backlog: 200_000,
                backlog_within: Duration::from_secs(10),
                topics: 1_000,
                topics_within: Duration::from_secs(15),
            },
            Scale::Quick => Size {
                rounds: 1,
                rounds_within: Duration::from_secs(5),
                cell: Duration::from_millis(300),
                with_rabbit: false,
                backlog: 2_000,
                backlog_within: Duration::from_secs(2),
                topics: 10,
                topics_within: Duration::from_secs(2),
            },
        }
    }

    /// Whether another round ends in time.
    fn has_time(&self, elapsed: Duration, longest: Duration) -> bool {
        elapsed + longest <= self.rounds_within
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
    let rabbit = if size.with_rabbit { amqp::version() } else { None };
    let nats = Version::installed();
    if nats.is_none() {
        without("NATS JetStream", "nats-server");
    }
    let (mut ours, mut single) = (Cells::default(), Cells::default());
    let (mut theirs, mut theirs_single, mut jet) = (Cells::default(), Cells::default(), Cells::default());
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    for round in 0..size.rounds {
        let began = begin.elapsed();
        if !size.has_time(began, longest) {
            progress(&format!("no further round of topics: {round} took {} s", began.as_secs()));
            break;
        }
        progress(&format!("topics, round {}", round + 1));
        let brokers = Brokers::start(&work.0.join(format!("ours-{round}"))).await?;
        ours.push(brokers.publish("stream", PRODUCERS, size).await?.reached);
        single.push(brokers.publish_singly(size.cell).await?);
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
        longest = longest.max(begin.elapsed() - began);
    }
    let (ours, single) = (ours.median(), single.median());
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
    rows.push(many_topics(size, &work.0, ours).await?);
    rows.push(catch_up(size, &work.0).await?);
    Ok(rows)
}

async fn many_topics(size: Size, dir: &Path, few: Reached) -> Result<Row> {
    progress("many topics");
    let brokers = Brokers::start(&dir.join("many")).await?;
    let Spread { topics, reached } = brokers.publish("many", size.topics, size).await?;
    brokers.stop().await?;
    let row = format!("Durable publish, {topics} topics");
    Ok(Row::new(&row, reached.rate, "8 topics", few.rate, "messages/s"))
}

async fn catch_up(size: Size, dir: &Path) -> Result<Row> {
    progress("catching up");
    let brokers = Brokers::start(&dir.join("backlog")).await?;
    let CaughtUp { bytes, rate } = brokers.catch_up(size).await?;
    brokers.stop().await?;
    let path = dir.join("file");
    std::fs::write(&path, vec![7; bytes])?;
    let begin = Instant::now();
    let bytes = std::fs::read(&path)?.len();
    let bare = bytes as f64 / begin.elapsed().as_secs_f64() / 1e6;
    Ok(Row::new("Catching up with a backlog", rate, "reading a file", bare, "MB/s"))
}

/// Why a peer is left out.
fn without(peer: &str, package: &str) {
    progress(&format!("no {peer}: it is not in the PATH (Debian: apt-get install {package})"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_round_begins_that_would_end_too_late() {
        let size = Size::of(Scale::Full);
        let seconds = Duration::from_secs;
        assert!(size.has_time(seconds(0), seconds(0)), "the first round always runs");
        assert!(size.has_time(seconds(60), seconds(35)) && !size.has_time(seconds(61), seconds(35)));
        // Publishing the backlog and reading it are two waits.
        let whole = size.rounds_within + size.topics_within + size.cell * 2 + size.backlog_within * 2;
        assert!(whole + seconds(15) <= seconds(150), "{whole:?} leave no time to start and stop servers");
    }
}
