//! Clusters in one line, the rules as one check, and the table of the specification.

use std::collections::BTreeMap;

use capstan_placement::{
    Assignment, Cluster, Copies, Domain, Node, NodeName, NodeState, Placement, Plan, ShardCount, Weight,
};

pub(crate) fn name(text: impl AsRef<str>) -> NodeName {
    NodeName::new(text).unwrap()
}

pub(crate) fn node(number: usize) -> Node {
    Node::new(name(format!("n{number:03}")))
}

pub(crate) fn weighted(number: usize, weight: u64) -> Node {
    node(number).weighing(Weight::new(weight).unwrap())
}

pub(crate) fn domain(number: usize) -> Domain {
    Domain::new(format!("rack{number}")).unwrap()
}

pub(crate) fn copies(copies: u64) -> Copies {
    Copies::new(copies).unwrap()
}

pub(crate) fn cluster(nodes: impl IntoIterator<Item = Node>) -> Cluster {
    Cluster::new(copies(3), nodes).unwrap()
}

pub(crate) fn empty(shards: u64) -> Assignment {
    Assignment::empty(ShardCount::new(shards).unwrap())
}

/// The three-node table of the specification: all hold everything, masters as in its first picture.
pub(crate) fn three_nodes_of_the_document() -> (Cluster, Assignment) {
    let rows = ["MSSMSSMSSMSSMSSM", "SMSSSSSMSSMSSMSS", "SSMSMMSSMSSMSSMS"];
    let nodes: Vec<Node> = (0..3).map(node).collect();
    let placement = |token: usize| {
        let primary = (0..3).find(|&row| rows[row].as_bytes()[token] == b'M').unwrap();
        Placement {
            primary: Some(nodes[primary].name.clone()),
            holders: nodes.iter().map(|node| node.name.clone()).collect(),
        }
    };
    let assignment = Assignment::new((0..16).map(placement).collect()).unwrap();
    (cluster(nodes), assignment)
}

/// P1: distinct live holders, the domain rule, the primary among them. P2 and P3: every node within one of fair. P11:
/// no prefix of the plan leaves a shard with fewer copies than it had or should have.
pub(crate) fn check_rules(cluster: &Cluster, before: &Assignment, plan: &Plan) {
    let limit = fair_per_domain(cluster);
    for (shard, placement) in plan.assignment.iter() {
        assert_eq!(placement.holders.len(), usize::from(cluster.copies().get()), "copies of {shard}");
        assert!(placement.holders.is_sorted_by(|a, b| a < b), "distinct holders of {shard}");
        let mut per_domain: BTreeMap<&Domain, u32> = BTreeMap::new();
        for holder in &placement.holders {
            let node = cluster.node(holder).expect("holder is a node");
            assert_eq!(node.state, NodeState::Serving, "{holder} holds {shard}");
            if let Some(domain) = &node.domain {
                *per_domain.entry(domain).or_default() += 1;
            }
        }
        assert!(per_domain.values().all(|&count| count <= limit), "domains of {shard}: {per_domain:?}");
        assert!(placement.holders.contains(placement.primary.as_ref().unwrap()), "primary of {shard}");
    }
    for node in &plan.nodes {
        assert!(node.fair_high - node.fair_low <= 1);
        assert!((node.fair_low..=node.fair_high).contains(&node.stored), "copies on {node:?}");
        let copies = u32::from(cluster.copies().get());
        let fair = node.fair_low / copies..=node.fair_high.div_ceil(copies);
        assert!(fair.contains(&node.primaries), "primaries on {node:?}");
    }
    check_prefixes(cluster, before, plan);
}

fn fair_per_domain(cluster: &Cluster) -> u32 {
    let mut sizes: BTreeMap<&Domain, u32> = BTreeMap::new();
    let mut alone = 0;
    for node in cluster.nodes().iter().filter(|node| node.state == NodeState::Serving) {
        match &node.domain {
            Some(domain) => *sizes.entry(domain).or_default() += 1,
            None => alone += 1,
        }
    }
    let copies = u32::from(cluster.copies().get());
    (1..=copies)
        .find(|&limit| alone + sizes.values().map(|&size| size.min(limit)).sum::<u32>() >= copies)
        .unwrap()
}

fn check_prefixes(cluster: &Cluster, before: &Assignment, plan: &Plan) {
    let alive = |holder: &&NodeName| cluster.node(holder).is_some_and(|node| node.state != NodeState::Gone);
    let mut layout = before.clone();
    let floor: Vec<usize> = before
        .iter()
        .map(|(_, p)| p.holders.iter().filter(alive).count().min(usize::from(cluster.copies().get())))
        .collect();
    for step in plan.steps() {
        if let capstan_placement::Step::Add(add) = step {
            let held = before.get(add.shard).unwrap();
            assert!(add.source.as_ref().is_none_or(|source| held.holders.contains(source) && alive(&source)));
            assert!(add.source.is_some() || !held.holders.iter().any(|holder| alive(&holder)));
        }
        layout.apply(step);
        let now = layout.get(step.shard()).unwrap();
        let complete = now.holders.iter().filter(alive).count();
        assert!(complete >= floor[step.shard().get() as usize], "copies of {} within the plan", step.shard());
    }
    // Copies on gone nodes are dropped without a step.
    for (shard, after) in plan.assignment.iter() {
        let mut now = layout.get(shard).unwrap().clone();
        now.holders.retain(|holder| alive(&holder));
        assert_eq!(&now, after, "shard {shard} after all steps");
    }
}

pub(crate) fn serving(cluster: &Cluster) -> Vec<NodeName> {
    let serving = cluster.nodes().iter().filter(|node| node.state == NodeState::Serving);
    serving.map(|node| node.name.clone()).collect()
}
