//! `capstan fleet status --watch`: redrawn on a terminal, one line per change elsewhere, until it is over.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use anyhow::Result;
use capstan_fleet::Fleet;
use capstan_fleet::api::FleetStatus;
use capstan_fleet::facts::Facts;
use capstan_meta::view::{Changes, View, ViewOptions};
use tokio::time::{sleep, timeout};

use super::screen;
use super::show::{exit, is_over};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

/// The minimum pause between updates: a fleet of thousands changes all the time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
/// The maximum pause: a wait can end without a change of the metadata (a window opens, a bake is over).
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Hosts on a terminal of 24 lines: redrawing more than it shows would corrupt the display.
const MOST_HOSTS: usize = 14;

pub(super) async fn run(fleet: &Fleet, context: &mut Context) -> Result<Exit> {
    let view = View::open(fleet.store().clone(), Facts::ranges(fleet.tree()), ViewOptions::default()).await?;
    let mut changes = view.changes();
    let mut drawn = match (context.out.format, stdout().is_terminal()) {
        (Format::Json, _) => Drawn::Documents(None),
        (Format::Table, true) => Drawn::Screen(0),
        (Format::Table, false) => Drawn::Lines(BTreeMap::new()),
    };
    loop {
        changes.mark_seen();
        let status = fleet.status().await?;
        drawn.draw(&status, context)?;
        match exit(&status) {
            Exit::Waiting if !is_over(&status) => next(&mut changes).await,
            over => return Ok(over),
        }
    }
}

async fn next(changes: &mut Changes) {
    sleep(SHORTEST_PAUSE).await;
    // Both ends of this wait mean the same: read again.
    let _ = timeout(LONGEST_PAUSE, changes.next()).await;
}

/// What was shown last.
enum Drawn {
    /// This many lines on a terminal.
    Screen(usize),
    /// The last line about each thing.
    Lines(BTreeMap<String, String>),
    /// The last document.
    Documents(Option<Box<FleetStatus>>),
}

impl Drawn {
    fn draw(&mut self, status: &FleetStatus, context: &mut Context) -> Result<()> {
        match self {
            Drawn::Screen(before) => {
                let lines = screen::lines(status, MOST_HOSTS);
                context.out.bytes(redraw(*before, &lines).as_bytes())?;
                *before = lines.len();
            }
            Drawn::Lines(before) => {
                let at = status.at.to_seconds_text();
                for (thing, text) in facts(status) {
                    if before.get(&thing) != Some(&text) {
                        context.out.line(format!("{at}  {thing}: {text}"))?;
                        before.insert(thing, text);
                    }
                }
            }
            Drawn::Documents(before) => {
                let same = before.as_ref().is_some_and(|before| same(before, status));
                if !same {
                    context.out.json_line(status)?;
                }
                *before = Some(Box::new(status.clone()));
            }
        }
        context.out.flush()
    }
}

fn same(one: &FleetStatus, other: &FleetStatus) -> bool {
    FleetStatus { at: other.at, ..one.clone() } == *other
}

/// Returns to the first line and clears everything below; long lines are cut by the terminal, not wrapped.
fn redraw(before: usize, lines: &[String]) -> String {
    let back = if before == 0 { String::new() } else { format!("\x1b[{before}A\r") };
    format!("{back}\x1b[J\x1b[?7l{}\n\x1b[?7h", lines.join("\n"))
}

/// The present facts, in reading order.
fn facts(status: &FleetStatus) -> Vec<(String, String)> {
    let mut facts = vec![("fleet".to_owned(), screen::summary(status))];
    if let Some(reason) = status.request.as_ref().map(|request| request.stop_reason.clone()) {
        facts.extend((!reason.is_empty()).then(|| ("stopped because".to_owned(), reason)));
    }
    facts.extend(
        status.waves.iter().map(|wave| (format!("{} wave {}", wave.group, wave.wave), screen::counts(wave))),
    );
    facts.extend(status.hosts.iter().map(|line| {
        let worker = if line.up { "" } else { " (its worker is down)" };
        let message = line.message.lines().next().map(|text| format!(": {text}")).unwrap_or_default();
        (format!("host {}", line.lrn), format!("{}{worker}{message}", line.state))
    }));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_drawn_over_the_one_before() {
        let lines = ["one".to_owned(), "two".to_owned()];
        assert_eq!(redraw(0, &lines), "\x1b[J\x1b[?7lone\ntwo\n\x1b[?7h");
        assert!(redraw(2, &lines).starts_with("\x1b[2A\r\x1b[J"));
    }
}
