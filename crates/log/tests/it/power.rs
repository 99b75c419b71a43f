//! The power is cut at every call of a run: acknowledged changes are there afterwards, the others completely or not at
//! all. Failing and short calls are tested in the same way.
//!
//! A run is a sequence of operations, each awaited; so after a cut the directory is as it was after the last
//! acknowledged operation, or after the one in progress.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use capstan_disk::Disk as FileSystem;
use capstan_log::disk::{Disk, DiskResult, Options};
use capstan_log::{Entry, History, LogEpoch, LogName, Offset};
use capstan_testkit::disk::{Cut, Fault, SimDisk};
use capstan_testkit::seed;
use rand::RngExt;
use rand::rngs::StdRng;

use super::disk::{append, entry, read_all};
use super::forgetful::{Forgetful, Omitted};

/// Small, so that a run crosses segments, journal files and checkpoints.
pub const TINY: Options =
    Options { segment_bytes: 4 * 1024, journal_file_bytes: 32 * 1024, checkpoint_bytes: 16 * 1024 };
pub const DIR: &str = "/logs";

/// An operation on a directory.
#[derive(Clone, Debug)]
pub enum Op {
    Append { log: u8, epoch: u64, entries: usize, bytes: usize },
    Cut { log: u8, back: u64 },
    Truncate { log: u8, before: u64 },
    Reset { log: u8, ahead: u64 },
    Remove { log: u8 },
    Reopen,
}

/// The expected state of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    start: u64,
    /// Epoch and length of every entry from the start on.
    entries: Vec<(u64, usize)>,
}

impl Wanted {
    fn end(&self) -> u64 {
        self.start + self.entries.len() as u64
    }
}

pub type Model = BTreeMap<String, Wanted>;

pub fn name(log: u8) -> LogName {
    format!("log-{log}").parse().unwrap()
}

/// The effect of an operation on the model.
pub fn model(before: &Model, op: &Op) -> Model {
    let mut after = before.clone();
    let of = |log: &u8| name(*log).to_string();
    match op {
        Op::Append { log, epoch, entries, bytes } => {
            let wanted = after.entry(of(log)).or_default();
            wanted.entries.extend(std::iter::repeat_n((*epoch, *bytes), *entries));
        }
        Op::Cut { log, back } => {
            let wanted = after.entry(of(log)).or_default();
            let kept = wanted.entries.len().saturating_sub(*back as usize);
            wanted.entries.truncate(kept);
        }
        Op::Truncate { log, before } => {
            let wanted = after.entry(of(log)).or_default();
            let dropped = (*before).min(wanted.end()).saturating_sub(wanted.start);
            wanted.entries.drain(..dropped as usize);
            wanted.start += dropped;
        }
        Op::Reset { log, ahead } => {
            let wanted = after.entry(of(log)).or_default();
            *wanted = Wanted { start: wanted.end() + ahead, entries: Vec::new() };
        }
        Op::Remove { log } => drop(after.remove(&of(log))),
        Op::Reopen => {}
    }
    after
}

/// A run that creates and removes checkpoints, segments and journal files.
pub fn script() -> Vec<Op> {
    let append = |log, epoch, entries, bytes| Op::Append { log, epoch, entries, bytes };
    let mut ops = Vec::new();
    for round in 0..12 {
        ops.push(append(1, 1, 3, 500));
        ops.push(append(2, 1, 1, 1_500 + round * 100));
    }
    ops.extend([Op::Cut { log: 1, back: 5 }, append(1, 2, 4, 700), Op::Reopen, append(1, 2, 2, 3_000)]);
    ops.extend([Op::Truncate { log: 1, before: 20 }, append(2, 3, 8, 900), Op::Cut { log: 2, back: 3 }]);
    ops.extend([append(2, 4, 2, 2_000), Op::Reset { log: 1, ahead: 7 }, append(1, 5, 5, 800)]);
    ops.extend([Op::Remove { log: 2 }, append(3, 5, 3, 100), append(2, 6, 2, 64), Op::Reopen]);
    for _ in 0..8 {
        ops.push(append(1, 6, 4, 900));
    }
    ops.extend([Op::Truncate { log: 1, before: 60 }, append(1, 6, 1, 10)]);
    ops
}

fn random_life(rng: &mut StdRng) -> Vec<Op> {
    let mut ops = Vec::new();
    for step in 0..60_u64 {
        let log = rng.random_range(1..4);
        let epoch = 1 + step / 6;
        ops.push(match rng.random_range(0..20) {
            0 => Op::Cut { log, back: rng.random_range(0..6) },
            1 => Op::Truncate { log, before: rng.random_range(0..80) },
            2 => Op::Reset { log, ahead: rng.random_range(0..5) },
            3 => Op::Remove { log },
            4 => Op::Reopen,
            _ => {
                let (entries, bytes) = (rng.random_range(1..6), rng.random_range(0..2_500));
                Op::Append { log, epoch, entries, bytes }
            }
        });
    }
    ops
}

pub async fn open(fs: &Arc<dyn FileSystem>) -> DiskResult<Disk> {
    let fs = Arc::clone(fs);
    tokio::task::spawn_blocking(move || Disk::open_on(fs, Path::new(DIR), TINY)).await.unwrap()
}

pub async fn perform(disk: &mut Disk, fs: &Arc<dyn FileSystem>, before: &Model, op: &Op) -> DiskResult<()> {
    let end = |log: &u8| before.get(&name(*log).to_string()).map_or(0, Wanted::end);
    match op {
        Op::Append { log, epoch, entries, bytes } => {
            let first = end(log);
            let entries = (first..first + *entries as u64).map(|offset| entry(*epoch, offset, *bytes));
            append(&disk.log(&name(*log)).await?, entries.collect()).await
        }
        Op::Cut { log, back } => {
            let wanted = before.get(&name(*log).to_string()).cloned().unwrap_or_default();
            let from = Offset(wanted.end() - (*back).min(wanted.entries.len() as u64));
            let (done, answer) = tokio::sync::oneshot::channel();
            let copy = disk.log(&name(*log)).await?;
            copy.cut(from, Box::new(|outcome| drop(done.send(outcome)))).await?;
            answer.await.unwrap()
        }
        Op::Truncate { log, before } => disk.log(&name(*log)).await?.truncate(Offset(*before)).await,
        Op::Reset { log, ahead } => {
            let at = Offset(end(log) + ahead);
            let history = History::from_parts(vec![(LogEpoch(1), Offset::ZERO)], at);
            let (done, answer) = tokio::sync::oneshot::channel();
            let copy = disk.log(&name(*log)).await?;
            copy.reset(history, Box::new(|outcome| drop(done.send(outcome)))).await?;
            answer.await.unwrap()
        }
        Op::Remove { log } => match disk.find(&name(*log)) {
            Some(copy) => copy.remove().await,
            None => Ok(()),
        },
        Op::Reopen => {
            disk.close().await?;
            *disk = open(fs).await?;
            Ok(())
        }
    }
}

/// What was acknowledged, and the number of calls by then.
pub struct Lived {
    pub acknowledged: Vec<(u64, Model)>,
    /// The result of the failed operation if it had succeeded.
    pub under_way: Option<Model>,
}

/// Runs until the end, or until the first failure.
pub async fn live(calls: impl Fn() -> u64, fs: &Arc<dyn FileSystem>, ops: &[Op]) -> Lived {
    let mut lived = Lived { acknowledged: vec![(0, Model::new())], under_way: None };
    let Ok(mut disk) = open(fs).await else { return lived };
    let mut now = Model::new();
    for op in ops {
        let next = model(&now, op);
        if perform(&mut disk, fs, &now, op).await.is_err() {
            lived.under_way = Some(next);
            return lived;
        }
        lived.acknowledged.push((calls(), next.clone()));
        now = next;
    }
    disk.close().await.ok();
    lived
}

/// The content of a directory.
pub async fn found(fs: &Arc<dyn FileSystem>) -> Result<Model, String> {
    content(&open(fs).await.map_err(|error| error.to_string())?)
}

/// The content of an open directory.
pub fn content(disk: &Disk) -> Result<Model, String> {
    let mut model = Model::new();
    for log in disk.logs() {
        let entries: Vec<Entry> = read_all(&log).map_err(|error| error.to_string())?;
        let history = log.history();
        if log.start().plus(entries.len()) != history.end() {
            return Err(format!("{} ends at {} with {} entries", log.name(), history.end(), entries.len()));
        }
        for (index, found) in entries.iter().enumerate() {
            let same = entry(found.epoch.0, log.start().0 + index as u64, found.data.len());
            if *found != same || history.epoch_at(found.offset) != Some(found.epoch) {
                return Err(format!("{} has something else at {}", log.name(), found.offset));
            }
        }
        let entries = entries.iter().map(|entry| (entry.epoch.0, entry.data.len())).collect();
        model.insert(log.name().to_string(), Wanted { start: log.start().0, entries });
    }
    Ok(model)
}

/// A log without entries counts as missing.
fn without_empty(model: &Model) -> Model {
    model
        .iter()
        .filter(|(_, wanted)| **wanted != Wanted::default())
        .map(|(n, w)| (n.clone(), w.clone()))
        .collect()
}

/// Whether the directory is in one of the allowed states.
pub fn judge(found: Result<Model, String>, allowed: &[&Model]) -> Result<(), String> {
    let found = without_empty(&found?);
    if allowed.iter().any(|model| without_empty(model) == found) {
        return Ok(());
    }
    Err(format!("found {found:?}\nallowed {allowed:?}"))
}

/// Runs once and cuts the power at every `step`th call in every way. Returns the first violation.
async fn cut_everywhere(
    sim: &SimDisk,
    fs: &Arc<dyn FileSystem>,
    ops: &[Op],
    step: usize,
    rng: &mut StdRng,
) -> Result<usize, String> {
    sim.film();
    let lived = live(|| sim.calls(), fs, ops).await;
    assert!(lived.under_way.is_none(), "nothing fails before the power does");
    let film = sim.developed();
    let mut cuts = 0;
    for frame in (0..film.len()).step_by(step) {
        let call = film.call(frame);
        let last = lived.acknowledged.iter().rposition(|(calls, _)| *calls <= call.number).unwrap_or(0);
        let allowed: Vec<&Model> =
            lived.acknowledged[last..].iter().take(2).map(|(_, model)| model).collect();
        for how in Cut::ALL {
            let left: Arc<dyn FileSystem> = Arc::new(film.cut(frame, how, rng));
            let outcome = judge(found(&left).await, &allowed);
            outcome.map_err(|why| format!("{how:?} at {call:?}, after operation {last}: {why}"))?;
            cuts += 1;
        }
    }
    Ok(cuts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_at_any_call_of_a_life_loses_nothing_that_was_acknowledged() {
    let sim = SimDisk::new();
    let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
    let step = seed::soak(2, 1);
    let cuts = cut_everywhere(&sim, &fs, &script(), step, &mut seed::rng(1)).await.unwrap();
    assert!(cuts > 400, "{cuts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_in_a_random_life_loses_nothing_that_was_acknowledged() {
    for number in 0..seed::soak(4, 100) {
        let mut rng = seed::rng(number);
        let ops = random_life(&mut rng);
        let sim = SimDisk::new();
        let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
        let outcome = cut_everywhere(&sim, &fs, &ops, 7, &mut rng).await;
        outcome.unwrap_or_else(|why| panic!("seed {number}: {why}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_fails_or_falls_short_loses_nothing_that_was_acknowledged() {
    let whole = SimDisk::new();
    let fs: Arc<dyn FileSystem> = Arc::new(whole.clone());
    live(|| whole.calls(), &fs, &script()).await;
    let calls = whole.calls();
    let mut rng = seed::rng(2);
    for number in (0..calls).step_by(5) {
        for fault in [Fault::Io, Fault::Full, Fault::Short(600)] {
            let sim = SimDisk::new();
            sim.break_call(number, fault);
            let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
            let lived = live(|| sim.calls(), &fs, &script()).await;
            let (_, last) = lived.acknowledged.last().unwrap();
            let allowed: Vec<&Model> = std::iter::once(last).chain(&lived.under_way).collect();
            let how = Cut::ALL[rng.random_range(0..Cut::ALL.len())];
            let left: Arc<dyn FileSystem> = Arc::new(sim.cut(how, &mut rng));
            let outcome = judge(found(&left).await, &allowed);
            outcome.unwrap_or_else(|why| panic!("{fault:?} at call {number}, then {how:?}: {why}"));
        }
    }
}

/// The harness finds every kind of omitted sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sync_that_is_left_out_is_found() {
    for omitted in Omitted::IN_A_LIFE {
        let mut outcome = Ok(0);
        for number in 0..20 {
            let sim = SimDisk::new();
            let fs: Arc<dyn FileSystem> = Arc::new(Forgetful::new(&sim, omitted));
            outcome = cut_everywhere(&sim, &fs, &script(), 3, &mut seed::rng(number)).await;
            if outcome.is_err() {
                break;
            }
        }
        assert!(outcome.is_err(), "without syncs of {omitted:?} nothing was lost");
    }
}
