//! Which nodes enter and leave the in-sync set, and by which reports.

use std::collections::BTreeMap;

use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};

use super::*;
use crate::agent::{Data, Health};
use crate::broker;
use crate::commit;
use crate::spec::{Acks, ClusterSpec, Serving};

/// A primary and its replica, on hosts of their own.
struct Pair {
    store: Store,
    primary: NodeRecord,
    replica: NodeRecord,
    facts: Facts,
    at: Instant,
}

impl Pair {
    async fn new() -> Pair {
        Pair::with(Serving::default()).await
    }

    async fn with(serving: Serving) -> Pair {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        for at in 1..=2 {
            let (proxy, node) = (format!("10.0.0.{at}:5299"), format!("10.0.0.{at}:7001"));
            broker::add_host(&store, &proxy.parse().unwrap(), &[node.parse().unwrap()]).await.unwrap();
        }
        let spec = ClusterSpec { replicas: 1, serving, ..ClusterSpec::of(1) };
        broker::create_cluster(&store, &"c".parse().unwrap(), &spec).await.unwrap();
        let tree = Tree::read(&store).await.unwrap();
        let nodes = tree.clusters.values().flat_map(|cluster| cluster.nodes.values());
        let (primary, replica): (Vec<_>, Vec<_>) =
            nodes.map(|seen| seen.record.clone()).partition(NodeRecord::is_primary);
        let (primary, replica) = (primary[0].clone(), replica[0].clone());
        Pair { store, primary, replica, facts: Facts::new(), at: Instant::now() }
    }

    /// Advances the time, and lets both proxies report their nodes.
    fn hear(&mut self, primary: NodeFact, replica: NodeFact) {
        self.hear_all(&[(self.primary.clone(), primary), (self.replica.clone(), replica)]);
    }

    fn hear_all(&mut self, reports: &[(NodeRecord, NodeFact)]) {
        self.at += Duration::from_millis(700);
        let board = crate::board::Board::default();
        for (proxy, known) in &self.facts {
            board.note(proxy, |fact| fact.clone_from(known));
        }
        for (record, fact) in reports {
            let known = self.facts.get(&record.proxy_address).cloned().unwrap_or_default();
            board.note(&record.proxy_address, |fact| *fact = ProxyFact { reached: true, ..known });
            board.note_nodes(
                &record.proxy_address,
                BTreeMap::from([(record.address.clone(), fact.clone())]),
                self.at,
            );
        }
        self.facts = board.all();
    }

    /// Commits the decisions, and returns the in-sync set.
    async fn members(&self) -> Vec<Address> {
        loop {
            let tree = Tree::read(&self.store).await.unwrap();
            let changes = changes(&tree, &self.facts, &Timing::default(), self.at);
            match changes.commits.into_iter().next() {
                Some(draft) => drop(commit::commit(&self.store, draft).await.unwrap()),
                None => {
                    let shards = tree.clusters.values().flat_map(|cluster| cluster.shards.values());
                    return shards.flat_map(|seen| seen.record.in_sync.clone()).collect();
                }
            }
        }
    }

    async fn shard(&self) -> Seen<ShardRecord> {
        let tree = Tree::read(&self.store).await.unwrap();
        tree.clusters.values().flat_map(|cluster| cluster.shards.values()).next().unwrap().clone()
    }

    /// The primary's proxy confirms which replicas must have a write, as of this revision.
    fn confirm(&mut self, revision: u64) {
        let confirmed = BTreeMap::from([(self.primary.address.clone(), (revision, self.at))]);
        let fact = self.facts.get_mut(&self.primary.proxy_address).unwrap();
        fact.in_sync = InSyncAt::Confirmed(confirmed);
    }

    fn leads(&self, offset: u64) -> NodeFact {
        let owner = Some("c/1".to_owned());
        NodeFact { health: Health::Ready, linked: true, offset, owner, ..NodeFact::default() }
    }

    fn follows(&self, offset: u64) -> NodeFact {
        NodeFact { replica_of: Some(self.primary.address.clone()), ..self.leads(offset) }
    }
}

#[tokio::test]
async fn a_replica_enters_when_it_is_linked_and_caught_up() {
    let mut pair = Pair::new().await;
    let alone = vec![pair.primary.address.clone()];
    assert_eq!(pair.members().await, alone, "no node has reported");
    let unlinked = NodeFact { linked: false, ..pair.follows(100) };
    pair.hear(pair.leads(100), unlinked);
    assert_eq!(pair.members().await, alone, "it is not linked to its primary");
    pair.hear(pair.leads(9 << 20), pair.follows(100));
    assert_eq!(pair.members().await, alone, "it lacks too much");
    let unknown = NodeFact { data: Data::Gone, ..pair.follows(9 << 20) };
    pair.hear(pair.leads(9 << 20), unknown);
    assert_eq!(pair.members().await, alone, "it restarted without its data");
    pair.hear(pair.leads(9 << 20), pair.follows(9 << 20));
    assert_eq!(pair.members().await.len(), 2);
}

#[tokio::test]
async fn a_member_leaves_only_while_its_primary_is_seen_to_be_well() {
    let mut pair = Pair::new().await;
    pair.hear(pair.leads(100), pair.follows(100));
    assert_eq!(pair.members().await.len(), 2);
    // The primary dies: the replica loses its link, and stays a member however long it takes.
    let (dead, unlinked) = (
        NodeFact { health: Health::Down, ..pair.leads(100) },
        NodeFact { linked: false, ..pair.follows(100) },
    );
    for _ in 0..10 {
        pair.hear(dead.clone(), unlinked.clone());
        assert_eq!(pair.members().await.len(), 2);
    }
    pair.hear(pair.leads(100), pair.follows(100));
    // It loses its link while the primary is healthy; the first report of it may be older than the primary's
    // death.
    pair.hear(pair.leads(100), unlinked.clone());
    assert_eq!(pair.members().await.len(), 2);
    pair.hear(pair.leads(100), unlinked);
    assert_eq!(pair.members().await, [pair.primary.address.clone()]);
}

#[tokio::test]
async fn a_report_from_before_a_host_was_unreachable_makes_no_member() {
    let mut pair = Pair::new().await;
    pair.hear(pair.leads(100), pair.follows(100));
    // The replica's host is cut off, its replica stands still, and the primary goes on.
    for second in 1..10 {
        pair.hear_all(&[(pair.primary.clone(), pair.leads(100 + second))]);
    }
    assert_eq!(
        pair.members().await,
        [pair.primary.address.clone()],
        "it is reachable again, and has not reported"
    );
    pair.hear(pair.leads(109), pair.follows(109));
    assert_eq!(pair.members().await.len(), 2);
}

#[tokio::test]
async fn a_member_that_lags_for_too_long_leaves() {
    let mut pair = Pair::new().await;
    pair.hear(pair.leads(100), pair.follows(100));
    assert_eq!(pair.members().await.len(), 2);
    for second in 1..20_u64 {
        pair.hear(pair.leads(second * (5 << 20)), pair.follows(100));
        let members = pair.members().await.len();
        match second {
            ..=10 => assert_eq!(members, 2, "it may still catch up"),
            18.. => assert_eq!(members, 1, "what it lacks is older than the window"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn where_writes_wait_for_members_a_replica_enters_when_they_wait_for_it_and_it_has_the_rest() {
    let mut pair = Pair::with(Serving { acks: Acks::Replica, ..Serving::default() }).await;
    let alone = vec![pair.primary.address.clone()];
    pair.hear(pair.leads(100), pair.follows(100));
    assert_eq!(pair.members().await, alone, "writes do not wait for it");
    let joining = pair.shard().await;
    assert!(joining.record.joining.contains(&pair.replica.address));
    pair.confirm(revision(&joining) - 1);
    pair.hear(pair.leads(100), pair.follows(100));
    assert_eq!(pair.members().await, alone, "the proxy has an older set");
    pair.confirm(revision(&joining));
    assert_eq!(pair.members().await, alone, "what was acknowledged before is unknown");
    pair.hear(pair.leads(300), pair.follows(200));
    assert_eq!(pair.members().await, alone, "writes up to 300 may have been acknowledged without it");
    pair.hear(pair.leads(400), pair.follows(299));
    assert_eq!(pair.members().await, alone);
    pair.hear(pair.leads(500), pair.follows(300));
    assert_eq!(pair.members().await.len(), 2);
    assert!(pair.shard().await.record.joining.is_empty());
    // It leaves at once: a set that is too large on the proxy costs waiting, and loses nothing.
    let unlinked = NodeFact { linked: false, ..pair.follows(300) };
    pair.hear(pair.leads(500), unlinked.clone());
    pair.hear(pair.leads(500), unlinked);
    assert_eq!(pair.members().await, alone);
}

#[tokio::test]
async fn an_old_report_of_the_primary_does_not_tell_what_a_joining_replica_must_have() {
    let mut pair = Pair::with(Serving { acks: Acks::Replica, ..Serving::default() }).await;
    pair.hear(pair.leads(100), pair.follows(100));
    pair.members().await;
    let joining = pair.shard().await;
    pair.confirm(revision(&joining));
    // Its host is slow: this was true before the confirmation.
    pair.hear(NodeFact { age: Duration::from_secs(2), ..pair.leads(100) }, pair.follows(150));
    assert_eq!(pair.members().await, [pair.primary.address.clone()]);
    pair.hear(pair.leads(200), pair.follows(200));
    assert_eq!(pair.members().await.len(), 2);
}

#[tokio::test]
async fn a_proxy_of_an_earlier_version_is_not_waited_for() {
    let mut pair = Pair::with(Serving { acks: Acks::Replica, ..Serving::default() }).await;
    pair.hear(pair.leads(100), pair.follows(100));
    pair.facts.get_mut(&pair.primary.proxy_address).unwrap().in_sync = InSyncAt::Ignored;
    assert_eq!(pair.members().await.len(), 2);
}
