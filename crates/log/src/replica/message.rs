//! Which messages do copies of a log exchange?

use bytes::Bytes;

use crate::entry::{Entry, History, LogEpoch, Offset};

/// A message between two copies. Each carries its epoch; loss, duplication and reordering only cost time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the primary: entries, or none as a heartbeat.
    Append {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// Epoch of the entry before the first one; zero at the beginning of the log.
        epoch_before: LogEpoch,
        /// The offset of the first entry.
        from: Offset,
        /// The entries.
        entries: Vec<Entry>,
        /// The committed offset.
        committed: Offset,
    },
    /// From the primary: the entries that the follower lacks were dropped; begin at the end of this history. The host
    /// sends the snapshot in pieces and delivers this once the owner has installed it.
    Install {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// The history up to the first entry that the primary still has.
        history: History,
        /// The owner's snapshot of everything before; empty if it was sent in pieces.
        snapshot: Bytes,
    },
    /// To the primary: everything before this offset matches the primary's log and is durable.
    Ack {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// The life of the acknowledging copy: larger than its earlier ones.
        life: u64,
        /// The first offset that is not durable.
        durable: Offset,
    },
    /// To the primary: the follower's history; continue from where the two agree.
    Behind {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// The life of the sender.
        life: u64,
        /// The follower's history.
        history: History,
    },
    /// To a stale primary: there is a later epoch.
    Fenced {
        /// The later epoch.
        epoch: LogEpoch,
    },
}

impl Message {
    /// The epoch of the message.
    #[must_use]
    pub fn epoch(&self) -> LogEpoch {
        match self {
            Message::Append { epoch, .. }
            | Message::Install { epoch, .. }
            | Message::Ack { epoch, .. }
            | Message::Behind { epoch, .. }
            | Message::Fenced { epoch } => *epoch,
        }
    }

    /// Whether only a primary sends this.
    #[must_use]
    pub fn is_from_primary(&self) -> bool {
        match self {
            Message::Append { .. } | Message::Install { .. } => true,
            Message::Ack { .. } | Message::Behind { .. } | Message::Fenced { .. } => false,
        }
    }
}
