//! The durable engine: SQLite as a checksummed log of revisions over a base.
//!
//! The state lives in memory; this is only what it is rebuilt from. `log` has a row per group commit, with all its
//! revisions; `base` has what lived at `base_revision`. Folding moves old rows of the log into the base, so that
//! opening costs what lives plus what is recent, and writing costs one row and one sync per group.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, params};

use super::codec::{self, damaged};
use super::engine::{DiskSize, Engine, EngineError, Entry, Fold, Loaded, LoggedChange, OpenError};
use super::history::Change;
use super::wal;
use crate::kv::{KeyValue, LeaseId, Revision};

/// Format of the data directory that this version writes and reads.
pub const FORMAT: i64 = 1;

/// Name of the database inside the data directory.
pub const FILE: &str = "meta.db";

/// Pages in SQLite's write-ahead log before it is carried over: 16 MiB, about 40,000 small writes.
const CHECKPOINT_PAGES: i64 = 4000;

/// Settings of every connection. `FULL` syncs the write-ahead log at each commit: durable when it returns.
const SETTINGS: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA temp_store = MEMORY;
    PRAGMA cache_size = -4096;
";

const SCHEMA: &str = "
    CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), data BLOB NOT NULL);
    CREATE TABLE base (key BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE log (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, data BLOB NOT NULL);
    CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL);
";

/// An open data directory.
pub struct Sqlite {
    db: Connection,
    path: PathBuf,
    state: State,
    torn: Option<String>,
    /// Held as long as the directory is open.
    _lock: File,
}

/// The engine's own facts, kept in one checksummed row.
#[derive(Clone, Copy, Debug)]
struct State {
    cluster_id: u64,
    base_revision: Revision,
    compacted: Revision,
    /// Sum over the base's rows: a row that is missing or was changed behind our back is noticed.
    base_digest: u64,
}

impl Sqlite {
    /// Opens a data directory, or makes one.
    pub fn open(dir: &Path, new_cluster_id: u64) -> Result<Sqlite, OpenError> {
        let unusable = |what: String| OpenError::Unusable { dir: dir.display().to_string(), what };
        std::fs::create_dir_all(dir).map_err(|error| unusable(error.to_string()))?;
        let lock = lock(dir)?;
        let path = dir.join(FILE);
        let torn = wal::check(&path).map_err(|error| OpenError::from_engine(dir, error))?;
        let db = Connection::open(&path).map_err(|error| OpenError::from_engine(dir, error.into()))?;
        let state = prepare(&db, new_cluster_id).map_err(|error| match error {
            PrepareError::Newer(found) => {
                OpenError::Newer { dir: dir.display().to_string(), found, known: FORMAT }
            }
            PrepareError::Engine(error) => OpenError::from_engine(dir, error),
        })?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| unusable(error.to_string()))?;
        Ok(Sqlite { db, path, state, torn, _lock: lock })
    }

    /// Fills an empty data directory with a state that was saved elsewhere.
    pub fn fill(
        &mut self,
        base: &[Arc<KeyValue>],
        revision: Revision,
        leases: &[(LeaseId, Duration)],
    ) -> Result<(), EngineError> {
        let tx = self.db.transaction()?;
        let mut state = State { base_revision: revision, compacted: revision, ..self.state };
        for kv in base {
            let row = codec::base_row(kv);
            state.base_digest = state.base_digest.wrapping_add(codec::row_digest(&row));
            tx.prepare_cached("INSERT INTO base (key, data) VALUES (?1, ?2)")?
                .execute(params![&kv.key[..], row])?;
        }
        for (id, ttl) in leases {
            grant(&tx, *id, *ttl)?;
        }
        state.write(&tx)?;
        tx.commit()?;
        self.state = state;
        Ok(())
    }

    fn load_base(&self) -> Result<Vec<Arc<KeyValue>>, EngineError> {
        let mut statement = self.db.prepare("SELECT key, data FROM base ORDER BY key")?;
        let mut rows = statement.query([])?;
        let mut base = Vec::new();
        let mut digest = 0u64;
        while let Some(row) = rows.next()? {
            let (key, data) = (blob(row, 0)?, blob(row, 1)?);
            digest = digest.wrapping_add(codec::row_digest(data));
            base.push(Arc::new(codec::read_base_row(key, data)?));
        }
        if digest != self.state.base_digest {
            return Err(damaged("the base does not match its digest: rows are missing or were changed"));
        }
        Ok(base)
    }

    fn load_log(&self) -> Result<Vec<LoggedChange>, EngineError> {
        let mut statement = self.db.prepare("SELECT data FROM log ORDER BY first")?;
        let mut rows = statement.query([])?;
        let mut log = Vec::new();
        let mut last = self.state.base_revision;
        while let Some(row) = rows.next()? {
            for (revision, versions) in codec::read_log_row(blob(row, 0)?)? {
                if revision <= self.state.base_revision {
                    continue;
                }
                if revision != last.next() {
                    return Err(damaged(format!("revision {} is followed by {revision}", last)));
                }
                last = revision;
                log.push((revision, versions));
            }
        }
        Ok(log)
    }

    fn load_leases(&self) -> Result<Vec<(LeaseId, Duration)>, EngineError> {
        let mut statement = self.db.prepare("SELECT id, ttl FROM lease ORDER BY id")?;
        let leases = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let read = |lease: rusqlite::Result<(i64, i64)>| -> Result<(LeaseId, Duration), EngineError> {
            let (id, ttl) = lease?;
            let ttl = u64::try_from(ttl).map_err(|_| damaged("a lease has a negative time to live"))?;
            Ok((LeaseId(id), Duration::from_secs(ttl)))
        };
        leases.map(read).collect()
    }
}

impl Engine for Sqlite {
    fn load(&mut self) -> Result<Loaded, EngineError> {
        Ok(Loaded {
            cluster_id: self.state.cluster_id,
            base: self.load_base()?,
            base_revision: self.state.base_revision,
            log: self.load_log()?,
            leases: self.load_leases()?,
            compacted: self.state.compacted,
            torn: self.torn.take(),
        })
    }

    fn append(&mut self, entries: &[Entry], fold: Option<Fold<'_>>) -> Result<(), EngineError> {
        let tx = self.db.transaction()?;
        let mut state = self.state;
        let mut changes = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry {
                Entry::Change(change) => changes.push(change),
                Entry::LeaseGranted(id, ttl) => grant(&tx, *id, *ttl)?,
                Entry::LeaseEnded(id) => {
                    tx.prepare_cached("DELETE FROM lease WHERE id = ?1")?.execute([id.0])?;
                }
                Entry::Compacted(revision) => state.compacted = *revision,
            }
        }
        write_log(&tx, &changes)?;
        if let Some(fold) = &fold {
            state.fold(&tx, fold)?;
        }
        if fold.is_some() || state.compacted != self.state.compacted {
            state.write(&tx)?;
        }
        tx.commit()?;
        self.state = state;
        Ok(())
    }

    fn defragment(&mut self) -> Result<(), EngineError> {
        Ok(self
            .db
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?)
    }

    fn size(&self) -> DiskSize {
        let file = |suffix: &str| {
            let mut name = self.path.clone().into_os_string();
            name.push(suffix);
            std::fs::metadata(name).map_or(0, |meta| meta.len())
        };
        let pragma = |name: &str| self.db.query_row(name, [], |row| row.get::<_, i64>(0)).unwrap_or(0);
        let unused = pragma("PRAGMA freelist_count").saturating_mul(pragma("PRAGMA page_size"));
        let total = file("") + file("-wal");
        DiskSize { total, in_use: total.saturating_sub(u64::try_from(unused).unwrap_or(0)) }
    }

    fn close(self: Box<Self>) -> Result<(), EngineError> {
        self.db.close().map_err(|(_, error)| error.into())
    }
}

impl State {
    fn fold(&mut self, tx: &Transaction<'_>, fold: &Fold<'_>) -> Result<(), EngineError> {
        let Some(last) = fold.changes.last() else { return Ok(()) };
        for (before, after) in fold.net() {
            if let Some(before) = before {
                self.base_digest = self.base_digest.wrapping_sub(codec::row_digest(&codec::base_row(before)));
            }
            if after.is_tombstone() {
                tx.prepare_cached("DELETE FROM base WHERE key = ?1")?.execute([&after.key[..]])?;
                continue;
            }
            let row = codec::base_row(after);
            self.base_digest = self.base_digest.wrapping_add(codec::row_digest(&row));
            tx.prepare_cached("INSERT INTO base (key, data) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET data = excluded.data")?
                .execute(params![&after.key[..], row])?;
        }
        self.base_revision = last.revision;
        let through = last.revision.0;
        tx.prepare_cached("DELETE FROM log WHERE first <= ?1 AND last <= ?1")?.execute([through])?;
        Ok(())
    }

    fn write(&self, tx: &Connection) -> Result<(), EngineError> {
        let fields =
            [self.cluster_id, self.base_revision.0 as u64, self.compacted.0 as u64, self.base_digest];
        let content: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        tx.prepare_cached(
            "INSERT INTO state (id, data) VALUES (0, ?1) ON CONFLICT (id) DO UPDATE SET data = excluded.data",
        )?
        .execute([codec::sealed(b"state", &content)])?;
        Ok(())
    }

    fn read(db: &Connection) -> Result<Option<State>, EngineError> {
        let row: Option<Vec<u8>> = db.query_row("SELECT data FROM state", [], |row| row.get(0)).optional()?;
        let Some(row) = row else { return Ok(None) };
        let content = codec::unsealed(b"state", &row)?;
        let mut fields = content
            .chunks_exact(8)
            .map(|field| field.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)));
        let mut next = || fields.next().ok_or_else(|| damaged("the state row is too short"));
        Ok(Some(State {
            cluster_id: next()?,
            base_revision: Revision(next()? as i64),
            compacted: Revision(next()? as i64),
            base_digest: next()?,
        }))
    }
}

enum PrepareError {
    Newer(i64),
    Engine(EngineError),
}

impl<E: Into<EngineError>> From<E> for PrepareError {
    fn from(error: E) -> PrepareError {
        PrepareError::Engine(error.into())
    }
}

/// Checks the format, makes the tables of a new database, and reads the engine's own facts.
fn prepare(db: &Connection, new_cluster_id: u64) -> Result<State, PrepareError> {
    let format: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if format > FORMAT {
        return Err(PrepareError::Newer(format));
    }
    db.execute_batch(SETTINGS)?;
    db.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    if let Some(state) = if format == 0 { None } else { State::read(db)? } {
        return Ok(state);
    }
    if format != 0 {
        return Err(damaged("the state row is missing").into());
    }
    let state = State {
        cluster_id: new_cluster_id,
        base_revision: Revision::FIRST,
        compacted: Revision(-1),
        base_digest: 0,
    };
    let tx = db.unchecked_transaction()?;
    tx.execute_batch(SCHEMA)?;
    tx.pragma_update(None, "user_version", FORMAT)?;
    state.write(&tx)?;
    tx.commit()?;
    Ok(state)
}

/// Makes sure that nobody else has the directory open; the lock goes with the process.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let unusable = |error: std::io::Error| OpenError::Unusable {
        dir: dir.display().to_string(),
        what: error.to_string(),
    };
    let file =
        File::options().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::Locked(dir.display().to_string())),
        Err(std::fs::TryLockError::Error(error)) => Err(unusable(error)),
    }
}

fn write_log(tx: &Transaction<'_>, changes: &[&Arc<Change>]) -> Result<(), EngineError> {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return Ok(()) };
    tx.prepare_cached("INSERT INTO log (first, last, data) VALUES (?1, ?2, ?3)")?.execute(params![
        first.revision.0,
        last.revision.0,
        codec::log_row(changes)
    ])?;
    Ok(())
}

fn grant(tx: &Transaction<'_>, id: LeaseId, ttl: Duration) -> Result<(), EngineError> {
    tx.prepare_cached("INSERT OR REPLACE INTO lease (id, ttl) VALUES (?1, ?2)")?
        .execute(params![id.0, ttl.as_secs() as i64])?;
    Ok(())
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
