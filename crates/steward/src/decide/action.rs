//! One change, and the reason for it.

use std::fmt;
use std::sync::Arc;

use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::record::Stored;

use crate::spec::{Handover, HolderRecord};

/// One change of one record.
#[derive(Clone, Debug)]
pub enum Action {
    /// Changes the record of a log.
    Reconfigure {
        /// Which log.
        log: LogName,
        /// The record that it was decided on.
        seen: Arc<Stored<LogConfig>>,
        /// The new record.
        next: Box<LogConfig>,
        /// The reason.
        reason: Reason,
    },
    /// Requests a handover from the primary.
    AskHandover {
        /// Which log.
        log: LogName,
        /// The record that it was decided on.
        seen: Arc<Stored<LogConfig>>,
        /// The request.
        handover: Handover,
    },
    /// Removes a void handover request.
    ClearHandover {
        /// Which log.
        log: LogName,
        /// The request.
        seen: Arc<Stored<Handover>>,
    },
    /// Records that a holder is down.
    MarkDown {
        /// Which holder.
        holder: HolderId,
        /// Its record.
        seen: Arc<Stored<HolderRecord>>,
        /// When that was observed, in seconds since 1970.
        since: u64,
    },
    /// Records that a holder is up.
    MarkUp {
        /// Which holder.
        holder: HolderId,
        /// Its record.
        seen: Arc<Stored<HolderRecord>>,
    },
    /// Removes a retired holder that is down and has no copies.
    Forget {
        /// Which holder.
        holder: HolderId,
        /// Its record.
        seen: Arc<Stored<HolderRecord>>,
    },
}

/// Why a log is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The primary is down: another one is elected, and the old one leaves the in-sync set.
    FailOver {
        /// The primary that is down.
        from: HolderId,
    },
    /// The primary is up but reaches too few holders to commit.
    CutOff {
        /// The isolated primary.
        from: HolderId,
    },
    /// The primary did not hand over in time.
    ForcedHandover,
    /// A lost copy is restored.
    Repair,
    /// A copy leaves a retiring holder.
    Retire,
    /// The log could not commit if the drained hosts went down.
    Evacuate,
    /// A copy moves for balance.
    Balance,
    /// The leaving copy is removed.
    Remove {
        /// The holder of the copy.
        holder: HolderId,
    },
    /// The leaving copy stays.
    TakeBack,
    /// The learner is down or retiring.
    DropLearner,
    /// The service requests another `min_copies`.
    MinCopies,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::FailOver { from } => write!(f, "primary {from} is down"),
            Reason::CutOff { from } => write!(f, "primary {from} reaches too few holders"),
            Reason::ForcedHandover => f.write_str("the primary did not hand over in time"),
            Reason::Repair => f.write_str("a copy is missing"),
            Reason::Retire => f.write_str("a holder retires"),
            Reason::Evacuate => f.write_str("a host is drained and too few copies would be left"),
            Reason::Balance => f.write_str("holders have unequal numbers of copies"),
            Reason::Remove { holder } => write!(f, "the copy on {holder} is not needed any more"),
            Reason::TakeBack => f.write_str("the leaving copy stays"),
            Reason::DropLearner => f.write_str("the learner cannot go on"),
            Reason::MinCopies => f.write_str("the service asks for another min_copies"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Reconfigure { log, next, reason, .. } => {
                write!(f, "log {log}: {reason} (epoch {}, primary {})", next.epoch, next.primary)
            }
            Action::AskHandover { log, handover, .. } => {
                write!(f, "log {log}: hand over to {}", handover.to)
            }
            Action::ClearHandover { log, .. } => write!(f, "log {log}: handover is over"),
            Action::MarkDown { holder, .. } => write!(f, "holder {holder} is down"),
            Action::MarkUp { holder, .. } => write!(f, "holder {holder} is back"),
            Action::Forget { holder, .. } => write!(f, "holder {holder} has retired"),
        }
    }
}
