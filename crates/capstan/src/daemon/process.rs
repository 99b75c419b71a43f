//! A process from its first task to its last: starts, announces that it is ready, stops in order on a signal.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use capstan_console::Health;
use capstan_control::tasks::{Kind, OnFailure, Stage, Supervisor, TaskError};
use capstan_meta::embedded::Embedded;
use tokio_util::sync::CancellationToken;

use super::{Signals, notify};
use crate::exit::Exit;

/// Serves clients: without it the process has no purpose.
pub(super) const LISTENER: Kind =
    Kind { name: "listener", on_failure: OnFailure::ShutDown, stage: Stage::Accepting };
/// Decides and acts: restarts after a failure, from the metadata.
pub(super) const LOOP: Kind = Kind { name: "loop", on_failure: OnFailure::Restart, stage: Stage::Working };
/// Registers this process in the metadata.
pub(super) const MEMBER: Kind =
    Kind { name: "member", on_failure: OnFailure::ShutDown, stage: Stage::Holding };

/// The running tasks, and what is needed to stop them cleanly.
pub(crate) struct Process {
    pub(crate) supervisor: Supervisor,
    pub(crate) health: Health,
    signals: Signals,
    stop_deadline: Duration,
    /// Closed when everything that uses it has stopped.
    embedded: Option<Embedded>,
}

impl Process {
    /// A process without tasks. From now on signals are handled here.
    pub(crate) fn new(stop_deadline: Duration) -> Result<Process> {
        let (supervisor, health) = (Supervisor::default(), Health::default());
        Ok(Process { supervisor, health, signals: Signals::take()?, stop_deadline, embedded: None })
    }

    /// Closes this store at the end.
    pub(crate) fn holds(&mut self, embedded: Embedded) {
        self.embedded = Some(embedded);
    }

    /// Starts a task that cannot be restarted, such as a server on a bound socket.
    pub(super) fn start_once<F>(
        &self,
        kind: Kind,
        name: &str,
        body: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut body = Some(body);
        self.supervisor.start(kind, name, move |stop| {
            let running = body.take().map(|body| body(stop));
            async move {
                match running {
                    Some(running) => running.await.map_err(in_words),
                    None => Err("it cannot be restarted".into()),
                }
            }
        });
    }

    /// Runs until a signal arrives or an essential task fails; then stops. Calls `announce` once all parts are ready.
    pub(crate) async fn run(mut self, announce: impl FnOnce() -> Result<()>) -> Result<Exit> {
        let over = self.until_over(announce).await;
        notify::stopping();
        self.health.waiting("process", "stopping");
        let report = tokio::select! {
            report = self.supervisor.shut_down(self.stop_deadline) => report,
            signal = self.signals.next() => {
                tracing::warn!(signal, "aborted");
                return Ok(Exit::Aborted);
            }
        };
        if let Some(embedded) = &self.embedded {
            // The cause of all later failures.
            let failed = embedded.failure();
            embedded.close().await?;
            failed.map_or(Ok(()), Err).context("the metadata store failed")?;
        }
        over?;
        if !report.hung.is_empty() {
            bail!("{report} (host.stop_deadline is {:?})", self.stop_deadline);
        }
        tracing::info!("stopped");
        Ok(Exit::Done)
    }

    async fn until_over(&mut self, announce: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut announce = Some(announce);
        loop {
            tokio::select! {
                () = self.health.all_ready(), if announce.is_some() => {
                    announce.take().map_or(Ok(()), |announce| announce())?;
                    notify::ready();
                }
                signal = self.signals.next() => {
                    tracing::info!(signal, "stopping");
                    return Ok(());
                }
                failure = self.supervisor.failed() => return Err(failure.into()),
            }
        }
    }
}

/// An error with its causes, for the supervisor.
pub(super) fn in_words(error: anyhow::Error) -> TaskError {
    format!("{error:#}").into()
}
