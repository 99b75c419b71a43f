//! What is in a directory of logs that nobody has open? Read-only, offline: what it holds and whether it is whole.

use std::collections::BTreeMap;
use std::path::Path;

use super::change::changes;
use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::record::Salt;
use super::replay::{self, Replayed};
use super::segment::{self, SEGMENT_HEADER, Segment};
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// A log, as the checkpoint and the files have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// Names it in the cluster.
    pub name: LogName,
    /// First offset that is still there.
    pub start: Offset,
    /// Every epoch and the end, as of the last checkpoint.
    pub history: History,
    /// Its files.
    pub segments: Vec<SegmentReport>,
}

/// One file of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub file: String,
    /// Its first offset.
    pub base: Offset,
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
    /// Every log of the checkpoint.
    pub logs: Vec<LogReport>,
    /// What the journal holds beyond the checkpoint: it is replayed at the next opening.
    pub journal: Replayed,
    /// How many changes of each kind of log (by id) those are.
    pub pending: BTreeMap<u64, u64>,
    /// What is wrong with the directory as a whole.
    pub damage: Option<String>,
}

impl DirReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let segments = self.logs.iter().flat_map(|log| &log.segments);
        self.damage.is_none() && segments.into_iter().all(|segment| segment.damage.is_none())
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
    let mut pending = BTreeMap::new();
    let replayed =
        replay::replay(&super::journal_dir(dir), checkpoint.key, checkpoint.next_group, |_, content| {
            for (log, _) in changes(&content).flatten() {
                *pending.entry(log).or_default() += 1;
            }
            Ok(())
        });
    let (journal, damage) = match replayed {
        Ok(journal) => (journal, None),
        Err(DiskError::Corrupt { what, .. }) => (Replayed::default(), Some(what)),
        Err(error) => return Err(error),
    };
    let segments = super::segments_dir(dir);
    let logs = checkpoint.logs.iter().map(|saved| {
        Ok(LogReport {
            name: saved.name.clone(),
            start: saved.start,
            history: saved.history.clone(),
            segments: log_segments(&segments, saved.id, &saved.name, (saved.active, saved.bytes), depth)?,
        })
    });
    Ok(DirReport { logs: logs.collect::<DiskResult<_>>()?, journal, pending, damage })
}

/// The files of a log. What stands behind the checkpoint is the journal's business, so the last file is checked up to
/// the checkpoint only.
fn log_segments(
    dir: &Path,
    log: u64,
    name: &LogName,
    active: (Offset, u64),
    depth: Depth,
) -> DiskResult<Vec<SegmentReport>> {
    let listed = std::fs::read_dir(dir).map_err(|error| DiskError::io(dir, &error))?;
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut bases: Vec<Offset> = names
        .filter_map(|name| segment::parse_name(&name))
        .filter(|(id, _)| *id == log)
        .map(|(_, base)| base)
        .filter(|base| *base <= active.0)
        .collect();
    bases.sort();
    bases.into_iter().map(|base| one_segment(dir, log, name, base, active, depth)).collect()
}

fn one_segment(
    dir: &Path,
    log: u64,
    name: &LogName,
    base: Offset,
    active: (Offset, u64),
    depth: Depth,
) -> DiskResult<SegmentReport> {
    let file = segment::file_name(log, base);
    let path = dir.join(&file);
    let there = std::fs::metadata(&path).map_err(|error| DiskError::io(&path, &error))?.len();
    let bytes = if base == active.0 { active.1 } else { there };
    let mut report = SegmentReport { file, base, bytes, entries: None, damage: None };
    if bytes > there {
        report.damage = Some(format!("{} bytes are missing", bytes - there));
    }
    if depth == Depth::EveryEntry && bytes > 0 {
        check_entries(&mut report, dir, log, name)?;
    }
    Ok(report)
}

fn check_entries(report: &mut SegmentReport, dir: &Path, log: u64, name: &LogName) -> DiskResult<()> {
    let segment = Segment::new(dir, log, report.base, report.bytes);
    let file = std::fs::File::open(&segment.path).map_err(|error| DiskError::io(&segment.path, &error))?;
    let mut header = vec![0; SEGMENT_HEADER as usize];
    segment::read_at(&file, &segment.path, &mut header, 0)?;
    if segment::read_header(&header) != Some((name.to_string(), report.base)) {
        report.damage = Some("its header is not what was written".to_owned());
    }
    let behind = segment.locate(&file, Salt::of(name.as_ref()), Offset(u64::MAX))?;
    report.entries = Some(behind.offset.since(report.base));
    if behind.at < report.bytes {
        report.damage =
            Some(format!("the entry at offset {} (byte {}) is damaged", behind.offset, behind.at));
    }
    Ok(())
}
