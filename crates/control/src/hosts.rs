//! Which hosts are up, what runs on them, and which were seen before?

pub mod keeper;

use std::collections::BTreeMap;

use capstan_meta::json_records;
use capstan_meta::record::{Extra, Listing};
use capstan_meta::session::{Session, Taken};
use capstan_meta::view::Snapshot;
use serde::{Deserialize, Serialize};

use crate::keys::{HostId, HostKey, Hosts, Role, ServiceName};

/// The registration of a host's daemon while it is up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Identifies this run of the daemon; a different one means that the host restarted.
    pub boot: String,
    /// The roles of the daemon.
    pub roles: Vec<Role>,
    /// The services on this host that hold work and therefore answer drains.
    #[serde(default)]
    pub services: Vec<ServiceName>,
    /// Its addresses, by protocol (`redis`, `topics`, `http`): `ip:port`.
    #[serde(default)]
    pub addresses: BTreeMap<String, String>,
    /// The version of the daemon.
    pub version: String,
    /// Labels set by the operator: `zone`, `rack`, ...
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When the daemon started, in seconds since 1970.
    #[serde(default)]
    pub started_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A host that was seen, whether it is up or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHost {
    /// When it was first seen, in seconds since 1970.
    pub first_seen: u64,
    /// The last registration of its daemon.
    pub last: HostRecord,
    /// Since when it is down, in seconds since 1970; `None` while it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_since: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(HostRecord, KnownHost);

/// Registers this host as long as the session lives, and waits for the first registration.
///
/// A registration of an earlier run of the same host is taken over once it is clear that its lease is not renewed. Two
/// processes with one host id are an error: the second one is refused.
pub async fn register(session: &Session, host: &HostId, record: &HostRecord) -> Result<(), Taken> {
    session.claim(&HostKey { host: host.clone() }, record).await
}

/// Every host that is up, in a snapshot that covers [`Hosts`].
#[must_use]
pub fn up(snapshot: &Snapshot) -> Listing<HostKey> {
    snapshot.list(&Hosts {})
}
