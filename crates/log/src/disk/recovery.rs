//! How is a directory opened? The checkpoint says what the files durably hold; the journal says what came after.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::Options;
use super::change::{Change, changes};
use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::files::{Files, sync_dir};
use super::fill::{Fill, Flush, Pen};
use super::replay::{self, Lost, Replayed};
use super::segment::parse_name;
use super::shelf::Shelf;
use super::tail::Chunk;
use super::writer::{Shelves, apply, find};
use crate::entry::Offset;
use crate::keys::LogName;

/// What opening a directory found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// What was replayed from the journal; nothing after a clean stop.
    pub replayed: Replayed,
    /// Logs whose last file is shorter than it was when it was synced: reading there will fail until it is repaired.
    pub damaged: Vec<LogName>,
}

/// A directory that was brought up to date and is ready for the writer.
pub struct Opened {
    pub(super) lock: File,
    pub(super) shelves: Shelves,
    pub(super) files: Arc<Files>,
    pub(super) key: u32,
    pub(super) next_group: u64,
    pub(super) next_log: u64,
    pub(super) salvaged: bool,
    pub(super) recovery: Recovery,
    /// The rest is of a disk that was too full for what the journal holds; elsewhere nothing is left to do.
    pub(super) full: Option<DiskError>,
    /// Files of the journal that are still needed, each with its first group.
    pub(super) needed: Vec<(PathBuf, u64)>,
    pub(super) replayed_bytes: u64,
    pub(super) unfilled: BTreeSet<u64>,
    pub(super) tail_bytes: u64,
    pub(super) unsynced: BTreeSet<PathBuf>,
}

/// What to do about a journal with a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Entries that were acknowledged are gone: nothing is opened.
    Refuse,
    /// Keeps what comes before the hole, and marks every log as lacking something or not.
    Salvage {
        /// Whether copies stay marked until another holder has been asked.
        distrust: bool,
    },
}

/// Brings a directory up to date, or makes one.
pub fn open(dir: &Path, options: &Options, holes: Holes) -> DiskResult<Opened> {
    let lock = prepare(dir)?;
    let checkpoint = load(dir)?;
    let files = Arc::new(Files::default());
    let shelves = restore(&super::segments_dir(dir), &checkpoint, &files)?;
    let mut filling = Filling {
        dir,
        shelves: &shelves,
        pen: Pen::new(&files, options.segment_bytes),
        most: options.checkpoint_bytes,
        salvaged: checkpoint.salvaged,
        unfilled: BTreeSet::new(),
        tail_bytes: 0,
        touched: BTreeSet::new(),
        full: None,
    };
    let mut next_log = checkpoint.next_log;
    let first = checkpoint.next_group;
    let replayed = replay::replay(&super::journal_dir(dir), checkpoint.key, first, |number, content| {
        next_log = next_log.max(filling.take(number, &content, &files)? + 1);
        Ok(())
    })?;
    let mut salvaged = checkpoint.salvaged;
    let corrupt = |lost: &Lost| DiskError::Corrupt { dir: dir.display().to_string(), what: lost.to_string() };
    let next_group = match (&replayed.lost, holes) {
        (None, _) => first + replayed.groups,
        (Some(lost), Holes::Refuse) => return Err(corrupt(lost)),
        // Numbers are not given twice.
        (Some(lost), Holes::Salvage { distrust }) => {
            let all = shelves.read().unwrap_or_else(PoisonError::into_inner);
            all.values().for_each(|shelf| shelf.distrust(distrust));
            salvaged |= distrust;
            lost.last + 1
        }
    };
    replay::erase(&replayed.unacknowledged)?;
    filling.fill()?;
    let Filling { unfilled, touched, mut full, .. } = filling;
    let tail_bytes = unfilled.iter().filter_map(|log| find(&shelves, *log).ok());
    let tail_bytes = tail_bytes.map(|shelf| shelf.tail_bytes() as u64).sum();
    let damaged = trim(&shelves, &files)?;
    let mut unsynced = touched;
    let news = replayed.groups > 0 || replayed.torn.is_some() || replayed.lost.is_some();
    if full.is_none() && news {
        full = settle(
            dir,
            &shelves,
            &mut unsynced,
            Checkpoint { salvaged, ..Checkpoint::of(checkpoint.key, next_group, next_log, vec![]) },
        )?;
    }
    let needed = if full.is_some() { replayed.files.clone() } else { Vec::new() };
    Ok(Opened {
        lock,
        shelves,
        files,
        key: checkpoint.key,
        next_group,
        next_log,
        salvaged,
        full,
        needed,
        replayed_bytes: replayed.bytes,
        unfilled,
        tail_bytes,
        unsynced,
        recovery: Recovery { replayed, damaged },
    })
}

/// What the journal says happens again, and tails move into segments whenever enough has gathered.
struct Filling<'a> {
    dir: &'a Path,
    shelves: &'a Shelves,
    pen: Pen,
    /// A log that is made here may be one that was lost here.
    salvaged: bool,
    /// Bytes of tails in memory, unless there is no room elsewhere.
    most: u64,
    unfilled: BTreeSet<u64>,
    tail_bytes: u64,
    touched: BTreeSet<PathBuf>,
    full: Option<DiskError>,
}

impl Filling<'_> {
    /// Lets a group happen again; answers with the highest log in it.
    fn take(&mut self, number: u64, content: &Bytes, files: &Files) -> DiskResult<u64> {
        let unknown = || DiskError::Corrupt {
            dir: self.dir.display().to_string(),
            what: format!("group {number} of the journal holds something unknown"),
        };
        let mut highest = 0;
        for change in changes(content) {
            let (log, change) = change.ok_or_else(unknown)?;
            highest = highest.max(log);
            let happened = match &change {
                Change::Append(records) => {
                    let chunk = Chunk::of(content.slice_ref(records)).ok_or_else(unknown)?;
                    self.unfilled.insert(log);
                    self.tail_bytes += records.len() as u64;
                    find(self.shelves, log).and_then(|shelf| shelf.publish(chunk))
                }
                other => apply(log, other, self.dir, self.shelves, files),
            };
            if let (Change::Create(_), Ok(shelf)) = (&change, find(self.shelves, log)) {
                shelf.distrust(self.salvaged);
            };
            match happened {
                // A log that a later group removes may have lost its place already.
                Err(DiskError::NoSuchLog) => {}
                happened => happened?,
            }
        }
        if self.tail_bytes > self.most && self.full.is_none() {
            self.fill()?;
        }
        Ok(highest)
    }

    /// A disk without room is no reason not to open: everything is in the journal and in memory.
    fn fill(&mut self) -> DiskResult<()> {
        let logs = std::mem::take(&mut self.unfilled).into_iter();
        let shelves = logs.filter_map(|log| find(self.shelves, log).ok());
        let logs = shelves.map(|shelf| (Arc::clone(&shelf), shelf.end())).collect();
        let filled = Fill { before: 0, logs }.perform(&mut self.pen);
        self.touched.extend(filled.touched);
        self.unfilled.extend(filled.unfinished);
        self.tail_bytes = self.tail_bytes.saturating_sub(filled.bytes as u64);
        match filled.outcome {
            Err(error @ DiskError::Full(_)) => self.full = Some(error),
            outcome => outcome?,
        }
        Ok(())
    }
}

fn prepare(dir: &Path) -> DiskResult<File> {
    for wanted in [dir.to_owned(), super::segments_dir(dir), super::journal_dir(dir)] {
        std::fs::create_dir_all(&wanted).map_err(|error| DiskError::io(&wanted, &error))?;
    }
    let path = dir.join("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(|error| DiskError::io(&path, &error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(DiskError::Locked(dir.display().to_string())),
        Err(TryLockError::Error(error)) => Err(DiskError::io(&path, &error)),
    }
}

/// The checkpoint, or a first one in a directory that is empty. Data without a checkpoint is not taken for empty.
fn load(dir: &Path) -> DiskResult<Checkpoint> {
    if let Some(checkpoint) = Checkpoint::load(dir)? {
        return Ok(checkpoint);
    }
    let segments = super::segments_dir(dir);
    let mut listed = std::fs::read_dir(&segments).map_err(|error| DiskError::io(&segments, &error))?;
    if listed.next().is_some() {
        let what = "there are segments and no checkpoint".to_owned();
        return Err(DiskError::Corrupt { dir: dir.display().to_string(), what });
    }
    let first = Checkpoint::empty();
    first.save(dir)?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_dir(parent)?;
    }
    Ok(first)
}

/// The logs as the checkpoint has them. Segments that begin behind it were written after it, so the journal has them.
fn restore(segments: &Path, checkpoint: &Checkpoint, files: &Files) -> DiskResult<Shelves> {
    let mut bases: HashMap<u64, Vec<Offset>> = HashMap::new();
    let listed = std::fs::read_dir(segments).map_err(|error| DiskError::io(segments, &error))?;
    for entry in listed.filter_map(Result::ok) {
        if let Some((log, base)) = entry.file_name().to_str().and_then(parse_name) {
            bases.entry(log).or_default().push(base);
        }
    }
    let mut shelves = std::collections::BTreeMap::new();
    for saved in &checkpoint.logs {
        let found = bases.remove(&saved.id).unwrap_or_default();
        for later in found.iter().filter(|base| **base > saved.active) {
            files.remove(&segments.join(super::segment::file_name(saved.id, *later)))?;
        }
        shelves.insert(saved.id, Arc::new(Shelf::restore(segments, saved, found)));
    }
    for (log, orphans) in bases {
        for base in orphans {
            files.remove(&segments.join(super::segment::file_name(log, base)))?;
        }
    }
    Ok(Arc::new(RwLock::new(shelves)))
}

/// Cuts off what was written and never made it into the journal; names the logs that are too short instead.
fn trim(shelves: &Shelves, files: &Files) -> DiskResult<Vec<LogName>> {
    let mut damaged = Vec::new();
    for shelf in shelves.read().unwrap_or_else(PoisonError::into_inner).values() {
        if shelf.trim(files)? > 0 {
            damaged.push(shelf.name.clone());
        }
    }
    Ok(damaged)
}

/// What was replayed is in the files now: makes that durable, so that the journal begins anew. Answers why it does not,
/// if there is no room for the checkpoint.
fn settle(
    dir: &Path,
    shelves: &Shelves,
    unsynced: &mut BTreeSet<PathBuf>,
    checkpoint: Checkpoint,
) -> DiskResult<Option<DiskError>> {
    let logs = {
        let all = shelves.read().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|shelf| shelf.saved()).collect()
    };
    // Cuts and resets that were replayed changed files as well; syncing one too many costs little.
    let active = shelves.read().unwrap_or_else(PoisonError::into_inner);
    unsynced.extend(active.values().map(|shelf| shelf.active_path()));
    drop(active);
    let flush = Flush { checkpoint: Checkpoint { logs, ..checkpoint }, paths: std::mem::take(unsynced) };
    match flush.perform(dir) {
        Err(error @ DiskError::Full(_)) => {
            *unsynced = flush.paths;
            Ok(Some(error))
        }
        outcome => outcome.map(|()| None),
    }
}
