//! The state machine of a log's owner, whose snapshot replaces dropped entries.

use std::io::{self, Read};

use crate::entry::Offset;
use crate::keys::LogName;

/// The state that an owner derives from its log. The host calls it when a copy cannot catch up by entries alone; both
/// functions run on their own threads and may block.
pub trait StateMachine: Send + Sync + 'static {
    /// A snapshot of the state after every entry before [`Snapshot::at`]. That offset must not be before `start`, where
    /// the log's entries begin, and the entries before it must be committed.
    fn snapshot(&self, log: &LogName, start: Offset) -> io::Result<Snapshot>;

    /// The first entry that the state lacks, for a state that outlives its process; `None` for any other. A copy whose
    /// log no longer has that entry is made anew from another holder before it is opened: the state was lost, and the
    /// copy could neither serve nor send a snapshot.
    fn applied(&self, log: &LogName) -> Option<Offset> {
        let _ = log;
        None
    }

    /// Replaces the state with a snapshot of another holder; durable when it returns. A failed read means that the rest
    /// will not arrive: the state must then stay as it was, or be installed again before it is used.
    fn install(&self, log: &LogName, at: Offset, snapshot: &mut dyn Read) -> io::Result<()>;
}

/// A snapshot being read. Its length is unbounded: it is never in memory as a whole.
pub struct Snapshot {
    /// The first offset that is not included.
    pub at: Offset,
    /// Its bytes; read on their own thread.
    pub content: Box<dyn Read + Send>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(at {})", self.at)
    }
}

/// For logs without a state machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSnapshots;

impl StateMachine for NoSnapshots {
    fn snapshot(&self, _: &LogName, start: Offset) -> io::Result<Snapshot> {
        Ok(Snapshot { at: start, content: Box::new(io::empty()) })
    }

    fn install(&self, _: &LogName, _: Offset, _: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }
}
