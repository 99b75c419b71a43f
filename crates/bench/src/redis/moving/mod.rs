//! Area `redis-move`: half of the keys moves to another node, through our proxies and by `redis-cli --cluster reshard`.

mod native;
mod pair;
mod writers;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::load::median;
use super::super::workdir::WorkDir;
use super::super::{Row, Scale, progress};
use super::servers::ask;
use native::Native;
use pair::Pair;
use writers::{Seen, Writers};

/// How the figures are measured, in one paragraph.
pub(crate) const METHOD: &str = "\
Ours: two `capstan redis proxy` of this build, a redis-server without persistence behind each; the benchmark tells them what \
coordinators tell, in the same order, and the time is from the first message to the last, when the target serves and the \
source has let go. Theirs: two redis-servers in cluster mode and `redis-cli --cluster reshard` of the same version with its \
own defaults. Keys have values of 64 bytes; half of the slots moves, to the other side and back in the next round. Writers are \
four clients, each of which sends its next SET of a random key when the last one was answered, and follows MOVED and ASK; \
their times before a move are from the same run, right before it. Rounds of both in turn, medians; the longest wait is the \
longest of all rounds. On a machine with two cores five busy processes compete, which makes the slowest of hundred writes a \
matter of the scheduler as much as of the move.";

/// The slots that move: the lower half.
const MOVING: (u32, u32) = (0, 8191);
/// The slots that stay.
const STAYING: (u32, u32) = (8192, 16383);
/// Bytes of a value.
const VALUE: usize = 64;
/// Keys written per batch when the servers are filled.
const FILLED_AT_ONCE: u32 = 1_000;
/// The peer's name.
const RESHARD: &str = "redis-cli --cluster reshard";

/// How much is moved, how often, and how long writers are measured before a move.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    keys: u32,
    calm: Duration,
}

impl Size {
    fn of(scale: Scale) -> Size {
        match scale {
            Scale::Full => Size { rounds: 3, keys: 300_000, calm: Duration::from_secs(3) },
            Scale::Quick => Size { rounds: 1, keys: 3_000, calm: Duration::from_millis(200) },
        }
    }
}

/// Two sides between which slots move.
pub(super) trait Sides {
    /// The client ports, first side first.
    fn ports(&self) -> [u16; 2];
    /// Keys of one side.
    async fn keys(&self, side: usize) -> Result<u64>;
    /// Moves the lower half away from this side, completely.
    async fn shift(&mut self, from: usize) -> Result<()>;
}

/// The results of one system.
#[derive(Default)]
struct Figures {
    quiet: Vec<f64>,
    busy: Vec<f64>,
    before: Vec<f64>,
    during: Vec<f64>,
    longest: f64,
}

/// Measures the whole area; files go below `dir`.
pub(crate) async fn rows(scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let size = Size::of(scale);
    let dir = WorkDir::below(dir, "redis-move")?;
    let mut ours = Pair::start(&dir.0).await?;
    fill(ours.node_port(0), size.keys).await?;
    let mut native = Native::start(&dir.0).await?;
    fill(native.ports()[0], size.keys).await?;
    let (mut our_figures, mut native_figures) = (Figures::default(), Figures::default());
    for round in 0..size.rounds {
        progress(&format!("redis-move, no writers, round {}", round + 1));
        our_figures.quiet.push(quiet(&mut ours, round).await?);
        native_figures.quiet.push(quiet(&mut native, round).await?);
    }
    // The side that has the keys now begins.
    let begun = size.rounds;
    for round in begun..begun + size.rounds {
        progress(&format!("redis-move, four clients write, round {}", round - begun + 1));
        busy(&mut ours, round, size, &mut our_figures).await?;
        busy(&mut native, round, size, &mut native_figures).await?;
    }
    Ok(compare(our_figures, native_figures))
}

fn compare(ours: Figures, theirs: Figures) -> Vec<Row> {
    let row = |what, ours: Vec<f64>, theirs: Vec<f64>, unit| {
        Row::new(what, median(ours), RESHARD, median(theirs), unit)
    };
    vec![
        row("Keys moved while nobody writes", ours.quiet, theirs.quiet, "keys/s"),
        row("Keys moved while four clients write", ours.busy, theirs.busy, "keys/s"),
        row("Slowest of 100 writes (p99) before a move", ours.before, theirs.before, "ms"),
        row("Slowest of 100 writes (p99) during a move", ours.during, theirs.during, "ms"),
        Row::new("Longest wait of a writer during a move", ours.longest, RESHARD, theirs.longest, "ms"),
    ]
}

/// Moved keys per second.
async fn quiet(sides: &mut impl Sides, round: usize) -> Result<f64> {
    let (from, to) = (round % 2, (round + 1) % 2);
    let before = sides.keys(to).await?;
    let began = Instant::now();
    sides.shift(from).await?;
    let took = began.elapsed();
    let moved = sides.keys(to).await?.checked_sub(before).context("keys have vanished")?;
    Ok(moved as f64 / took.as_secs_f64())
}

async fn busy(sides: &mut impl Sides, round: usize, size: Size, figures: &mut Figures) -> Result<()> {
    let writers = Writers::start(sides.ports(), size.keys)?;
    tokio::time::sleep(size.calm).await;
    let before: Seen = writers.take()?;
    figures.busy.push(quiet(sides, round).await?);
    let during = writers.take()?;
    writers.stop().await?;
    figures.before.push(before.p99_ms());
    figures.during.push(during.p99_ms());
    figures.longest = figures.longest.max(during.longest_ms());
    Ok(())
}

/// The name of a key.
fn key(number: u32) -> String {
    format!("key:{number:09}")
}

/// The `SET` command of a key in RESP.
fn set(number: u32) -> String {
    let (key, value) = (key(number), "x".repeat(VALUE));
    format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE}\r\n{value}\r\n", key.len())
}

async fn fill(port: u16, keys: u32) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    for first in (0..keys).step_by(FILLED_AT_ONCE as usize) {
        let chunk: Vec<String> = (first..keys.min(first + FILLED_AT_ONCE)).map(set).collect();
        stream.write_all(chunk.concat().as_bytes()).await?;
        let mut replies = vec![0; chunk.len() * "+OK\r\n".len()];
        stream.read_exact(&mut replies).await?;
        anyhow::ensure!(replies.starts_with(b"+OK"), "a server did not take its keys");
    }
    Ok(())
}

/// How many keys a server has.
async fn count(port: u16) -> Result<u64> {
    let reply = ask(port, "DBSIZE\r\n").await?;
    let number = reply.trim().strip_prefix(':').with_context(|| format!("DBSIZE: {reply}"))?;
    Ok(number.parse()?)
}
