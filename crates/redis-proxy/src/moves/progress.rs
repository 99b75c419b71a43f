//! How far is a move? Counters that the copy updates and operators read.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The stage of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for workers, or for the target to accept the import.
    Starting,
    /// Copying every key.
    Copying,
    /// Copying the keys written meanwhile, pass after pass.
    CatchingUp,
    /// Commands are held; the last keys are copied.
    Holding,
    /// The source has released the range.
    Released,
    /// It failed and will be retried.
    Failed {
        /// Why, for an operator.
        why: String,
    },
}

impl Stage {
    /// Its name in one word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Copying => "copying",
            Stage::CatchingUp => "catching-up",
            Stage::Holding => "holding",
            Stage::Released => "released",
            Stage::Failed { .. } => "failed",
        }
    }
}

/// The counters of one move.
#[derive(Debug)]
pub struct Progress {
    stage: Mutex<(Stage, Instant)>,
    attempts: AtomicU64,
    keys: AtomicU64,
    bytes: AtomicU64,
    passes: AtomicU64,
    scanned: AtomicU64,
    to_scan: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is doing.
    pub stage: Stage,
    /// Attempts, this one included.
    pub attempts: u64,
    /// Keys copied in this attempt; a key copied twice counts twice.
    pub keys: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Passes over the keys written meanwhile.
    pub passes: u64,
    /// Keys of the node scanned so far.
    pub scanned: u64,
    /// All keys of the node.
    pub to_scan: u64,
    /// Keys written and not copied yet.
    pub dirty: usize,
    /// Time since this attempt began.
    pub elapsed: Duration,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            stage: Mutex::new((Stage::Starting, Instant::now())),
            attempts: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            passes: AtomicU64::new(0),
            scanned: AtomicU64::new(0),
            to_scan: AtomicU64::new(0),
        }
    }
}

impl Progress {
    pub(super) fn begin(&self, to_scan: u64) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = (Stage::Copying, Instant::now());
        for counter in [&self.keys, &self.bytes, &self.passes, &self.scanned] {
            counter.store(0, Ordering::Relaxed);
        }
        self.to_scan.store(to_scan, Ordering::Relaxed);
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).0 = stage;
    }

    pub(super) fn copied(&self, keys: u64, bytes: u64) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn scanned(&self, keys: u64) {
        self.scanned.fetch_add(keys, Ordering::Relaxed);
    }

    pub(super) fn passed(&self) -> u64 {
        self.passes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keys copied per second in this attempt, at least one.
    pub(super) fn rate(&self) -> u64 {
        let (keys, elapsed) = (self.keys.load(Ordering::Relaxed), self.since());
        (keys as f64 / elapsed.as_secs_f64().max(0.001)) as u64 + 1
    }

    fn since(&self) -> Duration {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).1.elapsed()
    }

    /// The counters now; `dirty` comes from the gate.
    #[must_use]
    pub fn snapshot(&self, dirty: usize) -> Snapshot {
        let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            stage,
            attempts: read(&self.attempts),
            keys: read(&self.keys),
            bytes: read(&self.bytes),
            passes: read(&self.passes),
            scanned: read(&self.scanned),
            to_scan: read(&self.to_scan),
            dirty,
            elapsed: self.since(),
        }
    }
}

impl Snapshot {
    /// The estimated time until every key is copied, at the speed so far. `None` without a measured speed, or
    /// if nothing is left.
    #[must_use]
    pub fn estimate(&self) -> Option<Duration> {
        let left = self.to_scan.saturating_sub(self.scanned);
        if self.stage != Stage::Copying || self.scanned == 0 || left == 0 {
            return None;
        }
        Some(self.elapsed.mul_f64(left as f64 / self.scanned as f64))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { stage, attempts, keys, bytes, passes, scanned, to_scan, dirty, elapsed } = self;
        write!(f, "{} keys={keys} bytes={bytes} pass={passes}", stage.word())?;
        match dirty {
            &usize::MAX => f.write_str(" dirty=all")?,
            dirty => write!(f, " dirty={dirty}")?,
        }
        write!(f, " scanned={scanned}/{to_scan} attempt={attempts} ms={}", elapsed.as_millis())?;
        if let Some(left) = self.estimate() {
            write!(f, " left_ms={}", left.as_millis())?;
        }
        match stage {
            Stage::Failed { why } => write!(f, " why={why:?}"),
            Stage::Starting | Stage::Copying | Stage::CatchingUp | Stage::Holding | Stage::Released => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_is_one_line_with_an_estimate() {
        let progress = Progress::default();
        assert_eq!(progress.snapshot(0).stage, Stage::Starting);
        progress.begin(1000);
        tokio::time::advance(Duration::from_secs(1)).await;
        progress.scanned(250);
        progress.copied(100, 4000);
        let line = progress.snapshot(7).to_string();
        assert_eq!(
            line,
            "copying keys=100 bytes=4000 pass=0 dirty=7 scanned=250/1000 attempt=1 ms=1000 left_ms=3000"
        );
        progress.enter(Stage::Failed { why: "no \"way\"".to_owned() });
        let line = progress.snapshot(usize::MAX).to_string();
        assert!(line.starts_with("failed ") && line.contains("dirty=all"), "{line}");
        assert!(line.ends_with("why=\"no \\\"way\\\"\""), "{line}");
    }
}
