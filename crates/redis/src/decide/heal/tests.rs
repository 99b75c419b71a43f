//! Which replica succeeds a dead primary, by which reports; and which node gets the moves of a lost target.

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::record::Key;
use capstan_meta::{Store, Txn};

use super::*;
use crate::agent::Data;
use crate::board::NodeFact;
use crate::broker;
use crate::commit;
use crate::decide::Wish;
use crate::keys::{CoordinatorKey, FailureKey, ShardKey};
use crate::shard::ShardRecord;
use crate::slots::SlotRange;
use crate::spec::{ClusterSpec, Serving};
use crate::status::{MoveRecord, MoveState};

fn proxy(at: usize) -> Address {
    format!("10.0.0.{at}:5299").parse().unwrap()
}

/// A primary with two replicas, each on a host of its own, all of them in sync, whose proxy is reported by
/// the only coordinator.
async fn reported(members: &[usize]) -> (Tree, NodeRecord, Vec<NodeRecord>) {
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    let name: ClusterName = "c".parse().unwrap();
    for at in 1..=3 {
        let node = format!("10.0.0.{at}:7001").parse().unwrap();
        broker::add_host(&store, &proxy(at), &[node]).await.unwrap();
    }
    broker::create_cluster(&store, &name, &ClusterSpec { replicas: 2, ..ClusterSpec::of(1) }).await.unwrap();
    let tree = Tree::read(&store).await.unwrap();
    let nodes = tree.clusters[&name].nodes.values().map(|seen| seen.record.clone());
    let (primary, replicas): (Vec<_>, Vec<_>) = nodes.partition(NodeRecord::is_primary);
    let mut shard =
        ShardRecord::new(&primary[0].address, tree.clusters[&name].epoch.as_ref().unwrap().record);
    shard.in_sync.extend(members.iter().map(|at| replicas[*at].address.clone()));
    let key = ShardKey { cluster: name, primary: primary[0].address.clone() };
    let me: crate::keys::ReportId = "r".parse().unwrap();
    let registered = CoordinatorKey { address: proxy(9), report_id: me.clone() }.put(&me);
    let report = FailureKey { address: primary[0].proxy_address.clone(), report_id: me }.put(&1);
    store.commit(Txn::new().then(registered).then(report).then(key.put(&shard))).await.unwrap();
    (Tree::read(&store).await.unwrap(), primary[0].clone(), replicas)
}

fn report_of(node: &NodeRecord, offset: u64, at: Instant) -> (Address, ProxyFact) {
    let replica_of = node.replica_of.clone();
    let fact = NodeFact { health: Health::Ready, replica_of, offset, ..NodeFact::default() };
    let nodes = BTreeMap::from([(node.address.clone(), fact)]);
    let fact = ProxyFact { reached: true, nodes, nodes_at: Some(at), ..ProxyFact::default() };
    (node.proxy_address.clone(), fact)
}

/// The first decision, or what is waited for.
fn decided(tree: &Tree, facts: &Facts, at: Instant) -> Result<String, String> {
    let timing = Timing::default();
    let steps = dead_proxies(Sight { tree, facts, timing: &timing, at, now: 1 });
    match steps.commits.first() {
        Some(draft) if !draft.what.contains(" waits: ") => Ok(draft.what.clone()),
        Some(_) | None => Err(steps.waits.join("; ")),
    }
}

#[tokio::test]
async fn the_member_that_is_ahead_is_promoted_once_all_were_heard_since_the_death() {
    let (tree, primary, replicas) = reported(&[0, 1]).await;
    let died = Instant::now();
    let (before, after) = (died + SEEN_WITHIN / 2, died + SEEN_WITHIN);
    let gone = ProxyFact { missed_since: Some(died), ..ProxyFact::default() };
    let mut facts: Facts = [(primary.proxy_address.clone(), gone)].into();
    let waits =
        |facts: &Facts| decided(&tree, facts, after).unwrap_err().contains("the reports of its replicas");
    assert!(waits(&facts), "no replica has reported");
    facts.extend([report_of(&replicas[0], 90, after), report_of(&replicas[1], 80, before)]);
    assert!(waits(&facts), "it may have received more since");
    facts.extend([report_of(&replicas[1], 100, after)]);
    let promotes = |facts: &Facts, at: usize| {
        decided(&tree, facts, after).unwrap().starts_with(&format!("promote {}", replicas[at].address))
    };
    assert!(promotes(&facts, 1));
    facts.extend([report_of(&replicas[0], 101, after)]);
    assert!(promotes(&facts, 0));
    let lost = facts.get_mut(&replicas[0].proxy_address).unwrap();
    lost.nodes.values_mut().for_each(|node| node.health = Health::Loading);
    assert!(promotes(&facts, 1), "one that loads cannot lead");
}

#[tokio::test]
async fn nothing_but_a_member_is_promoted_and_the_shard_waits() {
    let (tree, primary, replicas) = reported(&[]).await;
    let (died, later) = (Instant::now(), Instant::now() + std::time::Duration::from_secs(3600));
    let gone = ProxyFact { missed_since: Some(died), ..ProxyFact::default() };
    let mut facts: Facts = [(primary.proxy_address.clone(), gone)].into();
    facts.extend(replicas.iter().map(|replica| report_of(replica, 100, later)));
    let why = decided(&tree, &facts, later).unwrap_err();
    assert!(why.contains("no other node is known to have all of its data"), "{why}");
}

#[tokio::test]
async fn a_member_that_was_started_anew_leads_only_where_the_primary_cannot_come_back() {
    let (tree, primary, replicas) = reported(&[0]).await;
    let died = Instant::now();
    let gone = ProxyFact { missed_since: Some(died), ..ProxyFact::default() };
    let mut facts: Facts = [(primary.proxy_address.clone(), gone)].into();
    facts.extend([report_of(&replicas[0], 0, died + SEEN_WITHIN)]);
    let holds = |facts: &mut Facts, data| {
        let fact = facts.get_mut(&replicas[0].proxy_address).unwrap();
        fact.nodes.values_mut().for_each(|node| node.data = data);
    };
    let (soon, late) = (died + SEEN_WITHIN, died + Timing::default().lone_node_down);
    for (data, at, leads) in [
        (Data::Current, soon, true),
        (Data::Whole, soon, false),
        (Data::Whole, late, true),
        (Data::Older, late, false),
        (Data::Gone, late, false),
    ] {
        holds(&mut facts, data);
        assert_eq!(decided(&tree, &facts, at).is_ok(), leads, "{data:?}");
    }
}

/// The store was away: the member could not leave the set.
#[tokio::test]
async fn a_member_that_was_unlinked_while_its_primary_served_is_not_promoted() {
    let (tree, primary, replicas) = reported(&[0]).await;
    let board = crate::board::Board::default();
    let begun = Instant::now();
    let second = |n: u64| begun + Duration::from_secs(n);
    let hear = |node: &NodeRecord, change: &dyn Fn(&mut NodeFact), at: Instant| {
        let (proxy, mut fact) = report_of(node, 100, at);
        let mut nodes = std::mem::take(&mut fact.nodes);
        nodes.values_mut().for_each(|fact| {
            fact.linked = true;
            change(fact);
        });
        board.note(&proxy, |fact| fact.answered(true));
        board.note_nodes(&proxy, nodes, at);
    };
    let dies = |at: Instant| {
        board.note(&primary.proxy_address, |fact| {
            fact.answered(false);
            fact.missed_since = Some(at);
        });
    };
    let promotes = |at: Instant| decided(&tree, &board.all(), at);
    let restarted: &dyn Fn(&mut NodeFact) = &|fact| (fact.linked, fact.data) = (false, Data::Whole);
    // Both were linked until the primary died, and the replica was restarted after it.
    hear(&primary, &|_| {}, second(1));
    hear(&replicas[0], &|_| {}, second(1));
    dies(second(2));
    hear(&replicas[0], restarted, second(2));
    promotes(second(40)).unwrap();
    // The primary returns and serves on, without the replica.
    hear(&primary, &|_| {}, second(41));
    hear(&primary, &|_| {}, second(50));
    dies(second(51));
    let why = promotes(second(100)).unwrap_err();
    assert!(why.contains("while it still served"), "{why}");
    // The same if its host was unreachable meanwhile, and it returns after the death.
    hear(&primary, &|_| {}, second(101));
    hear(&replicas[0], &|_| {}, second(101));
    board.note(&replicas[0].proxy_address, |fact| {
        fact.answered(false);
        fact.missed_since = Some(second(102));
    });
    hear(&primary, &|_| {}, second(110));
    dies(second(111));
    hear(&replicas[0], restarted, second(112));
    let why = promotes(second(200)).unwrap_err();
    assert!(why.contains("while it still served"), "{why}");
    // It is linked again: it has everything.
    hear(&primary, &|_| {}, second(201));
    hear(&replicas[0], &|_| {}, second(202));
    dies(second(203));
    hear(&replicas[0], &|fact| fact.linked = false, second(204));
    promotes(second(205)).unwrap();
}

/// A cluster with this many primaries and nodes per host, with a move from its first primary to its second,
/// whose server restarted without its data.
async fn lost_target(hosts: usize, nodes: usize, primaries: u32) -> (Store, ClusterName, Facts) {
    let (store, name) = (Store::new(Embedded::in_memory(embedded::Options::default())), "c".parse().unwrap());
    for at in 1..=hosts {
        let nodes: Vec<Address> =
            (1..=nodes).map(|n| format!("10.0.0.{at}:700{n}").parse().unwrap()).collect();
        broker::add_host(&store, &proxy(at), &nodes).await.unwrap();
    }
    let serving = Serving { cache: true, ..Serving::default() };
    let spec = ClusterSpec { serving, ..ClusterSpec::of(primaries) };
    broker::create_cluster(&store, &name, &spec).await.unwrap();
    let tree = Tree::read(&store).await.unwrap();
    let owners: Vec<NodeRecord> = tree.clusters[&name].primaries().map(|seen| seen.record.clone()).collect();
    let first = u32::from(owners[0].slots[0].range.first());
    let wish = Wish { range: SlotRange::new(first, first + 9).unwrap(), target: owners[1].address.clone() };
    broker::begin_move(&store, &name, &wish, "test").await.unwrap();
    let (target, mut fact) = report_of(&owners[1], 0, Instant::now());
    fact.nodes.values_mut().for_each(|node| node.health = Health::Lost);
    (store, name, [(target, fact)].into())
}

/// What happens to the move after the loss of its target.
async fn after_the_loss(
    store: &Store,
    name: &ClusterName,
    facts: &Facts,
) -> Option<(MoveRecord, MoveRecord)> {
    let tree = Tree::read(store).await.unwrap();
    let before = tree.clusters[name].moves.values().next().unwrap().record.clone();
    let timing = Timing::default();
    let mut steps = dead_nodes(Sight { tree: &tree, facts, timing: &timing, at: Instant::now(), now: 1 });
    assert_eq!(steps.commits.len(), 1, "{:?}", steps.waits);
    commit::commit(store, steps.commits.remove(0)).await.unwrap();
    let tree = Tree::read(store).await.unwrap();
    let findings = crate::check::check(&tree, 0).findings;
    assert!(findings.is_empty(), "{findings:?}");
    let after = tree.clusters[name].moves.values().next().map(|seen| seen.record.clone());
    after.map(|after| (before, after))
}

#[tokio::test]
async fn what_moves_to_a_lost_node_moves_to_the_node_that_takes_its_place() {
    let (store, name, facts) = lost_target(2, 2, 2).await;
    let (before, after) = after_the_loss(&store, &name, &facts).await.unwrap();
    assert_eq!(after.state, MoveState::Copying);
    assert!(after.target.node != before.target.node && after.epoch > before.epoch, "{after:?}");
}

#[tokio::test]
async fn a_lost_node_is_replaced_at_home_where_no_other_host_has_a_node() {
    let (store, name, facts) = lost_target(1, 3, 2).await;
    let (before, after) = after_the_loss(&store, &name, &facts).await.unwrap();
    assert!(after.target.node != before.target.node && after.target.proxy == before.target.proxy);
}

#[tokio::test]
async fn what_moves_to_a_lost_node_moves_to_another_primary_where_no_node_is_free() {
    let (store, name, facts) = lost_target(3, 1, 3).await;
    let (before, after) = after_the_loss(&store, &name, &facts).await.unwrap();
    assert_eq!(after.state, MoveState::Copying);
    assert!(![&before.target.node, &before.source.node].contains(&&after.target.node), "{after:?}");
}

#[tokio::test]
async fn a_move_ends_where_nobody_else_could_take_it() {
    let (store, name, facts) = lost_target(2, 1, 2).await;
    assert_eq!(after_the_loss(&store, &name, &facts).await, None);
}
