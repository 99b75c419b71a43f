//! The power is cut under running hosts, not only under their directories: everything that an append of a client was
//! acknowledged for is there afterwards at its offset, and no offset is assigned twice.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use capstan_disk::Disk as FileSystem;
use capstan_log::keys::LogKey;
use capstan_log::net::AddressBook;
use capstan_log::replica::Timing;
use capstan_log::{
    Disk, HolderId, Host, HostOptions, Log, LogConfig, LogName, NoSnapshots, Offset, Standing, referee,
};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::record::Key;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::{Store, Txn};
use capstan_testkit::disk::{Cut, SimDisk};
use capstan_testkit::{eventually, seed};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::forgetful::{Forgetful, Omitted};
use super::host::id;
use super::power::{DIR, TINY};

const SOON: Duration = Duration::from_secs(60);
const APPENDERS: usize = 4;
const HOLDERS: [&str; 3] = ["a", "b", "c"];

fn log_names() -> [LogName; 2] {
    ["orders", "bills"].map(|name| name.parse().unwrap())
}

fn memory() -> Store {
    Store::new(Embedded::in_memory(embedded::Options::default()))
}

/// The text of an append: unique, and long enough that a run crosses segments and checkpoints.
fn text(number: usize) -> Bytes {
    Bytes::from(format!("{number:0width$}", width = 200 + number * 37 % 700))
}

struct Running {
    host: Host,
    _session: Session,
}

async fn start(
    me: &HolderId,
    fs: Arc<dyn FileSystem>,
    store: &Store,
    book: &AddressBook,
) -> Result<Running, String> {
    let opened = tokio::task::spawn_blocking(move || Disk::open_on(fs, Path::new(DIR), TINY)).await.unwrap();
    let disk = opened.map_err(|error| error.to_string())?;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    book.set(me.clone(), listener.local_addr().unwrap());
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let timing = Timing { heartbeat: Duration::from_millis(20), ..Timing::default() };
    let options = HostOptions { timing, append_within: SOON, ..HostOptions::new(me.clone()) };
    let lease = session.state();
    let host = Host::start(options, disk, store.clone(), lease, Some(listener), book.clone()).await;
    Ok(Running { host: host.map_err(|error| error.to_string())?, _session: session })
}

impl Running {
    async fn open(&self, name: &LogName) -> Result<Log, String> {
        self.host.open(name, Arc::new(NoSnapshots)).await.map_err(|error| error.to_string())
    }
}

/// What was acknowledged, by log and offset, with the number of disk calls by then.
type Acknowledged = BTreeMap<LogName, BTreeMap<Offset, (u64, Bytes)>>;

/// Waits until a log leads, and compares it with what was acknowledged before this call. Returns why it differs.
async fn verify(
    log: &Log,
    known: &BTreeMap<Offset, (u64, Bytes)>,
    before: u64,
    within: Duration,
) -> Result<(), String> {
    let mut standing = log.standing();
    let leads = standing.wait_for(|standing| matches!(standing, Standing::Leading { .. }));
    let leads = tokio::time::timeout(within, leads).await.map(|led| led.map(drop));
    leads.map_err(|_| "it does not lead".to_owned())?.map_err(|error| error.to_string())?;
    let mut found: BTreeMap<Offset, Bytes> = BTreeMap::new();
    let mut from = log.status().await.map_err(|error| error.to_string())?.start;
    loop {
        let batch = log.read(from, 1 << 20).await.map_err(|error| error.to_string())?;
        if batch.next == from {
            break;
        }
        from = batch.next;
        found.extend(batch.entries.into_iter().map(|entry| (entry.offset, entry.data)));
    }
    let texts: std::collections::BTreeSet<&Bytes> = found.values().collect();
    if texts.len() < found.len() {
        return Err(format!("{} has an entry twice", log.name()));
    }
    for (offset, (_, data)) in known.iter().filter(|(_, (calls, _))| *calls <= before) {
        if found.get(offset) != Some(data) {
            return Err(format!("{} lost what was acknowledged at {offset}", log.name()));
        }
    }
    Ok(())
}

/// One host that holds both logs alone, with a few appenders each; ends with a clean stop. Returns what was
/// acknowledged, and the records.
async fn life(
    sim: &SimDisk,
    fs: Arc<dyn FileSystem>,
    appends: usize,
) -> (Acknowledged, Vec<(LogName, LogConfig)>) {
    let (store, book, me) = (memory(), AddressBook::default(), id("a"));
    let running = start(&me, fs, &store, &book).await.unwrap();
    let mut acknowledged = Acknowledged::new();
    let mut configs = Vec::new();
    for name in log_names() {
        referee::create(&store, &name, vec![me.clone()], 1).await.unwrap();
        let log = running.open(&name).await.unwrap();
        eventually("the log takes appends", SOON, async || log.append(vec![text(0)]).await).await;
        let mut appenders = JoinSet::new();
        for appender in 0..APPENDERS {
            let (log, sim) = (log.clone(), sim.clone());
            appenders.spawn(async move {
                let mut done = Vec::new();
                for turn in 0..appends / APPENDERS {
                    let data = text(1 + turn * APPENDERS + appender);
                    let (first, _) = log.append(vec![data.clone()]).await.unwrap();
                    done.push((first, (sim.calls(), data)));
                }
                done
            });
        }
        acknowledged.insert(name.clone(), appenders.join_all().await.into_iter().flatten().collect());
        configs.push((name.clone(), referee::read(&store, &name).await.unwrap().record));
    }
    running.host.stop().await.unwrap();
    (acknowledged, configs)
}

/// Starts a host on what a power cut left, with records of its own store, and verifies both logs.
async fn judge(
    left: SimDisk,
    configs: &[(LogName, LogConfig)],
    known: &Acknowledged,
    before: u64,
) -> Result<(), String> {
    let (store, book) = (memory(), AddressBook::default());
    let records = configs
        .iter()
        .fold(Txn::new(), |txn, (name, config)| txn.then(LogKey { log: name.clone() }.put(config)));
    store.commit(records).await.unwrap();
    let running = start(&id("a"), Arc::new(left), &store, &book).await?;
    for (name, known) in known {
        let log = running.open(name).await?;
        verify(&log, known, before, SOON).await?;
        let (first, _) = log.append(vec![text(100_000)]).await.map_err(|error| error.to_string())?;
        let last = known.iter().filter(|(_, (calls, _))| *calls <= before).map(|(offset, _)| *offset).max();
        if last.is_some_and(|last| first <= last) {
            return Err(format!("{name} assigned offset {first} twice"));
        }
    }
    running.host.stop().await.map_err(|error| error.to_string())
}

/// Cuts the power at every `step`th call of a host's life in every way. Returns the number of cuts, or the first loss.
async fn cut_everywhere(
    sim: &SimDisk,
    fs: Arc<dyn FileSystem>,
    step: usize,
    rng: &mut StdRng,
) -> Result<usize, String> {
    sim.film();
    let (known, configs) = life(sim, fs, 40).await;
    let film = sim.developed();
    let mut cuts = 0;
    for frame in (rng.random_range(0..step)..film.len()).step_by(step) {
        let call = film.call(frame);
        for how in Cut::ALL {
            let left = film.cut(frame, how, rng);
            let outcome = judge(left, &configs, &known, call.number).await;
            outcome.map_err(|why| format!("{how:?} at {call:?}: {why}"))?;
            cuts += 1;
        }
    }
    Ok(cuts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_at_any_call_of_a_host_loses_nothing_that_was_acknowledged() {
    for number in 0..seed::soak(1, 10) {
        let sim = SimDisk::new();
        let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
        let step = seed::soak(7, 1);
        let cuts = cut_everywhere(&sim, fs, step, &mut seed::rng(number)).await;
        let cuts = cuts.unwrap_or_else(|why| panic!("seed {number}: {why}"));
        eprintln!("seed {number}: {cuts} cuts");
        assert!(cuts > 60, "{cuts}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_leaves_out_a_sync_is_found_out() {
    for omitted in Omitted::OF_A_HOST {
        let mut outcome = Ok(0);
        for number in 0..6 {
            let sim = SimDisk::new();
            let fs: Arc<dyn FileSystem> = Arc::new(Forgetful::new(&sim, omitted));
            outcome = cut_everywhere(&sim, fs, 3, &mut seed::rng(number)).await;
            if let Err(why) = &outcome {
                eprintln!("{omitted:?}: {why}");
                break;
            }
        }
        assert!(outcome.is_err(), "without syncs of {omitted:?} nothing was lost");
    }
}

/// Three hosts that hold the same logs, each on its own disk.
struct Cluster {
    store: Store,
    book: AddressBook,
    disks: BTreeMap<HolderId, SimDisk>,
    hosts: BTreeMap<HolderId, Running>,
    /// Whether the disks ignore syncs of the journal.
    forgets: bool,
    known: Arc<Mutex<Acknowledged>>,
    next: usize,
}

impl Cluster {
    async fn start(forgets: bool) -> Cluster {
        let mut cluster = Cluster {
            store: memory(),
            book: AddressBook::default(),
            disks: HOLDERS.iter().map(|name| (id(name), SimDisk::new())).collect(),
            hosts: BTreeMap::new(),
            forgets,
            known: Arc::default(),
            next: 0,
        };
        for (number, name) in log_names().iter().enumerate() {
            let mut holders: Vec<HolderId> = HOLDERS.iter().map(|name| id(name)).collect();
            holders.rotate_left(number);
            referee::create(&cluster.store, name, holders, 2).await.unwrap();
        }
        for name in HOLDERS {
            cluster.power_on(&id(name)).await.unwrap();
        }
        cluster
    }

    async fn power_on(&mut self, holder: &HolderId) -> Result<(), String> {
        let sim = self.disks[holder].clone();
        let fs: Arc<dyn FileSystem> = match self.forgets {
            true => Arc::new(Forgetful::new(&sim, Omitted::JournalWrites)),
            false => Arc::new(sim),
        };
        let running = start(holder, fs, &self.store, &self.book).await?;
        for name in log_names() {
            running.open(&name).await?;
        }
        self.hosts.insert(holder.clone(), running);
        Ok(())
    }

    async fn primary(&self, name: &LogName) -> Log {
        let primary = referee::read(&self.store, name).await.unwrap().record.primary;
        self.hosts[&primary].host.log(name).unwrap()
    }

    /// Appends to both logs until the power fails, or until this many were acknowledged.
    async fn append(&mut self, acknowledged: usize) -> JoinSet<()> {
        let mut appenders = JoinSet::new();
        for name in log_names() {
            let log = self.primary(&name).await;
            for appender in 0..APPENDERS {
                let (log, known, name) = (log.clone(), Arc::clone(&self.known), name.clone());
                let (base, most) = (self.next + appender, acknowledged / APPENDERS);
                appenders.spawn(async move {
                    for turn in 0..most.max(1) {
                        let data = text(base + turn * APPENDERS);
                        let Ok((first, _)) = log.append(vec![data.clone()]).await else { return };
                        let mut known = known.lock().unwrap();
                        let before = known.entry(name.clone()).or_default().insert(first, (0, data));
                        assert!(before.is_none(), "{name}: offset {first} was assigned twice");
                    }
                });
            }
        }
        self.next += acknowledged.max(APPENDERS) + APPENDERS;
        appenders
    }

    /// Cuts the power of these hosts while they serve, and starts them again.
    async fn blackout(&mut self, victims: &[HolderId], rng: &mut StdRng) -> Result<(), String> {
        let most = rng.random_range(8..80);
        let before = self.acknowledged();
        let appenders = self.append(most * 4).await;
        let known = Arc::clone(&self.known);
        let count = || known.lock().unwrap().values().map(BTreeMap::len).sum::<usize>();
        eventually("some appends are acknowledged", SOON, async || {
            if count() >= before + most { Ok(()) } else { Err(count()) }
        })
        .await;
        for victim in victims {
            let how = if self.forgets { Cut::Lose } else { Cut::ALL[rng.random_range(0..Cut::ALL.len())] };
            let left = self.disks[victim].cut(how, rng);
            self.disks.insert(victim.clone(), left);
        }
        for victim in victims {
            let ended = self.hosts.remove(victim).unwrap();
            assert!(ended.host.stop().await.is_err(), "the power is off");
        }
        for victim in victims {
            self.power_on(victim).await?;
        }
        drop(appenders);
        Ok(())
    }

    fn acknowledged(&self) -> usize {
        self.known.lock().unwrap().values().map(BTreeMap::len).sum()
    }

    async fn verify(&self) -> Result<(), String> {
        for name in log_names() {
            let known = self.known.lock().unwrap().get(&name).cloned().unwrap_or_default();
            // Copies that lost what they had acknowledged may never agree again.
            let within = if self.forgets { SOON / 6 } else { SOON };
            verify(&self.primary(&name).await, &known, u64::MAX, within).await?;
        }
        Ok(())
    }

    /// Rounds of appends, each ended by a power cut of all hosts or of one.
    async fn rounds(&mut self, rounds: usize, rng: &mut StdRng) -> Result<(), String> {
        for round in 0..rounds {
            let all: Vec<HolderId> = self.disks.keys().cloned().collect();
            let one = vec![all[rng.random_range(0..all.len())].clone()];
            let victims = if round % 2 == 0 || self.forgets { all } else { one };
            self.blackout(&victims, rng).await.map_err(|why| format!("round {round}: {why}"))?;
            self.verify().await.map_err(|why| format!("round {round}: {why}"))?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_of_all_holders_loses_nothing_that_was_acknowledged() {
    for number in 0..seed::soak(2, 40) {
        let mut cluster = Cluster::start(false).await;
        let outcome = cluster.rounds(6, &mut seed::rng(number)).await;
        outcome.unwrap_or_else(|why| panic!("seed {number}: {why}"));
        eprintln!("seed {number}: {} acknowledged", cluster.acknowledged());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_that_acknowledge_before_the_sync_are_found_out() {
    let mut cluster = Cluster::start(true).await;
    let outcome = cluster.rounds(10, &mut seed::rng(5)).await;
    eprintln!("{}", outcome.expect_err("nothing was lost without syncs of the journal"));
}
