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
/// The variable that marks what is not ended but waited for: half an installation is worse than a whole one.
pub const FINISH: &str = "CAPSTAN_FINISH";
const POLL: Duration = Duration::from_millis(50);
/// Longer than any installation takes; one that hangs for so long is for an operator.
const FINISH_WITHIN: Duration = Duration::from_secs(600);
/// How often the processes are looked through again: a program that is ended may have started another one.
const ROUNDS: usize = 20;

/// A process group that carries a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Marked {
    group: Pid,
    mark: String,
    finishes: bool,
}

/// Every process group of programs whose mark begins like this.
fn marked(prefix: &str) -> io::Result<Vec<Marked>> {
    let wanted = format!("{MARK}={prefix}");
    let finish = format!("{FINISH}=1");
    let mut found: Vec<Marked> = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        if entry.file_name().to_string_lossy().parse::<i32>().is_err() {
            continue;
        }
        // Processes come and go while we look, and others' cannot be read.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        let variables = || environment.split(|byte| *byte == 0);
        let Some(mark) = variables().find(|variable| variable.starts_with(wanted.as_bytes())) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some(group) = group_of(&stat).filter(|group| *group != nix::unistd::getpgrp()) else { continue };
        let mark = String::from_utf8_lossy(&mark[MARK.len() + 1..]).into_owned();
        let finishes = variables().any(|variable| variable == finish.as_bytes());
        if !found.iter().any(|known| known.group == group) {
            found.push(Marked { group, mark, finishes });
        }
    }
    Ok(found)
}

/// From `/proc/<pid>/stat`: the group of a process that is alive and belongs to a step. What made a session of its own is
/// a service that the step started, which outlives it on purpose.
fn group_of(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let alive = fields.first().is_some_and(|state| !matches!(*state, "Z" | "X"));
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    let (group, session) = (number(2)?, number(3)?);
    (alive && group > 1 && group != session).then(|| Pid::from_raw(group))
}

/// Ends every program whose mark begins like this: by TERM, then by KILL. Installers are let finish first.
pub async fn end_all(prefix: &str) -> io::Result<()> {
    let patience = Instant::now() + FINISH_WITHIN;
    for _ in 0..ROUNDS {
        let left = marked(prefix)?;
        if left.is_empty() {
            return Ok(());
        }
        for Marked { group, mark, finishes } in left {
            tracing::warn!(%group, mark, finishes, "a program of an earlier worker still runs");
            let until = if finishes { patience } else { Instant::now() };
            end_group(group, until).await?;
        }
    }
    Err(io::Error::other("programs of an earlier worker cannot be ended"))
}

/// Waits for a group until a moment, then ends it.
async fn end_group(group: Pid, until: Instant) -> io::Result<()> {
    if is_empty_by(group, until).await {
        return Ok(());
    }
    for how in [Signal::SIGTERM, Signal::SIGKILL] {
        signal(group, how)?;
        if is_empty_by(group, Instant::now() + GRACE).await {
            return Ok(());
        }
    }
    Ok(())
}

async fn is_empty_by(group: Pid, until: Instant) -> bool {
    loop {
        if !lives(group) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether a process of the group is alive: zombies do not count.
fn lives(group: Pid) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    entries.flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat"));
        stat.is_ok_and(|stat| group_of(&stat) == Some(group))
    })
}

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
