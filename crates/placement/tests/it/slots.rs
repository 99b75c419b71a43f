//! Slots of a Redis cluster: no more moves than the bound, in few ranges.

use capstan_placement::slots::{SLOTS, SlotMap, SlotPlan, SlotRange, plan_slots};
use capstan_placement::{Cluster, NodeState};
use proptest::prelude::*;

use crate::support::{copies, name, node, weighted};

fn nodes(count: usize) -> Cluster {
    Cluster::new(copies(1), (0..count).map(node)).unwrap()
}

fn check(cluster: &Cluster, before: &SlotMap, plan: &SlotPlan) {
    let covered: u32 = plan.slots.ranges().iter().map(|(range, _)| range.len()).sum();
    assert_eq!(covered, u32::from(SLOTS));
    assert_eq!(plan.slots_moved(), plan.lower_bound);
    let serving = |at: &&capstan_placement::slots::SlotSummary| {
        cluster.node(&at.node).unwrap().state == NodeState::Serving
    };
    let total: u32 =
        cluster.nodes().iter().filter(|n| n.state == NodeState::Serving).map(|n| n.weight.get()).sum();
    for row in plan.nodes.iter().filter(serving) {
        let share = u32::from(SLOTS) * cluster.node(&row.node).unwrap().weight.get();
        assert!((share / total..=share.div_ceil(total)).contains(&row.slots), "{row:?}");
    }
    assert!(plan_slots(cluster, &plan.slots).unwrap().moves.is_empty());
    assert!(before.ranges().is_empty() || plan.moves.iter().all(|m| m.from.as_ref() != Some(&m.to)));
}

fn ranges(plan: &SlotPlan) -> usize {
    plan.slots.ranges().len()
}

#[test]
fn a_new_cluster_has_one_range_per_node() {
    for count in [1, 3, 6, 100, 1000] {
        let plan = plan_slots(&nodes(count), &SlotMap::default()).unwrap();
        check(&nodes(count), &SlotMap::default(), &plan);
        assert_eq!(ranges(&plan), count);
    }
}

#[test]
fn a_join_takes_from_where_two_nodes_meet() {
    let mut before = plan_slots(&nodes(3), &SlotMap::default()).unwrap().slots;
    let mut seen = Vec::new();
    for count in 4..=10 {
        let plan = plan_slots(&nodes(count), &before).unwrap();
        check(&nodes(count), &before, &plan);
        seen.push(ranges(&plan));
        before = plan.slots;
    }
    // 3 givers in a row: two pieces. After that every join adds about half as many pieces as there are givers.
    assert_eq!(seen[0], 5);
    assert!(seen.iter().zip(4..).all(|(&ranges, count)| ranges <= 4 * count), "{seen:?}");
}

#[test]
fn a_leave_goes_to_neighbours_first() {
    let four = nodes(4);
    let before = plan_slots(&four, &SlotMap::default()).unwrap().slots;
    let three = four.marking(&node(1).name, NodeState::Retiring).unwrap();
    let plan = plan_slots(&three, &before).unwrap();
    check(&three, &before, &plan);
    assert_eq!(ranges(&plan), 4, "{:?}", plan.slots);
    assert_eq!(plan.slots_moved(), 4096);
}

#[test]
fn bad_ranges_are_refused() {
    assert!(SlotRange::new(5, 4).is_err() && SlotRange::new(0, 16_384).is_err());
    let range = |first, last| SlotRange::new(first, last).unwrap();
    let overlap = SlotMap::new([(range(0, 10), name("a")), (range(10, 20), name("b"))]).unwrap_err();
    assert!(overlap.to_string().contains("slot 10 is owned by both a and b"));
    let stranger = SlotMap::new([(range(0, 10), name("zz"))]).unwrap();
    assert!(plan_slots(&nodes(3), &stranger).unwrap_err().to_string().contains("zz"));
    let text = r#"[{"first":0,"last":99999,"node":"a"}]"#;
    assert!(serde_json::from_str::<SlotMap>(text).unwrap_err().to_string().contains("0-99999"));
}

#[test]
fn written_ranges_read_back() {
    let plan = plan_slots(&nodes(7), &SlotMap::default()).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<SlotPlan>(&text).unwrap(), plan);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Weighted nodes join and leave: always at the bound, always fair, in few ranges.
    #[test]
    fn a_long_life_stays_at_the_bound(events in proptest::collection::vec((0..3u8, 0..20usize, 1..4u64), 1..14)) {
        let mut cluster = Cluster::new(copies(1), (0..3).map(|at| weighted(at, 1))).unwrap();
        let mut slots = plan_slots(&cluster, &SlotMap::default()).unwrap().slots;
        for (number, (kind, at, weight)) in (10..).zip(events) {
            let pick = cluster.nodes()[at % cluster.nodes().len()].name.clone();
            let changed = match kind {
                0 | 1 => cluster.with(weighted(number, weight)),
                _ => cluster.marking(&pick, NodeState::Gone),
            };
            let Ok(changed) = changed else { continue };
            let plan = plan_slots(&changed, &slots).unwrap();
            check(&changed, &slots, &plan);
            let count = changed.nodes().len();
            prop_assert!(ranges(&plan) <= slots.ranges().len() + count, "{} of {count}", ranges(&plan));
            slots = plan.slots;
            let stay = changed.nodes().iter().filter(|n| n.state == NodeState::Serving).cloned();
            cluster = Cluster::new(copies(1), stay).unwrap();
        }
    }
}
