//! Area `log`: durable appends beside a bare loop of write and sync on the same disk, and beside NATS JetStream.

mod nats;
mod transport;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use capstan_log::disk::Options;
use capstan_log::net::AddressBook;
use capstan_log::{Disk, HolderId, Host, HostOptions, Log, LogName, NoSnapshots, Offset, referee};
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use tokio::net::TcpListener;

use super::load::{histogram, load, median, nanos};
use super::workdir::WorkDir;
use super::{Row, Scale, progress};

/// How the figures are measured, in one paragraph.
pub(crate) const METHOD: &str = "\
Entries of 1 KiB. The bare loop appends 64 of them to a file and calls `fdatasync`, again and again, and does nothing \
else; a second one writes over a file that has its full length already. Ours has 64 appenders, each waiting for its \
entry to be committed before it sends the next, on a directory in which 128 MiB were written before; the log's configuration is in an embedded metadata store in memory. \
Three holders are three hosts in one process, each with its own directory on the same disk, over loopback TCP. Cells run \
in turn, three times, and medians are shown. Tail latency is the time from sending an append until a reader that waits \
for it has it, one append at a time, beside the sync of the bare loop with one entry. NATS JetStream is `nats-server` from \
the PATH with file storage and 64 publishers, each with a connection of its own over loopback and waiting for its \
acknowledgment; ours are in the process that keeps the log, as the services on top of it are. Versions before 2.10 cannot \
sync before they acknowledge, and the row says so: what it acknowledges can be lost with the power. The replication stream \
is bare bytes over loopback, each frame answered with 8 bytes and at most 16 on their way: frames with a length in front on \
a TCP connection, as hosts talk to each other, beside a bidirectional call of tonic with windows of 4 MiB. Sequential \
reading is from the page cache, checksums verified. Opening is of 1 GiB in 1,000 logs, a tenth of what the limit of 5 and \
30 seconds is for, so the limits shown are a tenth as well.";

const ENTRY: usize = 1024;
const APPENDERS: usize = 64;
const LOGS: usize = 1_000;
/// Bytes per read.
const READ: usize = 1024 * 1024;

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    cell: Duration,
    /// Bytes in the directory that is read and opened.
    bytes: usize,
    /// Appends whose latency to a reader is measured.
    tails: usize,
}

impl Size {
    fn of(scale: Scale) -> Size {
        const MIB: usize = 1024 * 1024;
        match scale {
            Scale::Full => Size { rounds: 3, cell: Duration::from_secs(3), bytes: 1024 * MIB, tails: 1_000 },
            Scale::Quick => Size { rounds: 1, cell: Duration::from_millis(500), bytes: 32 * MIB, tails: 50 },
        }
    }
}

/// Measures the whole area; files go below `dir`.
pub(crate) async fn rows(scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let size = Size::of(scale);
    let work = WorkDir::below(dir, "log")?;
    let mut rows = append_rows(size, &work.0).await?;
    rows.push(tail_row(size, &work.0).await?);
    rows.extend(nats::row(size, &work.0).await?);
    rows.extend(transport::rows(size).await?);
    rows.extend(directory_rows(size, &work.0).await?);
    Ok(rows)
}

async fn append_rows(size: Size, dir: &Path) -> Result<Vec<Row>> {
    let (mut bare, mut over, mut one, mut many, mut three) = (vec![], vec![], vec![], vec![], vec![]);
    for round in 0..size.rounds {
        progress(&format!("durable appends, round {}", round + 1));
        bare.push(bare_loop(&dir.join("bare"), APPENDERS, size.cell, 0)?.rate);
        over.push(bare_loop(&dir.join("over"), APPENDERS, size.cell, 256 * 1024 * 1024)?.rate);
        one.push(append_rate(&dir.join(format!("one-{round}")), 1, 1, size.cell).await?);
        many.push(append_rate(&dir.join(format!("many-{round}")), 1, LOGS, size.cell).await?);
        three.push(append_rate(&dir.join(format!("three-{round}")), 3, 1, size.cell).await?);
    }
    let (bare, over, one, many, three) =
        (median(bare), median(over), median(one), median(many), median(three));
    Ok(vec![
        Row::new(
            "Durable appends, one holder, 64 appenders",
            one,
            "bare loop that appends",
            bare,
            "entries/s",
        ),
        Row::new(
            "Durable appends, one holder, 64 appenders",
            one,
            "bare loop that overwrites",
            over,
            "entries/s",
        ),
        Row::new("Durable appends, 1,000 logs, 64 appenders", many, "one log", one, "entries/s"),
        Row::new("Durable appends, three holders, 64 appenders", three, "one holder", one, "entries/s"),
    ])
}

/// The result of a bare loop of write and sync.
struct Bare {
    rate: f64,
    p99_ms: f64,
}

/// Writes batches of entries and syncs each, either overwriting a file of this length or appending to a growing one.
fn bare_loop(path: &Path, batch: usize, time: Duration, filled: usize) -> Result<Bare> {
    let mut file = File::create(path)?;
    if filled > 0 {
        file.write_all(&vec![0; filled])?;
        file.sync_all()?;
        std::io::Seek::rewind(&mut file)?;
    }
    let block = vec![7; batch * ENTRY];
    let mut times = histogram()?;
    let (begin, mut written) = (Instant::now(), 0);
    while begin.elapsed() < time {
        if filled > 0 && written + block.len() > filled {
            std::io::Seek::rewind(&mut file)?;
            written = 0;
        }
        let sent = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        written += block.len();
        times.record(nanos(sent.elapsed()))?;
    }
    let rate = (times.len() * batch as u64) as f64 / begin.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(Bare { rate, p99_ms: times.value_at_quantile(0.99) as f64 / 1e6 })
}

/// Hosts in this process that hold the same logs.
struct Cluster {
    hosts: Vec<Host>,
    /// The primary's handles.
    logs: Vec<Log>,
    _sessions: Vec<Session>,
}

impl Cluster {
    async fn start(dir: &Path, holders: usize, logs: usize) -> Result<Cluster> {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        let book = AddressBook::default();
        let names: Vec<HolderId> =
            (0..holders).map(|number| format!("holder-{number}").parse()).collect::<Result<_, _>>()?;
        let (mut hosts, mut sessions) = (Vec::new(), Vec::new());
        for name in &names {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            book.set(name.clone(), listener.local_addr()?);
            let session = Session::start(store.clone(), SessionOptions::default());
            session.live().await.context("no lease")?;
            let disk = open_disk(dir.join(name.as_str())).await?;
            let options = HostOptions::new(name.clone());
            let lease = session.state();
            hosts.push(Host::start(options, disk, store.clone(), lease, Some(listener), book.clone()).await?);
            sessions.push(session);
        }
        let mut opened = Vec::new();
        for number in 0..logs {
            let log: LogName = format!("log-{number:04}").parse()?;
            referee::create(&store, &log, names.clone(), holders).await?;
            for host in &hosts[1..] {
                host.open(&log, Arc::new(NoSnapshots)).await?;
            }
            opened.push(hosts[0].open(&log, Arc::new(NoSnapshots)).await?);
        }
        for log in &opened {
            first_append(log).await?;
        }
        Ok(Cluster { hosts, logs: opened, _sessions: sessions })
    }

    async fn stop(self) -> Result<()> {
        for host in &self.hosts {
            host.stop().await?;
        }
        Ok(())
    }
}

/// Waits until the primary has begun its epoch and accepts appends.
async fn first_append(log: &Log) -> Result<()> {
    let begin = Instant::now();
    loop {
        match log.append(vec![entry()]).await {
            Ok(_) => return Ok(()),
            Err(error) if begin.elapsed() > Duration::from_secs(30) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn open_disk(dir: PathBuf) -> Result<Disk> {
    Ok(tokio::task::spawn_blocking(move || Disk::open(&dir, Options::default())).await??)
}

fn entry() -> Bytes {
    Bytes::from(vec![7; ENTRY])
}

/// Fills the journal once: a directory in use overwrites it. Twice the checkpoint interval.
async fn warm(log: &Log) -> Result<()> {
    let bytes = 2 * Options::default().checkpoint_bytes as usize;
    for _ in 0..bytes / (256 * ENTRY) {
        log.append(vec![entry(); 256]).await?;
    }
    Ok(())
}

/// Committed entries per second.
async fn append_rate(dir: &Path, holders: usize, logs: usize, time: Duration) -> Result<f64> {
    let cluster = Cluster::start(dir, holders, logs).await?;
    warm(&cluster.logs[0]).await?;
    let handles = Arc::new(cluster.logs.clone());
    let appended = load(APPENDERS, time, move |client, number| {
        let handles = Arc::clone(&handles);
        async move {
            let log = &handles[(client + number as usize * APPENDERS) % handles.len()];
            log.append(vec![entry()]).await?;
            Ok(())
        }
    });
    let rate = appended.await?.rate;
    cluster.stop().await?;
    std::fs::remove_dir_all(dir)?;
    Ok(rate)
}

/// Latency from append to reader, one at a time.
async fn tail_row(size: Size, dir: &Path) -> Result<Row> {
    progress("tail latency");
    let bare = bare_loop(&dir.join("bare"), 1, size.cell, 0)?;
    let cluster = Cluster::start(&dir.join("tail"), 1, 1).await?;
    let log = cluster.logs[0].clone();
    warm(&log).await?;
    let mut tail = log.tail(log.committed()?);
    let mut times = histogram()?;
    let mut seen = 0;
    for sent in 0..size.tails {
        let begin = Instant::now();
        let appender = log.clone();
        let append = async move { appender.append(vec![entry()]).await };
        let read = async {
            while seen <= sent {
                seen += tail.next(READ).await?.len();
            }
            Ok::<_, capstan_log::LogError>(begin.elapsed())
        };
        let (appended, read) = tokio::join!(append, read);
        appended?;
        times.record(nanos(read?))?;
    }
    cluster.stop().await?;
    let ours = times.value_at_quantile(0.99) as f64 / 1e6;
    Ok(Row::new("Tail latency, append to reader, p99", ours, "sync of the bare loop, p99", bare.p99_ms, "ms"))
}

/// Reading back and opening a directory with many logs.
async fn directory_rows(size: Size, dir: &Path) -> Result<Vec<Row>> {
    progress("reading and opening a large directory");
    let place = dir.join("large");
    let disk = open_disk(place.clone()).await?;
    fill(&disk, size.bytes).await?;
    let killed = dir.join("killed");
    copy_dir(&place, &killed)?;
    disk.close().await?;
    drop(disk);
    // Flushed before: writing the copy back is not part of opening.
    nix::unistd::sync();
    let scale = size.bytes as f64 / (10.0 * 1024.0 * 1024.0 * 1024.0);
    let begin = Instant::now();
    let disk = open_disk(place.clone()).await?;
    let clean = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let after_kill = open_disk(killed).await?;
    let unclean = begin.elapsed().as_secs_f64();
    after_kill.close().await?;
    read_all(&disk)?;
    let begin = Instant::now();
    let bytes = read_all(&disk)?;
    let rate = bytes as f64 / begin.elapsed().as_secs_f64() / 1e9;
    disk.close().await?;
    Ok(vec![
        Row::new("Sequential read from the page cache", rate, "limit", 1.0, "GB/s"),
        Row::new("Opening 1,000 logs after a clean stop", clean, "limit", 5.0 * scale, "s"),
        Row::new("Opening 1,000 logs after kill -9", unclean, "limit", 30.0 * scale, "s"),
    ])
}

async fn fill(disk: &Disk, bytes: usize) -> Result<()> {
    let per_log = bytes / LOGS / ENTRY;
    let mut waiting = Vec::new();
    for number in 0..LOGS {
        let log = disk.log(&format!("log-{number:04}").parse()?).await?;
        let entries = (0..per_log).map(|offset| capstan_log::Entry {
            epoch: capstan_log::LogEpoch(1),
            offset: Offset(offset as u64),
            kind: capstan_log::EntryKind::Data,
            time: Duration::ZERO,
            data: entry(),
        });
        let entries: Vec<_> = entries.collect();
        for piece in entries.chunks(512) {
            let (done, answer) = tokio::sync::oneshot::channel();
            log.append(piece.to_vec(), Box::new(|outcome| drop(done.send(outcome)))).await?;
            waiting.push(answer);
        }
    }
    for answer in waiting {
        answer.await??;
    }
    Ok(())
}

fn read_all(disk: &Disk) -> Result<usize> {
    let mut bytes = 0;
    for log in disk.logs() {
        let mut from = log.start();
        loop {
            let entries = log.read(from, READ)?;
            let Some(last) = entries.last() else { break };
            from = last.offset.plus(1);
            bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        }
    }
    Ok(bytes)
}

/// A copy of a running process's directory is what kill -9 leaves behind; the checkpoint is copied first, because
/// everything it refers to is in the other files by then.
fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let checkpoint = from.join("checkpoint");
    if checkpoint.exists() {
        std::fs::copy(checkpoint, to.join("checkpoint"))?;
    }
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else if !target.exists() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
