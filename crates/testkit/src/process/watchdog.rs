//! No orphans: a shell that waits for the end of the test process and then kills the child.
//!
//! `Drop` does not run when a test is killed or aborts. The watchdog reads from a pipe that only the test process holds
//! open, so its death is an end of file. (The kernel's parent-death signal would need `unsafe`, and fires when the
//! *thread* that started the child ends, which breaks servers shared between tests.)

use std::io::Write;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// A line means "dismissed"; the end of the pipe means that the test process is gone.
const SCRIPT: &str = "read -r dismissed || kill -KILL \"$1\" 2>/dev/null";

#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Option<Child>,
}

impl Watchdog {
    pub(super) fn over(pid: u32) -> anyhow::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "watchdog", &pid.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = command.spawn().context("cannot start the watchdog of a test's child process")?;
        Ok(Self { shell: Some(shell) })
    }

    /// Dismisses the watchdog after the child was reaped: its id may be reused, so no signal may be sent to it.
    pub(super) fn dismiss(&mut self) {
        let Some(mut shell) = self.shell.take() else { return };
        if let Some(mut stdin) = shell.stdin.take() {
            // The shell may have been killed with the whole process group; then there is nothing to dismiss.
            let _ = stdin.write_all(b"dismissed\n");
        }
        let _ = shell.wait();
    }
}
