//! Findings of the kernel: hosts, drains, controllers, clocks. Pure, from a read at one revision.

use std::collections::{BTreeMap, BTreeSet};

use capstan_meta::Store;
use capstan_meta::record::{BadValue, Listing};

use crate::api::{HostLine, HostList, hosts_list};
use crate::drain::DrainPhase;
use crate::error::ControlError;
use crate::findings::{Code, Finding, Severity};
use crate::incidents;
use crate::keys::{
    CandidateKey, Candidates, IncidentKey, Incidents, LiveReportKey, LiveReports, SelfCheckKey, SelfChecks,
};
use crate::report::{SKEW_ALLOWED, fresh};
use crate::time::ago;

/// The metadata store does not respond.
pub const META_UNREACHABLE: Code = Code::new("meta-unreachable");
/// A record of the kernel cannot be parsed.
pub const BAD_RECORD: Code = Code::new("meta-bad-record");
/// No process is a candidate for the kernel's controller.
pub const NO_CONTROLLER: Code = Code::new("control-no-controller");
/// No host was ever registered.
pub const NO_HOST: Code = Code::new("host-none");
/// A host that was seen is not up.
pub const HOST_DOWN: Code = Code::new("host-down");
/// A host is being drained.
pub const HOST_DRAINING: Code = Code::new("host-draining");
/// A host is being emptied for a long time.
pub const DRAIN_WAITS: Code = Code::new("host-drain-waits");
/// A host is drained, on purpose.
pub const HOST_DRAINED: Code = Code::new("host-drained");
/// A drained host is returning.
pub const HOST_RETURNING: Code = Code::new("host-returning");
/// Hosts run different versions.
pub const VERSION_MIX: Code = Code::new("host-version-mix");
/// The clock of a reporter is ahead of the reader's.
pub const CLOCK_SKEW: Code = Code::new("host-clock-skew");

/// The disk of a machine is full, or nearly.
pub const DISK_FULL: Code = Code::new("host-disk-full");
/// A certificate has expired, or will soon.
pub const CERTIFICATE: Code = Code::new("host-certificate-expiring");

/// A drain that takes longer is worth a look: moving the work of a host takes minutes.
const DRAIN_WITHIN_SECONDS: u64 = 900;

/// Everything that the kernel's findings are derived from.
#[derive(Clone, Debug)]
pub struct Facts {
    hosts: HostList,
    candidates: Listing<CandidateKey>,
    incidents: Listing<IncidentKey>,
    own: Listing<SelfCheckKey>,
    /// Reports of processes, including stale ones.
    pub reports: Listing<LiveReportKey>,
}

impl Facts {
    /// Reads the facts.
    pub async fn read(store: &Store) -> Result<Facts, ControlError> {
        Ok(Facts {
            hosts: hosts_list(store).await?,
            candidates: store.list(&Candidates {}).await?,
            incidents: store.list(&Incidents {}).await?,
            own: store.list(&SelfChecks {}).await?,
            reports: store.list(&LiveReports {}).await?,
        })
    }

    /// The findings about hosts and the kernel, unacknowledged incidents, and the findings that processes report.
    /// `now_ms` in milliseconds since 1970.
    #[must_use]
    pub fn findings(&self, now_ms: u64) -> Vec<Finding> {
        let mut found: Vec<Finding> = self.hosts.problems.iter().map(|bad| bad_record(bad)).collect();
        let bad = [&self.candidates.bad, &self.incidents.bad, &self.own.bad, &self.reports.bad];
        found.extend(bad.into_iter().flatten().map(|bad: &BadValue| bad_record(&bad.to_string())));
        found.extend(self.hosts.hosts.iter().flat_map(|line| of_host(line, now_ms / 1000)));
        found.extend(version_mix(&self.hosts.hosts));
        found.extend(no_host(&self.hosts.hosts));
        found.extend(self.no_controller());
        found.extend(incidents::findings(&self.incidents));
        found.extend(self.own.iter().flat_map(|(_, stored)| stored.record.findings.iter().cloned()));
        found.extend(self.reported(now_ms));
        found
    }

    fn no_controller(&self) -> Option<Finding> {
        (self.candidates.entries.is_empty() && !self.hosts.hosts.is_empty()).then(|| {
            Finding::new(
                NO_CONTROLLER,
                Severity::Degraded,
                "controllers",
                "no controller is running: drains do not end, and hosts that fail are not noted",
                "start one: capstan controller",
            )
        })
    }

    fn reported(&self, now_ms: u64) -> Vec<Finding> {
        let mut found = Vec::new();
        for (key, report) in fresh(&self.reports, now_ms) {
            found.extend(report.findings.iter().cloned());
            let ahead = report.ahead(now_ms);
            if ahead > SKEW_ALLOWED {
                found.push(Finding::new(
                    CLOCK_SKEW,
                    Severity::Degraded,
                    format!("host {}", key.reporter),
                    format!("its clock is {} s ahead of this machine's", ahead.as_secs()),
                    "synchronise the clocks (chrony, systemd-timesyncd)",
                ));
            }
        }
        found
    }
}

fn bad_record(what: &str) -> Finding {
    let action = "look at it (capstan meta get KEY) and correct it or delete it";
    Finding::new(BAD_RECORD, Severity::Degraded, "metadata", what, action)
}

fn no_host(hosts: &[HostLine]) -> Option<Finding> {
    hosts.is_empty().then(|| {
        let cause = "no host is registered";
        Finding::new(NO_HOST, Severity::Degraded, "hosts", cause, "start one: capstan host, or capstan up")
    })
}

fn of_host(line: &HostLine, now: u64) -> Vec<Finding> {
    let (host, object) = (&line.host, format!("host {}", line.host));
    let mut found = Vec::new();
    let drained = line.drain.as_ref().map(|drain| drain.phase);
    if !line.up {
        let on_purpose = matches!(drained, Some(DrainPhase::Drained));
        let severity = if on_purpose { Severity::Notice } else { Severity::Degraded };
        let since = line
            .down_since
            .map_or_else(|| "it is down".to_owned(), |at| format!("down for {}", ago(at, now)));
        let action = format!("start its daemon, or take it out for good: capstan hosts remove {host}");
        let finding = Finding::new(HOST_DOWN, severity, &object, since, action).on([host.clone()]);
        found.push(finding.since_if_known(line.down_since));
    }
    let Some(drain) = &line.drain else { return found };
    let reason = if drain.reason.is_empty() { String::new() } else { format!(" ({})", drain.reason) };
    let waiting = drain.waiting().join("; ");
    if drain.phase == DrainPhase::Draining && now.saturating_sub(drain.asked_at) > DRAIN_WITHIN_SECONDS {
        let cause = format!("it is draining{reason} for {}; waiting for {waiting}", ago(drain.asked_at, now));
        let action = format!("see what it waits for, or take the drain back: capstan hosts undrain {host}");
        found
            .push(Finding::new(DRAIN_WAITS, Severity::Degraded, object, cause, action).since(drain.asked_at));
        return found;
    }
    let (code, cause, action) = match drain.phase {
        DrainPhase::Draining => {
            (HOST_DRAINING, format!("it is draining{reason}; waiting for {waiting}"), "wait".to_owned())
        }
        DrainPhase::Drained => (
            HOST_DRAINED,
            format!("it is drained{reason}"),
            format!("do the work it was drained for, then: capstan hosts undrain {host}"),
        ),
        DrainPhase::Returning => {
            (HOST_RETURNING, format!("it is returning; waiting for {waiting}"), "wait".to_owned())
        }
        DrainPhase::Returned => return found,
    };
    found.push(Finding::new(code, Severity::Notice, object, cause, action).since(drain.asked_at));
    found
}

fn version_mix(hosts: &[HostLine]) -> Option<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in hosts.iter().filter(|line| line.up) {
        versions.entry(&line.version).or_default().insert(line.host.as_str());
    }
    (versions.len() > 1).then(|| {
        let counted: Vec<String> =
            versions.iter().map(|(version, hosts)| format!("{version} on {}", hosts.len())).collect();
        let cause = format!("hosts run different versions: {}", counted.join(", "));
        Finding::new(VERSION_MIX, Severity::Notice, "hosts", cause, "complete the update of the others")
    })
}
