//! Is the machine of this process fit for it? Its disks and its certificates, looked at every few seconds; what is wrong is
//! recorded under the lease of the process, when it changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_control::check::{CERTIFICATE, DISK_FULL};
use capstan_control::findings::{Finding, Severity};
use capstan_control::keys::HostId;
use capstan_control::report::SelfReporter;
use capstan_meta::session::Session;
use capstan_meta::{clock, tls};
use nix::sys::statvfs::statvfs;
use tokio::time::sleep;

use super::process::{LOOP, Process};
use super::validity;
use crate::config::Config;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A certificate that ends sooner is renewed now: two weeks are enough for people and for automata.
const RENEW_BEFORE_SECONDS: i64 = 14 * 24 * 3600;
/// Below a tenth of what is to be kept free, writes are about to fail.
const CRITICAL_SHARE: u64 = 10;
/// Certificate files are small; a larger one is not read.
const MAX_CERTIFICATE_BYTES: u64 = 1024 * 1024;

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

/// A certificate that the process has loaded: its end is read once, because a new file does not change what is in use.
#[derive(Clone, Debug)]
struct Certificate {
    setting: &'static str,
    file: PathBuf,
    /// In seconds since 1970, or why it is not known.
    end: Result<i64, String>,
}

impl Certificate {
    fn load(setting: &'static str, file: &Path) -> Certificate {
        let end = not_after(file).map_err(|error| format!("it cannot be read: {error:#}"));
        Certificate { setting, file: file.to_owned(), end }
    }
}

impl SelfCheck {
    /// The check of a process with these settings and directories.
    pub(crate) fn of(config: &Config, object: String, host: Option<HostId>, dirs: Vec<PathBuf>) -> SelfCheck {
        let served = config.meta.serve_tls.as_ref().map(|tls| ("meta.serve_cert", &tls.cert));
        let shown = config.meta.tls.identity.as_ref().map(|(cert, _)| ("meta.tls_cert", cert));
        let redis = config.redis.tls.as_ref().map(|tls| ("redis.tls_cert", &tls.cert));
        let holders = config.holders.tls.as_ref().map(|tls| ("holders.tls_cert", &tls.cert));
        let named = [served, shown, redis, holders].into_iter().flatten();
        let certificates = named.map(|(setting, file)| Certificate::load(setting, file)).collect();
        SelfCheck { object, host, dirs, reserve: config.host.disk_reserve, certificates }
    }

    fn findings(&self, now: i64) -> Vec<Finding> {
        let disks = self.dirs.iter().filter_map(|dir| self.disk(dir));
        let certificates = self.certificates.iter().filter_map(|certificate| {
            let (severity, cause) = match &certificate.end {
                Ok(end) => ends(*end, now)?,
                Err(error) => (Severity::Degraded, error.clone()),
            };
            let Certificate { setting, file, .. } = certificate;
            let action = format!("renew the certificate {} ({setting}), then restart", file.display());
            let object = format!("{}, {setting}", self.object);
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
            let now = i64::try_from(clock::since_epoch().as_secs())?;
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

/// How bad it is that a certificate ends then, if it is.
fn ends(end: i64, now: i64) -> Option<(Severity, String)> {
    let at = jiff::Timestamp::from_second(end).map_or_else(|_| end.to_string(), |at| at.to_string());
    match end - now {
        left if left <= 0 => Some((Severity::Critical, format!("it expired at {at}"))),
        left if left < RENEW_BEFORE_SECONDS => Some((Severity::Degraded, format!("it expires at {at}"))),
        _ => None,
    }
}

/// When the first certificate of a file that ends, ends, in seconds since 1970.
fn not_after(file: &Path) -> Result<i64> {
    let length = std::fs::metadata(file)?.len();
    anyhow::ensure!(length <= MAX_CERTIFICATE_BYTES, "it is larger than {MAX_CERTIFICATE_BYTES} bytes");
    let ends = tls::certificates(&std::fs::read(file)?)?.into_iter().map(|der| validity::not_after(&der));
    ends.collect::<Result<Vec<i64>>>()?.into_iter().min().context("no certificate is in it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_by_what_is_to_be_kept_free() {
        let severity = |free| full(free, 1000).map(|(severity, _)| severity);
        assert_eq!(severity(1000), None);
        assert_eq!(severity(999), Some(Severity::Degraded));
        assert_eq!(severity(99), Some(Severity::Critical));
        assert_eq!(full(0, 0), None, "no reserve, no finding");
    }

    #[test]
    fn a_certificate_is_renewed_in_time() {
        let severity = |left| ends(1_000_000_000 + left, 1_000_000_000).map(|(severity, _)| severity);
        assert_eq!(severity(RENEW_BEFORE_SECONDS), None);
        assert_eq!(severity(RENEW_BEFORE_SECONDS - 1), Some(Severity::Degraded));
        assert_eq!(severity(0), Some(Severity::Critical));
        assert_eq!(ends(0, 5).unwrap().1, "it expired at 1970-01-01T00:00:00Z");
    }

    #[test]
    fn the_chain_ends_with_its_first_certificate_that_ends() {
        let dir = capstan_testkit::TempDir::new("certificate").unwrap();
        let pem = |year| {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 2, 3);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        };
        let file = dir.join("cert.pem");
        std::fs::write(&file, pem(2030) + &pem(2001)).unwrap();
        assert_eq!(not_after(&file).unwrap(), 981_158_400);
        std::fs::write(&file, "nothing").unwrap();
        assert!(not_after(&file).unwrap_err().to_string().contains("no certificate"));
    }
}
