//! Are the services of a host healthy? What the fleet asks before a host counts as updated: the findings about that host.

use std::time::Duration;

use capstan_control::findings::{Finding, Health, Severity};
use capstan_control::keys::HostId;
use capstan_fleet::probe::ServiceHealth;
use capstan_redis::health::PROXY_DOWN;

use super::Findings;

/// Findings that are older than this say nothing. A look takes up to 3 s and comes every second.
const STALE_AFTER: Duration = Duration::from_secs(8);
/// How often the fleet asks again.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The findings of a process as the fleet reads them. They are as fresh as the process keeps them: see `log_findings`.
#[derive(Clone, Debug)]
pub struct ServiceFindings {
    findings: Findings,
    here: Option<HostId>,
}

impl ServiceFindings {
    /// For a process that decides about other hosts.
    #[must_use]
    pub fn of(findings: Findings) -> ServiceFindings {
        ServiceFindings { findings, here: None }
    }

    /// For the worker of this host.
    #[must_use]
    pub fn at(findings: Findings, host: HostId) -> ServiceFindings {
        ServiceFindings { findings, here: Some(host) }
    }
}

impl ServiceHealth for ServiceFindings {
    fn ailing(&self, host: &HostId) -> Option<String> {
        match self.findings.latest() {
            Some((at, health)) if at.elapsed() <= STALE_AFTER => ailing(&health, host),
            Some((at, _)) => Some(format!("its findings are {} s old", at.elapsed().as_secs())),
            None => Some("its findings were not read yet".to_owned()),
        }
    }

    fn ailing_here(&self) -> Option<String> {
        match &self.here {
            Some(host) => self.ailing(host),
            None => Some("this process does not stand for a host".to_owned()),
        }
    }

    fn changes_every(&self) -> Option<Duration> {
        Some(ASK_EVERY)
    }
}

/// What is wrong with the services of a host.
fn ailing(health: &Health, host: &HostId) -> Option<String> {
    let mut here = health.on_host(host).filter(|finding| counts(finding));
    here.next().map(|finding| format!("{}: {}", finding.code, finding.cause))
}

/// A drained host has no data, so a proxy that does not answer there is a notice for clients. For an update it is a failure.
fn counts(finding: &Finding) -> bool {
    finding.severity > Severity::Notice || finding.code == PROXY_DOWN
}

#[cfg(test)]
mod tests {
    use capstan_control::findings::Code;

    use super::*;

    #[test]
    fn only_findings_about_the_host_count_and_a_dead_proxy_counts_without_data() {
        let (a, b): (HostId, HostId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let finding =
            |code: &'static str, severity| Finding::new(Code::new(code), severity, "o", "why", "do");
        let health = Health::of([
            finding("redis-node-down", Severity::Degraded).on([a.clone()]),
            finding("redis-moving", Severity::Notice).on([b.clone()]),
            finding("redis-replicas-missing", Severity::Degraded),
        ]);
        assert_eq!(ailing(&health, &a), Some("redis-node-down: why".to_owned()));
        assert_eq!(ailing(&health, &b), None);
        let proxy = Health::of([finding("redis-proxy-down", Severity::Notice).on([b.clone()])]);
        assert_eq!(ailing(&proxy, &b), Some("redis-proxy-down: why".to_owned()));
    }
}
