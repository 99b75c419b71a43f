//! Do proxies serve? Probed the way a client would, at a bounded cost.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use capstan_control::findings::{Finding, Severity};
use capstan_control::report::{REPORT_EVERY, Reporter};
use capstan_meta::view::View;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ClusterName;
use crate::address::Address;
use crate::agent::Health;
use crate::board::NodeFact;
use crate::coordinator::{Proxies as _, Reply, Wire};
use crate::facts::Tree;
use crate::nmctl::Message;
use crate::slots::{SLOTS, Slot};
use crate::status::{NodeRecord, Tag};

/// The name of the service in reports.
pub const SERVICE: &str = "redis";
/// Proxies probed concurrently by one process.
const AT_ONCE: usize = 64;
/// The prefix of probe keys. None is ever written.
const KEY: &str = "capstan:probe";
/// Redirects show that a proxy serves: they are part of the protocol, and every client follows them.
const REDIRECTS: [&str; 4] = ["MOVED ", "ASK ", "TRYAGAIN", "CROSSSLOT"];

/// The result of probing all proxies.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// The number of proxies probed.
    pub proxies: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// The observations of each.
    pub seen: BTreeMap<Address, ProxySeen>,
}

/// The observations of a proxy.
#[derive(Clone, Debug, Default)]
pub struct ProxySeen {
    /// How long a write through it took, if it succeeded.
    pub took: Option<Duration>,
    /// Its nodes.
    pub nodes: BTreeMap<Address, NodeFact>,
}

/// The nodes behind one proxy.
#[derive(Clone, Debug, Default)]
struct Behind {
    primaries: Vec<(ClusterName, NodeRecord)>,
    replicas: Vec<(ClusterName, NodeRecord)>,
}

/// Probes all proxies periodically, and reports.
pub struct Prober {
    wire: Arc<Wire>,
    view: View,
    reporter: Reporter,
}

impl Prober {
    /// A prober on a view of [`Tree::ranges`].
    #[must_use]
    pub fn new(wire: Arc<Wire>, view: View, reporter: Reporter) -> Prober {
        Prober { wire, view, reporter }
    }

    /// Probes until it is stopped; `look` gets every result.
    pub async fn run(mut self, mut look: impl FnMut(&Probed) + Send, stop: &CancellationToken) {
        loop {
            let next = Instant::now() + REPORT_EVERY;
            let tree = Tree::of(&self.view.snapshot());
            let probed = tokio::select! {
                () = stop.cancelled() => return,
                probed = probe_all(&self.wire, &tree, |_| true) => probed,
            };
            look(&probed);
            self.reporter.report(probed.proxies, probed.findings);
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next) => {}
            }
        }
    }
}

/// Probes the selected registered proxies once.
pub async fn probe_all(wire: &Arc<Wire>, tree: &Tree, meant: impl Fn(&Address) -> bool) -> Probed {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut probes = JoinSet::new();
    for (proxy, behind) in behind_proxies(tree).into_iter().filter(|(proxy, _)| meant(proxy)) {
        let (wire, turns, host) = (wire.clone(), turns.clone(), tree.host_of(&proxy));
        probes.spawn(async move {
            let _turn = turns.acquire_owned().await;
            let (seen, findings) = probe(&wire, &proxy, &behind).await;
            let findings: Vec<Finding> = findings.into_iter().map(|found| found.on(host.clone())).collect();
            (proxy, seen, findings)
        });
    }
    let mut probed = Probed::default();
    while let Some(Ok((proxy, seen, findings))) = probes.join_next().await {
        probed.proxies += 1;
        probed.findings.extend(findings);
        probed.seen.insert(proxy, seen);
    }
    probed
}

fn behind_proxies(tree: &Tree) -> BTreeMap<Address, Behind> {
    let mut all: BTreeMap<Address, Behind> =
        tree.registered().map(|(proxy, _)| (proxy.clone(), Behind::default())).collect();
    for (name, cluster) in tree.active() {
        for seen in cluster.nodes.values() {
            let node = seen.record.clone();
            let behind = all.entry(node.proxy_address.clone()).or_default();
            match node.is_primary() {
                true => behind.primaries.push((name.clone(), node)),
                false => behind.replicas.push((name.clone(), node)),
            }
        }
    }
    all
}

async fn probe(wire: &Wire, proxy: &Address, behind: &Behind) -> (ProxySeen, Vec<Finding>) {
    let begun = Instant::now();
    let mut seen = ProxySeen::default();
    match wire.send(proxy, &Message::Info).await {
        Ok(Reply::Text(text)) => seen.nodes = text.lines().filter_map(NodeFact::parse).collect(),
        Ok(Reply::Done | Reply::Refused(_)) => {}
        Err(error) => return (seen, vec![proxy_down(proxy, behind, &error.0)]),
    }
    let mut findings = nodes_findings(proxy, behind, &seen);
    for (database, nodes) in by_database(behind) {
        let commands: Vec<Vec<String>> = nodes.iter().filter_map(|node| command(node)).collect();
        if commands.is_empty() {
            continue;
        }
        match wire.ask_as_client(proxy, database.as_str(), &commands).await {
            Ok(replies) => {
                let refused = replies.iter().find_map(refusal);
                findings.extend(refused.map(|why| not_serving(proxy, database, why)));
            }
            Err(error) => findings.push(not_serving(proxy, database, &error.0)),
        }
    }
    if findings.iter().all(|finding| finding.severity < Severity::Critical) {
        seen.took = Some(begun.elapsed());
    }
    (seen, findings)
}

fn by_database(behind: &Behind) -> BTreeMap<&ClusterName, Vec<&NodeRecord>> {
    let mut all: BTreeMap<&ClusterName, Vec<&NodeRecord>> = BTreeMap::new();
    for (name, node) in &behind.primaries {
        all.entry(name).or_default().push(node);
    }
    all
}

/// A write to one slot of a node: to one that is not moving, if possible.
fn command(node: &NodeRecord) -> Option<Vec<String>> {
    let stays = node.slots.iter().find(|entry| entry.tag == Tag::Stable).map(|entry| entry.range);
    let range = stays.or_else(|| node.owned().next())?;
    let tag = tag_of(range.first())?;
    Some(["LPUSHX", &format!("{KEY}{{{tag}}}"), "x"].map(str::to_owned).to_vec())
}

/// A hash tag in this slot.
fn tag_of(slot: u16) -> Option<&'static str> {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); usize::from(SLOTS)];
        let mut missing = tags.len();
        for number in 0u32.. {
            let tag = format!("{number:x}");
            let place = &mut tags[Slot::of(tag.as_bytes()).index()];
            if place.is_empty() {
                *place = tag;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags
    });
    tags.get(usize::from(slot)).map(String::as_str)
}

fn refusal(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Refused(why) => (!REDIRECTS.iter().any(|redirect| why.starts_with(redirect))).then_some(why),
        Reply::Done | Reply::Text(_) => None,
    }
}

fn proxy_down(proxy: &Address, behind: &Behind, why: &str) -> Finding {
    let (severity, what) = match (behind.primaries.len(), behind.replicas.len()) {
        (0, 0) => (Severity::Notice, "it holds no data".to_owned()),
        (0, replicas) => (Severity::Degraded, format!("{replicas} replicas are behind it")),
        (primaries, _) => (Severity::Critical, format!("{primaries} primaries are behind it")),
    };
    let cause = format!("it is unreachable ({why}); {what}");
    let action = "start its host, or find out why it hangs; `capstan hosts list` shows it";
    Finding::new(PROXY_DOWN, severity, format!("redis proxy {proxy}"), cause, action)
}

fn not_serving(proxy: &Address, database: &ClusterName, why: &str) -> Finding {
    let object = format!("redis cluster {database}, proxy {proxy}");
    let cause = format!("a write through this proxy fails: {why}");
    let action = format!("capstan redis show {database}; see the log of its host");
    Finding::new(NOT_SERVING, Severity::Critical, object, cause, action)
}

fn nodes_findings(proxy: &Address, behind: &Behind, seen: &ProxySeen) -> Vec<Finding> {
    let nodes = behind.primaries.iter().chain(&behind.replicas);
    nodes.filter_map(|(name, node)| node_finding(proxy, name, node, seen.nodes.get(&node.address)?)).collect()
}

fn node_finding(proxy: &Address, name: &ClusterName, node: &NodeRecord, fact: &NodeFact) -> Option<Finding> {
    let object = format!("redis cluster {name}, node {}", node.address);
    let why = fact.why.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
    if matches!(fact.health, Health::Lost | Health::Older) {
        let cause = format!("it restarted without its data, or with older data{why}");
        let action = "its replica takes over; without one its shard waits, see redis-shard-down";
        return Some(Finding::new(NODE_LOST, Severity::Critical, object, cause, action));
    }
    if !fact.is_ready() {
        let severity = if node.is_primary() { Severity::Critical } else { Severity::Degraded };
        let cause = format!("it is {}{why}", fact.health);
        let action = format!("wait for its restart; see the log of the host of proxy {proxy}");
        return Some(Finding::new(NODE_DOWN, severity, object, cause, action));
    }
    (!node.is_primary() && !fact.linked).then(|| {
        let cause = "it is not linked to its primary, so it lacks the newest writes";
        Finding::new(
            REPLICA_BEHIND,
            Severity::Degraded,
            object,
            cause,
            "wait; check the network between the hosts",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_tag_and_redirects_serve() {
        for slot in [0, 1, 9999, SLOTS - 1] {
            let key = format!("{KEY}{{{}}}", tag_of(slot).unwrap());
            assert_eq!(Slot::of(key.as_bytes()).number(), slot);
        }
        let refused = |text: &str| refusal(&Reply::Refused(text.to_owned())).is_some();
        assert!(!refused("MOVED 1 h:1") && !refused("ASK 1 h:1") && !refused("TRYAGAIN later"));
        assert!(refused("CLUSTERDOWN no lease") && refused("MISCONF disk") && refused("OOM"));
        assert_eq!(refusal(&Reply::Text("0".to_owned())), None);
    }

    #[test]
    fn a_proxy_that_is_down_is_as_bad_as_what_is_behind_it() {
        let proxy: Address = "h:1".parse().unwrap();
        let name: ClusterName = "c".parse().unwrap();
        let node = NodeRecord::primary("h:2".parse().unwrap(), proxy.clone(), name.clone(), 1, Vec::new());
        let severity = |behind: &Behind| proxy_down(&proxy, behind, "refused").severity;
        assert_eq!(severity(&Behind::default()), Severity::Notice);
        let replicas = Behind { replicas: vec![(name.clone(), node.clone())], ..Behind::default() };
        assert_eq!(severity(&replicas), Severity::Degraded);
        assert_eq!(severity(&Behind { primaries: vec![(name, node)], ..replicas }), Severity::Critical);
    }

    #[test]
    fn a_node_is_judged_by_what_its_proxy_says() {
        let (proxy, name): (Address, ClusterName) = ("h:1".parse().unwrap(), "c".parse().unwrap());
        let node = NodeRecord::primary("h:2".parse().unwrap(), proxy.clone(), name.clone(), 1, Vec::new());
        let fact = |health: Health| NodeFact { health, linked: true, ..NodeFact::default() };
        let code = |health: Health| node_finding(&proxy, &name, &node, &fact(health)).map(|found| found.code);
        assert_eq!(code(Health::Ready), None);
        assert_eq!(code(Health::Lost), Some(NODE_LOST));
        assert_eq!(code(Health::Down), Some(NODE_DOWN));
    }
}
