//! From where must the journal be replayed? A checkpoint records what every log's files durably hold and the next
//! journal group. One small file, replaced atomically.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use capstan_disk::DiskExt as _;
use serde::{Deserialize, Serialize};

use super::error::{DiskError, DiskResult};
use super::files::Fs;
use super::record::crc32c;
use crate::config::Incarnation;
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// Name of the file in the directory.
const FILE: &str = "checkpoint";
/// The layout version; a directory with a newer one is not touched.
const LAYOUT: u32 = 1;

/// What is durable without the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The version of the layout.
    pub layout: u32,
    /// The unique id of this directory. Directories of earlier versions get one when they are opened.
    #[serde(default)]
    pub id: String,
    /// The seed of this directory's journal checksums. It is secret, so that no entry can imitate a journal group.
    pub key: u32,
    /// The first group of the journal that has to be replayed.
    pub next_group: u64,
    /// The id for the next log.
    pub next_log: u64,
    /// Every log.
    pub logs: Vec<SavedLog>,
    /// Whether the directory was salvaged: logs created after the hole are not in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvaged: bool,
}

/// What a log's files durably hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLog {
    /// Its id in this directory.
    pub id: u64,
    /// Its name in the cluster.
    pub name: LogName,
    /// Distinguishes it from earlier logs of that name.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// The first offset that is still present.
    pub start: Offset,
    /// The first offset of the last segment.
    pub active: Offset,
    /// Valid bytes of the last segment.
    pub bytes: u64,
    /// All epochs and the end.
    pub history: History,
    /// Everything before this offset is known to be committed.
    #[serde(default)]
    pub committed: Offset,
    /// Whether acknowledged entries may be missing at the end: the journal was damaged and salvaged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

/// A new unique id.
#[must_use]
pub fn new_id() -> String {
    let (high, low) = (RandomState::new().hash_one(LAYOUT), RandomState::new().hash_one(LAYOUT));
    format!("{high:016x}{low:016x}")
}

impl Checkpoint {
    /// The checkpoint of an empty directory.
    #[must_use]
    pub fn empty() -> Checkpoint {
        let key = RandomState::new().hash_one(LAYOUT) as u32;
        Checkpoint {
            layout: LAYOUT,
            id: new_id(),
            key,
            next_group: 1,
            next_log: 1,
            logs: Vec::new(),
            salvaged: false,
        }
    }

    /// The path of the checkpoint in a directory.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Replaces the checkpoint in the directory; durable when this returns. After an error it can be tried again: every
    /// attempt writes a new draft.
    pub fn save(&self, fs: &Fs, dir: &Path) -> DiskResult<()> {
        let json = serde_json::to_vec(self).map_err(|error| DiskError::Failed(error.to_string()))?;
        let mut content = format!("{:08x}\n", crc32c(&json)).into_bytes();
        content.extend_from_slice(&json);
        let path = Checkpoint::path(dir);
        fs.replace(dir, FILE, &content).map_err(|error| DiskError::io(&path, &error))
    }

    /// The checkpoint in the directory, if there is one.
    pub fn load(fs: &Fs, dir: &Path) -> DiskResult<Option<Checkpoint>> {
        let path = Checkpoint::path(dir);
        let bytes = match fs.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DiskError::io(&path, &error)),
        };
        let corrupt = |what: String| DiskError::Corrupt { dir: dir.display().to_string(), what };
        let damaged = || corrupt("the checkpoint does not match its checksum".to_owned());
        let (sum, json) = bytes.split_at_checked(9).ok_or_else(damaged)?;
        if sum != format!("{:08x}\n", crc32c(json)).as_bytes() {
            return Err(damaged());
        }
        let checkpoint: Checkpoint = serde_json::from_slice(json).map_err(|e| corrupt(e.to_string()))?;
        match checkpoint.layout {
            LAYOUT => Ok(Some(checkpoint)),
            newer => Err(corrupt(format!("its layout is {newer}, and this version supports up to {LAYOUT}"))),
        }
    }
}
