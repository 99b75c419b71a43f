//! Which tasks are there? The list behind the supervisor.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Kind, Stage};

/// One task, as metrics and `status` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskStatus {
    /// Its kind.
    pub kind: &'static str,
    /// Its name within the kind.
    pub name: String,
    /// How often it was restarted.
    pub restarts: u64,
    /// Its last failure, if any.
    pub last_failure: Option<String>,
    /// How long it has been running since its last start.
    pub running_for: Duration,
}

/// How often tasks of one kind were started and failed since the process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KindCounts {
    /// The kind.
    pub kind: &'static str,
    /// Running now.
    pub running: u64,
    /// Started, including restarts.
    pub started: u64,
    /// Failed.
    pub failed: u64,
}

#[derive(Debug)]
pub(super) struct Registry {
    tasks: Mutex<Tasks>,
    /// Counts ended tasks, to wake waiters.
    ended: watch::Sender<u64>,
    stages: [CancellationToken; 3],
}

#[derive(Debug, Default)]
struct Tasks {
    next_id: u64,
    running: BTreeMap<u64, Task>,
    /// By kind: started, failed.
    counts: BTreeMap<&'static str, (u64, u64)>,
}

#[derive(Debug)]
struct Task {
    kind: Kind,
    name: String,
    restarts: u64,
    last_failure: Option<String>,
    started_at: Instant,
    abort: Option<AbortHandle>,
}

impl Task {
    fn title(&self) -> String {
        format!("{} {}", self.kind.name, self.name)
    }
}

/// Removes its task from the list when dropped.
pub(super) struct Listed {
    registry: Arc<Registry>,
    id: u64,
}

impl Listed {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.registry.locked().running.remove(&self.id);
        self.registry.ended.send_modify(|count| *count += 1);
    }
}

impl Registry {
    pub(super) fn new() -> Registry {
        Registry {
            tasks: Mutex::default(),
            ended: watch::Sender::new(0),
            stages: std::array::from_fn(|_| CancellationToken::new()),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a task; a task started during a shutdown is stopped at once.
    pub(super) fn add(&self, kind: Kind, name: String) -> (u64, CancellationToken) {
        let mut tasks = self.locked();
        let id = tasks.next_id;
        tasks.next_id += 1;
        tasks.counts.entry(kind.name).or_default().0 += 1;
        let started_at = Instant::now();
        let task = Task { kind, name, restarts: 0, last_failure: None, started_at, abort: None };
        tasks.running.insert(id, task);
        (id, self.token(kind.stage).child_token())
    }

    pub(super) fn listed(self: &Arc<Self>, id: u64) -> Listed {
        Listed { registry: self.clone(), id }
    }

    pub(super) fn attach(&self, id: u64, abort: AbortHandle) {
        if let Some(task) = self.locked().running.get_mut(&id) {
            task.abort = Some(abort);
        }
    }

    pub(super) fn title(&self, id: u64) -> String {
        self.locked().running.get(&id).map(Task::title).unwrap_or_default()
    }

    pub(super) fn failed(&self, id: u64, why: &str) {
        let mut tasks = self.locked();
        let Some(task) = tasks.running.get_mut(&id) else { return };
        task.last_failure = Some(why.to_owned());
        let kind = task.kind.name;
        tasks.counts.entry(kind).or_default().1 += 1;
    }

    pub(super) fn restarted(&self, id: u64) {
        let mut tasks = self.locked();
        let Some(task) = tasks.running.get_mut(&id) else { return };
        task.restarts += 1;
        task.started_at = Instant::now();
        let kind = task.kind.name;
        tasks.counts.entry(kind).or_default().0 += 1;
    }

    pub(super) fn snapshot(&self) -> Vec<TaskStatus> {
        let tasks = self.locked();
        let status = |task: &Task| TaskStatus {
            kind: task.kind.name,
            name: task.name.clone(),
            restarts: task.restarts,
            last_failure: task.last_failure.clone(),
            running_for: task.started_at.elapsed(),
        };
        tasks.running.values().map(status).collect()
    }

    pub(super) fn counts(&self) -> Vec<KindCounts> {
        let tasks = self.locked();
        let counted = tasks.counts.iter().map(|(kind, (started, failed))| {
            let running = tasks.running.values().filter(|task| task.kind.name == *kind).count() as u64;
            KindCounts { kind, running, started: *started, failed: *failed }
        });
        counted.collect()
    }

    fn token(&self, stage: Stage) -> &CancellationToken {
        match stage {
            Stage::Accepting => &self.stages[0],
            Stage::Working => &self.stages[1],
            Stage::Holding => &self.stages[2],
        }
    }

    pub(super) fn stop(&self, stage: Stage) {
        self.token(stage).cancel();
    }

    /// Waits until nothing of this stage runs.
    pub(super) async fn stopped(&self, stage: Stage) {
        let mut ended = self.ended.subscribe();
        let none_left = |_: &u64| self.locked().running.values().all(|task| task.kind.stage != stage);
        // The sender lives as long as `self`.
        ended.wait_for(none_left).await.ok();
    }

    /// Aborts what is left of this stage, and returns the names.
    pub(super) fn abort(&self, stage: Stage) -> Vec<String> {
        let tasks = self.locked();
        let left = tasks.running.values().filter(|task| task.kind.stage == stage);
        left.map(|task| {
            task.abort.iter().for_each(AbortHandle::abort);
            task.title()
        })
        .collect()
    }
}
