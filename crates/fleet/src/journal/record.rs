//! One line of the journal: a checksum and an entry as JSON, so that a person can read it and a torn one is seen.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::release::{StepNumber, Version};
use crate::run::{Generation, Permission};

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts the entries of this host; a gap is damage.
    pub number: u64,
    /// When, by the host's clock: for people.
    pub at: Timestamp,
    /// What it belongs to.
    #[serde(flatten)]
    pub course: Course,
    /// What happened.
    pub event: Event,
}

/// What a host is on its way to. A request that fails may turn back: then the same request takes another course.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Course {
    /// The request of the fleet.
    pub generation: Generation,
    /// Forward, or back.
    pub permission: Permission,
    /// The release.
    pub release: Version,
}

/// Exact: `1.0` and `1.0-0` are one version and two releases.
impl PartialEq for Course {
    fn eq(&self, other: &Self) -> bool {
        self.is_way_of(other) && self.release.as_str() == other.release.as_str()
    }
}

impl Eq for Course {}

impl Course {
    /// Whether both belong to the same request and go the same way.
    #[must_use]
    pub fn is_way_of(&self, other: &Course) -> bool {
        (self.generation, self.permission) == (other.generation, other.permission)
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// About to act.
    Intent(Act),
    /// Acted, and verified.
    Done(Act),
    /// The act ended without success, and nothing of it runs any more.
    Failed {
        /// Which act.
        act: Act,
        /// Why.
        why: String,
    },
    /// All steps of this host are done.
    Finished,
}

/// One act of a step: an action, or, behind the last one, the wait for health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Act {
    /// Which step.
    pub step: StepNumber,
    /// Which of its acts, from zero.
    pub number: u32,
}

impl Event {
    /// The act that it is about.
    #[must_use]
    pub fn act(&self) -> Option<Act> {
        match self {
            Event::Intent(act) | Event::Done(act) | Event::Failed { act, .. } => Some(*act),
            Event::Finished => None,
        }
    }
}

/// An entry as a line.
pub fn encode(entry: &Entry) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_string(entry)?;
    Ok(format!("{:08x} {json}\n", checksum(json.as_bytes())).into_bytes())
}

/// The entry in a line without its end; nothing for a line that is damaged.
pub fn decode(line: &[u8]) -> Option<Entry> {
    let (sum, json) = (line.get(..8)?, line.get(9..)?);
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    if line[8] != b' ' || checksum(json) != sum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
