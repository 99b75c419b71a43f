//! `--wait`: follows what goes on in the background until it is done, and says what it waits for.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::commands::bar::bar_of;
use crate::config::parse_span;
use crate::exit::Exit;
use crate::output::say;

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
    /// It goes on, and this is what it does or waits for.
    Going(String),
}

/// Follows `what` for at most `wait`; `check` is the command that shows it later. Going on is exit code 3.
pub(crate) async fn follow(
    what: &str,
    wait: Duration,
    check: &str,
    mut look: impl AsyncFnMut() -> Result<Progress>,
) -> Result<Exit> {
    let (begin, mut said) = (Instant::now(), String::new());
    loop {
        let now = match look().await? {
            Progress::Over(exit) => return Ok(exit),
            Progress::Going(now) => now,
        };
        if begin.elapsed() >= wait {
            say(format!("{what}: not done after {wait:?}; {now}. It continues in the background."));
            return Ok(Exit::Waiting);
        }
        if said != now {
            say(format!("{what}: {now}"));
            said = now;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = tokio::signal::ctrl_c() => {
                say(format!("\n{what}: this continues in the background; check it with: {check}"));
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
}

impl Estimate {
    pub(crate) fn begin() -> Estimate {
        Estimate { begun: Instant::now(), whole: 0, done: 0.0 }
    }

    /// What it looks like when so much is left.
    pub(crate) fn at(&mut self, left: u64) -> String {
        self.whole = self.whole.max(left);
        let share = if self.whole == 0 { 0.0 } else { 1.0 - left as f64 / self.whole as f64 };
        self.done = self.done.max(share);
        self.drawn(self.begun.elapsed())
    }

    fn drawn(&self, elapsed: Duration) -> String {
        let estimate = match self.done {
            done if done < ESTIMATE_FROM => String::new(),
            done => format!(", about {:.0} s left", elapsed.as_secs_f64() * (1.0 - done) / done),
        };
        format!("{}{estimate}", bar_of((self.done * 100.0) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_never_runs_backwards() {
        let mut bar = Estimate::begin();
        assert!(bar.at(100).starts_with("[--------------------]   0 %"));
        assert!(bar.at(40).starts_with("[############--------]  60 %"));
        assert!(bar.at(200).starts_with("[############--------]  60 %"), "more was found to do");
        assert!(bar.at(0).starts_with("[####################] 100 %"));
    }

    #[test]
    fn an_estimate_is_measured_and_missing_before() {
        let bar = |done| Estimate { begun: Instant::now(), whole: 100, done };
        assert!(!bar(0.01).drawn(Duration::from_secs(9)).contains("left"));
        assert!(bar(0.25).drawn(Duration::from_secs(10)).ends_with("about 30 s left"));
    }
}
