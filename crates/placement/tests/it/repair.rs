//! Repair restores lost copies and does nothing else; rebalance waits for it, then moves in batches.

use std::num::NonZeroU32;

use capstan_placement::{Assignment, Cluster, NodeState, Plan, Rebalance, Throttle, plan, rebalance, repair};
use proptest::prelude::*;

use crate::support::{check_rules, cluster, copies, domain, empty, node, serving};

fn at_most(adds: u32) -> Throttle {
    Throttle::Adds(NonZeroU32::new(adds).unwrap())
}

fn carried_out(cluster: &Cluster, before: &Assignment, plan: &Plan) -> Assignment {
    let mut layout = before.clone();
    plan.steps().for_each(|step| layout.apply(step));
    for (shard, placement) in layout.iter() {
        let serving =
            placement.holders.iter().filter(|h| cluster.node(h).unwrap().state == NodeState::Serving);
        assert!(serving.count() >= 1, "shard {shard}");
    }
    plan.assignment.clone()
}

#[test]
fn the_loss_of_one_node_is_repaired_in_balance() {
    let here = cluster((0..8).map(node));
    let layout = plan(&here, &empty(256)).unwrap().assignment;
    let broken = here.marking(&node(3).name, NodeState::Gone).unwrap();
    let fixed = repair(&broken, &layout).unwrap();
    assert_eq!(fixed.adds.len(), 96, "exactly the copies that node 3 had");
    assert!(fixed.removals.is_empty());
    assert!(fixed.adds.iter().all(|add| add.source.as_ref().is_some_and(|source| *source != node(3).name)));
    let stored: Vec<u32> = fixed.nodes.iter().filter(|n| n.stored > 0).map(|n| n.stored).collect();
    assert!(stored.iter().max().unwrap() - stored.iter().min().unwrap() <= 1, "{stored:?}");
    assert!(repair(&broken, &fixed.assignment).unwrap().is_empty());
}

#[test]
fn rebalance_waits_while_copies_are_missing() {
    let here = cluster((0..5).map(node));
    let layout = plan(&here, &empty(64)).unwrap().assignment;
    let broken = here.marking(&node(0).name, NodeState::Gone).unwrap().with(node(9)).unwrap();
    let lost = layout.tally()[&node(0).name].copies;
    let answer = rebalance(&broken, &layout, Throttle::Unlimited).unwrap();
    assert_eq!(answer, Rebalance::Wait { missing_copies: u64::from(lost) });
    let fixed = repair(&broken, &layout).unwrap().assignment;
    assert!(!matches!(rebalance(&broken, &fixed, Throttle::Unlimited).unwrap(), Rebalance::Wait { .. }));
}

#[test]
fn a_retiring_node_serves_until_its_copies_are_elsewhere() {
    let here = cluster((0..5).map(node));
    let layout = plan(&here, &empty(64)).unwrap().assignment;
    let leaving = here.marking(&node(2).name, NodeState::Retiring).unwrap();
    assert!(repair(&leaving, &layout).unwrap().is_empty(), "nothing is lost");
    let mut now = layout.clone();
    let mut batches = 0;
    while let Rebalance::Move(batch) = rebalance(&leaving, &now, at_most(5)).unwrap() {
        assert!(batch.adds.len() <= 5);
        now = carried_out(&leaving, &now, &batch);
        batches += 1;
    }
    assert!(!now.tally().contains_key(&node(2).name));
    assert!(batches >= 8, "{batches} batches");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any failure, repair adds what was lost, deletes nothing and leaves complete shards alone.
    #[test]
    fn repair_adds_only_what_was_lost(
        shards in 1..=48u64, nodes in 5..=12usize, racks in 1..=5usize, dead in 1..=2usize, retiring in 0..=1usize,
    ) {
        let members = (0..nodes).map(|at| node(at).within(domain(at % racks)));
        let here = Cluster::new(copies(3), members).unwrap();
        let layout = plan(&here, &empty(shards)).unwrap().assignment;
        let mut broken = here;
        for at in 0..dead {
            broken = broken.marking(&node(at).name, NodeState::Gone).unwrap();
        }
        if nodes - dead - retiring >= 3 && retiring > 0 {
            broken = broken.marking(&node(nodes - 1).name, NodeState::Retiring).unwrap();
        }
        let fixed = repair(&broken, &layout).unwrap();
        let tally = layout.tally();
        let lost: u32 = (0..dead).filter_map(|at| tally.get(&node(at).name)).map(|t| t.copies).sum();
        prop_assert_eq!(fixed.adds.len() as u32, lost);
        prop_assert!(fixed.removals.is_empty());
        for (shard, placement) in fixed.assignment.iter() {
            let was = layout.get(shard).unwrap();
            prop_assert!(placement.holders.len() >= 3);
            prop_assert!(was.holders.iter().all(|h| placement.holders.contains(h)
                || broken.node(h).unwrap().state == NodeState::Gone));
            let primary = placement.primary.as_ref().unwrap();
            prop_assert!(placement.holders.contains(primary));
            let kept = was.primary.as_ref().filter(|p| broken.node(p).unwrap().state != NodeState::Gone);
            prop_assert!(kept.is_none_or(|kept| kept == primary), "a primary that lives stays");
        }
    }

    /// Batches add up to the best plan, and everything is fair at the end.
    #[test]
    fn batches_add_up_to_the_whole_plan(shards in 8..=48u64, nodes in 4..=9usize, most in 1..=7u32) {
        let here = cluster((0..nodes).map(node));
        let start = plan(&here, &empty(shards)).unwrap().assignment;
        let larger = here.with(node(30)).unwrap().marking(&node(1).name, NodeState::Retiring).unwrap();
        let whole = plan(&larger, &start).unwrap();
        let (mut now, mut adds) = (start, 0);
        while let Rebalance::Move(batch) = rebalance(&larger, &now, at_most(most)).unwrap() {
            prop_assert!(batch.adds.len() <= most.max(3) as usize);
            adds += batch.adds.len();
            now = carried_out(&larger, &now, &batch);
        }
        prop_assert_eq!(adds, whole.adds.len());
        let last = plan(&larger, &now).unwrap();
        prop_assert!(last.is_empty());
        check_rules(&larger, &now, &last);
        prop_assert!(!now.tally().contains_key(&node(1).name));
        prop_assert_eq!(serving(&larger).len(), nodes);
    }
}
