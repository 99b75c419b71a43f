//! How is TLS spoken with certificates that change while a process runs? From files that are looked at again when a
//! connection is opened: a renewed certificate is used by the next handshake, and no connection is dropped.
//!
//! Files that cannot be used (half-written, a key that does not belong to its certificate) leave what was loaded before
//! in place, with a warning.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use capstan_meta::tls::{self, invalid};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

pub use rustls::{ClientConfig, ServerConfig};

use crate::certs::Fingerprint;

/// The files are looked at no more often than this.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The files of one identity: its chain, its key and the authority of those that it speaks with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain (PEM).
    pub cert: PathBuf,
    /// Its key (PEM); may be the same file.
    pub key: PathBuf,
    /// The authority (PEM) that signed the certificates of the other side.
    pub authority: Option<PathBuf>,
}

/// Whether a server asks clients for certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCerts {
    /// It does not.
    Ignored,
    /// A client may show one, which must be valid then.
    Optional,
    /// A client must show one.
    Required,
}

/// TLS from files, reloaded when they change. Cheap to clone.
#[derive(Clone)]
pub struct LiveTls(Arc<Live>);

struct Live {
    files: TlsFiles,
    provider: Arc<CryptoProvider>,
    loaded: ArcSwap<Loaded>,
    started: Instant,
    /// Milliseconds after `started` at which the files were last looked at.
    looked: AtomicU64,
    /// What the files looked like when they were last read, so that bad ones are not read again at every handshake.
    seen: Mutex<Vec<Stamp>>,
}

/// What tells one content of a file from another.
type Stamp = Option<(SystemTime, u64, u64)>;

struct Loaded {
    certified: Arc<CertifiedKey>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    servers: Option<Arc<WebPkiServerVerifier>>,
}

impl fmt::Debug for LiveTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveTls({})", self.0.files.cert.display())
    }
}

impl LiveTls {
    /// Loads the files.
    pub fn open(files: TlsFiles) -> io::Result<LiveTls> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let seen = stamps(&files);
        let loaded = ArcSwap::from_pointee(load(&files, &provider)?);
        let (started, looked) = (Instant::now(), AtomicU64::new(0));
        Ok(LiveTls(Arc::new(Live { files, provider, loaded, started, looked, seen: Mutex::new(seen) })))
    }

    /// A server with the present certificate at every handshake.
    pub fn server(&self, clients: ClientCerts) -> io::Result<ServerConfig> {
        let versions = ServerConfig::builder_with_provider(self.0.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(invalid)?;
        let asked = match clients {
            ClientCerts::Ignored => versions.with_no_client_auth(),
            ClientCerts::Optional | ClientCerts::Required if self.0.files.authority.is_none() => {
                return Err(invalid("clients cannot be asked for certificates without an authority"));
            }
            ClientCerts::Optional => versions.with_client_cert_verifier(self.clients(false)),
            ClientCerts::Required => versions.with_client_cert_verifier(self.clients(true)),
        };
        let mut config = asked.with_cert_resolver(self.0.clone());
        // A resumed session would go on with the certificates of an earlier handshake, and check none.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn clients(&self, mandatory: bool) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Clients { live: self.0.clone(), mandatory })
    }

    /// A client that shows the present certificate at every handshake, and checks servers by the present authority.
    pub fn client(&self) -> io::Result<ClientConfig> {
        if self.0.files.authority.is_none() {
            return Err(invalid("servers cannot be checked without an authority"));
        }
        let versions = ClientConfig::builder_with_provider(self.0.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(invalid)?;
        // `dangerous` is what rustls calls every verifier of one's own; this one asks rustls' own.
        let servers = Arc::new(Servers(self.0.clone()));
        let mut config = versions
            .dangerous()
            .with_custom_certificate_verifier(servers)
            .with_client_cert_resolver(self.0.clone());
        // As for the server.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl Live {
    /// What is loaded, after a look at the files if the last one was a while ago.
    fn current(&self) -> Arc<Loaded> {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = self.looked.load(Ordering::Relaxed);
        let is_due = u128::from(now.saturating_sub(last)) >= LOOK_EVERY.as_millis();
        // One of several handshakes at a time looks; the others go on with what is there.
        if is_due && self.looked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.look();
        }
        self.loaded.load_full()
    }

    fn look(&self) {
        let stamps = stamps(&self.files);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == stamps {
            return;
        }
        match load(&self.files, &self.provider) {
            Ok(loaded) => {
                self.loaded.store(Arc::new(loaded));
                tracing::info!(cert = %self.files.cert.display(), "certificate reloaded");
            }
            Err(error) => {
                let cert = self.files.cert.display();
                tracing::warn!(%cert, %error, "changed certificate cannot be used, keeping the former one");
            }
        }
        *seen = stamps;
    }
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [self.cert.as_path(), self.key.as_path()].into_iter().chain(self.authority.as_deref())
    }
}

fn stamps(files: &TlsFiles) -> Vec<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.all().map(stamp).collect()
}

fn load(files: &TlsFiles, provider: &Arc<CryptoProvider>) -> io::Result<Loaded> {
    let chain = tls::certificates(&std::fs::read(&files.cert)?)?;
    let key = provider.key_provider.load_private_key(tls::private_key(&std::fs::read(&files.key)?)?);
    let certified = CertifiedKey::new(chain, key.map_err(invalid)?);
    certified.keys_match().map_err(invalid)?;
    let roots = files.authority.as_deref().map(std::fs::read).transpose()?;
    let roots = roots.map(|pem| tls::authority(&pem)).transpose()?;
    let clients = roots.clone().map(|roots| client_verifier(roots, provider)).transpose()?;
    let servers = roots.map(|roots| server_verifier(roots, provider)).transpose()?;
    Ok(Loaded { certified: Arc::new(certified), clients, servers })
}

fn client_verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> io::Result<Arc<dyn ClientCertVerifier>> {
    WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(invalid)
}

fn server_verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> io::Result<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build().map_err(invalid)
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Live({})", self.files.cert.display())
    }
}

impl ResolvesServerCert for Live {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current().certified.clone())
    }
}

impl ResolvesClientCert for Live {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current().certified.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// No authority is loaded: fail closed.
fn no_authority() -> Error {
    Error::General("no authority is loaded".to_owned())
}

/// Checks clients by the present authority.
#[derive(Debug)]
struct Clients {
    live: Arc<Live>,
    mandatory: bool,
}

impl Clients {
    fn present(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        self.live.current().clients.clone().ok_or_else(no_authority)
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    /// No hints: clients have one certificate and need none.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.present()?.verify_client_cert(end, between, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.present()?.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.present()?.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.live.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks servers by the present authority.
#[derive(Debug)]
struct Servers(Arc<Live>);

impl Servers {
    fn present(&self) -> Result<Arc<WebPkiServerVerifier>, Error> {
        self.0.current().servers.clone().ok_or_else(no_authority)
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.present()?.verify_server_cert(end, between, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.present()?.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.present()?.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks that a PEM has a certificate chain and the key that belongs to it.
pub fn check_pair(pem: &str) -> io::Result<()> {
    let provider = aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(tls::private_key(pem.as_bytes())?).map_err(invalid)?;
    CertifiedKey::new(tls::certificates(pem.as_bytes())?, key).keys_match().map_err(invalid)
}

/// A client that knows nothing of its authority but the fingerprint: the server must send the authority's certificate,
/// which must have this fingerprint and have signed the server's own.
pub fn pinned_client(pin: &Fingerprint) -> io::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Pinned { pin: pin.clone(), provider: provider.clone() });
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

#[derive(Debug)]
struct Pinned {
    pin: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = between.iter().find(|der| Fingerprint::of(der) == self.pin);
        let pinned = pinned
            .ok_or_else(|| Error::General("the server is not of the authority of this token".to_owned()))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let checker = server_verifier(Arc::new(roots), &self.provider)
            .map_err(|error| Error::General(error.to_string()))?;
        checker.verify_server_cert(end, between, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
