//! P1 to P13 on random clusters and random events. A failure prints the smallest case and its seed.

use std::collections::BTreeMap;

use capstan_placement::{Assignment, Cluster, Node, NodeState, Placement, Plan, plan};
use proptest::prelude::*;

use crate::support::{check_rules, copies, domain, empty, name, node, serving, weighted};

#[derive(Debug, Clone)]
struct Case {
    shards: u64,
    copies: u64,
    nodes: Vec<Node>,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Join { weight: u64, rack: usize },
    Retire(usize),
    Die(usize),
    Weigh(usize, u64),
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Equal,
    Weighted,
    Racks,
    Both,
}

fn shaped(shape: Shape, number: usize, weight: u64, rack: usize) -> Node {
    match shape {
        Shape::Equal => node(number),
        Shape::Weighted => weighted(number, weight),
        Shape::Racks => node(number).within(domain(rack)),
        // The last rack number means "none": such a node is its own domain.
        Shape::Both if rack == 4 => weighted(number, weight),
        Shape::Both => weighted(number, weight).within(domain(rack)),
    }
}

fn case(shape: Shape) -> impl Strategy<Value = Case> {
    let event = prop_oneof![
        3 => (1..=5u64, 0..5usize).prop_map(|(weight, rack)| Event::Join { weight, rack }),
        1 => (0..32usize).prop_map(Event::Retire),
        1 => (0..32usize).prop_map(Event::Die),
        1 => (0..32usize, 1..=5u64).prop_map(|(at, weight)| Event::Weigh(at, weight)),
    ];
    let sizes = (1..=40u64, 1..=4u64);
    let nodes = proptest::collection::vec((1..=5u64, 0..5usize), 4..=10);
    (sizes, nodes, proptest::collection::vec(event, 1..=6)).prop_map(
        move |((shards, copies), nodes, events)| {
            let nodes = nodes
                .iter()
                .enumerate()
                .map(|(at, &(weight, rack))| shaped(shape, at, weight, rack))
                .collect();
            Case { shards, copies, nodes, events }
        },
    )
}

/// The cluster after the event; `None` if it would leave too few nodes.
fn after(cluster: &Cluster, shape: Shape, event: Event, next: usize) -> Option<Cluster> {
    let up = serving(cluster);
    let pick = |at: usize| &up[at % up.len()];
    match event {
        Event::Join { weight, rack } => cluster.with(shaped(shape, next, weight, rack)).ok(),
        Event::Retire(at) => cluster.marking(pick(at), NodeState::Retiring).ok(),
        Event::Die(at) => cluster.marking(pick(at), NodeState::Gone).ok(),
        Event::Weigh(at, weight) => {
            let (Shape::Weighted | Shape::Both) = shape else { return None };
            let weight = capstan_placement::Weight::new(weight).unwrap();
            let weigh = |n: &Node| if n.name == *pick(at) { n.clone().weighing(weight) } else { n.clone() };
            Cluster::new(cluster.copies(), cluster.nodes().iter().map(weigh)).ok()
        }
    }
}

fn without_leavers(cluster: &Cluster) -> Cluster {
    let stay = cluster.nodes().iter().filter(|node| node.state == NodeState::Serving).cloned();
    Cluster::new(cluster.copies(), stay).unwrap()
}

fn lost(cluster: &Cluster, layout: &Assignment) -> u64 {
    let stays = |holder: &&capstan_placement::NodeName| {
        cluster.node(holder).is_some_and(|node| node.state == NodeState::Serving)
    };
    let kept: usize = layout.iter().map(|(_, p)| p.holders.iter().filter(stays).count()).sum();
    u64::from(layout.count()) * u64::from(cluster.copies().get()) - kept as u64
}

/// Runs every event and checks what holds for all shapes, then hands each step to `more`.
fn live(case: &Case, shape: Shape, mut more: impl FnMut(Event, &Cluster, &Assignment, &Plan)) {
    let mut cluster = Cluster::new(copies(case.copies), case.nodes.clone()).unwrap();
    let mut layout = plan(&cluster, &empty(case.shards)).unwrap().assignment;
    for (next, &event) in (20..).zip(&case.events) {
        let Some(changed) = after(&cluster, shape, event, next) else { continue };
        let plan = plan(&changed, &layout).unwrap();
        check_rules(&changed, &layout, &plan);
        assert_eq!(plan.adds.len() as u64, plan.bound.proved_adds, "the plan meets its proved bound");
        assert_eq!(plan.tasks(), plan.bound.tasks);
        assert!(plan.bound.counted_adds <= plan.bound.proved_adds);
        let again = capstan_placement::plan(&changed, &plan.assignment).unwrap();
        assert!(again.is_empty(), "P7: {again:?}");
        more(event, &changed, &layout, &plan);
        layout = plan.assignment;
        cluster = without_leavers(&changed);
    }
}

/// Unoptimised builds run fewer; `PROPTEST_CASES` overrides both.
fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => default.cases,
        None if cfg!(debug_assertions) => 200,
        None => 4000,
    };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(cases())]

    /// P1 to P7 where every node counts the same.
    #[test]
    fn equal_nodes(case in case(Shape::Equal)) {
        live(&case, Shape::Equal, |event, cluster, before, plan| {
            let (fewest, most) = plan.nodes.iter().filter(|n| n.state == NodeState::Serving)
                .fold((u32::MAX, 0), |(low, high), n| (low.min(n.stored), high.max(n.stored)));
            assert!(most - fewest <= 1, "P2");
            match event {
                Event::Join { .. } => {
                    assert_eq!(plan.adds.len() as u64, plan.bound.counted_adds, "P4");
                    let newcomer = plan.nodes.iter().find(|n| n.stored_before == 0 && n.stored > 0);
                    assert!(plan.adds.iter().all(|add| Some(&add.target) == newcomer.map(|n| &n.node)), "P5");
                }
                Event::Retire(_) | Event::Die(_) => {
                    let on_survivors = plan.removals.iter()
                        .filter(|r| cluster.node(&r.node).unwrap().state == NodeState::Serving).count() as u64;
                    // P6: nothing beyond what was lost, unless no layout can be fair with that.
                    assert_eq!(on_survivors, plan.bound.proved_adds - lost(cluster, before));
                }
                Event::Weigh(..) => {}
            }
        });
    }

    /// The same with weights: bounds are proved, not counted.
    #[test]
    fn weighted_nodes(case in case(Shape::Weighted)) {
        live(&case, Shape::Weighted, |_, _, _, _| {});
    }

    /// The same with failure domains.
    #[test]
    fn nodes_in_racks(case in case(Shape::Racks)) {
        live(&case, Shape::Racks, |_, _, _, _| {});
    }

    /// The same with both, and with nodes outside any domain.
    #[test]
    fn weighted_nodes_in_racks(case in case(Shape::Both)) {
        live(&case, Shape::Both, |_, _, _, _| {});
    }

    /// From any layout (uneven, too many or too few copies, domains violated), one plan satisfies all rules.
    #[test]
    fn any_layout_becomes_fair_in_one_plan(
        case in case(Shape::Both),
        picks in proptest::collection::vec(proptest::collection::btree_set(0..10usize, 0..6), 40),
    ) {
        let cluster = Cluster::new(copies(case.copies), case.nodes.clone()).unwrap();
        let place = |picked: &std::collections::BTreeSet<usize>| {
            let holders: Vec<_> = picked.iter().filter(|&&at| at < case.nodes.len())
                .map(|&at| case.nodes[at].name.clone()).collect();
            Placement { primary: holders.last().cloned(), holders }
        };
        let layout = Assignment::new(picks[..case.shards as usize].iter().map(place).collect()).unwrap();
        let plan = plan(&cluster, &layout).unwrap();
        check_rules(&cluster, &layout, &plan);
        prop_assert_eq!(plan.adds.len() as u64, plan.bound.proved_adds);
        prop_assert_eq!(plan.tasks(), plan.bound.tasks);
    }

    /// P8: the order of the node list does not change the plan by a byte.
    #[test]
    fn order_of_nodes_does_not_matter(case in case(Shape::Both), rotate in 0..10usize) {
        let one = Cluster::new(copies(case.copies), case.nodes.clone()).unwrap();
        let mut nodes = case.nodes.clone();
        nodes.rotate_left(rotate % case.nodes.len());
        nodes.swap(0, case.nodes.len() - 1);
        let other = Cluster::new(copies(case.copies), nodes).unwrap();
        let bytes = |cluster: &Cluster| serde_json::to_string(&plan(cluster, &empty(case.shards)).unwrap()).unwrap();
        prop_assert_eq!(bytes(&one), bytes(&other));
    }

    /// P9: names do not change the cost of a plan.
    #[test]
    fn names_do_not_change_the_cost(case in case(Shape::Both)) {
        let cluster = Cluster::new(copies(case.copies), case.nodes.clone()).unwrap();
        let layout = plan(&cluster, &empty(case.shards)).unwrap().assignment;
        let rename = |old: &capstan_placement::NodeName| name(format!("z{}", old.as_str().chars().rev().collect::<String>()));
        let renamed_nodes = cluster.nodes().iter().map(|n| Node { name: rename(&n.name), ..n.clone() });
        let renamed = Cluster::new(cluster.copies(), renamed_nodes).unwrap();
        let placements = layout.iter().map(|(_, p)| Placement {
            primary: p.primary.as_ref().map(rename), holders: p.holders.iter().map(rename).collect() });
        let same_layout = Assignment::new(placements.collect()).unwrap();
        let joined = plan(&cluster.with(shaped(Shape::Both, 90, 2, 1)).unwrap(), &layout).unwrap();
        let joined_renamed = plan(&renamed.with(shaped(Shape::Both, 91, 2, 1)).unwrap(), &same_layout).unwrap();
        prop_assert_eq!(joined.tasks(), joined_renamed.tasks());
    }

    /// P10: a node that joins and leaves again moves its own copies there and back, and one more at most.
    #[test]
    fn join_then_leave_moves_there_and_back(shards in 1..=60u64, nodes in 3..=12usize) {
        let cluster = Cluster::new(copies(3), (0..nodes).map(node)).unwrap();
        let layout = plan(&cluster, &empty(shards)).unwrap().assignment;
        let larger = cluster.with(node(50)).unwrap();
        let join = plan(&larger, &layout).unwrap();
        let leave = plan(&larger.marking(&node(50).name, NodeState::Gone).unwrap(), &join.assignment).unwrap();
        let part = 3 * shards / (nodes as u64 + 1);
        prop_assert!((join.adds.len() + leave.adds.len()) as u64 <= 2 * part + 1);
    }

    /// P13: joining together never costs more than joining one after the other.
    #[test]
    fn a_batch_of_joins_costs_no_more_than_single_joins(case in case(Shape::Both), batch in 2..=4usize) {
        let mut cluster = Cluster::new(copies(case.copies), case.nodes.clone()).unwrap();
        let start = plan(&cluster, &empty(case.shards)).unwrap().assignment;
        let (mut layout, mut singles) = (start.clone(), 0);
        for number in 0..batch {
            cluster = cluster.with(shaped(Shape::Both, 30 + number, 1 + number as u64, number)).unwrap();
            let plan = plan(&cluster, &layout).unwrap();
            singles += plan.adds.len();
            layout = plan.assignment;
        }
        prop_assert!(plan(&cluster, &start).unwrap().adds.len() <= singles);
    }
}

#[test]
fn fair_shares_follow_weights_and_stop_at_one_copy_per_shard() {
    let cluster =
        Cluster::new(copies(3), [(0, 1), (1, 1), (2, 1), (3, 3)].map(|(n, w)| weighted(n, w))).unwrap();
    let plan = plan(&cluster, &empty(12)).unwrap();
    // 36 copies: weight 3 of 6 asks for 18, may have 12; the rest share 24.
    let stored: BTreeMap<&str, u32> = plan.nodes.iter().map(|n| (n.node.as_str(), n.stored)).collect();
    assert_eq!(stored, BTreeMap::from([("n000", 8), ("n001", 8), ("n002", 8), ("n003", 12)]));
}

#[test]
fn a_small_rack_takes_no_more_than_its_part_of_each_shard() {
    let racks = [0, 0, 0, 0, 1, 2];
    let nodes = racks.iter().enumerate().map(|(at, &rack)| node(at).within(domain(rack)));
    let cluster = Cluster::new(copies(3), nodes).unwrap();
    let plan = plan(&cluster, &empty(8)).unwrap();
    let stored: Vec<u32> = plan.nodes.iter().map(|n| n.stored).collect();
    assert_eq!(stored, [2, 2, 2, 2, 8, 8]);
}
