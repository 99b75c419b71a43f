//! Every sync in the disk layer is needed: without it, one of these tests (or of `power`) finds a loss.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use capstan_disk::{Disk as FileSystem, DiskExt as _, DiskFile, Lock};
use capstan_testkit::disk::{CallKind, Cut, SimDisk};
use capstan_testkit::seed;

use super::disk::{append, entry, read_all};
use super::fault::{Wrap, restart_and_cut, restart_full_and_cut};
use super::forgetful::{Forgetful, Omitted};
use super::power::{Lived, content, found, live, name, open, script};

/// Kills the process at every `step`th call of a life, restarts it, and cuts the power then.
async fn kill_restart_and_cut(step: usize, wrap: Wrap<'_>) -> Result<usize, String> {
    let sim = SimDisk::new();
    let fs: Arc<dyn FileSystem> = Arc::new(sim.clone());
    sim.film();
    let lived = live(|| sim.calls(), &fs, &script()).await;
    let (film, states) = (sim.developed(), &lived.acknowledged);
    // All of the calls that create the directory.
    let created = film.len().min(20);
    let mut kills = 0;
    for frame in (0..created).chain((created..film.len()).step_by(step)) {
        let call = film.call(frame);
        let last = states.iter().rposition(|(calls, _)| *calls <= call.number).unwrap_or(0);
        let under_way = states.get(last + 1).map(|(_, model)| model.clone());
        let known = Lived { acknowledged: vec![states[last].clone()], under_way };
        let risen = film.crash(frame);
        restart_and_cut(&risen, &known, wrap).await.map_err(|why| format!("{call:?}: {why}"))?;
        let risen = film.crash(frame);
        restart_full_and_cut(&risen, &known, wrap).await.map_err(|why| format!("full, {call:?}: {why}"))?;
        kills += 1;
    }
    Ok(kills)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_after_a_kill_and_a_restart_loses_nothing() {
    let kills = kill_restart_and_cut(seed::soak(3, 1), &|sim| Arc::new(sim.clone())).await.unwrap();
    assert!(kills > 60, "{kills}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sync_that_a_restart_leaves_out_is_found() {
    for omitted in Omitted::AFTER_A_RESTART {
        let mut outcome = Ok(0);
        for _ in 0..10 {
            outcome = kill_restart_and_cut(1, &|sim| Arc::new(Forgetful::new(sim, omitted))).await;
            if let Err(why) = &outcome {
                eprintln!("{omitted:?}: {why}");
                break;
            }
        }
        assert!(outcome.is_err(), "without syncs of {omitted:?} nothing was lost");
    }
}

/// Two groups are in flight when the power is cut, and only the later one is on the disk. It was not acknowledged, and
/// must not come back after another one got its number.
async fn cut_in_flight(wrap: impl Fn(&SimDisk) -> Arc<dyn FileSystem>) -> Result<usize, String> {
    let sim = SimDisk::new();
    let fs: Arc<dyn FileSystem> = Arc::new(Forgetful::slow(&sim));
    let disk = open(&fs).await.unwrap();
    sim.film();
    let mut appenders = tokio::task::JoinSet::new();
    for number in 1..5 {
        let log = disk.log(&name(number)).await.unwrap();
        appenders.spawn(async move {
            for offset in 0..40 {
                append(&log, vec![entry(1, offset, 600)]).await.unwrap();
            }
        });
    }
    appenders.join_all().await;
    let film = sim.developed();
    let mut rng = seed::rng(4);
    let mut erased = 0;
    let mut in_flight = 0_usize;
    for frame in 1..film.len() {
        let call = film.call(frame - 1);
        match call.kind {
            _ if !call.path.to_string_lossy().ends_with(".journal") => continue,
            CallKind::Write => in_flight += 1,
            CallKind::Sync => in_flight = in_flight.saturating_sub(1),
            _ => continue,
        }
        if in_flight < 2 {
            continue;
        }
        for _ in 0..8 {
            let left = film.cut(frame, Cut::Shuffle, &mut rng);
            erased += usize::from(comes_back(&left, &wrap(&left)).await?);
        }
    }
    Ok(erased)
}

/// Opens what a power cut left, appends one group, and cuts the power again. Returns whether there were groups to erase;
/// fails if one of them comes back.
async fn comes_back(left: &SimDisk, fs: &Arc<dyn FileSystem>) -> Result<bool, String> {
    let disk = open(fs).await.map_err(|error| error.to_string())?;
    let logs = disk.logs();
    let Some(log) = logs.first().filter(|_| !disk.recovery().replayed.unacknowledged.is_empty()) else {
        return Ok(false);
    };
    append(log, vec![entry(7, log.history().end().0, 100)]).await.unwrap();
    let before = content(&disk)?;
    let again: Arc<dyn FileSystem> = Arc::new(left.cut(Cut::Lose, &mut seed::rng(0)));
    let after = found(&again).await?;
    if after == before { Ok(true) } else { Err(format!("{before:?}\nbecame {after:?}")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_were_never_acknowledged_do_not_come_back() {
    let mut outcome = Ok(0);
    // How many groups are in flight at a cut depends on which thread is first.
    for _ in 0..200 {
        cut_in_flight(|sim| Arc::new(sim.clone())).await.unwrap();
        outcome = cut_in_flight(|sim| Arc::new(Forgetful::new(sim, Omitted::Erasure))).await;
        if let Err(why) = &outcome {
            eprintln!("{why}");
            break;
        }
    }
    assert!(outcome.is_err(), "without the sync of the removal nothing came back");
}

/// A damaged entry that was repaired is whole after a power cut.
async fn repair_and_cut(wrap: impl Fn(&SimDisk) -> Arc<dyn FileSystem>) -> Result<(), String> {
    let sim = SimDisk::new();
    let fs = wrap(&sim);
    let disk = open(&fs).await.unwrap();
    let log = disk.log(&name(1)).await.unwrap();
    let entries: Vec<_> = (0..6).map(|offset| entry(1, offset, 500)).collect();
    append(&log, entries.clone()).await.unwrap();
    disk.close().await.unwrap();
    let (segment, _) =
        sim.files().into_iter().find(|(path, _)| path.to_string_lossy().ends_with(".seg")).unwrap();
    assert!(sim.flip(&segment, (512 + 32 + 10) * 8));
    let disk = open(&fs).await.unwrap();
    let log = disk.log(&name(1)).await.unwrap();
    assert!(read_all(&log).is_err(), "the first entry is damaged");
    log.repair(entries[..1].to_vec()).await.unwrap();
    assert_eq!(read_all(&log).unwrap(), entries);
    let left: Arc<dyn FileSystem> = Arc::new(sim.cut(Cut::Lose, &mut seed::rng(0)));
    let disk = open(&left).await.map_err(|error| error.to_string())?;
    let log = disk.log(&name(1)).await.unwrap();
    read_all(&log).map(|found| assert_eq!(found, entries)).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repaired_entry_is_durable() {
    repair_and_cut(|sim| Arc::new(sim.clone())).await.unwrap();
    let wrong = repair_and_cut(|sim| Arc::new(Forgetful::new(sim, Omitted::Repair))).await;
    eprintln!("{}", wrong.expect_err("without the sync of the repair nothing was lost"));
}

/// A disk that counts groups that are written to blocks or names which are not durable yet.
#[derive(Clone, Debug)]
struct Watchful {
    inner: Forgetful,
    sim: SimDisk,
    groups: Arc<AtomicUsize>,
    early: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct WatchfulFile {
    file: Arc<dyn DiskFile>,
    path: std::path::PathBuf,
    disk: Watchful,
}

impl FileSystem for Watchful {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.open(path)
    }
    fn open_through(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.inner.open_through(path)?;
        Ok(Arc::new(WatchfulFile { file, path: path.to_owned(), disk: self.clone() }))
    }
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dirs(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.inner.lock(path)
    }
}

impl DiskFile for WatchfulFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let durable = self.disk.sim.copy().cut(Cut::Lose, &mut seed::rng(0));
        let size = durable.read(&self.path).map_or(0, |content| content.len() as u64);
        self.disk.groups.fetch_add(1, Ordering::Relaxed);
        self.disk.early.fetch_add(usize::from(size < at + bytes.len() as u64), Ordering::Relaxed);
        self.file.write_at(bytes, at)
    }
    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_size(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Groups only overwrite durable blocks of files with durable names: that is what makes their syncs cheap, and a full disk harmless.
async fn early_groups(omitted: Omitted) -> usize {
    let sim = SimDisk::new();
    let inner = Forgetful::new(&sim, omitted);
    let disk = Watchful { inner, sim: sim.clone(), groups: Arc::default(), early: Arc::default() };
    let fs: Arc<dyn FileSystem> = Arc::new(disk.clone());
    let lived = live(|| sim.calls(), &fs, &script()).await;
    assert!(lived.under_way.is_none());
    assert!(disk.groups.load(Ordering::Relaxed) > 30);
    disk.early.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_overwrite_only_what_is_durable() {
    assert_eq!(early_groups(Omitted::Nothing).await, 0);
    for omitted in Omitted::OF_JOURNAL_FILES {
        let mut early = 0;
        // Whether a prepared file is there in time depends on which thread is first.
        for _ in 0..100 {
            early = early_groups(omitted).await;
            if early > 0 {
                break;
            }
        }
        assert!(early > 0, "without syncs of {omitted:?} nothing differs");
    }
}
