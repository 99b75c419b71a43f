//! How the status of the fleet looks on a terminal: a bar per wave, a line per host. Pure.

use capstan_fleet::api::{FleetState, FleetStatus, HostLine, WaveProgress};
use capstan_fleet::lrn::go_list;

/// Width of a bar, in characters.
const BAR: usize = 30;

/// The whole status, with at most this many hosts: those with news first.
pub(super) fn lines(status: &FleetStatus, most_hosts: usize) -> Vec<String> {
    let mut lines = head(status);
    if !status.waves.is_empty() {
        lines.push(String::new());
        lines.extend(columns(status.waves.iter().map(|wave| wave_row(status, wave)).collect()));
    }
    lines.push(String::new());
    lines.extend(hosts(&status.hosts, most_hosts));
    lines.extend(status.problems.iter().map(|problem| format!("problem: {problem}")));
    lines
}

/// The target, its progress, the updater, and what is pending.
fn head(status: &FleetStatus) -> Vec<String> {
    let mut lines = vec![summary(status)];
    lines.push(match &status.leader {
        Some(leader) => format!("updater: {leader}"),
        None => "updater: none; start one with `capstan controller` or `capstan up`".to_owned(),
    });
    if let Some(reason) =
        status.request.as_ref().map(|request| &request.stop_reason).filter(|why| !why.is_empty())
    {
        lines.push(format!("stopped because: {reason}"));
    }
    lines.push(format!("next: {}", status.why));
    lines
}

/// The state of the fleet in one line.
pub(super) fn summary(status: &FleetStatus) -> String {
    let release = status.request.as_ref().map_or("", |request| request.version.as_str());
    let waiting = status.target.as_ref().filter(|target| *target != release);
    match (status.state, waiting) {
        (FleetState::Clear, None) => "no update is running".to_owned(),
        (FleetState::Clear, Some(target)) => format!("release {target} is about to start"),
        (FleetState::Running, _) => format!("release {release}: in progress"),
        (FleetState::Paused, _) => {
            format!("release {release}: paused; continue with `capstan fleet resume`")
        }
        (FleetState::Stopped, _) => {
            format!("release {release}: stopped; start over with `capstan fleet recover`")
        }
        (FleetState::Held, _) => format!("release {release}: held, because a key cannot be read"),
        (FleetState::Completed, None) if !status.without.is_empty() => {
            format!("release {release}: complete, without hosts {}", go_list(&status.without))
        }
        (FleetState::Completed, None) => format!("release {release}: complete"),
        (FleetState::Completed, Some(target)) => {
            format!("release {release}: complete; release {target} is about to start")
        }
    }
}

fn wave_row(status: &FleetStatus, wave: &WaveProgress) -> Vec<String> {
    let last = status.waves.iter().filter(|other| other.group == wave.group).count();
    vec![format!("{} wave {} of {last}", wave.group, wave.wave), bar(wave), counts(wave)]
}

/// How many hosts of a wave are in each state.
pub(super) fn counts(wave: &WaveProgress) -> String {
    let mut text = format!("{} of {} finished", wave.finished, wave.hosts);
    for (count, word) in [(wave.active, "active"), (wave.failed, "failed"), (wave.without, "without")] {
        if count > 0 {
            text.push_str(&format!(", {count} {word}"));
        }
    }
    text
}

/// `#` finished, `>` active, `x` failed, `-` gone or skipped, `.` not yet.
fn bar(wave: &WaveProgress) -> String {
    let parts = [(wave.finished, '#'), (wave.active, '>'), (wave.failed, 'x'), (wave.without, '-')];
    let (mut text, mut hosts) = (String::from("["), 0);
    for (count, sign) in parts {
        hosts += count;
        // The end of each part is rounded, not its length: the bar is full only if all hosts are counted.
        let end = (hosts * BAR).checked_div(wave.hosts).unwrap_or(BAR).min(BAR);
        while text.len() <= end {
            text.push(sign);
        }
    }
    while text.len() <= BAR {
        text.push('.');
    }
    text + "]"
}

fn hosts(all: &[HostLine], most: usize) -> Vec<String> {
    let mut shown: Vec<&HostLine> = all.iter().collect();
    if all.len() > most {
        shown.sort_by_key(|line| matches!(line.state.as_str(), "finished" | "idle" | "not joined yet"));
        shown.truncate(most);
        shown.sort_by_key(|line| line.lrn);
    }
    let mut rows = vec![["HOST", "NAME", "WORKER", "STATE", "MESSAGE"].map(str::to_owned).to_vec()];
    rows.extend(shown.iter().map(|line| host_row(line)));
    let mut lines = columns(rows);
    if all.len() > most {
        lines.push(format!("... and {} more; `capstan fleet hosts` shows all", all.len() - most));
    }
    lines
}

fn host_row(line: &HostLine) -> Vec<String> {
    vec![
        line.lrn.to_string(),
        line.host.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        if line.up { "up" } else { "down" }.to_owned(),
        line.state.clone(),
        line.message.lines().next().unwrap_or_default().to_owned(),
    ]
}

/// Aligns the cells of rows.
fn columns(rows: Vec<Vec<String>>) -> Vec<String> {
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> =
        (0..most).map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(hosts: usize, finished: usize, active: usize, failed: usize) -> WaveProgress {
        WaveProgress {
            group: capstan_fleet::keys::default_group(),
            wave: 1,
            hosts,
            finished,
            active,
            failed,
            without: 0,
            steps_left: 0,
        }
    }

    #[test]
    fn a_bar_is_full_when_everybody_is_counted() {
        assert_eq!(bar(&wave(3, 3, 0, 0)), format!("[{}]", "#".repeat(BAR)));
        assert_eq!(bar(&wave(3, 0, 0, 0)), format!("[{}]", ".".repeat(BAR)));
        assert_eq!(
            bar(&wave(3, 1, 1, 1)),
            format!("[{}{}{}]", "#".repeat(10), ">".repeat(10), "x".repeat(10))
        );
        assert_eq!(bar(&wave(0, 0, 0, 0)).len(), BAR + 2, "a wave without hosts");
        assert_eq!(bar(&wave(10_000, 1, 1, 0)).len(), BAR + 2);
    }

    #[test]
    fn cells_stand_below_each_other() {
        let rows = vec![vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(columns(rows), ["a     b", "long"]);
    }
}
