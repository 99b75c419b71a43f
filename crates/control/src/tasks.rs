//! What runs in this process, what does its failure mean, and how does it stop?
//!
//! Every long-lived task is started here under a [`Kind`]. A kind defines what a failure means (the process shuts down,
//! the task is restarted after a pause, or it is only logged) and in which [`Stage`] of the shutdown the task stops. A
//! shutdown goes through the stages in order and lists what did not stop in time.

mod registry;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use capstan_meta::backoff::Backoff;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use registry::{KindCounts, TaskStatus};
use registry::{Listed, Registry};

/// What happens when a task ends without being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The process shuts down: see [`Supervisor::failed`].
    ShutDown,
    /// The task is restarted, after a pause that grows with consecutive failures.
    Restart,
    /// The failure is logged; other tasks continue.
    Log,
}

/// When a task is stopped; earlier stages have stopped by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Accepts work from outside: listeners.
    Accepting,
    /// Does the work: connections, controllers, agents.
    Working,
    /// Supports the work: sessions, stores, metrics.
    Holding,
}

impl Stage {
    const ALL: [Stage; 3] = [Stage::Accepting, Stage::Working, Stage::Holding];
}

/// A kind of task: a constant next to the code that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name in metrics and logs.
    pub name: &'static str,
    /// What its failure means.
    pub on_failure: OnFailure,
    /// When it is stopped.
    pub stage: Stage,
}

/// Why a task failed.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    Returned,
    Failed(String),
    Panicked(String),
}

/// What to do after a task has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Nothing; it is over.
    Over,
    /// Log the failure.
    Logged(String),
    /// Restart it.
    Again(String),
    /// Shut down the process.
    ShutDown(String),
}

/// The rule. During a shutdown every end but a panic is normal.
fn next(on_failure: OnFailure, stopping: bool, ended: Ended) -> Next {
    let why = match ended {
        Ended::Returned | Ended::Failed(_) if stopping => return Next::Over,
        Ended::Returned if on_failure == OnFailure::Log => return Next::Over,
        Ended::Returned => "it ended by itself".to_owned(),
        Ended::Failed(why) => why,
        Ended::Panicked(why) => format!("it panicked: {why}"),
    };
    match on_failure {
        OnFailure::Log => Next::Logged(why),
        _ if stopping => Next::Logged(why),
        OnFailure::Restart => Next::Again(why),
        OnFailure::ShutDown => Next::ShutDown(why),
    }
}

/// The failure of a task that the process cannot run without.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task} failed: {why}")]
pub struct Failure {
    /// Kind and name.
    pub task: String,
    /// What happened.
    pub why: String,
}

/// The result of a shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Tasks (kind and name) that did not stop in time and were aborted.
    pub hung: Vec<String>,
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hung.is_empty() {
            true => f.write_str("everything stopped"),
            false => write!(f, "did not stop in time: {}", self.hung.join(", ")),
        }
    }
}

/// Starts, monitors and stops tasks. Clones share one supervisor.
#[derive(Clone, Debug)]
pub struct Supervisor {
    registry: Arc<Registry>,
    failure: Arc<watch::Sender<Option<Failure>>>,
    seed: u64,
}

impl Default for Supervisor {
    fn default() -> Supervisor {
        Supervisor::new(rand::random())
    }
}

impl Supervisor {
    /// A supervisor without tasks. The seed makes the pauses before restarts repeatable.
    #[must_use]
    pub fn new(seed: u64) -> Supervisor {
        Supervisor { registry: Arc::new(Registry::new()), failure: Arc::new(watch::Sender::new(None)), seed }
    }

    /// Starts a task. `body` creates its future for every start; the token signals the stop.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts long-lived work")]
    pub fn start<F>(
        &self,
        kind: Kind,
        name: impl Into<String>,
        body: impl FnMut(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        let (id, stop) = self.registry.add(kind, name.into());
        let (registry, failure, seed) = (self.registry.clone(), self.failure.clone(), self.seed ^ id);
        let watched = tokio::spawn(async move {
            // The registry removes the task when this future and that of the current attempt are gone. An aborted
            // attempt still runs to its next await.
            let listed = Arc::new(registry.listed(id));
            let pauses = Backoff::new(PAUSE.0, PAUSE.1, seed);
            supervise(&registry, &failure, &listed, kind, stop, pauses, body).await;
        });
        self.registry.attach(id, watched.abort_handle());
    }

    /// Waits until a task fails that the process cannot run without.
    pub async fn failed(&self) -> Failure {
        let mut failure = self.failure.subscribe();
        loop {
            if let Some(failure) = failure.borrow_and_update().clone() {
                return failure;
            }
            // The sender lives as long as `self`.
            failure.changed().await.ok();
        }
    }

    /// Everything that runs, in the order in which it was started.
    #[must_use]
    pub fn snapshot(&self) -> Vec<TaskStatus> {
        self.registry.snapshot()
    }

    /// Counters by kind, for metrics.
    #[must_use]
    pub fn counts(&self) -> Vec<KindCounts> {
        self.registry.counts()
    }

    /// Stops everything, stage by stage, and aborts what has not stopped by the deadline. A hanging stage leaves the
    /// later ones their share of the time.
    pub async fn shut_down(&self, within: Duration) -> ShutdownReport {
        let deadline = Instant::now() + within;
        let mut hung = Vec::new();
        for (passed, stage) in Stage::ALL.into_iter().enumerate() {
            self.registry.stop(stage);
            let stages_left = u32::try_from(Stage::ALL.len() - passed).unwrap_or(1);
            let share = deadline.saturating_duration_since(Instant::now()) / stages_left;
            if timeout_at(Instant::now() + share, self.registry.stopped(stage)).await.is_err() {
                hung.extend(self.registry.abort(stage));
                // An aborted task runs to its next await; one that never awaits is not waited for.
                timeout(ABORTED_WITHIN, self.registry.stopped(stage)).await.ok();
            }
        }
        if !hung.is_empty() {
            tracing::error!(?hung, "tasks did not stop in time");
        }
        ShutdownReport { hung }
    }
}

/// How long a shutdown waits for the tasks that it aborted.
const ABORTED_WITHIN: Duration = Duration::from_secs(1);

/// Pauses before a task is started again: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// A task that ran this long has recovered: its next failure counts as the first.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

async fn supervise<F>(
    registry: &Registry,
    failure: &watch::Sender<Option<Failure>>,
    listed: &Arc<Listed>,
    kind: Kind,
    stop: CancellationToken,
    mut pauses: Backoff,
    mut body: impl FnMut(CancellationToken) -> F,
) where
    F: Future<Output = Result<(), TaskError>> + Send + 'static,
{
    let id = listed.id();
    let task = registry.title(id);
    loop {
        let started_at = Instant::now();
        let ended = attempt(body(stop.clone()), listed.clone()).await;
        match next(kind.on_failure, stop.is_cancelled(), ended) {
            Next::Over => return,
            Next::Logged(why) => {
                registry.failed(id, &why);
                tracing::warn!(task, why, "task failed");
                return;
            }
            Next::ShutDown(why) => {
                registry.failed(id, &why);
                tracing::error!(task, why, "task failed, shutting down");
                failure.send_if_modified(|first| {
                    let is_first = first.is_none();
                    first.get_or_insert(Failure { task: task.clone(), why: why.clone() });
                    is_first
                });
                return;
            }
            Next::Again(why) => {
                registry.failed(id, &why);
                if started_at.elapsed() > RECOVERED_AFTER {
                    pauses.reset();
                }
                let pause = pauses.next_wait();
                tracing::warn!(task, why, ?pause, "task failed, restarting");
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = sleep(pause) => registry.restarted(id),
                }
            }
        }
    }
}

/// Runs a task's future in isolation, so that a panic ends only this task. The task is listed until that future is gone.
#[expect(clippy::disallowed_methods, reason = "this is the one place that starts long-lived work")]
async fn attempt(
    future: impl Future<Output = Result<(), TaskError>> + Send + 'static,
    listed: Arc<Listed>,
) -> Ended {
    let listed_while_running = async move {
        let ended = future.await;
        drop(listed);
        ended
    };
    match AbortOnDropHandle::new(tokio::spawn(listed_while_running)).await {
        Ok(Ok(())) => Ended::Returned,
        Ok(Err(error)) => Ended::Failed(error.to_string()),
        Err(error) => Ended::Panicked(panic_text(error)),
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_every_end_of_every_kind() {
        use Ended::{Failed, Panicked, Returned};
        use OnFailure::{Log, Restart, ShutDown};
        let failed = || Failed("x".into());
        let panicked = || Panicked("x".into());
        for (on_failure, stopping, ended, expected) in [
            (ShutDown, false, Returned, Next::ShutDown("it ended by itself".into())),
            (ShutDown, false, failed(), Next::ShutDown("x".into())),
            (ShutDown, false, panicked(), Next::ShutDown("it panicked: x".into())),
            (ShutDown, true, Returned, Next::Over),
            (ShutDown, true, failed(), Next::Over),
            (ShutDown, true, panicked(), Next::Logged("it panicked: x".into())),
            (Restart, false, Returned, Next::Again("it ended by itself".into())),
            (Restart, false, failed(), Next::Again("x".into())),
            (Restart, false, panicked(), Next::Again("it panicked: x".into())),
            (Restart, true, Returned, Next::Over),
            (Restart, true, failed(), Next::Over),
            (Restart, true, panicked(), Next::Logged("it panicked: x".into())),
            (Log, false, Returned, Next::Over),
            (Log, false, failed(), Next::Logged("x".into())),
            (Log, false, panicked(), Next::Logged("it panicked: x".into())),
            (Log, true, Returned, Next::Over),
            (Log, true, failed(), Next::Over),
            (Log, true, panicked(), Next::Logged("it panicked: x".into())),
        ] {
            assert_eq!(
                next(on_failure, stopping, ended.clone()),
                expected,
                "{on_failure:?} {stopping} {ended:?}"
            );
        }
    }
}
