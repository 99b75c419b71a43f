//! What is wrong, since when, and what to do about it? One model for every service: `capstan status`, `/readyz`, the
//! `check` commands, the console, metrics and alerts all read findings, and only findings.
//!
//! A service contributes findings from two sources: pure functions over a snapshot of the metadata (`check.rs` of each
//! service), and live reports of probes. [`Health::of`] combines them; nothing else defines "green".

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::keys::HostId;

/// The severity of a finding. Ordered: the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is impaired (a rollout in progress, a host that is drained on purpose).
    Notice,
    /// Clients are served, with less redundancy, capacity or speed than configured.
    Degraded,
    /// Clients cannot be served, or data was lost.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Notice => "notice",
            Severity::Degraded => "degraded",
            Severity::Critical => "critical",
        })
    }
}

/// The stable name of one kind of finding, for scripts and alerts: `redis-shard-down`, `host-down`.
///
/// Lowercase words separated by hyphens; the first is the service. A code is never reused with another meaning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(Cow<'static, str>);

impl Code {
    /// A code that is defined in the program.
    #[must_use]
    pub const fn new(text: &'static str) -> Code {
        Code(Cow::Borrowed(text))
    }

    /// A code from stored text.
    #[must_use]
    pub fn from_text(text: &str) -> Code {
        Code(Cow::Owned(text.to_owned()))
    }

    /// The text of the code.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The service: the first word.
    #[must_use]
    pub fn service(&self) -> &str {
        self.0.split('-').next().unwrap_or_default()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A problem, or a fact worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its kind.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// The affected object: `host a`, `redis cluster demo, shard 2`.
    pub object: String,
    /// The hosts whose services are impaired by it, where it is about hosts. A fleet update asks for these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostId>,
    /// When it was first seen, in seconds since 1970, if known. RFC 3339 in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::time::rfc3339_option")]
    pub since: Option<u64>,
    /// What is wrong, in one sentence.
    pub cause: String,
    /// What to do about it: a command where there is one.
    pub action: String,
}

impl Finding {
    /// A finding without a known start.
    pub fn new(
        code: Code,
        severity: Severity,
        object: impl Into<String>,
        cause: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        let (object, cause, action) = (object.into(), cause.into(), action.into());
        Finding { code, severity, object, hosts: Vec::new(), since: None, cause, action }
    }

    /// The same finding, about the services of these hosts.
    #[must_use]
    pub fn on(mut self, hosts: impl IntoIterator<Item = HostId>) -> Finding {
        self.hosts.extend(hosts);
        self
    }

    /// The same finding, first seen at this time.
    #[must_use]
    pub fn since(mut self, seconds: u64) -> Finding {
        self.since = Some(seconds);
        self
    }

    /// The same finding, first seen at this time if known.
    #[must_use]
    pub fn since_if_known(mut self, seconds: Option<u64>) -> Finding {
        self.since = seconds.or(self.since);
        self
    }

    /// The section of the documentation that explains it.
    #[must_use]
    pub fn page(&self) -> String {
        format!("docs/findings.md#{}", self.code)
    }
}

/// All findings at one time, worst first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The findings, worst first, then by code and object.
    pub findings: Vec<Finding>,
}

impl Health {
    /// Combines the findings of all services: sorted, each (code, object) once, at its worst.
    #[must_use]
    pub fn of(findings: impl IntoIterator<Item = Finding>) -> Health {
        let mut findings: Vec<Finding> = findings.into_iter().collect();
        findings.sort_by(|a, b| {
            (b.severity, &a.code, &a.object, a.since).cmp(&(a.severity, &b.code, &b.object, b.since))
        });
        let mut seen = std::collections::HashSet::new();
        findings.retain(|finding| seen.insert((finding.code.clone(), finding.object.clone())));
        Health { findings }
    }

    /// Whether nothing is degraded or critical.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.worst().is_none_or(|severity| severity == Severity::Notice)
    }

    /// The findings of one service.
    pub fn of_service<'h>(&'h self, service: &'h str) -> impl Iterator<Item = &'h Finding> {
        self.findings.iter().filter(move |finding| finding.code.service() == service)
    }

    /// The findings about the services of one host.
    pub fn on_host<'h>(&'h self, host: &'h HostId) -> impl Iterator<Item = &'h Finding> {
        self.findings.iter().filter(move |finding| finding.hosts.contains(host))
    }

    /// The JSON form, the same over HTTP and from `capstan status -o json`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let finding = |finding: &Finding| {
            let mut value = serde_json::to_value(finding).unwrap_or_default();
            value["docs"] = finding.page().into();
            value
        };
        serde_json::json!({
            "green": self.is_green(),
            "worst": self.worst(),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }

    /// The worst severity found.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.first().map(|finding| finding.severity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: &'static str, severity: Severity, object: &str) -> Finding {
        Finding::new(Code::new(code), severity, object, "cause", "action")
    }

    #[test]
    fn the_worst_comes_first_and_each_object_once() {
        let health = Health::of([
            finding("host-drained", Severity::Notice, "host a"),
            finding("host-down", Severity::Degraded, "host b"),
            finding("host-down", Severity::Critical, "host b"),
            finding("redis-shard-down", Severity::Critical, "cluster demo"),
        ]);
        let rows: Vec<_> = health.findings.iter().map(|f| (f.code.as_str(), f.severity)).collect();
        assert_eq!(
            rows,
            [
                ("host-down", Severity::Critical),
                ("redis-shard-down", Severity::Critical),
                ("host-drained", Severity::Notice)
            ]
        );
        assert!(!health.is_green());
    }

    #[test]
    fn a_notice_is_green() {
        assert!(Health::default().is_green());
        assert!(Health::of([finding("host-drained", Severity::Notice, "host a")]).is_green());
        assert!(!Health::of([finding("host-down", Severity::Degraded, "host a")]).is_green());
    }
}
