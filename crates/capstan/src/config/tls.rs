//! The certificates of this host: one directory for everything that is served to other machines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_access::certs::files;
use capstan_access::tls::{LiveTls, TlsFiles};

use super::Reader;

/// Shorter ones could not be renewed in time on a busy machine.
const LIFE_MIN: Duration = Duration::from_secs(10);
/// Longer ones are not what a host renews by itself.
const LIFE_MAX: Duration = Duration::from_secs(8760 * 3600);

/// Section `tls`.
#[derive(Clone, Debug)]
pub(crate) struct HostTls {
    /// The certificate of the authority.
    pub(crate) ca: PathBuf,
    /// The chain of this host and its key.
    pub(crate) host: PathBuf,
    /// The key of the authority, where this process signs certificates.
    pub(crate) ca_key: Option<PathBuf>,
    /// How long the certificates that it signs are valid.
    pub(crate) life: Duration,
    /// How often its own certificate is renewed; nothing: at half of its life.
    pub(crate) renew_every: Option<Duration>,
}

impl HostTls {
    /// Certificate, key and authority as they are at every handshake.
    pub(crate) fn live(&self) -> Result<LiveTls> {
        let (cert, key) = (self.host.clone(), self.host.clone());
        let opened = LiveTls::open(TlsFiles { cert, key, authority: Some(self.ca.clone()) });
        opened.context("cannot use the certificates in tls.dir")
    }
}

impl Reader<'_> {
    pub(super) fn host_tls(&mut self) -> Option<HostTls> {
        let life = self.span("tls.life");
        if !(LIFE_MIN..=LIFE_MAX).contains(&life) {
            self.problem("tls.life", "must be between 10s and 8760h");
        }
        let (ca, host) = self.own_certificates()?;
        for file in [&ca, &host].into_iter().filter(|file| !file.is_file()) {
            let made = "`capstan certs init` and `capstan join` make it";
            self.problem("tls.dir", &format!("there is no file {}; {made}", file.display()));
        }
        let ca_key = Some(ca.with_file_name(files::AUTHORITY_KEY)).filter(|file| file.is_file());
        let renew_every = Some(self.span("tls.renew_every")).filter(|every| !every.is_zero());
        Some(HostTls { ca, host, ca_key, life, renew_every })
    }

    /// The authority and the certificate in `tls.dir`, if it is set.
    pub(super) fn own_certificates(&self) -> Option<(PathBuf, PathBuf)> {
        let dir = self.text("tls.dir");
        (!dir.is_empty()).then(|| (Path::new(&dir).join(files::AUTHORITY), Path::new(&dir).join(files::HOST)))
    }
}
