//! The settings of the holders of replicated logs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Reader, Value};

/// Section `holders`.
#[derive(Clone, Debug)]
pub(crate) struct Holders {
    /// The address of the first one; port 0: any free one for each.
    pub(crate) listen: SocketAddr,
    /// The address that other holders are given for the first one, if it is not that.
    pub(crate) advertise: Option<SocketAddr>,
    /// Everything of this host's holders is below it.
    pub(crate) dir: PathBuf,
    /// Certificate, key and authority, by which holders recognize each other, where they are not those of the host.
    pub(crate) tls: Option<HolderTls>,
    /// Whether other machines may reach holders that need no certificate.
    pub(crate) allow_insecure: bool,
}

/// Files for mutual TLS between holders.
#[derive(Clone, Debug)]
pub(crate) struct HolderTls {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

impl Reader<'_> {
    pub(super) fn holders(&mut self, meta_dir: &Path) -> Option<Holders> {
        let listen = self.address("holders.listen")?;
        let advertise = self.advertised();
        if listen.ip().is_unspecified() && advertise.is_none() {
            let problem = "name one address, or set `holders.advertise`: the other holders are given it";
            self.problem("holders.listen", problem);
        }
        let tls = self.holder_tls();
        if tls.is_none() && self.own_certificates().is_none() {
            let better = "or set `tls.dir`, or `holders.tls_cert`, `holders.tls_key` and `holders.tls_ca`, ";
            self.closed(listen, "holders.listen", "holders.allow_insecure", better);
        }
        let dir = self.text("holders.dir");
        let dir = if dir.is_empty() { meta_dir.join("logs") } else { PathBuf::from(dir) };
        let allow_insecure = self.value("holders.allow_insecure") == Some(Value::Flag(true));
        Some(Holders { listen, advertise, dir, tls, allow_insecure })
    }

    fn advertised(&mut self) -> Option<SocketAddr> {
        let text = self.text("holders.advertise");
        if text.is_empty() {
            return None;
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 && !address.ip().is_unspecified() => Some(address),
            Ok(_) | Err(_) => {
                self.problem("holders.advertise", &format!("{text} is not the ip:port of one address"));
                None
            }
        }
    }

    fn holder_tls(&mut self) -> Option<HolderTls> {
        let identity = self.identity("holders.tls_cert", "holders.tls_key");
        match (identity, self.existing("holders.tls_ca")) {
            (Some((cert, key)), Some(ca)) => return Some(HolderTls { cert, key, ca }),
            (Some(_), None) => {
                self.problem("holders.tls_cert", "needs `holders.tls_ca`: both sides are asked")
            }
            (None, Some(_)) => {
                self.problem("holders.tls_ca", "needs `holders.tls_cert` and `holders.tls_key`");
            }
            (None, None) => {}
        }
        None
    }
}
