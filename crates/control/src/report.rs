//! What do processes find when they probe a service, and how old is that? Live reports: the part of health that is not
//! in the metadata.
//!
//! A reporter writes one record per service under its lease, about every second, whatever it finds: a report without
//! findings means "probed, and serving". A stale report does not count, so silence is never green. The record is
//! bounded, so the cost for the store is one small write per second and reporter, whatever the size of the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_meta::record::{Extra, Listing};
use capstan_meta::session::Session;
use capstan_meta::{clock, json_records};
use serde::{Deserialize, Serialize};

use crate::findings::{Code, Finding};
use crate::keys::{HostId, LiveReportKey, SelfCheckKey, ServiceName};

/// How often a reporter probes and reports.
pub const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The age after which a report does not count. Several times [`REPORT_EVERY`]: a busy machine is not a dead one.
pub const STALE_AFTER: Duration = Duration::from_secs(4);
/// The clock skew above which a reporter is reported.
pub const SKEW_ALLOWED: Duration = Duration::from_secs(2);
/// Findings per report; more are only counted.
const MOST_FINDINGS: usize = 100;

/// What a process found when it last probed a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveReport {
    /// When the probes ended, in milliseconds since 1970, by the reporter's clock.
    pub at_ms: u64,
    /// The number of probed objects.
    pub probed: u64,
    /// The findings; empty if everything serves.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The number of findings that did not fit.
    #[serde(default)]
    pub more: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(LiveReport);

impl LiveReport {
    /// A report of this moment; excess findings are cut and counted.
    #[must_use]
    pub fn now(probed: u64, mut findings: Vec<Finding>) -> LiveReport {
        let more = findings.len().saturating_sub(MOST_FINDINGS) as u64;
        findings.truncate(MOST_FINDINGS);
        LiveReport { at_ms: now_ms(), probed, findings, more, extra: Extra::default() }
    }

    /// How old it is; zero if the reporter's clock is ahead.
    #[must_use]
    pub fn age(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.at_ms))
    }

    /// Whether it still counts.
    #[must_use]
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        self.age(now_ms) <= STALE_AFTER
    }

    /// How far the reporter's clock is ahead.
    #[must_use]
    pub fn ahead(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.at_ms.saturating_sub(now_ms))
    }
}

/// What a process finds wrong with its own machine. It holds for as long as the process's lease: unlike a [`LiveReport`]
/// it is written only when it changes, because a process that hangs loses its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfCheck {
    /// What was found; nothing if all is well.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(SelfCheck);

/// Writes the self-check of one process.
#[derive(Debug)]
pub struct SelfReporter {
    session: Session,
    key: SelfCheckKey,
    since: Beginnings,
    last: Option<SelfCheck>,
}

impl SelfReporter {
    /// A process that has found nothing yet.
    #[must_use]
    pub fn new(session: Session, process: HostId) -> SelfReporter {
        SelfReporter { session, key: SelfCheckKey { process }, since: Beginnings::default(), last: None }
    }

    /// Records what was found just now, if it differs from before. Does not wait for the store.
    pub fn record(&mut self, mut findings: Vec<Finding>) {
        findings.truncate(MOST_FINDINGS);
        self.since.mark(&mut findings, clock::since_epoch().as_secs());
        let check = SelfCheck { findings, extra: Extra::default() };
        if self.last.as_ref() != Some(&check) {
            self.session.declare(&self.key, &check);
            self.last = Some(check);
        }
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    u64::try_from(clock::since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// Writes the reports of one process about one service, and tracks since when each finding exists.
#[derive(Debug)]
pub struct Reporter {
    session: Session,
    key: LiveReportKey,
    since: Beginnings,
}

impl Reporter {
    /// A reporter that has found nothing yet.
    #[must_use]
    pub fn new(session: Session, service: ServiceName, reporter: HostId) -> Reporter {
        Reporter { session, key: LiveReportKey { service, reporter }, since: Beginnings::default() }
    }

    /// Reports the present findings. Does not wait for the store.
    pub fn report(&mut self, probed: u64, mut findings: Vec<Finding>) {
        self.since.mark(&mut findings, clock::since_epoch().as_secs());
        self.session.declare(&self.key, &LiveReport::now(probed, findings));
    }
}

/// Since when findings exist, as seen by one process.
#[derive(Clone, Debug, Default)]
pub struct Beginnings(BTreeMap<(Code, String), u64>);

impl Beginnings {
    /// Fills in when each finding was first seen, and drops those that are gone.
    pub fn mark(&mut self, findings: &mut [Finding], now: u64) {
        let mut next = BTreeMap::new();
        for finding in findings {
            let name = (finding.code.clone(), finding.object.clone());
            let first = finding.since.or_else(|| self.0.get(&name).copied()).unwrap_or(now);
            finding.since = Some(first);
            next.insert(name, first);
        }
        self.0 = next;
    }
}

/// The fresh reports with their reporters.
pub fn fresh(
    reports: &Listing<LiveReportKey>,
    now_ms: u64,
) -> impl Iterator<Item = (&LiveReportKey, &LiveReport)> {
    let found = reports.iter().map(|(key, stored)| (key, &stored.record));
    found.filter(move |(_, report)| report.is_fresh(now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Severity;

    fn finding(object: &str) -> Finding {
        Finding::new(Code::new("x-y"), Severity::Degraded, object, "cause", "action")
    }

    #[test]
    fn an_old_report_does_not_count_and_a_fast_clock_is_seen() {
        let report = LiveReport { at_ms: 10_000, ..LiveReport::default() };
        assert!(report.is_fresh(10_000) && report.is_fresh(14_000) && !report.is_fresh(14_001));
        assert!(report.is_fresh(1_000), "a clock that is ahead makes no report old");
        assert_eq!(report.ahead(1_000), Duration::from_secs(9));
    }

    #[test]
    fn a_report_is_bounded_and_counts_the_rest() {
        let many = (0..250).map(|number| finding(&number.to_string())).collect();
        let report = LiveReport::now(250, many);
        assert_eq!((report.findings.len(), report.more), (100, 150));
    }

    #[test]
    fn a_finding_keeps_its_beginning_until_it_is_gone() {
        let mut since = Beginnings::default();
        let mut seen = |now, objects: &[&str]| {
            let mut findings: Vec<Finding> = objects.iter().map(|object| finding(object)).collect();
            since.mark(&mut findings, now);
            findings.into_iter().filter_map(|finding| finding.since).collect::<Vec<_>>()
        };
        assert_eq!(seen(5, &["a"]), [5]);
        assert_eq!(seen(6, &["a", "b"]), [5, 6]);
        assert_eq!(seen(7, &["b"]), [6]);
        assert_eq!(seen(8, &["a", "b"]), [8, 6]);
    }
}
