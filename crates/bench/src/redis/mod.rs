//! Area `redis`: our proxy compared with direct access and nutcracker, in front of the same redis-server.

mod acks;
mod client;
pub(super) mod moving;
mod servers;

use std::path::Path;

use anyhow::Result;

use super::load::median;
use super::workdir::WorkDir;
use super::{Row, Scale, progress};
use client::{Run, drive};
use servers::{Front, Node, Running};

/// How the figures are measured, in one paragraph.
pub(crate) const METHOD: &str = "\
One redis-server from the PATH without persistence stands behind all: reached directly, through nutcracker (twemproxy) as \
Debian packages it, and through `capstan redis proxy` of this build with its default settings, each a process of its own on \
loopback. The load is redis-benchmark with one thread, values of 64 bytes and 100,000 random keys; 50 clients where nothing \
else is said. Cells run on the three in turn, three times, and medians are shown. Processor time is what the kernel counted \
for the proxy's process, user and system, divided by the requests. Memory is the proxy's resident size right after the load. \
The rows about acknowledgments compare two proxies of ours in front of one primary with one replica, one of them \
with `acks` set to `replica`. On a machine with two cores the load, the proxy and redis-server compete, so processor time is the steadier figure.";

/// Clients of most measurements.
const CLIENTS: usize = 50;
/// Clients of the memory measurement.
const MANY: usize = 1_000;

/// How many requests a measurement sends, and how often it is repeated.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    single: usize,
    piped: usize,
}

impl Size {
    fn of(scale: Scale) -> Size {
        match scale {
            Scale::Full => Size { rounds: 3, single: 150_000, piped: 600_000 },
            Scale::Quick => Size { rounds: 1, single: 5_000, piped: 20_000 },
        }
    }

    fn requests(self, pipeline: usize) -> usize {
        if pipeline == 1 { self.single } else { self.piped }
    }
}

/// The three paths to the same node.
struct Fronts {
    node: Node,
    ours: Running,
    nutcracker: Running,
}

/// The result of a measurement on each of the three paths.
struct Cell {
    direct: Vec<f64>,
    ours: Vec<Measured>,
    nutcracker: Vec<Measured>,
}

/// The result of a measurement through a proxy.
struct Measured {
    rate: f64,
    cpu_us: f64,
}

/// Measures the whole area; files go below `dir`.
pub(crate) async fn rows(scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let size = Size::of(scale);
    let dir = WorkDir::below(dir, "redis")?;
    let node = Node::start(&dir.0).await?;
    let ours = Running::start(Front::Ours, &node, &dir.0).await?;
    let nutcracker = Running::start(Front::Nutcracker, &node, &dir.0).await?;
    let fronts = Fronts { node, ours, nutcracker };
    let mut rows = Vec::new();
    for pipeline in [1, 16] {
        for command in ["set", "get"] {
            rows.extend(cell(size, &fronts, command, pipeline).await?);
        }
    }
    rows.extend(memory(size, &fronts).await?);
    drop(fronts);
    rows.extend(acks::rows(size, &dir.0).await?);
    Ok(rows)
}

async fn cell(size: Size, fronts: &Fronts, command: &'static str, pipeline: usize) -> Result<Vec<Row>> {
    let run = Run { command, clients: CLIENTS, pipeline, requests: size.requests(pipeline) };
    let mut cell = Cell { direct: vec![], ours: vec![], nutcracker: vec![] };
    for round in 0..size.rounds {
        progress(&format!("redis {command}, pipeline {pipeline}, round {}", round + 1));
        cell.direct.push(drive(fronts.node.port, run).await?);
        cell.ours.push(through(&fronts.ours, run).await?);
        cell.nutcracker.push(through(&fronts.nutcracker, run).await?);
    }
    Ok(cell.rows(&format!("{} with pipeline {pipeline}", command.to_uppercase())))
}

async fn through(front: &Running, run: Run) -> Result<Measured> {
    let before = front.cpu_us()?;
    let rate = drive(front.port, run).await?;
    Ok(Measured { rate, cpu_us: (front.cpu_us()? - before) / run.requests as f64 })
}

impl Cell {
    fn rows(self, what: &str) -> Vec<Row> {
        let rate = |runs: &[Measured]| median(runs.iter().map(|run| run.rate).collect());
        let cpu = |runs: &[Measured]| median(runs.iter().map(|run| run.cpu_us).collect());
        let ours = rate(&self.ours);
        let spent = format!("{what}, processor time of the proxy");
        vec![
            Row::new(what, ours, "redis-server, direct", median(self.direct), "requests/s"),
            Row::new(what, ours, "nutcracker", rate(&self.nutcracker), "requests/s"),
            Row::new(&spent, cpu(&self.ours), "nutcracker", cpu(&self.nutcracker), "us"),
        ]
    }
}

/// Memory after the cells with few clients, then after many clients with long pipelines.
async fn memory(size: Size, fronts: &Fronts) -> Result<Vec<Row>> {
    progress("redis, memory of the proxies");
    let few = (fronts.ours.rss_mib()?, fronts.nutcracker.rss_mib()?);
    let run = Run { command: "get", clients: MANY, pipeline: 16, requests: size.piped };
    drive(fronts.ours.port, run).await?;
    drive(fronts.nutcracker.port, run).await?;
    let many = (fronts.ours.rss_mib()?, fronts.nutcracker.rss_mib()?);
    Ok(vec![
        Row::new("Memory of the proxy after 50 clients", few.0, "nutcracker", few.1, "MiB"),
        Row::new("Memory of the proxy after 1,000 clients, pipeline 16", many.0, "nutcracker", many.1, "MiB"),
    ])
}
