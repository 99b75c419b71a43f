//! Each row of the operations' checklist: what is written, what is refused, what must not happen
//! concurrently.

use capstan_control::epoch::Epoch;
use capstan_meta::Store;
use capstan_redis::broker;
use capstan_redis::commit;
use capstan_redis::decide::{self, Change, OldPrimary, Wish};
use capstan_redis::error::BrokerError;
use capstan_redis::slots::SlotRange;
use capstan_redis::spec::ClusterSpec;
use capstan_redis::status::{MoveState, Place, Tag};

use super::world::*;

/// Every rule is a test on the embedded store; `all_rules_hold_on_etcd` runs them on a real etcd.
macro_rules! rules {
    ($($rule:ident),* $(,)?) => {
        mod embedded {
            $(
                #[test]
                fn $rule() {
                    super::block_on(async { super::$rule(super::embedded_store()).await });
                }
            )*
        }

        #[test]
        fn all_rules_hold_on_etcd() {
            block_on(async {
                let etcd = capstan_testkit::Etcd::start().await.unwrap();
                $(
                    eprintln!("{}", stringify!($rule));
                    $rule(etcd_store(etcd.endpoint()).await).await;
                )*
            });
        }
    };
}

rules!(
    a_new_cluster_covers_every_slot_and_spreads_over_hosts,
    replicas_stand_on_other_hosts,
    a_name_is_refused_while_taken_or_being_freed,
    a_cluster_that_does_not_fit_is_refused_before_anything_is_written,
    epochs_of_a_name_and_of_a_host_never_go_back,
    every_change_bumps_and_triggers_in_one_transaction,
    a_large_cluster_takes_several_transactions,
    create_node_adds_one_without_slots,
    delete_node_refuses_slots_and_quarantines,
    replace_node_keeps_slots_and_quarantines_the_old_one,
    deleting_a_cluster_releases_everything_to_quarantine,
    a_host_in_use_cannot_be_removed,
    a_host_is_registered_once_with_one_set_of_nodes,
    a_move_is_tagged_committed_and_numbered,
    a_move_can_be_cancelled_and_retargeted,
    a_late_commit_of_an_old_target_is_refused,
    replacing_an_end_of_a_move_keeps_the_move,
    a_promoted_replica_has_the_slots_and_the_tags,
    growing_and_shrinking_spread_the_slots,
    promotions_and_moves_are_in_the_record_of_events,
);

async fn spec(store: &Store, name: &str, nodes: u32, replicas: u32) {
    let spec = ClusterSpec { replicas, ..ClusterSpec::of(nodes) };
    broker::create_cluster(store, &cluster(name), &spec).await.unwrap();
}

fn range(first: u32, last: u32) -> SlotRange {
    SlotRange::new(first, last).unwrap()
}

async fn a_new_cluster_covers_every_slot_and_spreads_over_hosts(store: Store) {
    pool(&store, 3, 2).await;
    spec(&store, "c", 3, 0).await;
    let tree = assert_comes_to_rest(&store).await;
    let c = &tree.clusters[&cluster("c")];
    assert_eq!(c.nodes.len(), 3);
    assert_eq!(c.proxies().len(), 3);
    let slots: Vec<u32> = c.nodes.values().map(|node| node.record.slot_count()).collect();
    assert_eq!(slots.iter().sum::<u32>(), 16_384);
    assert!(slots.iter().all(|slots| (5461..=5462).contains(slots)), "{slots:?}");
    assert!(c.epoch.as_ref().unwrap().record.is_told());
    assert!(tree.hosts.values().all(|host| host.epoch.as_ref().unwrap().record > Epoch(1)));
}

async fn replicas_stand_on_other_hosts(store: Store) {
    pool(&store, 3, 2).await;
    spec(&store, "c", 3, 1).await;
    let tree = assert_comes_to_rest(&store).await;
    let c = &tree.clusters[&cluster("c")];
    assert_eq!(c.nodes.len(), 6);
    for replica in c.nodes.values().filter(|node| !node.record.is_primary()) {
        let primary = &c.nodes[replica.record.replica_of.as_ref().unwrap()];
        assert_ne!(primary.record.proxy_address, replica.record.proxy_address);
        assert!(replica.record.slots.is_empty());
    }
}

async fn a_name_is_refused_while_taken_or_being_freed(store: Store) {
    pool(&store, 2, 2).await;
    spec(&store, "c", 2, 0).await;
    let again = broker::create_cluster(&store, &cluster("c"), &ClusterSpec::of(1)).await;
    assert_eq!(again, Err(BrokerError::ClusterExists(cluster("c"))));
    // Only the first transaction of the deletion.
    let now = tree(&store).await;
    commit::commit(&store, decide::plan_delete(&cluster("c"), &now.clusters[&cluster("c")], 1))
        .await
        .unwrap();
    let again = broker::create_cluster(&store, &cluster("c"), &ClusterSpec::of(1)).await;
    assert_eq!(again, Err(BrokerError::StillDeleting(cluster("c"))));
    assert_comes_to_rest(&store).await;
    spec(&store, "c", 1, 0).await;
    for bad in ["has space", "x/../y\u{e9}", &"x".repeat(65)] {
        let refused = match bad.parse() {
            Ok(name) => broker::create_cluster(&store, &name, &ClusterSpec::of(1)).await.is_err(),
            Err(_) => true,
        };
        assert!(refused, "{bad}");
    }
}

async fn a_cluster_that_does_not_fit_is_refused_before_anything_is_written(store: Store) {
    pool(&store, 2, 2).await;
    let before = tree(&store).await.revision;
    for spec in [ClusterSpec::of(5), ClusterSpec { replicas: 2, ..ClusterSpec::of(1) }] {
        let refused = broker::create_cluster(&store, &cluster("c"), &spec).await;
        assert!(matches!(refused, Err(BrokerError::TooFewNodes { .. })), "{refused:?}");
    }
    for spec in [ClusterSpec::of(0), ClusterSpec::of(100_000)] {
        let refused = broker::create_cluster(&store, &cluster("c"), &spec).await;
        assert!(matches!(refused, Err(BrokerError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(tree(&store).await.revision, before);
}

async fn epochs_of_a_name_and_of_a_host_never_go_back(store: Store) {
    pool(&store, 2, 2).await;
    let (mut last, mut incarnations) = (Epoch::NEVER_TOLD, Vec::new());
    for _ in 0..3 {
        spec(&store, "c", 2, 0).await;
        let now = tree(&store).await;
        let c = &now.clusters[&cluster("c")];
        let epoch = c.epoch.as_ref().unwrap().record;
        assert!(epoch > last, "{epoch} after {last}");
        last = epoch;
        incarnations.push(c.incarnation());
        broker::delete_cluster(&store, &cluster("c")).await.unwrap();
        assert_comes_to_rest(&store).await;
    }
    assert!(incarnations.is_sorted_by(|a, b| a < b), "{incarnations:?}");
    let epoch = tree(&store).await.hosts[&proxy(1)].epoch.as_ref().unwrap().record;
    broker::remove_host(&store, &proxy(1)).await.unwrap();
    assert!(tree(&store).await.host(&proxy(1)).is_none());
    broker::add_host(&store, &proxy(1), &[node(1, 1)]).await.unwrap();
    assert!(tree(&store).await.hosts[&proxy(1)].epoch.as_ref().unwrap().record > epoch);
}

async fn every_change_bumps_and_triggers_in_one_transaction(store: Store) {
    pool(&store, 3, 2).await;
    spec(&store, "c", 3, 0).await;
    complete(&store).await;
    let before = tree(&store).await;
    broker::replace_node(
        &store,
        &cluster("c"),
        before.clusters[&cluster("c")].nodes.keys().next().unwrap(),
        None,
        "test",
    )
    .await
    .unwrap();
    let after = tree(&store).await;
    let c = &after.clusters[&cluster("c")];
    assert!(c.bump.is_some());
    assert_eq!(c.bump.as_ref().unwrap().mod_revision, c.epoch.as_ref().unwrap().mod_revision);
    // Hosts that the change did not touch get no push before they are bumped.
    let unsettled: Vec<_> = c.proxies().into_iter().filter(|proxy| !after.is_settled(proxy)).collect();
    assert!(!unsettled.is_empty());
    let rest = assert_comes_to_rest(&store).await;
    for proxy in c.proxies() {
        assert!(rest.is_settled(proxy));
        assert!(
            rest.hosts[proxy].epoch.as_ref().unwrap().record
                > before.hosts[proxy].epoch.as_ref().unwrap().record
        );
    }
}

async fn a_large_cluster_takes_several_transactions(store: Store) {
    pool(&store, 60, 3).await;
    spec(&store, "big", 120, 0).await;
    let tree = assert_comes_to_rest(&store).await;
    let big = &tree.clusters[&cluster("big")];
    assert_eq!((big.nodes.len(), big.proxies().len()), (120, 60));
    assert!(big.nodes.values().all(|node| (136..=137).contains(&node.record.slot_count())));
    broker::delete_cluster(&store, &cluster("big")).await.unwrap();
    let tree = assert_comes_to_rest(&store).await;
    assert_eq!(tree.free_nodes().count(), 180);
}

async fn create_node_adds_one_without_slots(store: Store) {
    pool(&store, 2, 2).await;
    spec(&store, "c", 1, 0).await;
    let place = broker::create_node(&store, &cluster("c"), None).await.unwrap();
    let now = tree(&store).await;
    assert!(now.clusters[&cluster("c")].nodes[&place.node].record.slots.is_empty());
    let taken = broker::create_node(&store, &cluster("c"), Some(&place.node)).await;
    assert!(matches!(taken, Err(BrokerError::NodeNotFree { .. })), "{taken:?}");
    let none = broker::create_node(&store, &cluster("none"), None).await;
    assert_eq!(none, Err(BrokerError::NoCluster(cluster("none"))));
    assert_comes_to_rest(&store).await;
}

async fn delete_node_refuses_slots_and_quarantines(store: Store) {
    pool(&store, 2, 2).await;
    spec(&store, "c", 1, 0).await;
    let owner = tree(&store).await.clusters[&cluster("c")].nodes.keys().next().unwrap().clone();
    let refused = broker::delete_node(&store, &cluster("c"), &owner).await;
    assert!(matches!(refused, Err(BrokerError::NodeHasSlots { slots: 16_384, .. })), "{refused:?}");
    let Place { proxy, node } = broker::create_node(&store, &cluster("c"), None).await.unwrap();
    broker::delete_node(&store, &cluster("c"), &node).await.unwrap();
    let now = tree(&store).await;
    assert!(now.hosts[&proxy].quarantine.contains_key(&node));
    assert!(!now.free_nodes().any(|place| place.node == node));
    let epoch = now.hosts[&proxy].epoch.as_ref().unwrap().record;
    let early =
        broker::end_quarantine(&store, &Place { proxy: proxy.clone(), node: node.clone() }, Epoch(1)).await;
    assert_eq!(early, Ok(Change::Already));
    assert!(
        tree(&store).await.hosts[&proxy].quarantine.contains_key(&node),
        "emptied before it was released"
    );
    broker::end_quarantine(&store, &Place { proxy, node: node.clone() }, epoch).await.unwrap();
    assert!(tree(&store).await.free_nodes().any(|place| place.node == node));
}

async fn replace_node_keeps_slots_and_quarantines_the_old_one(store: Store) {
    pool(&store, 3, 1).await;
    spec(&store, "c", 2, 0).await;
    let before = tree(&store).await;
    let old = before.clusters[&cluster("c")].nodes.values().next().unwrap().record.clone();
    let new = broker::replace_node(&store, &cluster("c"), &old.address, None, "test").await.unwrap();
    let after = assert_comes_to_rest(&store).await;
    let c = &after.clusters[&cluster("c")];
    assert_eq!(c.nodes[&new.node].record.slots, old.slots);
    assert!(!c.nodes.contains_key(&old.address));
    let gone = broker::replace_node(&store, &cluster("c"), &old.address, None, "test").await;
    assert!(matches!(gone, Err(BrokerError::NoNode { .. })), "{gone:?}");
}

async fn deleting_a_cluster_releases_everything_to_quarantine(store: Store) {
    pool(&store, 3, 2).await;
    spec(&store, "c", 3, 1).await;
    broker::delete_cluster(&store, &cluster("c")).await.unwrap();
    let now = tree(&store).await;
    assert_at_rest(&now);
    assert_eq!(now.free_nodes().count(), 0);
    assert_eq!(now.hosts.values().map(|host| host.quarantine.len()).sum::<usize>(), 6);
    let again = broker::delete_cluster(&store, &cluster("c")).await;
    assert_eq!(again, Err(BrokerError::NoCluster(cluster("c"))));
    let tree = assert_comes_to_rest(&store).await;
    assert_eq!(tree.free_nodes().count(), 6);
}

async fn a_host_in_use_cannot_be_removed(store: Store) {
    pool(&store, 2, 1).await;
    spec(&store, "c", 1, 0).await;
    let used = tree(&store).await.clusters[&cluster("c")].proxies().into_iter().next().unwrap().clone();
    let refused = broker::remove_host(&store, &used).await;
    assert!(matches!(refused, Err(BrokerError::HostInUse { .. })), "{refused:?}");
    let free = if used == proxy(1) { proxy(2) } else { proxy(1) };
    assert_eq!(broker::remove_host(&store, &free).await, Ok(Change::Made));
    assert_eq!(broker::remove_host(&store, &free).await, Err(BrokerError::NoHost(free)));
    assert_comes_to_rest(&store).await;
}

async fn a_host_is_registered_once_with_one_set_of_nodes(store: Store) {
    assert_eq!(broker::add_host(&store, &proxy(1), &[node(1, 1), node(1, 2)]).await, Ok(Change::Made));
    assert_eq!(broker::add_host(&store, &proxy(1), &[node(1, 2), node(1, 1)]).await, Ok(Change::Already));
    let other = broker::add_host(&store, &proxy(1), &[node(1, 1)]).await;
    assert_eq!(other, Err(BrokerError::HostDiffers(proxy(1))));
    let stolen = broker::add_host(&store, &proxy(2), &[node(1, 1)]).await;
    assert_eq!(stolen, Err(BrokerError::NodeElsewhere { node: node(1, 1), proxy: proxy(1) }));
    assert!(matches!(broker::add_host(&store, &proxy(2), &[]).await, Err(BrokerError::Invalid(_))));
}

/// A cluster of two, the first of which has slots 0 to 8191; the ends of a move.
async fn two_nodes(store: &Store) -> (Place, Place) {
    pool(store, 4, 1).await;
    spec(store, "c", 2, 0).await;
    complete(store).await;
    let now = tree(store).await;
    let mut nodes: Vec<_> =
        now.clusters[&cluster("c")].nodes.values().map(|node| node.record.clone()).collect();
    nodes.sort_by_key(|node| node.slots[0].range);
    let place = |at: usize| Place { proxy: nodes[at].proxy_address.clone(), node: nodes[at].address.clone() };
    (place(0), place(1))
}

async fn a_move_is_tagged_committed_and_numbered(store: Store) {
    let (source, target) = two_nodes(&store).await;
    let wish = Wish { range: range(100, 200), target: target.node.clone() };
    let ids = broker::begin_move(&store, &cluster("c"), &wish, "test").await.unwrap();
    let now = tree(&store).await;
    assert_sound(&now);
    assert_eq!(now.task_epoch.as_ref().unwrap().record.0, ids[0].0);
    let c = &now.clusters[&cluster("c")];
    let record = &c.moves[&ids[0]].record;
    assert_eq!((record.state, record.epoch), (MoveState::Copying, c.epoch.as_ref().unwrap().record));
    let tags = |place: &Place| {
        c.nodes[&place.node].record.slots.iter().map(|e| e.tag.to_string()).collect::<Vec<_>>()
    };
    let (id, epoch) = (ids[0], record.epoch);
    assert_eq!(
        tags(&source)[1],
        format!("migrating {} {} move={id} epoch={epoch}", target.proxy, target.node)
    );
    assert_eq!(
        tags(&target)[0],
        format!("importing {} {} move={id} epoch={epoch}", source.proxy, source.node)
    );
    // Another move of the same source waits for its turn; the same slots cannot be moved twice.
    let wish = Wish { range: range(300, 400), target: target.node.clone() };
    let queued = broker::begin_move(&store, &cluster("c"), &wish, "test").await.unwrap();
    assert_eq!(tree(&store).await.clusters[&cluster("c")].moves[&queued[0]].record.state, MoveState::Queued);
    let wish = Wish { range: range(150, 160), target: target.node.clone() };
    let refused = broker::begin_move(&store, &cluster("c"), &wish, "test").await;
    assert!(matches!(refused, Err(BrokerError::NotMovable { .. })), "{refused:?}");
    broker::commit_move(&store, &cluster("c"), ids[0], epoch).await.unwrap();
    let now = tree(&store).await;
    assert_sound(&now);
    let owned: Vec<_> = now.clusters[&cluster("c")].nodes[&target.node].record.owned().collect();
    assert!(owned.contains(&range(100, 200)), "{owned:?}");
    let rest = assert_comes_to_rest(&store).await;
    let owned: Vec<_> = rest.clusters[&cluster("c")].nodes[&target.node].record.owned().collect();
    assert!(owned.contains(&range(300, 400)), "{owned:?}");
    // A late commit changes nothing.
    broker::commit_move(&store, &cluster("c"), ids[0], epoch).await.unwrap();
    assert_eq!(tree(&store).await.revision, rest.revision);
}

async fn a_move_can_be_cancelled_and_retargeted(store: Store) {
    let (source, target) = two_nodes(&store).await;
    let wish = Wish { range: range(0, 50), target: target.node.clone() };
    let id = broker::begin_move(&store, &cluster("c"), &wish, "test").await.unwrap()[0];
    let third = broker::create_node(&store, &cluster("c"), None).await.unwrap();
    broker::retarget_move(&store, &cluster("c"), id, &third.node).await.unwrap();
    let now = tree(&store).await;
    assert_sound(&now);
    let c = &now.clusters[&cluster("c")];
    assert!(matches!(c.nodes[&third.node].record.slots[0].tag, Tag::Importing(_)));
    assert!(!c.nodes[&target.node].record.is_moving());
    broker::cancel_move(&store, &cluster("c"), id).await.unwrap();
    let now = tree(&store).await;
    assert_sound(&now);
    let c = &now.clusters[&cluster("c")];
    assert!(c.moves.is_empty() && c.nodes.values().all(|node| !node.record.is_moving()));
    assert!(c.nodes[&source.node].record.owned().any(|owned| owned == range(0, 8191)));
    let again = broker::cancel_move(&store, &cluster("c"), id).await;
    assert_eq!(again, Err(BrokerError::NoMove { cluster: cluster("c"), id }));
    assert_comes_to_rest(&store).await;
}

async fn a_late_commit_of_an_old_target_is_refused(store: Store) {
    let (_, target) = two_nodes(&store).await;
    let wish = Wish { range: range(0, 50), target: target.node.clone() };
    let id = broker::begin_move(&store, &cluster("c"), &wish, "test").await.unwrap()[0];
    let released_at = tree(&store).await.clusters[&cluster("c")].moves[&id].record.epoch;
    let third = broker::create_node(&store, &cluster("c"), None).await.unwrap();
    broker::retarget_move(&store, &cluster("c"), id, &third.node).await.unwrap();
    broker::commit_move(&store, &cluster("c"), id, released_at).await.unwrap();
    let now = tree(&store).await;
    assert!(now.clusters[&cluster("c")].moves.contains_key(&id), "the release was of another copy");
    assert_comes_to_rest(&store).await;
}

async fn replacing_an_end_of_a_move_keeps_the_move(store: Store) {
    let (source, target) = two_nodes(&store).await;
    let wish = Wish { range: range(0, 50), target: target.node.clone() };
    let id = broker::begin_move(&store, &cluster("c"), &wish, "test").await.unwrap()[0];
    for end in [&source.node, &target.node] {
        let before = tree(&store).await.clusters[&cluster("c")].moves[&id].record.epoch;
        let new = broker::replace_node(&store, &cluster("c"), end, None, "test").await.unwrap();
        let now = tree(&store).await;
        assert_sound(&now);
        let record = &now.clusters[&cluster("c")].moves[&id].record;
        assert!(record.epoch > before);
        assert!(record.source == new || record.target == new);
    }
    assert_comes_to_rest(&store).await;
}

async fn a_promoted_replica_has_the_slots_and_the_tags(store: Store) {
    pool(&store, 4, 2).await;
    spec(&store, "c", 2, 1).await;
    complete(&store).await;
    let now = tree(&store).await;
    let c = &now.clusters[&cluster("c")];
    let primaries: Vec<_> = c.primaries().map(|node| node.record.clone()).collect();
    let moved = primaries[0].slots[0].range;
    let wish = Wish {
        range: range(moved.first().into(), (moved.first() + 9).into()),
        target: primaries[1].address.clone(),
    };
    broker::begin_move(&store, &cluster("c"), &wish, "test").await.unwrap();
    for primary in &primaries {
        let replica = c.replicas_of(&primary.address).next().unwrap().record.address.clone();
        let slots = tree(&store).await.clusters[&cluster("c")].nodes[&primary.address].record.slot_count();
        broker::promote(&store, &cluster("c"), &replica, OldPrimary::Leaves).await.unwrap();
        let now = tree(&store).await;
        let c = &now.clusters[&cluster("c")];
        assert_eq!(c.nodes[&replica].record.slot_count(), slots);
        assert!(!c.nodes.contains_key(&primary.address));
        assert_sound(&now);
    }
    let rest = assert_comes_to_rest(&store).await;
    let c = &rest.clusters[&cluster("c")];
    assert_eq!((c.primaries().count(), c.nodes.len()), (2, 4), "replicas were created anew");
    let replica = c.nodes.values().find(|node| !node.record.is_primary()).unwrap().record.clone();
    broker::promote(&store, &cluster("c"), &replica.address, OldPrimary::Follows).await.unwrap();
    let now = assert_comes_to_rest(&store).await;
    let old = &now.clusters[&cluster("c")].nodes[replica.replica_of.as_ref().unwrap()].record;
    assert_eq!(old.replica_of.as_ref(), Some(&replica.address));
}

async fn growing_and_shrinking_spread_the_slots(store: Store) {
    pool(&store, 5, 2).await;
    spec(&store, "c", 2, 1).await;
    complete(&store).await;
    for nodes in [5, 3, 1, 4] {
        let plan = decide::plan_scale(&tree(&store).await, &cluster("c"), nodes).unwrap();
        assert_eq!(broker::scale(&store, &cluster("c"), nodes).await, Ok(Change::Made));
        assert_eq!(broker::scale(&store, &cluster("c"), nodes).await, Ok(Change::Already));
        let rest = assert_comes_to_rest(&store).await;
        let c = &rest.clusters[&cluster("c")];
        assert_eq!((c.primaries().count() as u32, c.nodes.len() as u32), (nodes, 2 * nodes), "{plan:?}");
        let fair = 16_384 / nodes;
        assert!(c.primaries().all(|node| (fair..=fair + 1).contains(&node.record.slot_count())));
    }
    let refused = broker::scale(&store, &cluster("c"), 6).await;
    assert!(matches!(refused, Err(BrokerError::TooFewNodes { .. })), "{refused:?}");
}

async fn promotions_and_moves_are_in_the_record_of_events(store: Store) {
    pool(&store, 4, 2).await;
    for name in ["c", "c.c"] {
        spec(&store, name, 2, 1).await;
    }
    complete(&store).await;
    let now = tree(&store).await;
    let told = async || -> Vec<String> {
        let events = capstan_control::events::list(&store, None).await.unwrap();
        events.iter().map(|event| format!("{} {}: {}", event.action, event.object, event.reason)).collect()
    };
    assert_eq!(told().await, [""; 0], "what was only recorded has not happened");

    let mut expected = Vec::new();
    for name in ["c", "c.c"] {
        let c = &now.clusters[&cluster(name)];
        let [from, to] = [0, 1].map(|at| c.primaries().nth(at).unwrap().record.clone());
        let first = from.slots[0].range.first();
        let wish = Wish { range: range(first.into(), (first + 9).into()), target: to.address.clone() };
        broker::begin_move(&store, &cluster(name), &wish, "a test").await.unwrap();
        complete(&store).await;
        let (source, target, last) = (&from.address, &to.address, first + 9);
        expected.push(format!(
            "moved slots {first}-{last} from {source} to {target} in redis cluster {name}: a test"
        ));
        let replica = &c.replicas_of(source).next().unwrap().record.address;
        broker::promote(&store, &cluster(name), replica, OldPrimary::Follows).await.unwrap();
        expected.push(format!(
            "promoted {replica} in place of {source} in redis cluster {name}: a planned handover"
        ));
    }
    let mut told = told().await;
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}
