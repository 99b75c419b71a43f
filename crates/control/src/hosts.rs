//! Which hosts are up, and what runs on them?

use std::collections::BTreeMap;

use capstan_meta::json_records;
use capstan_meta::record::{Extra, Listing};
use capstan_meta::session::Session;
use capstan_meta::view::Snapshot;
use serde::{Deserialize, Serialize};

use crate::keys::{HostId, HostKey, Hosts, Role, ServiceName};

/// What a host's daemon says about itself while it is up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Names this run of the daemon; another one means that the host restarted.
    pub boot: String,
    /// What the daemon was configured to be.
    pub roles: Vec<Role>,
    /// The services on this host that hold work and therefore answer drains.
    #[serde(default)]
    pub services: Vec<ServiceName>,
    /// Where it listens, by protocol (`redis`, `topics`, `http`): `ip:port`.
    #[serde(default)]
    pub addresses: BTreeMap<String, String>,
    /// The version of the daemon.
    pub version: String,
    /// What the operator says about the host: `zone`, `rack`, ...
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When the daemon started, in seconds since 1970.
    #[serde(default)]
    pub started_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(HostRecord);

/// Registers this host for as long as the session lives, and waits until it is registered for the first time.
///
/// A registration that an earlier run of the same host left behind is taken over.
pub async fn register(session: &Session, host: &HostId, record: &HostRecord) {
    session.register(&HostKey { host: host.clone() }, record).await;
}

/// Every host that is up, in a snapshot that covers [`Hosts`].
#[must_use]
pub fn up(snapshot: &Snapshot) -> Listing<HostKey> {
    snapshot.list(&Hosts {})
}
