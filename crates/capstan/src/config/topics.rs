//! The settings of the topics broker.

use std::net::SocketAddr;
use std::path::PathBuf;

use capstan_topics::keys::ClusterName;
use capstan_topics::tier::TierOptions;

use super::Reader;

/// Section `topics`.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    /// Where clients connect; the hosts of `capstan up` count on from there. Port 0: any free one for each.
    pub(crate) listen: SocketAddr,
    /// The host and the port that clients are given, if not those.
    pub(crate) advertise: Option<String>,
    /// The name of the cluster.
    pub(crate) cluster: ClusterName,
    /// Copies of new topics; `None`: as many as there are brokers for, up to three.
    pub(crate) copies: Option<usize>,
    /// Where old messages go.
    pub(crate) tier: Option<TierOptions>,
    /// How clients speak TLS; nothing: they do not.
    pub(crate) tls: Option<TopicsTls>,
    /// The authority that signed the certificates of all brokers.
    pub(crate) authority: Option<PathBuf>,
}

/// The files of a broker that speaks TLS.
#[derive(Clone, Debug)]
pub(crate) struct TopicsTls {
    /// Its certificate chain.
    pub(crate) cert: PathBuf,
    /// The key of that.
    pub(crate) key: PathBuf,
    /// The authority of all brokers.
    pub(crate) authority: PathBuf,
}

impl Topics {
    /// The address for clients.
    pub(crate) fn url(&self, at: SocketAddr) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{at}")
    }
}

/// The most copies of a topic: more are a typing error.
const MAX_COPIES: u64 = 16;

impl Reader<'_> {
    pub(super) fn topics(&mut self) -> Option<Topics> {
        let listen = self.address("topics.listen")?;
        let (tls, authority) = self.topics_tls();
        if tls.is_none() {
            let better =
                "or set `tls.dir`, or give it `topics.tls_cert`, `topics.tls_key` and `topics.tls_ca`, ";
            self.closed(listen, "topics.listen", "topics.allow_insecure", better);
        }
        let advertise = Some(self.text("topics.advertise")).filter(|text| !text.is_empty());
        if listen.ip().is_unspecified() && advertise.is_none() {
            self.problem("topics.listen", "clients need an address: set `topics.advertise` to host:port");
        }
        let copies = self.count("topics.copies");
        if copies > MAX_COPIES {
            self.problem("topics.copies", &format!("must be between 0 and {MAX_COPIES}"));
        }
        let name = self.text("topics.cluster");
        let cluster = match ClusterName::new(&name) {
            Ok(cluster) => cluster,
            Err(error) => {
                self.problem("topics.cluster", &error.to_string());
                return None;
            }
        };
        let copies = usize::try_from(copies).ok().filter(|copies| *copies > 0);
        let tier = self.tier();
        Some(Topics { listen, advertise, cluster, copies, tier, tls, authority })
    }

    /// What brokers show, and the authority by which they are known; commands have the second only. What is not set is
    /// that of the host.
    fn topics_tls(&mut self) -> (Option<TopicsTls>, Option<PathBuf>) {
        let identity = self.identity("topics.tls_cert", "topics.tls_key");
        let authority = self.existing("topics.tls_ca");
        if identity.is_some() && authority.is_none() {
            self.problem("topics.tls_cert", "needs `topics.tls_ca`: brokers know each other by it");
        }
        let own = self.own_certificates();
        let identity = identity.or_else(|| own.as_ref().map(|(_, host)| (host.clone(), host.clone())));
        let authority = authority.or_else(|| own.map(|(ca, _)| ca));
        let tls = identity.zip(authority.clone());
        (tls.map(|((cert, key), authority)| TopicsTls { cert, key, authority }), authority)
    }

    fn tier(&mut self) -> Option<TierOptions> {
        let url = self.text("topics.tier");
        let endpoint = Some(self.text("topics.tier_endpoint")).filter(|text| !text.is_empty());
        let region = self.text("topics.tier_region");
        let (local_bytes, interval) =
            (self.count("topics.tier_local_bytes"), self.span("topics.tier_interval"));
        if url.is_empty() {
            return None;
        }
        let known = url.strip_prefix("file:///").or(url.strip_prefix("s3://"));
        if known.is_none_or(str::is_empty) {
            self.problem(
                "topics.tier",
                &format!("{url} is neither file:///directory nor s3://bucket/prefix"),
            );
        }
        Some(TierOptions { endpoint, region, local_bytes, interval, ..TierOptions::new(&url) })
    }
}
