//! The status of a copy, for operators and metrics.

use crate::config::LogConfig;
use crate::entry::{LogEpoch, Offset};
use crate::keys::HolderId;

/// The present role of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// Not a member, or not configured yet.
    Idle,
    /// Elected primary, about to begin an epoch.
    Claiming,
    /// Leads.
    Primary,
    /// Primary whose lease has expired.
    Suspended,
    /// Follows.
    Follower,
    /// Copies, to become a holder.
    Learner,
    /// Its primary contradicts committed entries.
    Halted,
}

/// The status of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its role.
    pub role: RoleName,
    /// The epoch of its configuration.
    pub epoch: LogEpoch,
    /// The first offset that is still present.
    pub start: Offset,
    /// The offset after the last written entry.
    pub end: Offset,
    /// The offset after the last durable entry.
    pub durable: Offset,
    /// The offset after the last committed entry.
    pub committed: Offset,
    /// For a primary: each other member, and how many entries it lacks.
    pub followers: Vec<(HolderId, u64)>,
    /// Its configuration.
    pub config: Option<LogConfig>,
}
