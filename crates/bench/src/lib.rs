//! What is measured: areas, each a list of rows, ours beside the peer's on the same machine in the same run.

mod cluster;
mod docs;
mod load;
mod log;
mod machine;
mod meta;
mod nats;
mod page;
mod peer;
mod placement;
mod redis;
mod topics;
mod workdir;

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

pub use page::{figure as page_figure, page, ratio as page_ratio};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Area {
    /// The metadata store beside etcd
    Meta,
    /// The placement planner beside the usual hash methods
    Placement,
    /// The replicated log beside bare disk syncs and NATS JetStream
    Log,
    /// The Redis proxy beside direct access and nutcracker
    Redis,
    /// A move of Redis slots beside redis-cli --cluster reshard
    RedisMove,
    /// Topics beside RabbitMQ and NATS JetStream
    Topics,
    /// Documents beside PostgreSQL
    Docs,
}

impl Area {
    /// Every area, in the order of the page.
    pub const ALL: &[Area] =
        &[Area::Meta, Area::Placement, Area::Log, Area::Redis, Area::RedisMove, Area::Topics, Area::Docs];

    /// The area's heading and what its rows say.
    pub fn title(self) -> &'static str {
        match self {
            Area::Meta => "Metadata store",
            Area::Placement => "Placement",
            Area::Log => "Replicated log",
            Area::Redis => "Redis proxy",
            Area::RedisMove => "Moving Redis slots",
            Area::Topics => "Topics",
            Area::Docs => "Documents",
        }
    }

    /// How its figures were made, in one paragraph.
    pub fn method(self) -> &'static str {
        match self {
            Area::Meta => meta::METHOD,
            Area::Placement => placement::METHOD,
            Area::Log => log::METHOD,
            Area::Redis => redis::METHOD,
            Area::RedisMove => redis::moving::METHOD,
            Area::Topics => topics::METHOD,
            Area::Docs => docs::METHOD,
        }
    }

    /// Measures it; files go below `dir`.
    pub async fn run(self, scale: Scale, dir: &Path) -> Result<Vec<Row>> {
        match self {
            Area::Meta => meta::run(scale, dir).await,
            Area::Placement => {
                progress("placement");
                tokio::task::spawn_blocking(placement::rows).await?
            }
            Area::Log => log::rows(scale, dir).await,
            Area::Redis => redis::rows(scale, dir).await,
            Area::RedisMove => redis::moving::rows(scale, dir).await,
            Area::Topics => topics::rows(scale, dir).await,
            Area::Docs => docs::rows(scale, dir).await,
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// What the page shows.
    Full,
    /// Seconds instead of minutes, to see that everything works; the figures mean little.
    Quick,
}

/// Prints what is being measured.
fn progress(text: &str) {
    // A closed stderr is ignored.
    let _ = writeln!(std::io::stderr().lock(), "measuring {text}");
}

/// One measure: what we reach and what the peer reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub row: String,
    /// Our figure.
    pub ours: f64,
    /// The peer.
    pub peer: String,
    /// The peer's figure.
    pub theirs: f64,
    /// Unit of both; rates end in `/s`.
    pub unit: String,
}

/// Which figures are the good ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    Higher,
    /// Times, sizes, counts of moves.
    Lower,
}

impl Row {
    /// A row of these figures.
    pub fn new(row: &str, ours: f64, peer: &str, theirs: f64, unit: &str) -> Row {
        Row { row: row.to_owned(), ours, peer: peer.to_owned(), theirs, unit: unit.to_owned() }
    }

    /// Of rates (`.../s`) more is better, of everything else less.
    pub fn better(&self) -> Better {
        if self.unit.ends_with("/s") { Better::Higher } else { Better::Lower }
    }

    /// How many times better we are than the peer: above 1 is good for us, whatever the unit.
    pub fn ratio(&self) -> f64 {
        match self.better() {
            Better::Higher => quotient(self.ours, self.theirs),
            Better::Lower => quotient(self.theirs, self.ours),
        }
    }
}

/// Nothing divided by nothing is a draw; something divided by nothing has no ratio worth printing.
fn quotient(ours: f64, theirs: f64) -> f64 {
    match (ours == 0.0, theirs == 0.0) {
        (true, true) => 1.0,
        (false, true) => f64::INFINITY,
        (true, false) | (false, false) => ours / theirs,
    }
}

/// The row as printed by `-o json`.
#[derive(Serialize)]
struct Document<'a> {
    row: &'a str,
    ours: f64,
    peer: &'a str,
    theirs: f64,
    ratio: Option<f64>,
    unit: &'a str,
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ratio = Some(self.ratio()).filter(|ratio| ratio.is_finite());
        let Row { row, ours, peer, theirs, unit } = self;
        Document { row, ours: *ours, peer, theirs: *theirs, ratio, unit }.serialize(serializer)
    }
}
