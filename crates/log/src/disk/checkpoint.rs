//! From where must the journal be replayed? A checkpoint says what every log's files durably hold, and which group of
//! the journal comes next. One small file, replaced as a whole.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{DiskError, DiskResult};
use super::files::sync_dir;
use super::record::crc32c;
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// The version of the layout; a newer one is not touched.
const LAYOUT: u32 = 1;

/// What is durable without the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The version of the layout.
    pub layout: u32,
    /// What the checksums of this directory's journal are mixed with. Nobody outside knows it, so that no entry can look
    /// like a part of the journal.
    pub key: u32,
    /// The first group of the journal that has to be replayed.
    pub next_group: u64,
    /// The id for the next log.
    pub next_log: u64,
    /// Every log.
    pub logs: Vec<SavedLog>,
    /// The directory was salvaged: logs that were made behind the hole are not in it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvaged: bool,
}

/// What a log's files durably hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLog {
    /// Names it in this directory.
    pub id: u64,
    /// Names it in the cluster.
    pub name: LogName,
    /// First offset that is still there.
    pub start: Offset,
    /// First offset of the last segment.
    pub active: Offset,
    /// Bytes of the last segment that count.
    pub bytes: u64,
    /// Every epoch and the end.
    pub history: History,
    /// Entries that were acknowledged may be missing at the end: the journal was damaged and salvaged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

impl Checkpoint {
    /// Of a directory that holds nothing yet.
    #[must_use]
    pub fn empty() -> Checkpoint {
        let key = RandomState::new().hash_one(LAYOUT) as u32;
        Checkpoint { layout: LAYOUT, key, next_group: 1, next_log: 1, logs: Vec::new(), salvaged: false }
    }

    /// Of these logs, before this group.
    #[must_use]
    pub fn of(key: u32, next_group: u64, next_log: u64, logs: Vec<SavedLog>) -> Checkpoint {
        Checkpoint { layout: LAYOUT, key, next_group, next_log, logs, salvaged: false }
    }

    /// Where it is.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("checkpoint")
    }

    /// Replaces the one in the directory; durable when this returns.
    pub fn save(&self, dir: &Path) -> DiskResult<()> {
        let draft = dir.join("checkpoint.draft");
        let failed = |error: std::io::Error| DiskError::io(&draft, &error);
        let json = serde_json::to_vec(self).map_err(|error| DiskError::Failed(error.to_string()))?;
        let mut file = std::fs::File::create(&draft).map_err(failed)?;
        let sum = format!("{:08x}\n", crc32c(&json));
        file.write_all(sum.as_bytes()).and_then(|()| file.write_all(&json)).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&draft, Checkpoint::path(dir)).map_err(failed)?;
        sync_dir(dir)
    }

    /// The one in the directory; nothing if there is none.
    pub fn load(dir: &Path) -> DiskResult<Option<Checkpoint>> {
        let path = Checkpoint::path(dir);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DiskError::io(&path, &error)),
        };
        let corrupt = |what: String| DiskError::Corrupt { dir: dir.display().to_string(), what };
        let damaged = || corrupt("the checkpoint is not what was written".to_owned());
        let (sum, json) = bytes.split_at_checked(9).ok_or_else(damaged)?;
        if sum != format!("{:08x}\n", crc32c(json)).as_bytes() {
            return Err(damaged());
        }
        let checkpoint: Checkpoint = serde_json::from_slice(json).map_err(|e| corrupt(e.to_string()))?;
        match checkpoint.layout {
            LAYOUT => Ok(Some(checkpoint)),
            newer => Err(corrupt(format!("its layout is {newer}, and this version knows {LAYOUT}"))),
        }
    }
}
