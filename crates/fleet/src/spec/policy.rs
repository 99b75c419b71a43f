//! By which rules is a group of hosts updated? Waves, limits, windows, budgets and deadlines.

use std::collections::BTreeMap;

use capstan_control::cron::Cron;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::amount::Amount;
use crate::encoding::{Moment, Span};

/// A rollout with more waves than this is one host after the other, which is what parallelism 1 is for.
pub const MAX_WAVES: usize = 64;

/// `policy/<GROUP>`: the rules of a group. What is left out is as in [`Policy::default`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Which hosts: those with all of these labels. Without any: every host that no other group takes.
    pub selector: BTreeMap<String, String>,
    /// Groups of a lower number are through before those of a higher one begin.
    pub order: u32,
    /// The sizes of the first waves; the remaining hosts are a last wave.
    pub waves: Vec<Amount>,
    /// Hosts in a slot at the same time.
    pub parallelism: Amount,
    /// The label that says which hosts fail together; without one the group is one domain.
    pub failure_domain: Option<String>,
    /// Hosts of one failure domain that may be out of service at the same time, for whatever reason.
    pub max_unavailable: Amount,
    /// When hosts may begin.
    pub window: Option<Window>,
    /// Hosts that may fail before the rollout stops, over the whole rollout.
    pub failure_budget: Amount,
    /// Hosts whose worker is gone that the rollout may go on without.
    pub absent_budget: Amount,
    /// Hosts whose worker is gone that a barrier goes on without. By default it waits for all.
    pub barrier_budget: Amount,
    /// How long a host that has not registered its worker is waited for at the start.
    pub absent_grace: Span,
    /// How long a wave is watched before the next one begins.
    pub bake: Span,
    /// Whether the next wave begins without an operator's word.
    pub auto_promote: bool,
    /// Whether a host that fails goes back to the version that it keeps.
    pub auto_rollback: bool,
    /// A host that is not empty after this long has failed.
    pub drain_deadline: Span,
    /// A host whose services are not healthy this long after the update has failed.
    pub health_deadline: Span,
    /// How long the services of a host have to be healthy before its slot goes to the next.
    pub min_healthy: Span,
    /// Whether findings about the services of a host count: with one it is not healthy. Steps whose probe is `services`
    /// ask for it in any case.
    pub services: bool,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One canary, then one host at a time, and nothing may fail: slow and safe unless configured otherwise.
impl Default for Policy {
    fn default() -> Policy {
        Policy {
            selector: BTreeMap::new(),
            order: 0,
            waves: vec![Amount::Count(1)],
            parallelism: Amount::Count(1),
            failure_domain: None,
            max_unavailable: Amount::Count(1),
            window: None,
            failure_budget: Amount::Count(0),
            absent_budget: Amount::Percent(34),
            barrier_budget: Amount::Count(0),
            absent_grace: Span::secs(30),
            bake: Span::secs(0),
            auto_promote: true,
            auto_rollback: false,
            drain_deadline: Span::secs(1_800),
            health_deadline: Span::secs(600),
            min_healthy: Span::secs(10),
            services: false,
            extra: Extra::default(),
        }
    }
}

json_records!(Policy);

/// When hosts may begin: in the minutes that some `allow` line names and no `deny` line does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// Minutes in which hosts may begin; without a line every minute.
    pub allow: Vec<Cron>,
    /// Minutes in which they may not; this wins.
    pub deny: Vec<Cron>,
    /// Whose clock: a name such as `Europe/Vienna`; without one UTC.
    pub time_zone: String,
}

impl Window {
    /// Whether hosts may begin at this moment. An unknown time zone, which [`Policy::check`] refuses, keeps it shut.
    #[must_use]
    pub fn is_open(&self, now: Moment) -> bool {
        let Some(zone) = self.zone() else { return false };
        let local = now.timestamp().to_zoned(zone);
        let allowed = self.allow.is_empty() || self.allow.iter().any(|line| line.matches(&local));
        allowed && !self.deny.iter().any(|line| line.matches(&local))
    }

    fn zone(&self) -> Option<TimeZone> {
        if self.time_zone.is_empty() { Some(TimeZone::UTC) } else { TimeZone::get(&self.time_zone).ok() }
    }
}

/// Why a policy cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No host could ever begin.
    #[error("{0} is 0: no host could ever begin")]
    Never(&'static str),
    /// A wave without hosts.
    #[error("wave {0} is empty: a wave has at least one host")]
    EmptyWave(usize),
    /// Too many of them.
    #[error("{0} waves: at most {MAX_WAVES}")]
    TooManyWaves(usize),
    /// A time zone that this machine does not know.
    #[error("time zone {0:?} is not known; write a name such as Europe/Vienna")]
    TimeZone(String),
    /// It would fail every host.
    #[error("{0} is 0: every host would fail at once")]
    NoTime(&'static str),
}

impl Policy {
    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.waves.len() > MAX_WAVES {
            return Err(PolicyError::TooManyWaves(self.waves.len()));
        }
        if let Some(at) = self.waves.iter().position(|wave| wave.is_zero()) {
            return Err(PolicyError::EmptyWave(at + 1));
        }
        for (name, amount) in [("parallelism", self.parallelism), ("max_unavailable", self.max_unavailable)] {
            if amount.is_zero() {
                return Err(PolicyError::Never(name));
            }
        }
        for (name, span) in
            [("drain_deadline", self.drain_deadline), ("health_deadline", self.health_deadline)]
        {
            if span.0.is_zero() {
                return Err(PolicyError::NoTime(name));
            }
        }
        match &self.window {
            Some(window) if window.zone().is_none() => Err(PolicyError::TimeZone(window.time_zone.clone())),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a host with these labels belongs to the group.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.iter().all(|(label, value)| labels.get(label) == Some(value))
    }

    /// Whether hosts may begin at this moment.
    #[must_use]
    pub fn is_open(&self, now: Moment) -> bool {
        self.window.as_ref().is_none_or(|window| window.is_open(now))
    }

    /// How many hosts of a group of this size may be in a slot: at least one, or no update would ever begin.
    #[must_use]
    pub fn slots(&self, hosts: usize) -> usize {
        self.parallelism.limit_of(hosts).max(1)
    }

    /// How many hosts of a domain of this size may be out of service: at least one, or no update could ever begin.
    #[must_use]
    pub fn unavailable(&self, hosts: usize) -> usize {
        self.max_unavailable.limit_of(hosts).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_nobody_could_follow_is_refused() {
        Policy::default().check().unwrap();
        let with = |json: &str| serde_json::from_str::<Policy>(json).unwrap().check();
        assert_eq!(with(r#"{"parallelism":0}"#), Err(PolicyError::Never("parallelism")));
        assert_eq!(with(r#"{"waves":[1,"0%"]}"#), Err(PolicyError::EmptyWave(2)));
        assert_eq!(with(r#"{"drain_deadline":"0"}"#), Err(PolicyError::NoTime("drain_deadline")));
        let zone = with(r#"{"window":{"time_zone":"Mars/Olympus"}}"#);
        assert_eq!(zone, Err(PolicyError::TimeZone("Mars/Olympus".to_owned())));
        assert!(serde_json::from_str::<Policy>(r#"{"window":{"allow":["* * *"]}}"#).is_err());
        let written = serde_json::to_string(&Policy::default()).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&written).unwrap(), Policy::default());
    }

    #[test]
    fn a_window_is_open_in_its_own_time_zone_and_deny_wins() {
        let window: Window = serde_json::from_str(
            r#"{"allow":["* 9-17 * * 1-5"],"deny":["* 12 * * *"],"time_zone":"Asia/Tokyo"}"#,
        )
        .unwrap();
        let open = |text: &str| window.is_open(text.parse().unwrap());
        assert!(open("2018-11-05T00:00:00Z"), "nine in the morning in Tokyo");
        assert!(!open("2018-11-05T09:00:00Z"), "six in the evening in Tokyo");
        assert!(!open("2018-11-05T03:30:00Z"), "lunch");
    }
}
