//! Calls of one kind fail, and what they leave behind is opened again: a failed sync proves nothing, also when it is
//! repeated, and a failed write leaves no file that is mistaken for a segment.

use std::path::Path;
use std::sync::Arc;

use capstan_disk::Disk as FileSystem;
use capstan_log::Offset;
use capstan_log::disk::{DiskError, DiskLog, DiskResult};
use capstan_testkit::disk::{Call, CallKind, Cut, Fault, SimDisk};
use capstan_testkit::seed;
use tokio::sync::oneshot;

use super::disk::{append, entry, read_all};
use super::power::{Lived, Model, Op, content, found, judge, live, model, name, open, perform, script};

/// What a call syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synced {
    Segment,
    SegmentNames,
    Journal,
    JournalNames,
    Checkpoint,
    CheckpointName,
}

impl Synced {
    const ALL: [Synced; 6] = [
        Synced::Segment,
        Synced::SegmentNames,
        Synced::Journal,
        Synced::JournalNames,
        Synced::Checkpoint,
        Synced::CheckpointName,
    ];

    fn is_by(self, call: &Call) -> bool {
        let is_file = |suffix: &str| {
            call.kind == CallKind::Sync && call.path.to_str().is_some_and(|path| path.ends_with(suffix))
        };
        let is_dir = |dir: &str| call.kind == CallKind::SyncDir && call.path == Path::new(dir);
        match self {
            Synced::Segment => is_file(".seg"),
            Synced::SegmentNames => is_dir("/logs/segments"),
            Synced::Journal => is_file(".journal"),
            Synced::JournalNames => is_dir("/logs/journal"),
            Synced::Checkpoint => is_file("checkpoint.draft"),
            Synced::CheckpointName => is_dir("/logs"),
        }
    }
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "seg")
}

/// Appends that cross segments, journal files and checkpoints; nothing is dropped, so every lost entry is missed.
fn appends() -> Vec<Op> {
    (0..24).map(|_| Op::Append { log: 1, epoch: 1, entries: 4, bytes: 900 }).collect()
}

/// The state after the last acknowledged operation, or after the one in progress.
fn allowed(lived: &Lived) -> Vec<&Model> {
    let last = lived.acknowledged.last().map(|(_, model)| model);
    last.into_iter().chain(&lived.under_way).collect()
}

/// Runs appends with one failed sync, the `number`th of its kind. Returns the disk after the run.
async fn live_with_failed_sync(synced: Synced, number: usize) -> (SimDisk, Lived) {
    let sim = SimDisk::new();
    let mut seen = 0;
    sim.break_calls(move |call| {
        seen += usize::from(synced.is_by(call));
        (synced.is_by(call) && seen == number + 1).then_some(Fault::Full)
    });
    let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
    let lived = live(|| sim.calls(), &fs, &appends()).await;
    (sim, lived)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_fails_on_a_full_disk_loses_nothing_that_was_acknowledged() {
    let mut rng = seed::rng(3);
    for synced in Synced::ALL {
        for number in 0..4 {
            for how in Cut::ALL {
                let (sim, lived) = live_with_failed_sync(synced, number).await;
                let left: Arc<dyn FileSystem> = Arc::new(sim.cut(how, &mut rng));
                let outcome = judge(found(&left).await, &allowed(&lived));
                outcome.unwrap_or_else(|why| panic!("{synced:?} {number}, then {how:?}: {why}"));
            }
        }
    }
}

/// The disk of the restarted process.
pub type Wrap<'a> = &'a (dyn Fn(&SimDisk) -> Arc<dyn FileSystem> + Sync);

fn whole(sim: &SimDisk) -> Arc<dyn FileSystem> {
    Arc::new(sim.clone())
}

/// Runs until every call from this one on fails.
pub async fn live_until(number: u64) -> (SimDisk, Lived) {
    let sim = SimDisk::new();
    sim.break_calls(move |call| (call.number >= number).then_some(Fault::Io));
    let lived = live(|| sim.calls(), &whole(&sim), &script()).await;
    (sim, lived)
}

/// Restarts the process without a power cut, appends, and cuts the power then. After the restart the operating system
/// shows everything that was written, also what is not on the disk.
pub async fn restart_and_cut(sim: &SimDisk, lived: &Lived, wrap: Wrap<'_>) -> Result<(), String> {
    let risen = sim.crash();
    let fs = wrap(&risen);
    let mut disk = open(&fs).await.map_err(|error| format!("cannot be opened again: {error}"))?;
    let before = content(&disk)?;
    judge(Ok(before.clone()), &allowed(lived))?;
    let op = Op::Append { log: 1, epoch: 9, entries: 1, bytes: 100 };
    perform(&mut disk, &fs, &before, &op).await.map_err(|error| error.to_string())?;
    let left: Arc<dyn FileSystem> = Arc::new(risen.cut(Cut::Lose, &mut seed::rng(0)));
    judge(found(&left).await, &[&model(&before, &op)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_a_failed_sync_makes_everything_durable() {
    for synced in Synced::ALL {
        for number in 0..4 {
            let (sim, lived) = live_with_failed_sync(synced, number).await;
            let outcome = restart_and_cut(&sim, &lived, &whole).await;
            outcome.unwrap_or_else(|why| panic!("{synced:?} {number}: {why}"));
        }
    }
}

/// Restarts the process on a full disk without a power cut, and cuts the power then: what was readable stays.
pub async fn restart_full_and_cut(sim: &SimDisk, lived: &Lived, wrap: Wrap<'_>) -> Result<(), String> {
    let risen = sim.crash();
    risen.break_calls(|call| is_segment(&call.path).then_some(Fault::Full));
    let fs = wrap(&risen);
    // A change of files that the journal repeats may need space; then the directory is not opened.
    let Ok(disk) = open(&fs).await else { return Ok(()) };
    let before = content(&disk)?;
    judge(Ok(before.clone()), &allowed(lived))?;
    let left: Arc<dyn FileSystem> = Arc::new(risen.cut(Cut::Lose, &mut seed::rng(0)));
    judge(found(&left).await, &[&before])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_the_disk_failed_at_any_call_makes_everything_durable() {
    let (complete, _) = live_until(u64::MAX).await;
    // All of the calls that create the directory.
    let (created, step) = (20, seed::soak(3, 1));
    for number in (0..created).chain((created..complete.calls()).step_by(step)) {
        let (sim, lived) = live_until(number).await;
        let outcome = restart_and_cut(&sim, &lived, &whole).await;
        outcome.unwrap_or_else(|why| panic!("failed at call {number}: {why}"));
        let outcome = restart_full_and_cut(&sim, &lived, &whole).await;
        outcome.unwrap_or_else(|why| panic!("failed at call {number}, then full: {why}"));
    }
}

/// Every new segment meets a full disk; entries are cut before there is space, and the log continues at other offsets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_could_not_be_written_is_forgotten_when_its_entries_are_cut() {
    for kind in [CallKind::Create, CallKind::Write] {
        let sim = SimDisk::new();
        let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
        let disk = open(&fs).await.unwrap();
        let log = disk.log(&name(1)).await.unwrap();
        sim.break_calls(move |call| {
            let is_new = is_segment(&call.path) && !call.path.ends_with(FIRST);
            (is_new && call.kind == kind).then_some(Fault::Full)
        });
        let refused = append_until_refused(&log).await;
        assert!(matches!(refused, DiskError::Full(_)), "{refused}");
        sim.repair();
        // In the first segment, which then has space for small entries only.
        cut(&log, 2).await.unwrap();
        append(&log, (2..6).map(|offset| entry(2, offset, 100)).collect()).await.unwrap();
        append(&log, (6..10).map(|offset| entry(2, offset, 900)).collect()).await.unwrap();
        disk.close().await.unwrap();
        let reopened = open(&fs).await.unwrap();
        let entries = read_all(&reopened.find(&name(1)).unwrap()).unwrap();
        assert_eq!(entries.len(), 10, "{kind:?}");
    }
}

const FIRST: &str = "00000001-00000000000000000000.seg";

/// Appends until the disk is full.
async fn append_until_refused(log: &DiskLog) -> DiskError {
    loop {
        let first = log.history().end().0;
        let entries = (first..first + 4).map(|offset| entry(1, offset, 900)).collect();
        if let Err(error) = append(log, entries).await {
            return error;
        }
    }
}

async fn cut(log: &DiskLog, from: u64) -> DiskResult<()> {
    let (done, answer) = oneshot::channel();
    log.cut(Offset(from), Box::new(|outcome| drop(done.send(outcome)))).await?;
    answer.await.unwrap()
}
