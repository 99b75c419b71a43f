//! Bad input gets a clear error and no plan.

use capstan_placement::{
    Assignment, Cluster, Copies, Node, NodeName, NodeState, Placement, PlacementError, Shard, ShardCount,
    Weight, plan,
};

use crate::support::{cluster, copies, empty, name, node};

fn says(error: impl std::fmt::Display, parts: &[&str]) {
    let text = error.to_string();
    parts.iter().for_each(|part| assert!(text.contains(part), "{text:?} lacks {part:?}"));
}

#[test]
fn fewer_nodes_than_copies() {
    let few = Cluster::new(copies(3), (0..2).map(node)).unwrap_err();
    says(few, &["3 copies need 3 nodes", "there are 2", "add nodes"]);
    let retiring = node(2).being(NodeState::Retiring);
    let few = Cluster::new(copies(3), [node(0), node(1), retiring]).unwrap_err();
    assert_eq!(few, PlacementError::TooFewNodes { copies: 3, serving: 2 });
}

#[test]
fn duplicate_names_and_unusable_names() {
    says(Cluster::new(copies(1), [node(1), node(2), node(1)]).unwrap_err(), &["n001", "twice"]);
    for bad in ["", "a b", "a,b", "a=b", "ü", "a\n", &"x".repeat(129)] {
        says(NodeName::new(bad).unwrap_err(), &["not usable"]);
    }
    assert!(NodeName::new("10.0.0.1:6379").is_ok());
}

#[test]
fn numbers_out_of_range() {
    says(Weight::new(0).unwrap_err(), &["weight 0", "retiring"]);
    says(Weight::new(1 << 40).unwrap_err(), &["1..=10000"]);
    says(Copies::new(0).unwrap_err(), &["0 copies"]);
    says(Copies::new(17).unwrap_err(), &["1..=16"]);
    says(ShardCount::new(0).unwrap_err(), &["0 shards"]);
    says(ShardCount::new(65_537).unwrap_err(), &["1..=65536"]);
    assert!(ShardCount::new(65_536).is_ok());
    says(Shard::new(16, ShardCount::new(16).unwrap()).unwrap_err(), &["shard 16", "0..=15"]);
    says(Cluster::new(copies(3), (0..10_001).map(node)).unwrap_err(), &["10001 nodes", "10000"]);
}

#[test]
fn assignments_that_make_no_sense() {
    let place = |primary: Option<&str>, holders: &[&str]| Placement {
        primary: primary.map(name),
        holders: holders.iter().map(name).collect(),
    };
    says(Assignment::new(vec![place(None, &["a", "b", "a"])]).unwrap_err(), &["shard 0", "a twice"]);
    says(
        Assignment::new(vec![place(Some("c"), &["a", "b"])]).unwrap_err(),
        &["shard 0", "primary c", "holders"],
    );
    says(Assignment::new(vec![]).unwrap_err(), &["0 shards"]);
    let stranger = Assignment::new(vec![place(Some("x9"), &["x9"])]).unwrap();
    says(
        plan(&cluster((0..3).map(node)), &stranger).unwrap_err(),
        &["shard 0", "x9", "not in the node list"],
    );
}

#[test]
fn written_assignments_are_checked_when_read() {
    let read = |text: &str| serde_json::from_str::<Assignment>(text).map_err(|error| error.to_string());
    says(read(r#"[{"shard":1,"primary":null,"holders":[]}]"#).unwrap_err(), &["shard 1", "shard 0 belongs"]);
    says(read(r#"[{"shard":0,"primary":null,"holders":["a","a"]}]"#).unwrap_err(), &["a twice"]);
    says(read(r#"[{"shard":0,"primary":null,"holders":["a b"]}]"#).unwrap_err(), &["not usable"]);
    let plan = plan(&cluster((0..4).map(node)), &empty(5)).unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    let back: capstan_placement::Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(back, plan);
}

#[test]
fn one_node_one_shard_one_copy() {
    let single = Cluster::new(copies(1), [Node::new(name("only"))]).unwrap();
    let plan = plan(&single, &empty(1)).unwrap();
    assert_eq!((plan.adds.len(), plan.role_changes.len(), plan.removals.len()), (1, 1, 0));
}
