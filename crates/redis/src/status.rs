//! What is the recorded state? Nodes with their slots, owners, moves, quarantine.

use std::fmt;
use std::str::FromStr;

use capstan_control::epoch::Epoch;
use capstan_meta::record::{Extra, Segment};
use capstan_meta::{json_records, text_records};
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::keys::ClusterName;
use crate::slots::SlotRange;

/// The role of a node in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It has slots, or may get some.
    #[default]
    Primary,
    /// It replicates from a primary.
    Replica,
}

/// A node of a cluster. The first four fields are given by the specification; the others are additions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Where the node listens.
    pub address: Address,
    /// The proxy in front of it.
    pub proxy_address: Address,
    /// The cluster that it belongs to.
    pub cluster_name: ClusterName,
    /// Its slots, in order.
    pub slots: Vec<SlotEntry>,
    /// Its role.
    #[serde(default)]
    pub role: Role,
    /// Its primary, if it is a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_of: Option<Address>,
    /// The incarnation of the cluster's name that its data belongs to.
    #[serde(default)]
    pub incarnation: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl NodeRecord {
    /// A primary with these slots.
    #[must_use]
    pub fn primary(
        address: Address,
        proxy_address: Address,
        cluster_name: ClusterName,
        incarnation: u64,
        slots: Vec<SlotEntry>,
    ) -> NodeRecord {
        NodeRecord {
            address,
            proxy_address,
            cluster_name,
            slots,
            role: Role::Primary,
            replica_of: None,
            incarnation,
            extra: Extra::default(),
        }
    }

    /// Whether it is a primary.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.role == Role::Primary
    }

    /// The ranges that it serves: stable and migrating ones.
    pub fn owned(&self) -> impl Iterator<Item = SlotRange> {
        let owned = |entry: &SlotEntry| match entry.tag {
            Tag::Stable | Tag::Migrating(_) => Some(entry.range),
            Tag::Importing(_) => None,
        };
        self.slots.iter().filter_map(owned)
    }

    /// The number of slots that it serves.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.owned().map(SlotRange::len).sum()
    }

    /// Whether any of its ranges is migrating or importing.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.slots.iter().any(|entry| entry.tag != Tag::Stable)
    }
}

/// A range of slots of a node and its tag, as stored: `{start, end, tag}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "StoredSlots", into = "StoredSlots")]
pub struct SlotEntry {
    /// Which slots.
    pub range: SlotRange,
    /// The tag.
    pub tag: Tag,
}

impl SlotEntry {
    /// Slots that are not moving.
    #[must_use]
    pub fn stable(range: SlotRange) -> SlotEntry {
        SlotEntry { range, tag: Tag::Stable }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredSlots {
    start: u32,
    end: u32,
    #[serde(default)]
    tag: String,
}

impl TryFrom<StoredSlots> for SlotEntry {
    type Error = String;

    fn try_from(stored: StoredSlots) -> Result<SlotEntry, String> {
        let range = SlotRange::new(stored.start, stored.end).map_err(|error| error.to_string())?;
        Ok(SlotEntry { range, tag: stored.tag.parse().map_err(|error: InvalidTag| error.to_string())? })
    }
}

impl From<SlotEntry> for StoredSlots {
    fn from(entry: SlotEntry) -> StoredSlots {
        let SlotEntry { range, tag } = entry;
        StoredSlots { start: range.first().into(), end: range.last().into(), tag: tag.to_string() }
    }
}

/// The tag of a range. As text: empty, `migrating <dst_proxy> <dst_node> move=<id> epoch=<epoch>`, or
/// `importing <src_proxy> <src_node> move=<id> epoch=<epoch>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// Not moving.
    #[default]
    Stable,
    /// The node owns it and copies it to this target.
    Migrating(MoveEnd),
    /// The node receives it from this source, which owns it.
    Importing(MoveEnd),
}

impl Tag {
    /// The other end of the move, if the range moves.
    #[must_use]
    pub fn end(&self) -> Option<&MoveEnd> {
        match self {
            Tag::Stable => None,
            Tag::Migrating(end) | Tag::Importing(end) => Some(end),
        }
    }
}

/// The other end of a move, and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MoveEnd {
    /// The other proxy.
    pub proxy: Address,
    /// The other node.
    pub node: Address,
    /// Which move.
    pub id: MoveId,
    /// The pairing: the epoch of the cluster at which the two ends were paired. Another target has another
    /// epoch.
    pub epoch: Epoch,
}

/// Text that is not a tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a tag; it is empty, or `migrating` or `importing` <proxy> <node> move=<id> epoch=<epoch>"
)]
pub struct InvalidTag(String);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, end) = match self {
            Tag::Stable => return Ok(()),
            Tag::Migrating(end) => ("migrating", end),
            Tag::Importing(end) => ("importing", end),
        };
        write!(f, "{word} {} {} move={} epoch={}", end.proxy, end.node, end.id, end.epoch)
    }
}

impl FromStr for Tag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Tag, InvalidTag> {
        if text.is_empty() {
            return Ok(Tag::Stable);
        }
        parse_tag(text).ok_or_else(|| InvalidTag(text.chars().take(120).collect()))
    }
}

fn parse_tag(text: &str) -> Option<Tag> {
    let words: Vec<&str> = text.split(' ').collect();
    let [word, proxy, node, id, epoch] = words[..] else { return None };
    let end = MoveEnd {
        proxy: proxy.parse().ok()?,
        node: node.parse().ok()?,
        id: id.strip_prefix("move=")?.parse().ok()?,
        epoch: epoch.strip_prefix("epoch=")?.parse().ok()?,
    };
    match word {
        "migrating" => Some(Tag::Migrating(end)),
        "importing" => Some(Tag::Importing(end)),
        _ => None,
    }
}

/// The cluster that uses a node, or none (the empty string).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub Option<ClusterName>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |cluster| cluster.fmt(f))
    }
}

impl FromStr for Owner {
    type Err = capstan_meta::record::InvalidName;

    fn from_str(text: &str) -> Result<Owner, Self::Err> {
        if text.is_empty() { Ok(Owner(None)) } else { text.parse().map(|cluster| Owner(Some(cluster))) }
    }
}

/// The id of a move, unique over all clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MoveId(pub u64);

impl Segment for MoveId {}

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MoveId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<MoveId, Self::Err> {
        text.parse().map(MoveId)
    }
}

/// A node and the proxy in front of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The proxy.
    pub proxy: Address,
    /// The node.
    pub node: Address,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (proxy {})", self.node, self.proxy)
    }
}

/// The state of a recorded move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveState {
    /// Recorded; nothing is tagged. It waits until neither end is busy with another move.
    Queued,
    /// Both ends are tagged, and the source copies.
    Copying,
}

/// The record of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRecord {
    /// First slot.
    pub start: u16,
    /// Last slot.
    pub end: u16,
    /// The current owner.
    pub source: Place,
    /// The target.
    pub target: Place,
    /// Its state.
    pub state: MoveState,
    /// The epoch of the cluster at which its ends were paired; zero while it is queued.
    pub epoch: Epoch,
    /// Why it was requested.
    pub why: String,
    /// The id of the request, so that a request with an unknown outcome finds its own moves.
    #[serde(default)]
    pub request: String,
    /// When it was requested, in seconds since 1970.
    pub asked_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl MoveRecord {
    /// The slots; `None` if the record has no valid range.
    #[must_use]
    pub fn range(&self) -> Option<SlotRange> {
        SlotRange::new(self.start.into(), self.end.into()).ok()
    }
}

/// The progress of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveProgress {
    /// The stage at the source.
    #[serde(default)]
    pub phase: String,
    /// Keys copied so far.
    #[serde(default)]
    pub keys: u64,
    /// Bytes copied so far.
    #[serde(default)]
    pub bytes: u64,
    /// Passes over the range so far.
    #[serde(default)]
    pub pass: u64,
    /// Keys written since they were copied.
    #[serde(default)]
    pub dirty: u64,
    /// When it was reported, in seconds since 1970.
    #[serde(default)]
    pub at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Why a node is in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// The owner of its data.
    pub cluster: ClusterName,
    /// The incarnation of that name.
    pub incarnation: u64,
    /// The epoch of its host at which the proxy gives it up.
    pub epoch: Epoch,
    /// Why it was released.
    pub why: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

/// The task to spread slots evenly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalance {
    /// When it was requested, in seconds since 1970.
    pub asked_at: u64,
    /// Nodes that give up all slots and then leave the cluster.
    #[serde(default)]
    pub retire: Vec<Address>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

text_records!(Owner);
json_records!(NodeRecord, MoveRecord, MoveProgress, Quarantine, Rebalance);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_text_and_back() {
        let end = MoveEnd {
            proxy: "h:1".parse().unwrap(),
            node: "h:2".parse().unwrap(),
            id: MoveId(17),
            epoch: Epoch(42),
        };
        for (tag, text) in [
            (Tag::Stable, ""),
            (Tag::Migrating(end.clone()), "migrating h:1 h:2 move=17 epoch=42"),
            (Tag::Importing(end), "importing h:1 h:2 move=17 epoch=42"),
        ] {
            assert_eq!(tag.to_string(), text);
            assert_eq!(text.parse(), Ok(tag));
        }
        for bad in ["migrating", "moving h:1 h:2 move=1 epoch=1", "migrating h:1 h:2 move=x epoch=1", " "] {
            assert!(bad.parse::<Tag>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_beyond_the_slots_are_refused() {
        assert!(serde_json::from_str::<SlotEntry>(r#"{"start":3,"end":2,"tag":""}"#).is_err());
        assert!(serde_json::from_str::<SlotEntry>(r#"{"start":0,"end":16384,"tag":""}"#).is_err());
        assert!(serde_json::from_str::<SlotEntry>(r#"{"start":0,"end":16383}"#).is_ok());
    }
}
