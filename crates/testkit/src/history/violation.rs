//! The result of a check: which guarantee was violated, and how.

use std::fmt::{self, Display};

/// A guarantee of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Revisions in a watch log never decrease, and a key changes once per revision.
    LogInOrder,
    /// Every resumed watcher sees what an uninterrupted one sees.
    SameLog,
    /// A revision belongs to one write.
    UniqueRevision,
    /// An acknowledged write is in the watch log, complete, at its revision.
    NothingLost,
    /// Everything in the watch log was written by some client.
    NothingInvented,
    /// Guards are evaluated on the state before the write.
    GuardsHold,
    /// A read equals the state at its revision.
    ReadsAreTrue,
    /// A request sent after another was answered sees no older state, and writes a later revision.
    RealTime,
}

/// A violated guarantee.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The guarantee.
    pub rule: Rule,
    /// The evidence.
    pub evidence: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.evidence)
    }
}

/// What a clean check covered. A test should check it, because an empty history is linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Operations with a known outcome.
    pub known: usize,
    /// Unknown writes that happened according to the watch log.
    pub settled: usize,
    /// Unknown or failed writes that are not in the log.
    pub absent: usize,
    /// Revisions in the watch log.
    pub revisions: usize,
}
