//! Data directories of format 1: a SQLite database with a write-ahead log. They are read once, and written anew.
//!
//! The database stays in the directory under another name, so that an earlier version can be gone back to.

mod wal;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capstan_disk::Disk;
use rusqlite::{Connection, ErrorCode};

use super::log::failed;
use super::open::Contents;
use crate::embedded::codec::{self, Reader, damaged};
use crate::embedded::engine::{Beside, EngineError, Logged};
use crate::kv::{KeyValue, LeaseId, Revision};

/// The format that is read here.
const FORMAT: i64 = 1;

/// The database in a directory of that format, and what SQLite keeps beside it.
const FILES: [&str; 3] = ["meta.db", "meta.db-wal", "meta.db-shm"];

/// Appended to the names of files that were imported.
const IMPORTED: &str = ".imported";

/// Whether there is data of format 1.
fn exists(disk: &dyn Disk, dir: &Path) -> bool {
    disk.list(dir).is_ok_and(|names| names.iter().any(|name| name == FILES[0]))
}

/// Gives the database another name: everything in it is in the new format, durably.
pub(super) fn put_aside(disk: &dyn Disk, dir: &Path) -> Result<(), EngineError> {
    if !exists(disk, dir) {
        return Ok(());
    }
    let present = disk.list(dir).map_err(|error| failed(dir, &error))?;
    // The database last: as long as it has its name, this is done again.
    for name in FILES.iter().rev().filter(|name| present.iter().any(|there| there == *name)) {
        let path = dir.join(name);
        disk.rename(&path, &dir.join(format!("{name}{IMPORTED}"))).map_err(|error| failed(&path, &error))?;
    }
    disk.sync_dir(dir).map_err(|error| failed(dir, &error))
}

/// What a directory of format 1 holds.
pub(super) struct Older {
    contents: Contents,
    history: Vec<Logged>,
}

impl Older {
    pub(super) fn split(self) -> (Contents, Vec<Logged>) {
        (self.contents, self.history)
    }
}

/// Reads everything, if there is such a database.
pub(super) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Older>, EngineError> {
    if !exists(disk, dir) {
        return Ok(None);
    }
    let path = dir.join(FILES[0]);
    if let Some(torn) = wal::check(&path)? {
        tracing::warn!(dir = %dir.display(), what = %torn, "cut off a torn write: it was never acknowledged");
    }
    let db = Connection::open(&path)?;
    let format: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match format {
        // A process was killed before it had made its tables.
        0 => return Ok(None),
        FORMAT => {}
        newer => return Err(EngineError::Newer(newer)),
    }
    db.execute_batch("PRAGMA locking_mode = EXCLUSIVE;")?;
    let state = State::read(&db)?;
    let older = Older {
        history: load_log(&db, state.base_revision)?,
        contents: Contents {
            cluster_id: state.cluster_id,
            keys: load_base(&db, state.base_digest)?,
            revision: state.base_revision,
            compacted: state.compacted,
            leases: load_leases(&db)?,
            beside: Beside::default(),
        },
    };
    db.close().map_err(|(_, error)| EngineError::from(error))?;
    Ok(Some(older))
}

/// The facts in the one row of the table `state`.
struct State {
    cluster_id: u64,
    base_revision: Revision,
    compacted: Revision,
    base_digest: u64,
}

impl State {
    fn read(db: &Connection) -> Result<State, EngineError> {
        let row: Vec<u8> = db.query_row("SELECT data FROM state", [], |row| row.get(0))?;
        let mut fields = Reader(codec::unsealed(b"state", &row)?);
        Ok(State {
            cluster_id: fields.u64()?,
            base_revision: Revision(fields.i64()?),
            compacted: Revision(fields.i64()?),
            base_digest: fields.u64()?,
        })
    }
}

fn load_base(db: &Connection, expected: u64) -> Result<Vec<Arc<KeyValue>>, EngineError> {
    let mut statement = db.prepare("SELECT key, data FROM base ORDER BY key")?;
    let mut rows = statement.query([])?;
    let mut base = Vec::new();
    let mut digest = 0u64;
    while let Some(row) = rows.next()? {
        let (key, data) = (blob(row, 0)?, blob(row, 1)?);
        digest = digest.wrapping_add(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data));
        base.push(Arc::new(codec::read_base_row(key, data)?));
    }
    if digest != expected {
        return Err(damaged("the base does not match its digest: rows are missing or were changed"));
    }
    Ok(base)
}

fn load_log(db: &Connection, base: Revision) -> Result<Vec<Logged>, EngineError> {
    let mut statement = db.prepare("SELECT data FROM log ORDER BY first")?;
    let mut rows = statement.query([])?;
    let mut log = Vec::new();
    while let Some(row) = rows.next()? {
        let changes = codec::read_log_row(blob(row, 0)?)?;
        log.extend(changes.into_iter().filter(|logged| match logged {
            Logged::Change(revision, _) => *revision > base,
            Logged::LeaseGranted(..)
            | Logged::LeaseEnded(_)
            | Logged::Compacted(_)
            | Logged::Users(_)
            | Logged::Alarm(_) => true,
        }));
    }
    Ok(log)
}

fn load_leases(db: &Connection) -> Result<Vec<(LeaseId, Duration)>, EngineError> {
    let mut statement = db.prepare("SELECT id, ttl FROM lease ORDER BY id")?;
    let leases = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let read = |lease: rusqlite::Result<(i64, i64)>| -> Result<(LeaseId, Duration), EngineError> {
        let (id, ttl) = lease?;
        let ttl = u64::try_from(ttl).map_err(|_| damaged("a lease has a negative time to live"))?;
        Ok((LeaseId(id), Duration::from_secs(ttl)))
    };
    leases.map(read).collect()
}

fn blob<'r>(row: &'r rusqlite::Row<'_>, column: usize) -> Result<&'r [u8], EngineError> {
    row.get_ref(column)?.as_blob().map_err(|_| damaged("a column has another type"))
}

impl From<rusqlite::Error> for EngineError {
    fn from(error: rusqlite::Error) -> EngineError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => EngineError::Full,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                EngineError::Corrupt(error.to_string())
            }
            _ => EngineError::Failed(error.to_string()),
        }
    }
}
