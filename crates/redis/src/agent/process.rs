//! Which process is a node's, is it alive, and how does it end? Always identified by its id and start time.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::record::ProcessMark;

/// The polling interval for the end of a process that is not a child.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A server process of this host: started by this supervisor or an earlier one.
#[derive(Debug)]
pub(super) struct ServerProcess {
    mark: ProcessMark,
    /// `None`: adopted.
    child: Option<Child>,
}

impl ServerProcess {
    /// Starts the program with a configuration file. It survives this process: the next one adopts it.
    pub(super) fn start(program: &Path, config: &Path, output: std::fs::File) -> io::Result<ServerProcess> {
        let mut command = Command::new(program);
        command.arg(config).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.process_group(0).spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(io::ErrorKind::NotFound)?;
        // It may have ended already; until it is reaped, it is still listed.
        let (_, started) = stat(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(ServerProcess { mark: ProcessMark { pid, started }, child: Some(child) })
    }

    /// The process of a record, if it is still alive.
    pub(super) fn adopt(mark: ProcessMark) -> Option<ServerProcess> {
        (started(mark.pid) == Some(mark.started)).then_some(ServerProcess { mark, child: None })
    }

    pub(super) fn mark(&self) -> ProcessMark {
        self.mark
    }

    /// Whether it is alive. Reaps a child that has ended.
    pub(super) fn alive(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => started(self.mark.pid) == Some(self.mark.started),
        }
    }

    /// Its activity; `None` if it is not alive.
    pub(super) fn pulse(&mut self) -> Option<Pulse> {
        if self.alive() { pulse(self.mark.pid) } else { None }
    }

    /// Waits for its end; false if it is still alive at the deadline.
    pub(super) async fn ended(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.alive() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
        true
    }

    /// Kills it.
    pub(super) async fn kill(&mut self, within: Duration) -> bool {
        if self.alive() {
            // It may have ended in between; then there is no process to signal.
            kill(Pid::from_raw(self.mark.pid), Signal::SIGKILL).ok();
        }
        self.ended(within).await
    }
}

/// The activity of a live process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pulse {
    /// It was stopped by a signal, or is being traced.
    pub stopped: bool,
    /// The CPU time that it has used, in ticks.
    pub worked: u64,
}

fn pulse(pid: i32) -> Option<Pulse> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let stopped = matches!(fields.next()?, "T" | "t");
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Pulse { stopped, worked: user + system })
}

/// When a live process started, in ticks since the machine did.
fn started(pid: i32) -> Option<u64> {
    stat(pid).filter(|(lives, _)| *lives).map(|(_, started)| started)
}

/// Whether a listed process is alive (not a zombie), and when it started.
fn stat(pid: i32) -> Option<(bool, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces and parentheses; what follows the last one does not.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((!matches!(state, "Z" | "X"), started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_known_by_id_and_start() {
        let out = || std::fs::File::create("/dev/null").unwrap();
        let script = capstan_testkit::TempDir::new("process").unwrap();
        let config = script.path().join("60");
        std::fs::write(&config, "").unwrap();
        let mut own = ServerProcess::start(Path::new("/usr/bin/tail"), &config, out()).unwrap();
        assert!(own.ended(Duration::from_secs(20)).await, "tail of an empty file ends");
        assert!(ServerProcess::adopt(own.mark()).is_none());
        let me = i32::try_from(std::process::id()).unwrap();
        let mark = ProcessMark { pid: me, started: started(me).unwrap() };
        let mut here = ServerProcess::adopt(mark).unwrap();
        assert!(here.alive() && here.pulse().is_some_and(|pulse| !pulse.stopped));
        assert_eq!(own.pulse(), None);
        assert!(ServerProcess::adopt(ProcessMark { started: mark.started + 1, ..mark }).is_none());
    }
}
