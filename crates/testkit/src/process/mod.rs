//! A supervised child process: own log file, readiness with a deadline, kill -9, pause, restart; it ends with the test.

mod binary;
mod builder;
mod listener;
mod ready;
mod reexec;
mod signal;
mod watchdog;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;

pub use binary::{capstan_binary, on_path};
pub use builder::Builder;
pub use listener::{listening_ports, owns_port};
pub use ready::Ready;
pub use reexec::{child_arguments, child_test, report_ready};
use watchdog::Watchdog;

use crate::eventually::try_eventually_real_time;

/// Lines of a child's output in a failure message.
const TAIL_LINES: usize = 30;
/// A process that is still there this long after SIGKILL hangs in the kernel.
const KILL_DEADLINE: Duration = Duration::from_secs(20);

/// A child process, killed with SIGKILL when dropped, and when this process dies without dropping it.
#[derive(Debug)]
pub struct Process {
    builder: Builder,
    log: PathBuf,
    /// Where the current run begins in the log: readiness ignores everything before.
    log_start: u64,
    child: Child,
    exited: Option<ExitStatus>,
    watchdog: Watchdog,
}

impl Process {
    /// Describes a process to start; `program` is a path or a name in `PATH`.
    #[must_use]
    pub fn builder(program: impl Into<PathBuf>) -> Builder {
        Builder::new(program)
    }

    pub(crate) fn start(builder: Builder, log: PathBuf) -> anyhow::Result<Self> {
        let output = File::options().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("cannot open the log {}", log.display()))?;
        let log_start = output.metadata()?.len();
        let child = builder.command(&output)?.spawn();
        let child = child.with_context(|| format!("cannot start {}", builder.label()))?;
        let watchdog = Watchdog::over(child.id())?;
        Ok(Self { builder, log, log_start, child, exited: None, watchdog })
    }

    /// The id of the running (or last) child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The file with standard output and standard error of all runs.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The output of the current run.
    #[must_use]
    pub fn log_text(&self) -> String {
        let mut bytes = Vec::new();
        let read = File::open(&self.log).and_then(|mut log| {
            log.seek(SeekFrom::Start(self.log_start))?;
            log.read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) => format!("(cannot read the log {}: {e})", self.log.display()),
        }
    }

    /// The last lines of the current run's output.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// The exit status, if the child has exited.
    pub fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.exited.is_none()
            && let Some(status) = self.child.try_wait().with_context(|| self.about("cannot be waited for"))?
        {
            self.exited = Some(status);
            self.watchdog.dismiss();
        }
        Ok(self.exited)
    }

    /// Waits until the child exits by itself.
    pub async fn exited(&mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        let look = async || match self.exit_status() {
            Ok(Some(status)) => Ok(Ok(status)),
            Ok(None) => Err("still running"),
            Err(e) => Ok(Err(e)),
        };
        match try_eventually_real_time("the process has ended", deadline, look).await {
            Ok(status) => status,
            Err(timed_out) => bail!(self.about(&timed_out.to_string())),
        }
    }

    /// Waits until the child is ready. A child that exits before is reported at once, with the end of its output.
    pub async fn ready(&mut self, ready: &Ready, deadline: Duration) -> anyhow::Result<()> {
        let condition = format!("{} is ready ({ready})", self.builder.label());
        let look = async || match self.exit_status() {
            Err(e) => Ok(Err(e)),
            Ok(Some(status)) => Ok(Err(anyhow::anyhow!("ended with {status} before it was ready ({ready})"))),
            Ok(None) => ready.look(self).await.map(Ok),
        };
        match try_eventually_real_time(&condition, deadline, look).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => bail!(self.about(&format!("{e:#}"))),
            Err(timed_out) => bail!(self.about(&timed_out.to_string())),
        }
    }

    /// Sends SIGKILL and reaps the child: when this returns, the process is gone and its ports are free.
    pub fn kill9(&mut self) -> anyhow::Result<ExitStatus> {
        if let Some(status) = self.exit_status()? {
            return Ok(status);
        }
        self.signal(Signal::SIGKILL)?;
        let killed = crate::try_eventually_blocking("gone after SIGKILL", KILL_DEADLINE, || {
            self.exit_status().transpose().ok_or("still there")
        });
        killed.with_context(|| self.about("cannot be killed"))?
    }

    /// Sends SIGTERM and waits for the exit. A timeout is an error; the process is killed on drop.
    pub async fn terminate(&mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        if let Some(status) = self.exit_status()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM)?;
        self.exited(deadline).await
    }

    /// SIGSTOP: connections stay open, nothing responds. Returns when all threads have stopped.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGSTOP)?;
        signal::wait_until_stopped(self.pid()).with_context(|| self.about("cannot be paused"))
    }

    /// SIGCONT: ends a [`pause`](Self::pause).
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills the process if it still runs and starts the same command again; the log continues in the same file.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill9()?;
        let fresh = Self::start(self.builder.clone(), self.log.clone())?;
        drop(std::mem::replace(self, fresh));
        Ok(())
    }

    /// Sends any signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        if let Some(status) = self.exited {
            bail!(self.about(&format!("got no {signal}: it has ended with {status}")));
        }
        signal::send(self.pid(), signal).with_context(|| self.about("cannot be signalled"))
    }

    /// Whether the listener on this loopback port is a socket of this process.
    pub fn owns_port(&self, port: u16) -> anyhow::Result<bool> {
        owns_port(self.pid(), port)
    }

    /// A failure message: process, problem, and the end of its output.
    pub(crate) fn about(&self, what: &str) -> String {
        let (label, pid, log) = (self.builder.label(), self.pid(), self.log.display());
        let tail = self.log_tail();
        let tail = if tail.is_empty() { "(it printed nothing)" } else { &tail };
        format!("{label} (pid {pid}): {what}\n--- end of {log} ---\n{tail}\n---")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(e) = self.kill9() {
            eprintln!("{e:#}");
        }
    }
}
