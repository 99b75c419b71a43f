//! Is the host healthy again? Health has to be seen without a break for a while, before a deadline.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use capstan_control::keys::HostId;

use crate::release::{HealthGate, Probe};
use crate::run::process::{self, Ending, Spawn};

/// Between two looks: quick enough to be seen by people, slow enough not to be load.
const INTERVAL: Duration = Duration::from_millis(500);
/// A single look that takes longer is a bad one.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known about the health of the services on hosts: their findings, from wherever the process gets them.
pub trait ServiceHealth: std::fmt::Debug + Send + Sync {
    /// What is wrong with the services of a host, in words for an operator; nothing if they are healthy.
    fn ailing(&self, host: &HostId) -> Option<String>;

    /// The same about the host that this process runs on.
    fn ailing_here(&self) -> Option<String>;

    /// How often the answers may change; never, if nothing is looked at.
    fn changes_every(&self) -> Option<Duration> {
        None
    }
}

/// Findings that are not looked at: every service counts as healthy.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl ServiceHealth for Unobserved {
    fn ailing(&self, _: &HostId) -> Option<String> {
        None
    }

    fn ailing_here(&self) -> Option<String> {
        None
    }
}

/// What the looks so far amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Look again.
    Waiting,
    /// Healthy for long enough.
    Healthy,
    /// The deadline has passed; what was seen last.
    TooLate(String),
}

/// Counts looks; pure.
#[derive(Clone, Debug)]
pub struct Gate {
    min_healthy: Duration,
    deadline: Instant,
    healthy_since: Option<Instant>,
}

impl Gate {
    /// A gate that opens after unbroken health.
    #[must_use]
    pub fn new(gate: &HealthGate, now: Instant) -> Gate {
        Gate { min_healthy: gate.min_healthy(), deadline: now + gate.deadline(), healthy_since: None }
    }

    /// Takes one look into account.
    pub fn observe(&mut self, look: Result<(), String>, now: Instant) -> Verdict {
        let why = match look {
            Ok(()) => {
                let since = *self.healthy_since.get_or_insert(now);
                if now.duration_since(since) >= self.min_healthy {
                    return Verdict::Healthy;
                }
                format!("healthy for {:?} only", now.duration_since(since))
            }
            Err(why) => {
                self.healthy_since = None;
                why
            }
        };
        if now >= self.deadline { Verdict::TooLate(why) } else { Verdict::Waiting }
    }
}

/// How waiting for health ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The host is healthy.
    Healthy,
    /// It is not, and the deadline has passed.
    TooLate(String),
    /// A stop came.
    Stopped,
}

/// Waits until the gate opens.
pub async fn wait(
    health: &HealthGate,
    environment: &[(String, String)],
    services: &dyn ServiceHealth,
    stop: &CancellationToken,
) -> Waited {
    let mut gate = Gate::new(health, Instant::now());
    loop {
        let looked = stop.run_until_cancelled(look(&health.probe, environment, services)).await;
        let Some(looked) = looked else { return Waited::Stopped };
        match gate.observe(looked, Instant::now()) {
            Verdict::Healthy => return Waited::Healthy,
            Verdict::TooLate(why) => return Waited::TooLate(why),
            Verdict::Waiting => {}
        }
        if stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none() {
            return Waited::Stopped;
        }
    }
}

/// One look.
pub async fn look(
    probe: &Probe,
    environment: &[(String, String)],
    services: &dyn ServiceHealth,
) -> Result<(), String> {
    match probe {
        Probe::Services => services.ailing_here().map_or(Ok(()), Err),
        Probe::Command { argv } => {
            let words: Vec<String> = argv.clone().into();
            look_by_command(&words, environment).await
        }
        Probe::Http { url } => look_by_http(url).await,
    }
}

async fn look_by_command(argv: &[String], environment: &[(String, String)]) -> Result<(), String> {
    let spawn = Spawn { argv, environment, output: None, timeout: LOOK_TIMEOUT };
    let ended = process::run(spawn, &CancellationToken::new()).await;
    match ended.map_err(|e| e.to_string())?.ending {
        Ending::Exited(0) => Ok(()),
        Ending::Exited(code) => Err(format!("{} exited with {code}", argv.join(" "))),
        Ending::Signalled(signal) => Err(format!("{} was ended by signal {signal}", argv.join(" "))),
        Ending::TimedOut | Ending::Stopped => {
            Err(format!("{} took longer than {LOOK_TIMEOUT:?}", argv.join(" ")))
        }
    }
}

/// No proxy: the probe asks this host, or its neighbour.
async fn look_by_http(url: &str) -> Result<(), String> {
    let client = reqwest::Client::builder().no_proxy().timeout(LOOK_TIMEOUT).build();
    let response = client.map_err(|e| e.to_string())?.get(url).send().await;
    match response.map_err(|e| format!("{url} does not answer: {e}"))?.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("{url} answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(now: Instant) -> Gate {
        let health = HealthGate { probe: Probe::Services, min_healthy_seconds: 10, deadline_seconds: 30 };
        Gate::new(&health, now)
    }

    #[test]
    fn health_counts_when_it_is_unbroken() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut gate = gate(start);
        assert_eq!(gate.observe(Ok(()), at(0)), Verdict::Waiting);
        assert_eq!(gate.observe(Ok(()), at(9)), Verdict::Waiting);
        assert_eq!(gate.observe(Err("down".to_owned()), at(10)), Verdict::Waiting);
        assert_eq!(gate.observe(Ok(()), at(11)), Verdict::Waiting);
        assert_eq!(gate.observe(Ok(()), at(20)), Verdict::Waiting);
        assert_eq!(gate.observe(Ok(()), at(21)), Verdict::Healthy);
    }

    #[test]
    fn the_deadline_says_what_was_seen_last() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let down = || Err("down".to_owned());
        assert_eq!(gate(start).observe(down(), at(30)), Verdict::TooLate("down".to_owned()));
        let late = gate(start).observe(Ok(()), at(31));
        assert_eq!(late, Verdict::TooLate("healthy for 0ns only".to_owned()));
    }
}
