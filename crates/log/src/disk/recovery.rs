//! How is a directory opened? The checkpoint records what the files durably hold; the journal has everything after it.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use capstan_disk::Lock;

use super::Options;
use super::change::{Change, changes};
use super::checkpoint::{Checkpoint, new_id};
use super::error::{DiskError, DiskResult};
use super::files::{Files, Fs, sync_dir};
use super::fill::{Fill, Flush, Pen};
use super::replay::{self, Lost, Replayed};
use super::segment::parse_name;
use super::shelf::Shelf;
use super::tail::Chunk;
use super::writer::{Shelves, apply, find};
use crate::entry::Offset;
use crate::keys::LogName;

/// What was found when a directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// What was replayed from the journal; empty after a clean stop.
    pub replayed: Replayed,
    /// Logs whose last file is shorter than when it was synced: reads there fail until it is repaired.
    pub damaged: Vec<LogName>,
}

/// A recovered directory, ready for the writer.
pub struct Opened {
    pub(super) lock: Box<dyn Lock>,
    pub(super) shelves: Shelves,
    pub(super) files: Arc<Files>,
    /// The unique id of the directory.
    pub(super) id: String,
    pub(super) key: u32,
    pub(super) next_group: u64,
    pub(super) next_log: u64,
    pub(super) salvaged: bool,
    pub(super) recovery: Recovery,
    /// Set if the disk was too full to fill the segments; then the following fields are used too.
    pub(super) full: Option<DiskError>,
    /// Journal files that are still needed, each with its first group.
    pub(super) needed: Vec<(PathBuf, u64)>,
    pub(super) replayed_bytes: u64,
    pub(super) unfilled: BTreeSet<u64>,
    pub(super) tail_bytes: u64,
    pub(super) unsynced: BTreeSet<PathBuf>,
}

/// What to do about a journal with a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Acknowledged entries are lost: do not open.
    Refuse,
    /// Keep everything before the hole.
    Salvage {
        /// Whether copies stay marked as incomplete until they have caught up from another holder.
        distrust: bool,
    },
}

/// Recovers a directory, or creates one.
pub fn open(fs: &Fs, dir: &Path, options: &Options, holes: Holes) -> DiskResult<Opened> {
    let lock = prepare(fs, dir)?;
    let checkpoint = load(fs, dir)?;
    let files = Arc::new(Files::new(fs));
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
    let journal = super::journal_dir(dir);
    let replayed = replay::replay(fs, &journal, checkpoint.key, first, |number, content| {
        next_log = next_log.max(filling.take(number, &content, &files)? + 1);
        Ok(())
    })?;
    let mut salvaged = checkpoint.salvaged;
    let corrupt = |lost: &Lost| DiskError::Corrupt { dir: dir.display().to_string(), what: lost.to_string() };
    let next_group = match (&replayed.lost, holes) {
        (None, _) => first + replayed.groups,
        (Some(lost), Holes::Refuse) => return Err(corrupt(lost)),
        // Numbers are not reused.
        (Some(lost), Holes::Salvage { distrust }) => {
            let all = shelves.read().unwrap_or_else(PoisonError::into_inner);
            all.values().for_each(|shelf| shelf.distrust(distrust));
            salvaged |= distrust;
            lost.last + 1
        }
    };
    replay::erase(fs, &replayed.unacknowledged)?;
    filling.fill()?;
    let Filling { unfilled, touched, mut full, .. } = filling;
    let tail_bytes = unfilled.iter().filter_map(|log| find(&shelves, *log).ok());
    let tail_bytes = tail_bytes.map(|shelf| shelf.tail_bytes() as u64).sum();
    let damaged = trim(&shelves, &files)?;
    let mut unsynced = touched;
    let news = replayed.groups > 0 || replayed.torn.is_some() || replayed.lost.is_some();
    if full.is_none() && news {
        full = settle(
            (fs, dir),
            &shelves,
            &mut unsynced,
            Checkpoint { salvaged, next_group, next_log, ..checkpoint.clone() },
        )?;
    }
    let needed = if full.is_some() { replayed.files.clone() } else { Vec::new() };
    replay::persist(fs, &needed)?;
    Ok(Opened {
        lock,
        shelves,
        files,
        id: checkpoint.id,
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

/// Replays the journal, and moves tails into segments whenever enough have accumulated.
struct Filling<'a> {
    dir: &'a Path,
    shelves: &'a Shelves,
    pen: Pen,
    /// A log created here may be one that was lost here.
    salvaged: bool,
    /// The maximum bytes of tails in memory, unless the disk is full.
    most: u64,
    unfilled: BTreeSet<u64>,
    tail_bytes: u64,
    touched: BTreeSet<PathBuf>,
    full: Option<DiskError>,
}

impl Filling<'_> {
    /// Replays a group; returns the highest log id in it.
    fn take(&mut self, number: u64, content: &Bytes, files: &Files) -> DiskResult<u64> {
        let unknown = || DiskError::Corrupt {
            dir: self.dir.display().to_string(),
            what: format!("group {number} of the journal has unknown content"),
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
            if let (Change::Create(..), Ok(shelf)) = (&change, find(self.shelves, log)) {
                shelf.distrust(self.salvaged);
            };
            match happened {
                // A log that a later group removes may already have no files.
                Err(DiskError::NoSuchLog) => {}
                happened => happened?,
            }
        }
        if self.tail_bytes > self.most && self.full.is_none() {
            self.fill()?;
        }
        Ok(highest)
    }

    /// A full disk does not prevent opening: everything is in the journal and in memory.
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

fn prepare(fs: &Fs, dir: &Path) -> DiskResult<Box<dyn Lock>> {
    for wanted in [dir.to_owned(), super::segments_dir(dir), super::journal_dir(dir)] {
        fs.create_dirs(&wanted).map_err(|error| DiskError::io(&wanted, &error))?;
    }
    let path = dir.join("lock");
    let lock = fs.lock(&path).map_err(|error| DiskError::io(&path, &error))?;
    let lock = lock.ok_or_else(|| DiskError::Locked(dir.display().to_string()))?;
    // A killed process leaves names that are visible and not durable: of a checkpoint, whose journal would be
    // overwritten, and of journal files, which would be written. Those of directories are `create_dirs`' business.
    sync_dir(fs, dir)?;
    sync_dir(fs, &super::journal_dir(dir))?;
    Ok(lock)
}

/// The checkpoint, or a first one in an empty directory. Data without a checkpoint does not count as empty.
fn load(fs: &Fs, dir: &Path) -> DiskResult<Checkpoint> {
    match Checkpoint::load(fs, dir)? {
        Some(mut checkpoint) if checkpoint.id.is_empty() => {
            checkpoint.id = new_id();
            checkpoint.save(fs, dir)?;
            return Ok(checkpoint);
        }
        Some(checkpoint) => return Ok(checkpoint),
        None => {}
    }
    let segments = super::segments_dir(dir);
    let listed = fs.list(&segments).map_err(|error| DiskError::io(&segments, &error))?;
    if !listed.is_empty() {
        let what = "segments found without a checkpoint".to_owned();
        return Err(DiskError::Corrupt { dir: dir.display().to_string(), what });
    }
    let first = Checkpoint::empty();
    first.save(fs, dir)?;
    Ok(first)
}

/// The logs as of the checkpoint. Segments that begin after it were written later, so the journal has them.
fn restore(segments: &Path, checkpoint: &Checkpoint, files: &Files) -> DiskResult<Shelves> {
    let mut bases: HashMap<u64, Vec<Offset>> = HashMap::new();
    let listed = files.fs().list(segments).map_err(|error| DiskError::io(segments, &error))?;
    for name in listed {
        if let Some((log, base)) = parse_name(&name) {
            bases.entry(log).or_default().push(base);
        }
    }
    let mut shelves = std::collections::BTreeMap::new();
    for saved in &checkpoint.logs {
        let found = bases.remove(&saved.id).unwrap_or_default();
        for later in found.iter().filter(|base| **base > saved.active) {
            files.remove(&segments.join(super::segment::file_name(saved.id, *later)))?;
        }
        shelves.insert(saved.id, Arc::new(Shelf::restore(segments, saved, found, files)?));
    }
    for (log, orphans) in bases {
        for base in orphans {
            files.remove(&segments.join(super::segment::file_name(log, base)))?;
        }
    }
    Ok(Arc::new(RwLock::new(shelves)))
}

/// Cuts off data that never reached the journal; returns the logs that are too short.
fn trim(shelves: &Shelves, files: &Files) -> DiskResult<Vec<LogName>> {
    let mut damaged = Vec::new();
    for shelf in shelves.read().unwrap_or_else(PoisonError::into_inner).values() {
        if shelf.trim(files)? > 0 {
            damaged.push(shelf.name.clone());
        }
    }
    Ok(damaged)
}

/// Makes the replayed changes durable in the files, so that the journal starts over. Returns the error if there is no
/// space for the checkpoint.
fn settle(
    (fs, dir): (&Fs, &Path),
    shelves: &Shelves,
    unsynced: &mut BTreeSet<PathBuf>,
    checkpoint: Checkpoint,
) -> DiskResult<Option<DiskError>> {
    let logs = {
        let all = shelves.read().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|shelf| shelf.saved()).collect()
    };
    // Replayed cuts and resets changed files as well; syncing one too many is cheap.
    let active = shelves.read().unwrap_or_else(PoisonError::into_inner);
    unsynced.extend(active.values().map(|shelf| shelf.active_path()));
    drop(active);
    let flush = Flush { checkpoint: Checkpoint { logs, ..checkpoint }, paths: std::mem::take(unsynced) };
    match flush.perform(fs, dir) {
        Err(error @ DiskError::Full(_)) => {
            *unsynced = flush.paths;
            Ok(Some(error))
        }
        outcome => outcome.map(|()| None),
    }
}
