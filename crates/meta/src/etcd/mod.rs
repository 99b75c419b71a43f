//! How a store in etcd is reached: options, connections, and the key prefix that separates installations.
//!
//! [`Etcd`] is the contract of [`crate::store::Backend`] on a real etcd v3. What it adds to the etcd-client crate is what
//! a caller may believe: every call is bounded in time, a read is tried again, a write whose outcome is not known is
//! [`crate::MetaError::Unknown`] and never sent twice, and a watch outlives its connection without missing or repeating
//! a revision.
//!
//! For production, etcd 3.5.24 or 3.6.6 at least: older ones lose or repeat watch events in corner cases that no client
//! can see. Where the order of progress answers is at fault (before 3.4.25 and 3.5.8), `progress` replaces them by reads;
//! a watch with filters gets none from such a server.

mod answer;
mod assemble;
mod backend;
mod call;
mod connection;
mod errors;
mod history;
mod prefix;
mod progress;
mod request;
mod version;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::error::Result;
use connection::Connection;
use prefix::Prefix;
use version::ServerVersion;

/// How to reach etcd.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Addresses of the members: `host:port`, `http://host:port` or `https://host:port`.
    pub endpoints: Vec<String>,
    /// Encrypt, and prove who is who; none is plain text.
    pub tls: Option<EtcdTls>,
    /// User and password, where etcd's authentication is enabled.
    pub user: Option<EtcdUser>,
    /// Put in front of every key, so that several installations share one etcd; empty is none.
    pub prefix: String,
    /// How long to try to connect before the request counts as not sent.
    pub connect_timeout: Duration,
    /// How long a call may take, its repetitions included. Longer than `connect_timeout`, so that a call to a host
    /// that is gone is known to be unsent.
    pub request_timeout: Duration,
    /// Pings on every connection. Without them a connection whose peer vanished silently is never left.
    pub keep_alive: KeepAlive,
    /// How a watch notices that nobody is there any more.
    pub heartbeat: Heartbeat,
}

/// TLS towards etcd. All of it PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// Certificates of the authority that signed the servers'.
    pub ca: Vec<u8>,
    /// Our own certificate and its key, where etcd asks for one.
    pub identity: Option<EtcdIdentity>,
    /// The name that the servers' certificates carry, where it is not the one in the endpoint.
    pub domain: Option<String>,
}

/// A client certificate and its key, both PEM.
#[derive(Clone)]
pub struct EtcdIdentity {
    /// The certificate.
    pub cert: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
}

/// Who we are to etcd's own authentication.
#[derive(Clone)]
pub struct EtcdUser {
    /// Name of the user.
    pub name: String,
    /// Their password.
    pub password: String,
}

/// HTTP/2 pings.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// A ping after so much silence. Etcd closes connections that ping more often than every 5 s
    /// (`--grpc-keepalive-min-time`).
    pub interval: Duration,
    /// A connection that does not answer a ping for so long is dead.
    pub timeout: Duration,
    /// Ping also while no call is under way. Etcd closes a connection after some such pings in a row; it is opened
    /// again by the next call. Without them a call that gives up early leaves the next one on the same dead connection.
    pub while_idle: bool,
}

/// Progress requests on a quiet watch.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    /// A request after so much silence.
    pub interval: Duration,
    /// A watch that does not answer it for so long is broken and opened again.
    pub timeout: Duration,
}

impl EtcdOptions {
    /// These members, plain text, no user, no prefix.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> EtcdOptions {
        EtcdOptions {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            user: None,
            prefix: String::new(),
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            keep_alive: KeepAlive {
                interval: Duration::from_secs(10),
                timeout: Duration::from_secs(5),
                while_idle: true,
            },
            heartbeat: Heartbeat { interval: Duration::from_secs(5), timeout: Duration::from_secs(5) },
        }
    }

    /// Only keys under this prefix.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> EtcdOptions {
        EtcdOptions { prefix: prefix.into(), ..self }
    }

    fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_keep_alive(self.keep_alive.interval, self.keep_alive.timeout)
            .with_keep_alive_while_idle(self.keep_alive.while_idle)
            .with_auto_token_refresh(true)
            .with_require_leader(true);
        if let Some(user) = &self.user {
            options = options.with_user(&user.name, &user.password);
        }
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.to_client());
        }
        options
    }
}

impl EtcdTls {
    fn to_client(&self) -> TlsOptions {
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.ca));
        if let Some(EtcdIdentity { cert, key }) = &self.identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        if let Some(domain) = &self.domain {
            tls = tls.domain_name(domain);
        }
        tls
    }
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls")
            .field("client_certificate", &self.identity.is_some())
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EtcdIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EtcdIdentity(..)")
    }
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The metadata store in etcd. Leases, revisions, compaction and snapshots are those of the whole etcd, whatever the
/// prefix.
pub struct Etcd {
    link: Arc<Link>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("options", &self.link.options).finish_non_exhaustive()
    }
}

/// Replaces the certificates of a store's connections while it is used.
#[derive(Clone)]
pub struct TlsRenewal(std::sync::Weak<Link>);

impl fmt::Debug for TlsRenewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsRenewal")
    }
}

impl TlsRenewal {
    /// Uses these certificates for new calls and watches. Those under way go on over the connections that they have.
    pub async fn renew(&self, tls: EtcdTls) -> Result<()> {
        let Some(link) = self.0.upgrade() else { return Ok(()) };
        link.tls.store(Some(Arc::new(tls)));
        let options = link.options();
        link.calls.renew(&options).await?;
        link.watches.renew(&options).await
    }
}

/// The connections, shared by the store and its watches.
struct Link {
    options: EtcdOptions,
    /// In the place of the certificates in the options, once they were renewed.
    tls: ArcSwapOption<EtcdTls>,
    prefix: Prefix,
    /// For everything that is answered once.
    calls: Connection,
    /// For watches alone: they share flow control with whatever else is on their connection.
    watches: Connection,
    /// The oldest server seen behind the endpoints.
    version: ServerVersion,
}

impl Etcd {
    /// Connects, and makes sure that a server answers.
    pub async fn connect(options: EtcdOptions) -> Result<Etcd> {
        let calls = Connection::open(&options).await?;
        let watches = Connection::open(&options).await?;
        let prefix = Prefix::new(&options.prefix);
        let (tls, version) = (ArcSwapOption::empty(), ServerVersion::default());
        let link = Arc::new(Link { options, tls, prefix, calls, watches, version });
        link.learn_version().await?;
        Ok(Etcd { link })
    }

    /// A way to replace the certificates of the connections.
    #[must_use]
    pub fn tls_renewal(&self) -> TlsRenewal {
        TlsRenewal(Arc::downgrade(&self.link))
    }
}

impl Link {
    /// The options for a new connection.
    fn options(&self) -> EtcdOptions {
        let mut options = self.options.clone();
        if let Some(tls) = self.tls.load_full() {
            options.tls = Some(EtcdTls::clone(&tls));
        }
        options
    }

    /// Asks a server for its version and remembers the oldest one met.
    async fn learn_version(&self) -> Result<()> {
        let status = self.read(|client| async move { client.maintenance_client().status().await }).await?;
        self.version.met(status.version());
        Ok(())
    }
}
