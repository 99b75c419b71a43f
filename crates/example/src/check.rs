//! Findings about this service: what is wrong and what to do about it.

use capstan_control::findings::{Code, Finding, Severity};

use crate::facts::Facts;

/// No host has a beacon lit.
pub const DARK: Code = Code::new("example-beacon-dark");
/// Fewer hosts than asked for have a beacon lit.
pub const THIN: Code = Code::new("example-beacon-thin");
/// A key cannot be parsed, so nothing is decided.
pub const UNREADABLE: Code = Code::new("example-key-unreadable");

/// The findings about beacons and keys.
#[must_use]
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (beacon, spec) in &facts.specs {
        let lit = facts.up.iter().filter(|host| facts.is_lit(beacon, host)).count();
        let (code, severity) = match lit {
            lit if lit >= spec.copies => continue,
            0 => (DARK, Severity::Critical),
            _ => (THIN, Severity::Degraded),
        };
        findings.push(Finding::new(
            code,
            severity,
            format!("beacon {beacon}"),
            format!("{lit} of {} copies are lit", spec.copies),
            "start more hosts, or wait for those that are down (capstan hosts list)",
        ));
    }
    findings.extend(facts.unreadable.iter().map(|key| {
        let action = format!("read it (capstan meta get {key}), then write a valid value or delete the key");
        Finding::new(UNREADABLE, Severity::Critical, key.clone(), "the value cannot be parsed", action)
    }));
    findings
}
