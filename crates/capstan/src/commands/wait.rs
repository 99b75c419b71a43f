//! `--wait`: follows what goes on in the background until it is done, and says what it waits for.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::commands::bar::bar_of;
use crate::config::parse_span;
use crate::exit::Exit;
use crate::output::{rewrite, say};

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Before this much is done, an estimate would be a guess.
const ESTIMATE_FROM: f64 = 0.05;

/// The option.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WaitArg {
    /// Wait until it is done, at most this long (such as 30s or 10m)
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub(crate) wait: Option<Duration>,
}

/// How far something is.
pub(crate) enum Progress {
    /// It ended with this exit code.
    Over(Exit),
    /// It continues.
    Going(Line),
}

/// What is shown while it continues.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    bar: String,
    /// Counts down; on its own no reason for another line in a log.
    estimate: String,
    why: String,
}

impl Line {
    /// What it does or waits for.
    pub(crate) fn of(why: impl Into<String>) -> Line {
        Line { why: why.into(), ..Line::default() }
    }

    /// The same with what it does or waits for.
    pub(crate) fn because(self, why: impl Into<String>) -> Line {
        Line { why: why.into(), ..self }
    }

    fn text(&self) -> String {
        let bar = format!("{}{}", self.bar, self.estimate);
        let parts = [bar.as_str(), self.why.as_str()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }

    fn says_the_same(&self, other: &Line) -> bool {
        (&self.bar, &self.why) == (&other.bar, &other.why)
    }
}

/// Where lines are shown: a terminal has one that is written over, a log has one for every change.
struct Screen {
    terminal: bool,
    shown: Option<Line>,
}

impl Screen {
    fn show(&mut self, what: &str, line: Line) {
        let known = self.shown.as_ref();
        if known.is_some_and(|known| *known == line || (!self.terminal && known.says_the_same(&line))) {
            return;
        }
        let text = format!("{what}: {}", line.text());
        match self.terminal {
            true => rewrite(&text),
            false => say(text),
        }
        self.shown = Some(line);
    }

    /// Leaves the line that is written over.
    fn end(self) {
        if self.terminal && self.shown.is_some() {
            say("");
        }
    }
}

/// Follows `what` for at most `wait`; `check` is the command that shows it later. Going on is exit code 3.
pub(crate) async fn follow(
    what: &str,
    wait: Duration,
    check: &str,
    mut look: impl AsyncFnMut() -> Result<Progress>,
) -> Result<Exit> {
    let mut screen = Screen { terminal: std::io::stderr().is_terminal(), shown: None };
    let begin = Instant::now();
    loop {
        let line = match look().await? {
            Progress::Over(exit) => {
                screen.end();
                return Ok(exit);
            }
            Progress::Going(line) => line,
        };
        if begin.elapsed() >= wait {
            screen.end();
            let text = line.text();
            say(format!("{what}: not done after {wait:?}; {text}. It continues in the background."));
            return Ok(Exit::Waiting);
        }
        screen.show(what, line);
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = tokio::signal::ctrl_c() => {
                screen.end();
                say(format!("{what}: this continues in the background; check it with: {check}"));
                return Ok(Exit::Waiting);
            }
        }
    }
}

/// A part of a whole that grows: a bar that never runs backwards, and an estimate from what was measured.
#[derive(Debug)]
pub(crate) struct Estimate {
    begun: Instant,
    whole: u64,
    done: f64,
    /// When `done` last grew: from then on the estimate counts down.
    measured: Duration,
}

impl Estimate {
    pub(crate) fn begin() -> Estimate {
        Estimate { begun: Instant::now(), whole: 0, done: 0.0, measured: Duration::ZERO }
    }

    /// What it looks like when so much is left.
    pub(crate) fn at(&mut self, left: u64) -> Line {
        self.after(self.begun.elapsed(), left)
    }

    fn after(&mut self, elapsed: Duration, left: u64) -> Line {
        self.whole = self.whole.max(left);
        let share = if self.whole == 0 { 0.0 } else { 1.0 - left as f64 / self.whole as f64 };
        if share > self.done {
            (self.done, self.measured) = (share, elapsed);
        }
        Line { bar: bar_of((self.done * 100.0) as u64), estimate: self.estimate(elapsed), why: String::new() }
    }

    /// The time that is left if it continues as fast as until it last moved; empty once that time is over.
    fn estimate(&self, elapsed: Duration) -> String {
        if self.done < ESTIMATE_FROM || self.done >= 1.0 {
            return String::new();
        }
        let whole = self.measured.div_f64(self.done);
        match whole.saturating_sub(elapsed).as_secs() {
            0 => String::new(),
            left => format!(", about {left} s left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_never_runs_backwards() {
        let mut bar = Estimate::begin();
        assert!(bar.at(100).text().starts_with("[--------------------]   0 %"));
        assert!(bar.at(40).text().starts_with("[############--------]  60 %"));
        assert!(bar.at(200).text().starts_with("[############--------]  60 %"), "more was found to do");
        assert!(bar.at(0).text().starts_with("[####################] 100 %"));
    }

    #[test]
    fn an_estimate_is_measured_and_counts_down() {
        let seconds = Duration::from_secs;
        let mut bar = Estimate::begin();
        assert_eq!(bar.after(seconds(0), 100).estimate, "");
        assert_eq!(bar.after(seconds(9), 99).estimate, "", "too early");
        assert_eq!(bar.after(seconds(10), 75).estimate, ", about 30 s left");
        assert_eq!(
            bar.after(seconds(20), 75).estimate,
            ", about 20 s left",
            "without progress it counts down"
        );
        assert_eq!(bar.after(seconds(60), 75).estimate, "", "later than expected: nothing to promise");
        assert_eq!(bar.after(seconds(60), 50).estimate, ", about 60 s left");
        assert_eq!(bar.after(seconds(70), 0).estimate, "");
    }

    #[test]
    fn a_log_has_a_line_for_every_change_and_not_for_every_second() {
        let line = |estimate: &str, why: &str| Line {
            bar: "[#-]  50 %".to_owned(),
            estimate: estimate.to_owned(),
            why: why.to_owned(),
        };
        assert!(line(", about 9 s left", "a").says_the_same(&line(", about 8 s left", "a")));
        assert!(!line("", "a").says_the_same(&line("", "b")));
        assert_eq!(line(", about 9 s left", "why").text(), "[#-]  50 %, about 9 s left  why");
        assert_eq!(Line::of("why").text(), "why");
    }
}
