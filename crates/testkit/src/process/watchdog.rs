//! No orphans: a shell that waits for our end and kills the child then.
//!
//! `Drop` does not run when a test is killed or aborts. The watchdog reads from a pipe that only we hold open, so our
//! death, of whatever cause, is its end of file. (The kernel's parent-death signal would need `unsafe`, and fires when
//! the *thread* ends that started the child, which breaks servers shared between tests.)

use std::io::Write;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// A line means "dismissed"; the end of the pipe means "the test is gone".
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

    /// The child has been collected: its id may soon be somebody else's, so nothing may be sent to it any more.
    pub(super) fn dismiss(&mut self) {
        let Some(mut shell) = self.shell.take() else { return };
        if let Some(mut stdin) = shell.stdin.take() {
            // It may have been killed with our whole process group: then there is nothing to dismiss.
            let _ = stdin.write_all(b"dismissed\n");
        }
        let _ = shell.wait();
    }
}
