//! kill -9 loops: a server is killed at random instants under load, restarted and checked, round after round.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use rand::RngExt;

use crate::{Process, Ready, seed};

/// A kill -9 loop of one process.
#[derive(Debug)]
pub struct CrashLoop<'a> {
    /// The victim; running.
    pub process: &'a mut Process,
    /// How it shows that it serves again. A [`Ready::File`] is removed before each restart.
    pub ready: Ready,
    /// How long a restart may take.
    pub restart_deadline: Duration,
    /// How long after readiness it is killed: a random time in this range.
    pub lifetime: Range<Duration>,
    /// Where the random times come from.
    pub seed: u64,
}

impl CrashLoop<'_> {
    /// Kills and restarts `rounds` times; after each restart `check` is called with the round's number and what was
    /// acknowledged before the kill must be there. Load goes on beside it, in the caller's tasks.
    pub async fn run(
        &mut self,
        rounds: usize,
        mut check: impl AsyncFnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut rng = seed::rng(self.seed);
        for round in 1..=rounds {
            tokio::time::sleep(rng.random_range(self.lifetime.clone())).await;
            let outcome = match self.bounce().await {
                Ok(()) => check(round).await,
                Err(e) => Err(e),
            };
            outcome.with_context(|| self.process.about(&format!("round {round} (seed {})", self.seed)))?;
        }
        Ok(())
    }

    async fn bounce(&mut self) -> anyhow::Result<()> {
        self.process.kill9()?;
        if let Ready::File(path) = &self.ready
            && path.exists()
        {
            std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        self.process.restart()?;
        self.process.ready(&self.ready, self.restart_deadline).await
    }
}
