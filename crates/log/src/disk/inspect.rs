//! What is in a log directory that no process has open? Read-only: its content and whether it is intact.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::change::{Change, changes};
use super::checkpoint::{Checkpoint, SavedLog};
use super::error::{DiskError, DiskResult};
use super::files::Fs;
use super::record::Salt;
use super::replay::{self, Replayed};
use super::segment::{self, SEGMENT_HEADER, Segment};
use super::tail::Chunk;
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// A log as it will be after the directory is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// Its name in the cluster.
    pub name: LogName,
    /// The first offset that is still present.
    pub start: Offset,
    /// All epochs and the end.
    pub history: History,
    /// The end of what the segments hold; later entries are in the journal.
    pub filled: Offset,
    /// Whether the directory was salvaged and this copy may lack entries at its end.
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
    /// The offset after its last entry.
    pub end: Offset,
    /// Its length in bytes.
    pub bytes: u64,
    /// The number of intact entries, if they were verified.
    pub entries: Option<u64>,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// A whole directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirReport {
    /// Every log.
    pub logs: Vec<LogReport>,
    /// What the journal holds beyond the checkpoint; it is replayed at the next open.
    pub journal: Replayed,
    /// How many logs the journal changes.
    pub changed: usize,
}

impl DirReport {
    /// Whether no damage was found.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let segments = self.logs.iter().flat_map(|log| &log.segments);
        self.journal.lost.is_none() && segments.into_iter().all(|segment| segment.damage.is_none())
    }
}

/// How thoroughly to inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names, sizes and the journal.
    Outline,
    /// Every checksum of every entry.
    EveryEntry,
}

/// Inspects a directory without changing it.
pub fn inspect(dir: &Path, depth: Depth) -> DiskResult<DirReport> {
    let fs: Fs = Arc::new(capstan_disk::Os);
    let Some(checkpoint) = Checkpoint::load(&fs, dir)? else {
        let what = "no checkpoint found: not a log directory".to_owned();
        return Err(DiskError::Corrupt { dir: dir.display().to_string(), what });
    };
    let reports = checkpoint.logs.iter().map(|saved| (saved.id, report_of(saved)));
    let mut logs: BTreeMap<u64, LogReport> = reports.collect();
    let mut changed = BTreeSet::new();
    let mut cuts: BTreeMap<u64, Offset> = BTreeMap::new();
    let (journal, first) = (super::journal_dir(dir), checkpoint.next_group);
    let journal = replay::replay(&fs, &journal, checkpoint.key, first, |_, content| {
        for (log, change) in changes(&content).flatten() {
            changed.insert(log);
            if let Change::Cut(from) = &change {
                cuts.entry(log).and_modify(|first| *first = (*first).min(*from)).or_insert(*from);
            }
            foresee(&mut logs, log, change);
        }
        Ok(())
    })?;
    for saved in &checkpoint.logs {
        let Some(report) = logs.get_mut(&saved.id) else { continue };
        // After a cut that the journal repeats, the files may have either of two epochs.
        let mut epochs = saved.history.clone();
        epochs.cut(cuts.get(&saved.id).copied().unwrap_or(epochs.end()));
        let files = LogFiles { fs: &fs, dir: &super::segments_dir(dir), saved, epochs: &epochs, depth };
        report.segments = files.segments()?;
    }
    Ok(DirReport { logs: logs.into_values().collect(), journal, changed: changed.len() })
}

fn report_of(saved: &SavedLog) -> LogReport {
    LogReport {
        name: saved.name.clone(),
        start: saved.start,
        history: saved.history.clone(),
        filled: saved.history.end(),
        incomplete: saved.incomplete,
        segments: Vec::new(),
    }
}

/// Applies a journal change to the reports.
fn foresee(logs: &mut BTreeMap<u64, LogReport>, id: u64, change: Change<'_>) {
    if let Change::Create(name, _) = change {
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
        Change::Create(..) | Change::Committed(_) => {}
    }
}

/// The files of a log. Data after the checkpoint belongs to the journal, so the last file is checked only up to the
/// checkpoint.
struct LogFiles<'a> {
    fs: &'a Fs,
    dir: &'a Path,
    saved: &'a SavedLog,
    /// The epochs that are certain.
    epochs: &'a History,
    depth: Depth,
}

impl LogFiles<'_> {
    fn segments(&self) -> DiskResult<Vec<SegmentReport>> {
        let saved = self.saved;
        let names = self.fs.list(self.dir).map_err(|error| DiskError::io(self.dir, &error))?;
        let ours =
            names.iter().filter_map(|name| segment::parse_name(name)).filter(|(id, _)| *id == saved.id);
        let mut bases: Vec<Offset> =
            ours.map(|(_, base)| base).filter(|base| *base <= saved.active).collect();
        if saved.bytes > 0 && !bases.contains(&saved.active) {
            bases.push(saved.active);
        }
        bases.sort();
        let ends = bases.iter().skip(1).copied().chain([saved.history.end()]);
        bases.iter().zip(ends).map(|(base, end)| self.segment(*base, end)).collect()
    }

    fn segment(&self, base: Offset, end: Offset) -> DiskResult<SegmentReport> {
        let saved = self.saved;
        let file = segment::file_name(saved.id, base);
        let path = self.dir.join(&file);
        let there = match self.fs.size(&path) {
            Ok(size) => size,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(DiskError::io(&path, &error)),
        };
        let bytes = if base == saved.active { saved.bytes } else { there };
        let mut report = SegmentReport { file, base, end, bytes, entries: None, damage: None };
        if bytes > there {
            report.damage = Some(format!("{} of {bytes} bytes are missing", bytes - there));
        }
        if self.depth == Depth::EveryEntry && there > 0 && bytes > 0 {
            self.check_entries(&mut report)?;
        }
        Ok(report)
    }

    fn check_entries(&self, report: &mut SegmentReport) -> DiskResult<()> {
        let saved = self.saved;
        let segment = Segment::new(self.dir, saved.id, report.base, report.bytes);
        let opened = self.fs.open_read(&segment.path);
        let file = opened.map_err(|error| DiskError::io(&segment.path, &error))?;
        let mut header = vec![0; SEGMENT_HEADER as usize];
        segment::read_at(&*file, &segment.path, &mut header, 0)?;
        if segment::read_header(&header) != Some((saved.name.to_string(), report.base)) {
            report.damage = Some("its header is not what was written".to_owned());
        }
        let salt = Salt::of(saved.name.as_ref());
        let behind = segment.locate(&*file, salt, Offset(u64::MAX), self.epochs)?;
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
}
