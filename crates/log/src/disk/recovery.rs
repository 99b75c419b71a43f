//! How is a directory opened? The checkpoint says what the files durably hold; the journal says what came after.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::{Arc, RwLock};

use super::Options;
use super::change::changes;
use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::files::{Files, sync_dir};
use super::journal::{self, Replayed};
use super::segment::parse_name;
use super::shelf::Shelf;
use super::writer::{Flush, Shelves, apply};
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
    pub(super) recovery: Recovery,
}

/// Brings a directory up to date, or makes one.
pub fn open(dir: &Path, options: &Options) -> DiskResult<Opened> {
    let segments = super::segments_dir(dir);
    let journals = super::journal_dir(dir);
    let lock = prepare(dir)?;
    let checkpoint = load(dir)?;
    let files = Arc::new(Files::default());
    let shelves = restore(&segments, &checkpoint, &files)?;
    let mut next_log = checkpoint.next_log;
    let replayed = journal::replay(&journals, checkpoint.key, checkpoint.next_group, |number, content| {
        for change in changes(content) {
            let (log, change) = change.ok_or_else(|| DiskError::Corrupt {
                dir: dir.display().to_string(),
                what: format!("group {number} of the journal holds something unknown"),
            })?;
            next_log = next_log.max(log + 1);
            match apply(log, &change, dir, &shelves, &files, options.segment_bytes) {
                // A log that a later group removes may have lost its place already.
                Err(DiskError::NoSuchLog) => {}
                applied => applied?,
            }
        }
        Ok(())
    })?;
    let damaged = trim(&shelves, &files)?;
    let next_group = checkpoint.next_group + replayed.groups;
    if replayed.groups > 0 || replayed.torn.is_some() {
        settle(dir, &shelves, checkpoint.key, next_group, next_log)?;
    }
    let recovery = Recovery { replayed, damaged };
    Ok(Opened { lock, shelves, files, key: checkpoint.key, next_group, next_log, recovery })
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
    for shelf in shelves.read().unwrap_or_else(std::sync::PoisonError::into_inner).values() {
        if shelf.trim(files)? > 0 {
            damaged.push(shelf.name.clone());
        }
    }
    Ok(damaged)
}

/// What was replayed is in the files now: makes that durable, so that the journal begins anew.
fn settle(dir: &Path, shelves: &Shelves, key: u32, next_group: u64, next_log: u64) -> DiskResult<()> {
    let all = shelves.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let paths = all.values().flat_map(|shelf| shelf.paths()).collect();
    let logs = all.values().map(|shelf| shelf.saved()).collect();
    Flush { checkpoint: Checkpoint::of(key, next_group, next_log, logs), paths }.perform(dir)
}
