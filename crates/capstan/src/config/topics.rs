//! The settings of the topics broker.

use std::net::SocketAddr;

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
}

/// The most copies of a topic: more are a typing error.
const MAX_COPIES: u64 = 16;

impl Reader<'_> {
    pub(super) fn topics(&mut self) -> Option<Topics> {
        let listen = self.address("topics.listen")?;
        self.closed(listen, "topics.listen", "topics.allow_insecure", "");
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
        Some(Topics { listen, advertise, cluster, copies, tier })
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
