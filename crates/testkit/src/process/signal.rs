//! Signals to a child process, and whether it has stopped.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Stopping is immediate unless a thread is inside an uninterruptible system call (a sync of the disk).
const STOP_DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid).context("a process id out of range")?);
    signal::kill(pid, signal).with_context(|| format!("{signal} to {pid}"))
}

/// Waits until all threads have stopped: SIGSTOP is delivered to one thread after the other.
pub(super) fn wait_until_stopped(pid: u32) -> anyhow::Result<()> {
    let stopped = || match running_thread(pid) {
        Ok(None) => Ok(Ok(())),
        Ok(Some(state)) => Err(state),
        Err(e) => Ok(Err(e)),
    };
    crate::try_eventually_blocking("all threads have stopped", STOP_DEADLINE, stopped)?
}

/// A thread that is not stopped, with its state.
fn running_thread(pid: u32) -> anyhow::Result<Option<String>> {
    let tasks = format!("/proc/{pid}/task");
    for task in std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        let path = task?.path().join("stat");
        // A thread may end between being listed and being read.
        let Ok(stat) = std::fs::read_to_string(&path) else { continue };
        // pid (name, which may hold anything) state ...
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("?");
        if !matches!(state, "T" | "t" | "Z" | "X") {
            return Ok(Some(format!("{} is in state {state}", path.display())));
        }
    }
    Ok(None)
}
