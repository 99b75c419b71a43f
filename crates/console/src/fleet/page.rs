//! The page of the fleet: how far the update is, wave by wave and host by host, and what is waited for. No script.

use std::fmt::Write as _;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use capstan_fleet::FleetError;
use capstan_fleet::api::{FleetState, FleetStatus, HistoryLine, HostLine, WaveProgress};
use capstan_fleet::decide::why::why;
use capstan_fleet::facts::Facts;
use capstan_fleet::history::Outcome;

use crate::State;
use crate::page::{STYLE, escape};

/// Hosts on one page; the JSON API has all of them.
const MOST_HOSTS: usize = 500;
/// Hosts for which the page works out what they wait for: each takes a look at the whole fleet.
const MOST_EXPLAINED: usize = 50;
/// Requests that the page remembers.
const MOST_HISTORY: usize = 10;
/// How often a browser looks again while something is under way, in seconds.
const REFRESH: u32 = 2;

const BAR_STYLE: &str = "\
.bar { display: flex; height: .8rem; min-width: 12rem; border-radius: .3rem; overflow: hidden; background: var(--line); }\
.bar i { display: block; } .bar .done { background: var(--good); } .bar .active { background: #4078c0; }\
.bar .failed { background: var(--bad); } .bar .without { background: var(--soft); } .next { font-size: 1.05rem; }";

/// What the page is made of.
struct Seen {
    status: FleetStatus,
    facts: Facts,
    history: Vec<HistoryLine>,
}

pub(crate) async fn show(Extract(state): Extract<State>) -> Response {
    match look(&state).await {
        Ok(seen) => Html(document(&state, &seen)).into_response(),
        Err(error) => {
            let text =
                format!("<!doctype html><p>The fleet cannot be read: {}</p>\n", escape(&error.to_string()));
            (StatusCode::SERVICE_UNAVAILABLE, Html(text)).into_response()
        }
    }
}

async fn look(state: &State) -> Result<Seen, FleetError> {
    let fleet = state.fleet();
    let mut history = fleet.history().await?;
    history.truncate(MOST_HISTORY);
    Ok(Seen { status: fleet.status().await?, facts: fleet.facts().await?, history })
}

fn document(state: &State, seen: &Seen) -> String {
    let refresh = match seen.status.state {
        FleetState::Running | FleetState::Paused => format!("<meta http-equiv=refresh content={REFRESH}>"),
        FleetState::Clear | FleetState::Held | FleetState::Stopped | FleetState::Completed => String::new(),
    };
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Capstan - fleet</title>{refresh}\
         <meta name=viewport content='width=device-width, initial-scale=1'><style>{STYLE}{BAR_STYLE}</style></head><body>\
         <header><h1><a href=/>Capstan</a></h1><span>fleet, version {version}</span></header>\
         <main>{head}{waves}{hosts}{history}</main>\
         <footer>The same for programs: <a href=/api/v1/fleet/status>/api/v1/fleet/status</a>, \
         <a href=/api/v1/fleet/hosts>hosts</a>, <a href=/api/v1/fleet/history>history</a>. \
         In a terminal: <code>capstan fleet status --watch</code></footer></body></html>\n",
        version = escape(&state.about.version),
        head = head(&seen.status),
        waves = waves(&seen.status.waves),
        hosts = hosts(seen),
        history = history(&seen.history),
    )
}

fn head(status: &FleetStatus) -> String {
    let release = status.request.as_ref().map_or("", |request| request.version.as_str());
    let (class, word) = match status.state {
        FleetState::Clear => ("good", "nothing is under way"),
        FleetState::Running => ("good", "under way"),
        FleetState::Paused => ("bad", "paused"),
        FleetState::Held => ("bad", "held: a key cannot be read"),
        FleetState::Stopped => ("bad", "stopped"),
        FleetState::Completed if !status.without.is_empty() => ("bad", "complete, without some hosts"),
        FleetState::Completed => ("good", "complete"),
    };
    let mut text = format!("<h2>Status</h2><p><span class='state {class}'>{word}</span> ");
    if !release.is_empty() {
        let _ = write!(text, "release <b>{}</b> ", escape(release));
    }
    if let Some(target) = status.target.as_ref().filter(|target| *target != release) {
        let _ = write!(text, "(wanted: <b>{}</b>) ", escape(target));
    }
    match &status.leader {
        Some(leader) => drop(write!(text, "updater: <code>{}</code></p>", escape(leader))),
        None => text.push_str("<span class=bad>no updater runs</span></p>"),
    }
    if let Some(reason) =
        status.request.as_ref().map(|request| &request.stop_reason).filter(|why| !why.is_empty())
    {
        let _ = write!(text, "<p class=bad>Stopped because: {}</p>", escape(reason));
    }
    let _ = write!(text, "<p class=next>Next: {}</p>", escape(&status.why));
    for problem in &status.problems {
        let _ = write!(text, "<p class=bad>{}</p>", escape(problem));
    }
    text
}

fn waves(waves: &[WaveProgress]) -> String {
    if waves.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<h2>Waves</h2><div class=scroll><table><tr><th>Group<th>Wave<th>Progress<th>Finished<th>Active<th>Failed\
         <th>Gone or skipped</tr>",
    );
    for wave in waves {
        let _ = write!(
            text,
            "<tr><td>{}<td>{}<td>{}<td>{} of {}<td>{}<td>{}<td>{}</tr>",
            escape(wave.group.as_ref()),
            wave.wave,
            bar(wave),
            wave.finished,
            wave.hosts,
            wave.active,
            wave.failed,
            wave.without,
        );
    }
    text.push_str("</table></div>");
    text
}

fn bar(wave: &WaveProgress) -> String {
    let parts = [
        (wave.finished, "done"),
        (wave.active, "active"),
        (wave.failed, "failed"),
        (wave.without, "without"),
    ];
    let parts: String = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, class)| format!("<i class={class} style='flex:{count}'></i>"))
        .collect();
    let counted = wave.finished + wave.active + wave.failed + wave.without;
    format!("<div class=bar>{parts}<i style='flex:{}'></i></div>", wave.hosts.saturating_sub(counted))
}

fn hosts(seen: &Seen) -> String {
    let all = &seen.status.hosts;
    let mut text = String::from("<h2>Hosts</h2>");
    if all.is_empty() {
        text.push_str("<p>The fleet has no hosts. <code>capstan fleet join</code> takes them in.</p>");
        return text;
    }
    text.push_str(
        "<div class=scroll><table><tr><th>Host<th>Name<th>Worker<th>Group<th>State<th>Waits for, or what went wrong</tr>",
    );
    let mut explained = 0;
    for line in all.iter().take(MOST_HOSTS) {
        let waits = line.state != "finished" && seen.status.request.is_some() && explained < MOST_EXPLAINED;
        explained += usize::from(waits);
        let reasons = if waits { why(&seen.facts, line.lrn).reasons } else { Vec::new() };
        host_row(&mut text, line, &reasons);
    }
    text.push_str("</table></div>");
    if let Some(more) = all.len().checked_sub(MOST_HOSTS).filter(|more| *more > 0) {
        let _ =
            write!(text, "<p>... and {more} more in <a href=/api/v1/fleet/hosts>/api/v1/fleet/hosts</a></p>");
    }
    text
}

fn host_row(text: &mut String, line: &HostLine, reasons: &[String]) {
    let class = if line.state == "failed" { "bad" } else { "good" };
    let said = [line.message.clone()].into_iter().filter(|message| !message.is_empty());
    let said: Vec<String> = said.chain(reasons.iter().cloned()).map(|reason| escape(&reason)).collect();
    let _ = write!(
        text,
        "<tr><td>{}<td><code>{}</code><td>{}<td>{}<td><span class='state {class}'>{}</span><td>{}</tr>",
        line.lrn,
        escape(line.host.as_ref().map_or("-", AsRef::as_ref)),
        if line.up { "up" } else { "<span class=bad>down</span>" },
        escape(line.group.as_ref()),
        escape(&line.state),
        said.join("<br>"),
    );
}

fn history(lines: &[HistoryLine]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<h2>History</h2><div class=scroll><table><tr><th>Number<th>Release<th>From<th>Outcome<th>Started<th>By<th>Reason</tr>",
    );
    for HistoryLine { generation, record } in lines {
        let outcome = match record.outcome {
            None => "under way",
            Some(Outcome::Succeeded) => "succeeded",
            Some(Outcome::Failed) => "failed",
            Some(Outcome::TimedOut) => "timed out",
            Some(Outcome::Stopped) => "stopped",
        };
        let _ = write!(
            text,
            "<tr><td>{generation}<td>{}<td>{}<td>{outcome}<td>{}<td>{}<td>{}</tr>",
            escape(&record.version),
            escape(&record.from),
            record.started_at.to_seconds_text(),
            escape(&record.by),
            escape(&record.reason),
        );
    }
    text.push_str("</table></div>");
    text
}
