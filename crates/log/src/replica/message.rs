//! What do copies of a log say to each other?

use bytes::Bytes;

use crate::entry::{Entry, History, LogEpoch, Offset};

/// A message between two copies. Every one carries the epoch that it belongs to; losing, doubling or reordering them
/// costs time only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the primary: entries (possibly none, as a sign of life).
    Append {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// Epoch of the entry before the first one; zero at the beginning of the log.
        epoch_before: LogEpoch,
        /// Where the entries begin.
        from: Offset,
        /// The entries.
        entries: Vec<Entry>,
        /// What is committed.
        committed: Offset,
    },
    /// From the primary: what the follower lacks is gone; begin at the end of this history.
    Install {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// The history up to the first entry that the primary still has.
        history: History,
        /// What the owner of the log made of everything before.
        snapshot: Bytes,
    },
    /// To the primary: everything before this offset is as the primary has it, and durable.
    Ack {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// First offset that is not.
        durable: Offset,
    },
    /// To the primary: this is what the follower has; go on from where it agrees.
    Behind {
        /// The primary's epoch.
        epoch: LogEpoch,
        /// What the follower has.
        history: History,
    },
    /// To somebody who believes to be the primary: there is a later epoch.
    Fenced {
        /// The later epoch.
        epoch: LogEpoch,
    },
}

impl Message {
    /// The epoch that it belongs to.
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

    /// Whether only a primary says this.
    #[must_use]
    pub fn is_from_primary(&self) -> bool {
        match self {
            Message::Append { .. } | Message::Install { .. } => true,
            Message::Ack { .. } | Message::Behind { .. } | Message::Fenced { .. } => false,
        }
    }
}
