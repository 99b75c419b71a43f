//! kill -9 loops: a server is killed at random moments under load, restarted and checked, repeatedly.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use rand::RngExt;

use crate::{Process, Ready, seed};

/// A kill -9 loop of one process.
#[derive(Debug)]
pub struct CrashLoop<'a> {
    /// The running process to kill.
    pub process: &'a mut Process,
    /// The readiness condition. A [`Ready::File`] is removed before each restart.
    pub ready: Ready,
    /// How long a restart may take.
    pub restart_deadline: Duration,
    /// The range of the random time between readiness and kill.
    pub lifetime: Range<Duration>,
    /// The seed of the random times.
    pub seed: u64,
}

impl CrashLoop<'_> {
    /// Kills and restarts `rounds` times; after each restart calls `check` with the round's number, which verifies that
    /// all acknowledged data is there. The caller generates load in its own tasks.
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
