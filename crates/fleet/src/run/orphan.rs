//! Does a program of an earlier life of this worker still run? Every program of a step carries a mark in its
//! environment, by which it is found again: no window between its start and the note of its process id.

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::time::Instant;

use super::process::{GRACE, signal};

/// The variable that holds the mark.
pub const MARK: &str = "CAPSTAN_ACT";
const POLL: Duration = Duration::from_millis(50);

/// The leader of a process group that carries this mark.
pub fn find(mark: &str) -> io::Result<Option<Pid>> {
    let wanted = format!("{MARK}={mark}");
    for entry in std::fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        // Processes come and go while we look, and others' cannot be read.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        let marked = environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes());
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        if marked && leads_its_group(pid, &stat) {
            return Ok(Some(Pid::from_raw(pid)));
        }
    }
    Ok(None)
}

/// From `/proc/<pid>/stat`: after the name in parentheses come state, parent and group. The dead do not count.
fn leads_its_group(pid: i32, stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let alive = fields.first().is_some_and(|state| !matches!(*state, "Z" | "X"));
    alive && fields.get(2).and_then(|group| group.parse::<i32>().ok()) == Some(pid)
}

/// Waits until no program with this mark runs; `false` if one still does at the deadline.
pub async fn wait_until_gone(mark: &str, deadline: Instant) -> io::Result<bool> {
    loop {
        if find(mark)?.is_none() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Ends the program with this mark, if one runs.
pub async fn end(mark: &str) -> io::Result<()> {
    for (how, patience) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, GRACE)] {
        let Some(group) = find(mark)? else { return Ok(()) };
        tracing::warn!(%group, signal = %how, "a program of an earlier worker still runs and is ended");
        signal(group, how)?;
        if wait_until_gone(mark, Instant::now() + patience).await? {
            return Ok(());
        }
    }
    Err(io::Error::other("a program of an earlier worker cannot be ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_told_from_a_member_and_from_the_dead() {
        assert!(leads_its_group(7, "7 (a) b) S 1 7 7 0"));
        assert!(!leads_its_group(8, "8 (sh) S 7 7 7 0"));
        assert!(!leads_its_group(7, "7 (sh) Z 1 7 7 0"));
        assert!(!leads_its_group(7, "nonsense"));
    }
}
