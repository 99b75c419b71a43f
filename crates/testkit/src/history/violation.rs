//! What a check can find: which promise was broken, and by what.

use std::fmt::{self, Display};

/// A promise of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Revisions in a watch log never fall, and a key changes once in a revision.
    LogInOrder,
    /// Every resumed watcher sees what an uninterrupted one sees.
    SameLog,
    /// A revision is one write's alone.
    UniqueRevision,
    /// An acknowledged write is in the watch log, whole, at its revision.
    NothingLost,
    /// What is in the watch log was written by somebody.
    NothingInvented,
    /// Guards are judged by the state that the write met.
    GuardsHold,
    /// A read equals the state at its revision.
    ReadsAreTrue,
    /// Who asks after another was answered gets no older state, and writes a later revision.
    RealTime,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// By what.
    pub evidence: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.evidence)
    }
}

/// What a clean check has covered. A test should look at it: an empty history is linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Operations with a known outcome.
    pub known: usize,
    /// Unknown writes that the watch log shows to have happened.
    pub settled: usize,
    /// Unknown or failed writes that never happened, as far as the log reaches.
    pub absent: usize,
    /// Revisions in the watch log.
    pub revisions: usize,
}
