//! What is in a directory of logs that nobody has open? Read-only, offline: what it holds and whether it is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;

use super::change::{Change, changes};
use super::checkpoint::{Checkpoint, SavedLog};
use super::error::{DiskError, DiskResult};
use super::record::Salt;
use super::replay::{self, Replayed};
use super::segment::{self, SEGMENT_HEADER, Segment};
use super::tail::Chunk;
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// A log, as it will be when the directory is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// Names it in the cluster.
    pub name: LogName,
    /// First offset that is still there.
    pub start: Offset,
    /// Every epoch and the end.
    pub history: History,
    /// The end of what the segments hold; what follows is in the journal.
    pub filled: Offset,
    /// The directory was salvaged, and this copy may lack entries at its end.
    pub incomplete: bool,
    /// Its files, as of the last checkpoint.
    pub segments: Vec<SegmentReport>,
}

/// One file of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub file: String,
    /// Its first offset.
    pub base: Offset,
    /// The offset behind its last one.
    pub end: Offset,
    /// Its length in bytes.
    pub bytes: u64,
    /// Entries that are whole, if they were checked.
    pub entries: Option<u64>,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// A whole directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirReport {
    /// Every log.
    pub logs: Vec<LogReport>,
    /// What the journal holds beyond the checkpoint: it is replayed at the next opening.
    pub journal: Replayed,
    /// How many logs it changes.
    pub changed: usize,
}

impl DirReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let segments = self.logs.iter().flat_map(|log| &log.segments);
        self.journal.lost.is_none() && segments.into_iter().all(|segment| segment.damage.is_none())
    }
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names, sizes and the journal.
    Outline,
    /// Every checksum of every entry.
    EveryEntry,
}

/// Looks at a directory without changing anything in it.
pub fn inspect(dir: &Path, depth: Depth) -> DiskResult<DirReport> {
    let Some(checkpoint) = Checkpoint::load(dir)? else {
        let what = "there is no checkpoint: this is no directory of logs".to_owned();
        return Err(DiskError::Corrupt { dir: dir.display().to_string(), what });
    };
    let mut logs: BTreeMap<u64, LogReport> = BTreeMap::new();
    for saved in &checkpoint.logs {
        logs.insert(saved.id, report_of(saved, log_segments(&super::segments_dir(dir), saved, depth)?));
    }
    let mut changed = BTreeSet::new();
    let journal =
        replay::replay(&super::journal_dir(dir), checkpoint.key, checkpoint.next_group, |_, content| {
            for (log, change) in changes(&content).flatten() {
                changed.insert(log);
                foresee(&mut logs, log, change);
            }
            Ok(())
        })?;
    Ok(DirReport { logs: logs.into_values().collect(), journal, changed: changed.len() })
}

fn report_of(saved: &SavedLog, segments: Vec<SegmentReport>) -> LogReport {
    LogReport {
        name: saved.name.clone(),
        start: saved.start,
        history: saved.history.clone(),
        filled: saved.history.end(),
        incomplete: saved.incomplete,
        segments,
    }
}

/// What a change in the journal will make of the logs.
fn foresee(logs: &mut BTreeMap<u64, LogReport>, id: u64, change: Change<'_>) {
    if let Change::Create(name) = change {
        let (start, filled, history) = (Offset::ZERO, Offset::ZERO, History::default());
        let log = LogReport { name, start, history, filled, incomplete: false, segments: Vec::new() };
        logs.insert(id, log);
        return;
    }
    let Some(log) = logs.get_mut(&id) else { return };
    match change {
        Change::Append(records) => {
            let chunk = Chunk::of(Bytes::copy_from_slice(records));
            let entries = chunk.iter().flat_map(Chunk::entries);
            entries.for_each(|(_, epoch, _)| log.history.extend(epoch, 1));
        }
        Change::Cut(from) => {
            log.history.cut(from);
            log.filled = log.filled.min(from);
        }
        Change::Truncate(before) => log.start = log.start.max(before.min(log.history.end())),
        Change::Reset(history) => {
            (log.start, log.filled) = (history.end(), history.end());
            log.history = history;
        }
        Change::Trust => log.incomplete = false,
        Change::Remove => drop(logs.remove(&id)),
        Change::Create(_) => {}
    }
}

/// The files of a log. What stands behind the checkpoint is the journal's business, so the last file is checked up to
/// the checkpoint only.
fn log_segments(dir: &Path, saved: &SavedLog, depth: Depth) -> DiskResult<Vec<SegmentReport>> {
    let listed = std::fs::read_dir(dir).map_err(|error| DiskError::io(dir, &error))?;
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ours = names.filter_map(|name| segment::parse_name(&name)).filter(|(id, _)| *id == saved.id);
    let mut bases: Vec<Offset> = ours.map(|(_, base)| base).filter(|base| *base <= saved.active).collect();
    if saved.bytes > 0 && !bases.contains(&saved.active) {
        bases.push(saved.active);
    }
    bases.sort();
    let ends = bases.iter().skip(1).copied().chain([saved.history.end()]);
    bases.iter().zip(ends).map(|(base, end)| one_segment(dir, saved, (*base, end), depth)).collect()
}

fn one_segment(
    dir: &Path,
    saved: &SavedLog,
    (base, end): (Offset, Offset),
    depth: Depth,
) -> DiskResult<SegmentReport> {
    let file = segment::file_name(saved.id, base);
    let path = dir.join(&file);
    let there = match std::fs::metadata(&path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(DiskError::io(&path, &error)),
    };
    let bytes = if base == saved.active { saved.bytes } else { there };
    let mut report = SegmentReport { file, base, end, bytes, entries: None, damage: None };
    if bytes > there {
        report.damage = Some(format!("{} of {bytes} bytes are missing", bytes - there));
    }
    if depth == Depth::EveryEntry && there > 0 && bytes > 0 {
        check_entries(&mut report, dir, saved)?;
    }
    Ok(report)
}

fn check_entries(report: &mut SegmentReport, dir: &Path, saved: &SavedLog) -> DiskResult<()> {
    let segment = Segment::new(dir, saved.id, report.base, report.bytes);
    let file = std::fs::File::open(&segment.path).map_err(|error| DiskError::io(&segment.path, &error))?;
    let mut header = vec![0; SEGMENT_HEADER as usize];
    segment::read_at(&file, &segment.path, &mut header, 0)?;
    if segment::read_header(&header) != Some((saved.name.to_string(), report.base)) {
        report.damage = Some("its header is not what was written".to_owned());
    }
    let behind = segment.locate(&file, Salt::of(saved.name.as_ref()), Offset(u64::MAX))?;
    report.entries = Some(behind.offset.since(report.base));
    if behind.at < report.bytes {
        let what =
            format!("the entry at offset {} (byte {}) is not what was written", behind.offset, behind.at);
        report.damage = Some(what);
    } else if behind.offset < report.end {
        report.damage =
            Some(format!("the entries from offset {} to {} are not there", behind.offset, report.end));
    }
    Ok(())
}
