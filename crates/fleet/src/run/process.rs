//! Runs one program of a step: in a process group of its own, with its output in a file, ended by TERM and then KILL.
//!
//! The output goes into a file and not through a pipe: a program that outlives the worker (the installer that replaces
//! it, say) must not die of a broken pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between TERM and KILL: what a service needs to close its files.
pub const GRACE: Duration = Duration::from_secs(5);
/// What the kernel needs to end a killed process on a loaded machine.
const BURIAL: Duration = Duration::from_secs(2);
const BURIAL_POLL: Duration = Duration::from_millis(10);
/// How much of the output a message shows.
const TAIL_BYTES: u64 = 4096;
/// A program that prints without end loses its oldest output instead of filling the disk.
const MAX_OUTPUT_BYTES: u64 = 4 * 1024 * 1024;
const OUTPUT_POLL: Duration = Duration::from_millis(500);
/// Maintainer scripts and dpkg itself look for programs here.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program to run.
#[derive(Clone, Copy, Debug)]
pub struct Spawn<'a> {
    /// The program and its arguments.
    pub argv: &'a [String],
    /// Variables of its environment; of ours it gets only the path.
    pub environment: &'a [(String, String)],
    /// The file for its output; without one the output is discarded.
    pub output: Option<&'a Path>,
    /// After which it is ended.
    pub timeout: Duration,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal that was not ours.
    Signalled(i32),
    /// By us, because it took too long.
    TimedOut,
    /// By us, because of a stop.
    Stopped,
}

/// A program that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// The end of its output.
    pub tail: String,
}

impl Ended {
    /// Why it did not succeed, for a person.
    #[must_use]
    pub fn complaint(&self, argv: &[String]) -> String {
        let how = match self.ending {
            Ending::Exited(code) => format!("exited with {code}"),
            Ending::Signalled(signal) => format!("was ended by signal {signal}"),
            Ending::TimedOut => "took too long and was ended".to_owned(),
            Ending::Stopped => "was stopped".to_owned(),
        };
        let said = self.tail.trim();
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        format!("{} {how}{said}", argv.join(" "))
    }
}

/// Runs a program to its end, or ends it.
pub async fn run(spawn: Spawn<'_>, stop: &CancellationToken) -> io::Result<Ended> {
    let mut child = start(&spawn)?;
    let ending = await_end(&mut child, &spawn, stop).await?;
    Ok(Ended { ending, tail: spawn.output.map(tail).transpose()?.unwrap_or_default() })
}

fn start(spawn: &Spawn<'_>) -> io::Result<Child> {
    let (program, arguments) =
        spawn.argv.split_first().ok_or_else(|| io::Error::other("a command needs a program"))?;
    let (out, err) = match spawn.output {
        None => (Stdio::null(), Stdio::null()),
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            (file.try_clone()?.into(), file.into())
        }
    };
    Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", SYSTEM_PATH)
        .env("LC_ALL", "C")
        .envs(spawn.environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{program} cannot be started: {e}")))
}

async fn await_end(child: &mut Child, spawn: &Spawn<'_>, stop: &CancellationToken) -> io::Result<Ending> {
    let deadline = Instant::now() + spawn.timeout;
    let mut poll = tokio::time::interval(OUTPUT_POLL);
    loop {
        tokio::select! {
            status = child.wait() => return Ok(ending_of(status?)),
            () = stop.cancelled() => return end(child).await.map(|()| Ending::Stopped),
            () = tokio::time::sleep_until(deadline) => return end(child).await.map(|()| Ending::TimedOut),
            _ = poll.tick() => spawn.output.map_or(Ok(()), bound_output)?,
        }
    }
}

fn ending_of(status: ExitStatus) -> Ending {
    match status.code() {
        Some(code) => Ending::Exited(code),
        None => Ending::Signalled(status.signal().unwrap_or_default()),
    }
}

/// TERM to the whole group, then KILL.
async fn end(child: &mut Child) -> io::Result<()> {
    let Some(pid) = child.id() else { return Ok(()) };
    let group = Pid::from_raw(pid.cast_signed());
    signal(group, Signal::SIGTERM)?;
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        signal(group, Signal::SIGKILL)?;
        child.wait().await?;
    }
    // Members that ignored TERM and outlived the leader.
    signal(group, Signal::SIGKILL)?;
    wait_until_empty(group).await;
    Ok(())
}

/// A confirmed stop is a promise: nothing of the step runs any more. Zombies
/// count as members for the kernel, hence the bound.
async fn wait_until_empty(group: Pid) {
    let end = Instant::now() + BURIAL;
    while killpg(group, None).is_ok() && Instant::now() < end {
        tokio::time::sleep(BURIAL_POLL).await;
    }
}

/// Sends a signal to a process group; one that is gone needs none.
pub fn signal(group: Pid, signal: Signal) -> io::Result<()> {
    match killpg(group, signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn bound_output(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    // The writer appends, so that it goes on at the new end.
    if file.metadata()?.len() > MAX_OUTPUT_BYTES { file.set_len(0) } else { Ok(()) }
}

/// The end of an output file.
pub fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
