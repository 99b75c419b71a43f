//! Area `meta`: our store over gRPC and in process, compared with a real single-node etcd on the same disk.
//!
//! Both servers are separate processes with their default, durable settings; both are driven by the same client crate
//! from this process. The rounds are interleaved (ours, etcd, ours, etcd) and medians are taken, because the machine is
//! never quiet.

mod large;
mod local;
mod watchers;
mod wire;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::load::median;
use super::peer::{Kind, Peer, etcd_version};
use super::workdir::WorkDir;
use super::{Row, Scale, progress};

/// How the figures are measured, for the page.
pub(crate) const METHOD: &str = "\
Two servers, each a process of its own on loopback with its data on the same disk: `capstan meta serve` of this build and \
a single-node etcd from the PATH, both with their default settings, which acknowledge a write only after it is on disk. \
Both are driven by the etcd-client crate over one connection; values have 200 bytes. Every cell runs three times for one \
second on each server in turn, and the medians are shown. \"In process\" is the embedded store without a wire, beside \
etcd's figure for the same operation over the wire. Watch delivery is the time from sending a put until its event has \
reached each of the watchers, which hold a stream each, a hundred of them on a connection. The large store has keys of 31 \
bytes; opening is the time from starting the process until it answers a linearizable read.";

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Rounds of each measurement, interleaved between the servers.
    rounds: usize,
    /// Time of one round.
    cell: Duration,
    /// Keys of the large store.
    keys: usize,
    /// Keys of the large range.
    range: usize,
    /// Watchers on one prefix.
    watchers: usize,
}

impl Size {
    fn of(scale: Scale) -> Size {
        match scale {
            Scale::Full => Size {
                rounds: 3,
                cell: Duration::from_secs(1),
                keys: 1_000_000,
                range: 10_000,
                watchers: 1_000,
            },
            Scale::Quick => {
                Size { rounds: 1, cell: Duration::from_millis(200), keys: 10_000, range: 1_000, watchers: 50 }
            }
        }
    }
}

/// Measures the whole area.
pub(crate) async fn run(scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let size = Size::of(scale);
    let version = etcd_version()?;
    let work = WorkDir::below(dir, "meta")?;
    let mut rows = wire_rows(size, &work.0, &version).await?;
    rows.extend(large::rows(size, &work.0, &version).await?);
    Ok(rows)
}

async fn wire_rows(size: Size, dir: &Path, version: &str) -> Result<Vec<Row>> {
    let mut ours = Peer::new(Kind::Ours, &dir.join("wire"))?;
    let mut etcd = Peer::new(Kind::Etcd, &dir.join("wire"))?;
    ours.start().await?;
    etcd.start().await?;
    for peer in [&ours, &etcd] {
        wire::prepare(&peer.client().await?, size.range).await?;
    }
    let mut rows = Vec::new();
    for cell in wire::Cell::ALL {
        progress(&cell.name(size.range));
        rows.push(interleaved(*cell, size, &ours, &etcd, version).await?);
    }
    rows.extend(watchers::rows(size, &ours, &etcd, version).await?);
    ours.stop().await?;
    etcd.stop().await?;
    let theirs = |rows: &[Row], cell: wire::Cell| {
        let name = cell.name(size.range);
        rows.iter().find(|row| row.row == name).map(|row| row.theirs).context("a cell was not measured")
    };
    let (put, get) = (theirs(&rows, wire::Cell::Put64)?, theirs(&rows, wire::Cell::Get64)?);
    rows.extend(local::rows(size, dir, version, put, get).await?);
    Ok(rows)
}

async fn interleaved(cell: wire::Cell, size: Size, ours: &Peer, etcd: &Peer, version: &str) -> Result<Row> {
    let (mut our_figures, mut their_figures) = (Vec::new(), Vec::new());
    for round in 0..size.rounds {
        our_figures.push(cell.measure(ours.client().await?, size, round).await?);
        their_figures.push(cell.measure(etcd.client().await?, size, round).await?);
    }
    Ok(Row::new(&cell.name(size.range), median(our_figures), version, median(their_figures), "/s"))
}
