//! Is the machine of this process fit for it? Its disks and its certificates, looked at every few seconds; what is wrong is
//! recorded under the lease of the process, when it changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_access::certs::{Description, describe, files};
use capstan_control::check::{CERTIFICATE, DISK_FULL};
use capstan_control::findings::{Finding, Severity};
use capstan_control::keys::HostId;
use capstan_control::report::SelfReporter;
use capstan_control::time::rfc3339;
use capstan_meta::clock;
use capstan_meta::session::Session;
use nix::sys::statvfs::statvfs;
use tokio::time::sleep;

use super::process::{LOOP, Process};
use crate::config::Config;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Below a tenth of what is to be kept free, writes are about to fail.
const CRITICAL_SHARE: u64 = 10;

/// What one process looks at.
#[derive(Clone, Debug)]
pub(crate) struct SelfCheck {
    /// What findings call it: `host a`, `controller b`.
    pub(crate) object: String,
    /// The host that it stands for.
    pub(crate) host: Option<HostId>,
    /// Directories that must have room.
    pub(crate) dirs: Vec<PathBuf>,
    /// Bytes that must be free.
    pub(crate) reserve: u64,
    certificates: Vec<Certificate>,
}

/// A file with certificates that the process uses. It is read at every look: what is replaced is used from then on.
#[derive(Clone, Debug)]
struct Certificate {
    setting: &'static str,
    file: PathBuf,
}

impl Certificate {
    /// What is wrong with it at this time, and what to do.
    fn problem(&self, now: u64) -> Option<(Severity, String, String)> {
        let (severity, cause) = match certificates_in(&self.file) {
            Ok(chain) => {
                chain.iter().filter_map(|one| ends(one, now)).max_by_key(|(severity, _)| *severity)?
            }
            Err(error) => (Severity::Degraded, error),
        };
        let action = format!("renew the certificate {} ({})", self.file.display(), self.setting);
        Some((severity, cause, action))
    }
}

impl SelfCheck {
    /// The check of a process with these settings and directories.
    pub(crate) fn of(config: &Config, object: String, host: Option<HostId>, dirs: Vec<PathBuf>) -> SelfCheck {
        let certificates = certificates(config);
        SelfCheck { object, host, dirs, reserve: config.host.disk_reserve, certificates }
    }

    fn findings(&self, now: u64) -> Vec<Finding> {
        let disks = self.dirs.iter().filter_map(|dir| self.disk(dir));
        let certificates = self.certificates.iter().filter_map(|certificate| {
            let (severity, cause, action) = certificate.problem(now)?;
            let object = format!("{}, {}", self.object, certificate.setting);
            Some(Finding::new(CERTIFICATE, severity, object, cause, action).on(self.host.clone()))
        });
        disks.chain(certificates).collect()
    }

    fn disk(&self, dir: &Path) -> Option<Finding> {
        let (severity, cause) = match free_bytes(dir) {
            Ok(free) => full(free, self.reserve)?,
            Err(error) => (Severity::Critical, format!("its disk does not answer: {error:#}")),
        };
        let action = "make room on the disk, or move the directory to a larger one";
        let object = format!("{}, {}", self.object, dir.display());
        Some(Finding::new(DISK_FULL, severity, object, cause, action).on(self.host.clone()))
    }
}

/// Looks for as long as the process runs.
pub(crate) fn start_self_check(
    process: &Process,
    session: &Session,
    id: &str,
    check: SelfCheck,
) -> Result<()> {
    // Several processes of one machine may have the same id.
    let name: HostId = format!("{id}.{}", std::process::id()).parse()?;
    let mut reporter = SelfReporter::new(session.clone(), name);
    process.start_once(LOOP, "self-check", async move |stop| {
        while !stop.is_cancelled() {
            let looked = check.clone();
            let now = clock::since_epoch().as_secs();
            // A disk that hangs must not hold up the runtime.
            let found = tokio::task::spawn_blocking(move || looked.findings(now)).await?;
            reporter.record(found);
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(LOOK_EVERY) => {}
            }
        }
        Ok(())
    });
    Ok(())
}

/// Free bytes of the disk that a directory is on, or will be on.
fn free_bytes(dir: &Path) -> Result<u64> {
    let there = dir.ancestors().find(|dir| dir.exists()).context("no such directory")?;
    let disk = statvfs(there)?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// How bad it is that so little is free, if it is. The text does not change with every byte: it is recorded when it does.
fn full(free: u64, reserve: u64) -> Option<(Severity, String)> {
    let severity = match free {
        _ if free < reserve / CRITICAL_SHARE => Severity::Critical,
        _ if free < reserve => Severity::Degraded,
        _ => return None,
    };
    let limit = if severity == Severity::Critical { reserve / CRITICAL_SHARE } else { reserve };
    Some((severity, format!("less than {} MiB are free", limit.div_ceil(1024 * 1024))))
}

/// Every file with certificates that the settings name.
fn certificates(config: &Config) -> Vec<Certificate> {
    let (meta, redis, holders) = (&config.meta, config.redis.tls.as_ref(), config.holders.tls.as_ref());
    let served = meta.serve_tls.as_ref();
    // Files in `tls.dir` stand in for what is not set.
    let other =
        |file: &&PathBuf| config.tls.as_ref().is_none_or(|own| **file != own.host && **file != own.ca);
    let named = [
        ("tls.dir", config.tls.as_ref().map(|own| &own.host)),
        ("tls.dir", config.tls.as_ref().map(|own| &own.ca)),
        ("meta.serve_cert", served.map(|tls| &tls.cert).filter(other)),
        ("meta.serve_client_ca", served.and_then(|tls| tls.client_ca.as_ref()).filter(other)),
        ("meta.tls_cert", meta.tls.identity.as_ref().map(|(cert, _)| cert).filter(other)),
        ("meta.tls_ca", meta.tls.ca.as_ref().filter(other)),
        ("redis.tls_cert", redis.map(|tls| &tls.cert).filter(other)),
        ("redis.tls_client_ca", redis.and_then(|tls| tls.client_ca.as_ref()).filter(other)),
        ("holders.tls_cert", holders.map(|tls| &tls.cert)),
        ("holders.tls_ca", holders.map(|tls| &tls.ca)),
        ("topics.tls_cert", config.topics.tls.as_ref().map(|tls| &tls.cert).filter(other)),
    ];
    let given = named.into_iter().filter_map(|(setting, file)| Some((setting, file?.clone())));
    given.map(|(setting, file)| Certificate { setting, file }).collect()
}

/// How bad it is that a certificate ends then, if it is.
fn ends(certificate: &Description, now: u64) -> Option<(Severity, String)> {
    let end = certificate.not_after;
    let what = if certificate.is_authority { "its authority" } else { "it" };
    match end.saturating_sub(now) {
        0 => Some((Severity::Critical, format!("{what} expired at {}", rfc3339(end)))),
        _ if certificate.ends_soon(now) => {
            Some((Severity::Degraded, format!("{what} expires at {}", rfc3339(end))))
        }
        _ => None,
    }
}

/// What the certificates of a file say, or why that is not known.
fn certificates_in(file: &Path) -> Result<Vec<Description>, String> {
    let read = files::read(file).and_then(|pem| describe(pem.as_bytes()));
    read.map_err(|error| format!("it cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use capstan_access::certs::Authority;

    use super::*;

    #[test]
    fn a_disk_is_full_by_what_is_to_be_kept_free() {
        let severity = |free| full(free, 1000).map(|(severity, _)| severity);
        assert_eq!(severity(1000), None);
        assert_eq!(severity(999), Some(Severity::Degraded));
        assert_eq!(severity(99), Some(Severity::Critical));
        assert_eq!(full(0, 0), None, "no reserve, no finding");
    }

    const DAY: u64 = 24 * 3600;

    fn description(days: u64) -> Description {
        let authority = Authority::create("test", Duration::from_secs(days * DAY)).unwrap().0;
        describe(authority.certificate().as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn an_authority_is_a_finding_two_weeks_before_its_end() {
        let authority = description(100);
        let severity = |left: u64| ends(&authority, authority.not_after - left).map(|(severity, _)| severity);
        assert_eq!(severity(14 * DAY), None);
        assert_eq!(severity(14 * DAY - 1), Some(Severity::Degraded));
        assert_eq!(severity(0), Some(Severity::Critical));
        assert!(ends(&authority, u64::MAX).unwrap().1.starts_with("its authority expired at 20"));
    }

    #[test]
    fn the_worst_certificate_of_a_file_counts() {
        let dir = capstan_testkit::TempDir::new("certificate").unwrap();
        let file = dir.join("cert.pem");
        let pem = |days| {
            Authority::create("test", Duration::from_secs(days * DAY)).unwrap().0.certificate().to_owned()
        };
        let certificate = Certificate { setting: "tls.dir", file: file.clone() };
        let problem = || certificate.problem(clock::since_epoch().as_secs());
        std::fs::write(&file, pem(100)).unwrap();
        assert_eq!(problem(), None);
        std::fs::write(&file, pem(100) + &pem(0) + &pem(3)).unwrap();
        assert_eq!(problem().unwrap().0, Severity::Critical);
        std::fs::write(&file, "nothing").unwrap();
        assert!(problem().unwrap().1.contains("no certificate"), "{:?}", problem());
    }
}
