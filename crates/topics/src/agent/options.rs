//! What is a broker told when it starts? Where it listens, what it asks of clients, how many copies it makes.

use std::net::SocketAddr;

use capstan_access::policy::Policy;
use capstan_access::{Anonymous, Guard};
use capstan_control::keys::HostId;

use super::peers::BrokerTls;
use crate::keys::ClusterName;
use crate::metrics::TopicsMetrics;
use crate::tier::TierOptions;

/// What a broker is.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The host that it runs on.
    pub host: HostId,
    /// The name of the cluster.
    pub cluster: ClusterName,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The host and the port that clients are given.
    pub advertise: String,
    /// What decides about requests.
    pub guard: Guard,
    /// How clients speak TLS; `None`: they do not.
    pub tls: Option<BrokerTls>,
    /// Where the admin services are, if not with the others.
    pub admin: Option<String>,
    /// Where the metrics are.
    pub metrics: Option<String>,
    /// What it counts.
    pub counters: TopicsMetrics,
    /// Copies of new topics; `None`: three if there are three brokers, otherwise one.
    pub copies: Option<usize>,
    /// Where old messages go; `None`: they stay in the log.
    pub tier: Option<TierOptions>,
}

impl BrokerOptions {
    /// A broker that is reached where it listens, and refuses every request until it is given a guard.
    #[must_use]
    pub fn new(host: HostId, cluster: ClusterName, listen: SocketAddr) -> BrokerOptions {
        let advertise = listen.to_string();
        BrokerOptions {
            host,
            cluster,
            listen,
            advertise,
            guard: Guard::fixed(Policy::default(), Anonymous::Refused),
            tls: None,
            admin: None,
            metrics: None,
            counters: TopicsMetrics::default(),
            copies: None,
            tier: None,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.advertise)
    }
}
