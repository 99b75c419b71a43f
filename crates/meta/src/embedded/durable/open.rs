//! How does a data directory come to be, and how is it read back?
//!
//! A directory counts as a store from the moment its first base has its name; before that there is a file of the log
//! without groups. So a base without its log, and a log with groups without its base, are damage.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capstan_disk::{Disk, Lock};

use super::base::{self, BaseHead, BaseWriter};
use super::frame::{HEADER, Kind};
use super::log::{FoundLog, LogFile, LogHead, failed, named};
use super::names::{self, Listing};
use super::{BaseFacts, Durable, Sealed, legacy, shown};
use crate::embedded::codec::{self, damaged};
use crate::embedded::engine::{Beside, EngineError, Loaded, Logged, OpenError};
use crate::embedded::recovery::Recovered;
use crate::kv::{KeyValue, LeaseId, Revision};

/// What a new data directory begins with.
pub struct Contents {
    /// Names the store among all that ever were.
    pub cluster_id: u64,
    /// Everything that lives at `revision`.
    pub keys: Vec<Arc<KeyValue>>,
    /// The revision that the store goes on from.
    pub revision: Revision,
    /// History before this may not be read.
    pub compacted: Revision,
    /// The leases that live.
    pub leases: Vec<(LeaseId, Duration)>,
    /// What is kept beside the keys.
    pub beside: Beside,
}

impl Contents {
    fn empty(cluster_id: u64) -> Contents {
        let (revision, compacted) = (Revision::FIRST, Revision(-1));
        let beside = Beside::default();
        Contents { cluster_id, keys: Vec::new(), revision, compacted, leases: Vec::new(), beside }
    }
}

/// Opens a data directory, or makes one, and rebuilds what it holds. What it holds is durable when this returns.
pub fn open(
    disk: Arc<dyn Disk>,
    dir: &Path,
    file_bytes: u64,
    new_cluster_id: u64,
) -> Result<(Durable, Recovered), OpenError> {
    let lock = take(&*disk, dir)?;
    let engine = |error: EngineError| OpenError::from_engine(dir, error);
    let found = list(&*disk, dir).map_err(engine)?;
    if found.restoring {
        return Err(OpenError::Unfinished(shown(dir)));
    }
    if found.bases.is_empty() {
        begin(&*disk, dir, file_bytes, new_cluster_id, &found).map_err(engine)?;
    }
    legacy::put_aside(&*disk, dir).map_err(engine)?;
    let found = list(&*disk, dir).map_err(engine)?;
    remove_leftovers(&*disk, dir, &found);
    let opened = Opening { disk: disk.clone(), dir, file_bytes }.read(&found, lock);
    opened.map_err(engine)
}

/// Fills an empty directory with a state that was saved elsewhere. If it does not get to its end, the directory cannot be
/// opened, and this can be done again.
pub fn create(disk: &dyn Disk, dir: &Path, file_bytes: u64, contents: &Contents) -> Result<(), OpenError> {
    let _lock = take(disk, dir)?;
    let engine = |error: EngineError| OpenError::from_engine(dir, error);
    let found = list(disk, dir).map_err(engine)?;
    // A directory with anything else in it is somebody else's, or was a store of an earlier version.
    let used = !found.restoring && (!found.bases.is_empty() || !found.logs.is_empty());
    if used || !found.foreign.is_empty() {
        return Err(OpenError::NotEmpty(shown(dir)));
    }
    let fill = || {
        let marker = dir.join(names::RESTORING);
        disk.create(&marker).map_err(|error| failed(&marker, &error))?;
        disk.sync_dir(dir).map_err(|error| failed(dir, &error))?;
        remove_logs(disk, dir, &found.logs)?;
        found.bases.iter().try_for_each(|base| remove(disk, dir, &names::base(*base)))?;
        begin_log(disk, dir, file_bytes, contents.cluster_id)?;
        write_base(disk, dir, contents)?;
        remove(disk, dir, names::RESTORING)?;
        disk.sync_dir(dir).map_err(|error| failed(dir, &error))
    };
    fill().map_err(engine)
}

/// Makes the directory and locks it.
fn take(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Lock>, OpenError> {
    let unusable = |error: std::io::Error| OpenError::Unusable { dir: shown(dir), what: error.to_string() };
    disk.create_dirs(dir).map_err(unusable)?;
    disk.lock(&dir.join(names::LOCK)).map_err(unusable)?.ok_or_else(|| OpenError::Locked(shown(dir)))
}

fn list(disk: &dyn Disk, dir: &Path) -> Result<Listing, EngineError> {
    let names = disk.list(dir).map_err(|error| failed(dir, &error))?;
    Ok(Listing::of(&names))
}

/// Makes the first base of a directory: of an older format's data, or of nothing.
fn begin(
    disk: &dyn Disk,
    dir: &Path,
    file_bytes: u64,
    new_cluster_id: u64,
    found: &Listing,
) -> Result<(), EngineError> {
    let older = legacy::load(disk, dir)?;
    if older.is_none() {
        for number in &found.logs {
            let (_, content, head) = LogFile::read(disk, dir, *number)?;
            if !LogFile::scan(dir, &content, head)?.frames.is_empty() {
                return Err(damaged("there is a log, and the base that it goes on from is missing"));
            }
        }
    }
    remove_logs(disk, dir, &found.logs)?;
    let Some(older) = older else {
        begin_log(disk, dir, file_bytes, new_cluster_id)?;
        return write_base(disk, dir, &Contents::empty(new_cluster_id)).map(drop);
    };
    tracing::info!(dir = %dir.display(), "importing the data of an earlier version");
    let (contents, history) = older.split();
    begin_log(disk, dir, u64::MAX, contents.cluster_id)?;
    fill_log(disk, dir, &history)?;
    write_base(disk, dir, &contents)
}

/// The number of the first file of a log, and of the first base.
const FIRST: u64 = 1;

fn begin_log(disk: &dyn Disk, dir: &Path, limit: u64, cluster_id: u64) -> Result<(), EngineError> {
    let head = LogHead { cluster_id, number: FIRST, first_group: FIRST };
    LogFile::create(disk, dir, head, limit).map(drop)
}

/// Bytes of imported history in one group: few large ones, because each is a sync, and none that is too large to be read.
const IMPORT_BYTES: usize = 1 << 20;

/// Writes history into a log that has none.
fn fill_log(disk: &dyn Disk, dir: &Path, history: &[Logged]) -> Result<(), EngineError> {
    let (file, content, head) = LogFile::read(disk, dir, FIRST)?;
    let scan = LogFile::scan(dir, &content, head)?;
    let mut log = LogFile::resume(file, &content, head, &scan, (dir, u64::MAX))?;
    let mut group = head.first_group;
    let mut write = |mut frame: Vec<u8>| {
        log.seal(&mut frame, Kind::Group, group);
        group += 1;
        log.append(&frame, dir)
    };
    let mut frame = super::frame::begin(IMPORT_BYTES);
    for logged in history {
        codec::put_logged(&mut frame, logged);
        if frame.len() >= IMPORT_BYTES {
            write(std::mem::replace(&mut frame, super::frame::begin(IMPORT_BYTES)))?;
        }
    }
    if frame.len() > HEADER { write(frame) } else { Ok(()) }
}

fn write_base(disk: &dyn Disk, dir: &Path, contents: &Contents) -> Result<(), EngineError> {
    let head = BaseHead {
        cluster_id: contents.cluster_id,
        number: FIRST,
        revision: contents.revision,
        compacted: contents.compacted,
        log_from: FIRST,
        leases: contents.leases.clone(),
        beside: contents.beside.clone(),
    };
    let mut base = BaseWriter::begin(disk, dir, &head)?;
    contents.keys.iter().try_for_each(|kv| base.add(kv))?;
    base.finish().map(drop)
}

fn remove(disk: &dyn Disk, dir: &Path, name: &str) -> Result<(), EngineError> {
    let path = dir.join(name);
    disk.remove(&path).map_err(|error| failed(&path, &error))
}

fn remove_logs(disk: &dyn Disk, dir: &Path, logs: &[u64]) -> Result<(), EngineError> {
    logs.iter().try_for_each(|number| remove(disk, dir, &names::log(*number)))
}

/// Removes what a crash left of files that were being made.
fn remove_leftovers(disk: &dyn Disk, dir: &Path, found: &Listing) {
    for draft in &found.drafts {
        // What cannot be removed is in nobody's way.
        disk.remove(&dir.join(draft)).ok();
    }
}

/// A directory being read.
struct Opening<'a> {
    disk: Arc<dyn Disk>,
    dir: &'a Path,
    file_bytes: u64,
}

impl Opening<'_> {
    fn read(self, found: &Listing, lock: Box<dyn Lock>) -> Result<(Durable, Recovered), EngineError> {
        let newest = *found.bases.last().ok_or_else(|| damaged("the base is missing"))?;
        let (head, keys, bytes) = base::read(&*self.disk, self.dir, newest)?;
        let base = BaseFacts { number: newest, revision: head.revision, bytes };
        self.check_logs(found, &head)?;
        let mut recovered = Recovered::begin(Loaded {
            base: keys,
            base_revision: head.revision,
            leases: head.leases,
            compacted: head.compacted,
            beside: head.beside,
        });
        let mut sealed = std::collections::VecDeque::new();
        let mut first_group = None;
        let last = found.logs.last().copied().unwrap_or(head.log_from);
        for number in head.log_from..last {
            let (_, content, log) = self.read_log(number, head.cluster_id, first_group)?;
            let scan = LogFile::scan(self.dir, &content, log)?;
            if scan.torn_until.is_some() {
                return Err(named(&names::log_path(self.dir, number), damaged("its end is lost")));
            }
            self.replay(&content, log, &scan.frames, &mut recovered)?;
            first_group = Some(log.first_group + scan.frames.len() as u64);
            let last = recovered.revision();
            sealed.push_back(Sealed { number, bytes: scan.end as u64, last });
        }
        let (file, content, log) = self.read_log(last, head.cluster_id, first_group)?;
        let scan = LogFile::scan(self.dir, &content, log)?;
        self.replay(&content, log, &scan.frames, &mut recovered)?;
        let current = LogFile::resume(file, &content, log, &scan, (self.dir, self.file_bytes))?;
        self.disk.sync_dir(self.dir).map_err(|error| failed(self.dir, &error))?;
        if scan.torn_until.is_some() {
            let dir = self.dir.display();
            tracing::warn!(%dir, file = last, "cut off a torn write: it was never acknowledged");
        }
        let marked =
            scan.torn_until.is_some() || scan.frames.last().is_none_or(|frame| frame.kind == Kind::Mark);
        let mut durable = Durable {
            disk: self.disk,
            dir: self.dir.to_owned(),
            cluster_id: head.cluster_id,
            sealed,
            current,
            head: recovered.revision(),
            next_group: log.first_group + scan.frames.len() as u64,
            marked,
            base,
            file_bytes: self.file_bytes,
            turn: Arc::default(),
            broken: false,
            _lock: lock,
        };
        durable.remove_former(found, newest, head.log_from);
        Ok((durable, recovered))
    }

    /// All files from the base on must be there, one behind the other.
    fn check_logs(&self, found: &Listing, base: &BaseHead) -> Result<(), EngineError> {
        let needed: Vec<u64> = found.logs.iter().copied().filter(|number| *number >= base.log_from).collect();
        let expected: Vec<u64> = (base.log_from..).take(needed.len().max(1)).collect();
        match expected.iter().find(|number| !needed.contains(number)) {
            Some(missing) => Err(damaged(format!("{} is missing", names::log(*missing)))),
            None => Ok(()),
        }
    }

    fn read_log(
        &self,
        number: u64,
        cluster_id: u64,
        first_group: Option<u64>,
    ) -> Result<FoundLog, EngineError> {
        let (file, content, head) = LogFile::read(&*self.disk, self.dir, number)?;
        if head.cluster_id != cluster_id {
            return Err(damaged(format!("{} belongs to another store", names::log(number))));
        }
        match first_group.filter(|expected| *expected != head.first_group) {
            Some(expected) => Err(damaged(format!(
                "{} begins with group {}, but group {expected} is the next one",
                names::log(number),
                head.first_group
            ))),
            None => Ok((file, content, head)),
        }
    }

    fn replay(
        &self,
        content: &[u8],
        log: LogHead,
        frames: &[super::frame::Frame],
        recovered: &mut Recovered,
    ) -> Result<(), EngineError> {
        let path = names::log_path(self.dir, log.number);
        for frame in frames {
            match frame.kind {
                Kind::Group => {
                    let entries = codec::read_entries(&content[frame.payload.clone()]);
                    let applied = entries.and_then(|entries| {
                        entries.into_iter().try_for_each(|logged| recovered.apply(logged))
                    });
                    applied.map_err(|error| named(&path, error))?;
                }
                Kind::Mark => {}
                Kind::Head | Kind::Rows | Kind::End => {
                    return Err(named(&path, damaged("a frame is out of place")));
                }
            }
        }
        Ok(())
    }
}

impl Durable {
    /// Removes what is older than the base: a crash may have come before it was.
    fn remove_former(&mut self, found: &Listing, base: u64, log_from: u64) {
        let bases = found.bases.iter().filter(|number| **number < base).map(|number| names::base(*number));
        let logs = found.logs.iter().filter(|number| **number < log_from).map(|number| names::log(*number));
        for name in bases.chain(logs) {
            if let Err(error) = remove(&*self.disk, &self.dir, &name) {
                tracing::warn!(%error, "cannot remove a file that is not needed any more");
            }
        }
    }
}
