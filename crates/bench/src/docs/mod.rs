//! Area `docs`: inserts, reads and ranges beside PostgreSQL; copies, growth and restart beside their limits.

mod http;
mod ours;
mod postgres;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::load::median;
use super::workdir::WorkDir;
use super::{Row, Scale, progress};
use ours::Nodes;
use postgres::{Installed, Server};

/// How the figures were made, in one paragraph.
pub(crate) const METHOD: &str = "\
Documents of about 400 bytes (a key, a number and a text), 64 clients with a connection each and one request at a time, \
clients and servers on the same machine. Ours is one node with one copy of each token, over its HTTP API; PostgreSQL is \
Debian's server with its default settings but 512 MB of shared buffers, a table with a text primary key and a jsonb column, \
driven by its own pgbench with prepared statements. Both sync an insert before they answer. Point reads ask for one document \
by its primary key; ranges find 20 documents by an indexed number. Three nodes keep three copies of each token on the same \
disk and answer when all are durable; they stand beside our own single node. Growth is the time from starting a fourth node \
until every token is where it belongs, while eight writers insert; the limit is the project's own. Memory and restart are of \
a single node with a cache of 64 MiB: restart is from starting the process after SIGKILL until it answers a read. Cells \
run in turn, three times, and medians are shown.";

const CLIENTS: usize = 64;
/// Letters that bring a document to about 400 bytes.
const TEXT: usize = 340;
/// Documents that a range query finds.
const FOUND: usize = 20;
/// Documents of a cluster that grows.
const GROWN: usize = 10_000;

const GROWTH_LIMIT_MS: f64 = 2_000.0;
const RESTART_LIMIT_MS: f64 = 3_000.0;

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    cell: Duration,
    /// Documents that are read.
    documents: usize,
    grown: usize,
    /// Documents of the node that is restarted.
    many: usize,
}

impl Size {
    fn of(scale: Scale) -> Size {
        match scale {
            Scale::Full => Size {
                rounds: 3,
                cell: Duration::from_secs(5),
                documents: 100_000,
                grown: GROWN,
                many: 1_000_000,
            },
            Scale::Quick => {
                Size { rounds: 1, cell: Duration::from_secs(1), documents: 1_000, grown: 500, many: 2_000 }
            }
        }
    }
}

/// What clients reached.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    /// Requests a second.
    rate: f64,
    /// Mean time of a request, in milliseconds: what pgbench reports.
    mean_ms: f64,
}

/// The figures of one kind of request over several rounds.
#[derive(Debug, Default)]
struct Cells {
    rates: Vec<f64>,
    means: Vec<f64>,
}

impl Cells {
    fn push(&mut self, reached: Reached) {
        self.rates.push(reached.rate);
        self.means.push(reached.mean_ms);
    }

    fn median(self) -> Reached {
        Reached { rate: median(self.rates), mean_ms: median(self.means) }
    }
}

/// Inserts, point reads and ranges.
#[derive(Debug, Default)]
struct Side {
    inserts: Cells,
    points: Cells,
    ranges: Cells,
}

/// Measures the whole area; files go below `dir`.
pub(crate) async fn rows(scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let size = Size::of(scale);
    let work = WorkDir::below(dir, "docs")?;
    let installed = Installed::newest();
    if installed.is_none() {
        progress("no PostgreSQL: it is not installed (Debian: apt-get install postgresql)");
    }
    let (mut ours, mut theirs, mut three) = (Side::default(), Side::default(), Cells::default());
    for round in 0..size.rounds {
        progress(&format!("documents, round {}", round + 1));
        let nodes = Nodes::start(&work.0.join(format!("ours-{round}")), 1).await?;
        nodes.fill(size.documents).await?;
        ours.points.push(nodes.point(size.documents, size.cell).await?);
        ours.ranges.push(nodes.range(size.documents, size.cell).await?);
        ours.inserts.push(nodes.insert(size.cell).await?);
        nodes.stop().await?;
        let nodes = Nodes::start(&work.0.join(format!("three-{round}")), 3).await?;
        nodes.fill(0).await?;
        three.push(nodes.insert(size.cell).await?);
        nodes.stop().await?;
        if let Some(installed) = &installed {
            progress("PostgreSQL");
            let server = Server::start(&work.0.join(format!("postgres-{round}")), installed).await?;
            server.fill(size.documents).await?;
            theirs.points.push(server.point(size.documents, size.cell).await?);
            theirs.ranges.push(server.range(size.documents, size.cell).await?);
            theirs.inserts.push(server.insert(size.documents, size.cell).await?);
            server.stop().await?;
        }
    }
    let inserts = ours.inserts.median();
    let mut rows = Vec::new();
    if let Some(Installed { version, .. }) = &installed {
        let peer = format!("PostgreSQL {version}");
        let mut beside = |what: &str, ours: Reached, theirs: Reached| {
            rows.push(Row::new(what, ours.rate, &peer, theirs.rate, "requests/s"));
            rows.push(Row::new(&format!("{what}, mean"), ours.mean_ms, &peer, theirs.mean_ms, "ms"));
        };
        beside("Durable inserts, 64 clients", inserts, theirs.inserts.median());
        beside("Point reads, 64 clients", ours.points.median(), theirs.points.median());
        beside("Indexed ranges of 20, 64 clients", ours.ranges.median(), theirs.ranges.median());
    }
    let copies = "Durable inserts, three copies on three nodes";
    rows.push(Row::new(copies, three.median().rate, "one copy on one node", inserts.rate, "requests/s"));
    rows.push(growth(size, &work.0).await?);
    rows.extend(restart(size, &work.0).await?);
    Ok(rows)
}

async fn growth(size: Size, dir: &Path) -> Result<Row> {
    progress("a fourth node");
    let mut nodes = Nodes::start(&dir.join("growth"), 3).await?;
    nodes.fill(size.grown).await?;
    let took = nodes.grow().await?;
    nodes.stop().await?;
    let what = format!("A fourth node for {} documents, with writers", size.grown);
    Ok(Row::new(&what, took.as_secs_f64() * 1e3, "limit", GROWTH_LIMIT_MS, "ms"))
}

async fn restart(size: Size, dir: &Path) -> Result<Vec<Row>> {
    progress(&format!("{} documents", size.many));
    let mut nodes = Nodes::start(&dir.join("many"), 1).await?;
    nodes.fill(size.many).await?;
    let loaded = nodes.rss_mib()?;
    let took = nodes.kill_and_restart(size.many).await?;
    let opened = nodes.rss_mib()?;
    nodes.stop().await?;
    let bytes = size.many as f64 * 400.0 / 1024.0 / 1024.0;
    let many = size.many;
    Ok(vec![
        Row::new(&format!("{many} documents: memory after loading"), loaded, "their own size", bytes, "MiB"),
        Row::new(&format!("{many} documents: memory after opening"), opened, "their own size", bytes, "MiB"),
        Row::new(
            &format!("{many} documents: restart after kill -9"),
            took.as_secs_f64() * 1e3,
            "limit",
            RESTART_LIMIT_MS,
            "ms",
        ),
    ])
}
