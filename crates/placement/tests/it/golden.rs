//! The transcript of growth from 3 to 8 nodes and back, and the wording of explanations. To accept a change:
//! `UPDATE_GOLDEN=1 cargo test -p capstan-placement --test it golden`, then review the difference.

use std::fmt::Write as _;
use std::path::Path;

use capstan_placement::{Assignment, Cluster, Grid, NodeState, Plan, Shard, ShardCount, explain, plan};

use crate::support::{check_rules, node, three_nodes_of_the_document};

fn compare(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{} differs; this run gave:\n{text}", path.display());
}

fn step(transcript: &mut String, title: &str, cluster: &Cluster, before: &Assignment) -> Plan {
    let plan = plan(cluster, before).unwrap();
    check_rules(cluster, before, &plan);
    assert_eq!(plan.tasks(), plan.bound.tasks);
    let grid = Grid::new(before, &plan).to_string();
    writeln!(transcript, "{title}").unwrap();
    grid.lines().for_each(|line| writeln!(transcript, "{}", line.trim_end()).unwrap());
    writeln!(transcript, "{plan}\n").unwrap();
    plan
}

#[test]
fn growth_from_3_to_8_and_back() {
    let (mut cluster, mut layout) = three_nodes_of_the_document();
    let mut transcript = String::new();
    let (mut up, mut down) = (0, 0);
    layout = step(&mut transcript, "3 nodes: the document's table", &cluster, &layout).assignment;
    for number in 3..8 {
        cluster = cluster.with(node(number)).unwrap();
        let plan =
            step(&mut transcript, &format!("{} nodes: n00{number} joins", number + 1), &cluster, &layout);
        assert!(plan.adds.iter().all(|add| add.target == node(number).name));
        up += plan.tasks();
        layout = plan.assignment;
    }
    writeln!(transcript, "growth: {up} tasks in all (the document: 96)\n").unwrap();
    assert_eq!(up, 82);
    for number in (3..8).rev() {
        let leaver = node(number).name;
        cluster = cluster.marking(&leaver, NodeState::Retiring).unwrap();
        let plan = step(&mut transcript, &format!("{number} nodes: {leaver} retires"), &cluster, &layout);
        assert!(plan.removals.iter().all(|removal| removal.node == leaver), "only what was lost moves");
        assert_eq!(plan.adds.len(), plan.removals.len());
        down += plan.tasks();
        layout = plan.assignment;
        cluster = cluster.without(&leaver).unwrap();
    }
    writeln!(
        transcript,
        "shrinking: {down} tasks in all, each of them a copy that a leaving node had, made and deleted"
    )
    .unwrap();
    compare("growth.txt", &transcript);
}

#[test]
fn reasons() {
    let (cluster, before) = three_nodes_of_the_document();
    let count = ShardCount::new(16).unwrap();
    let mut text = String::new();
    let mut tell = |title: &str, cluster: &Cluster, before: &Assignment| {
        let plan = plan(cluster, before).unwrap();
        writeln!(text, "{title}").unwrap();
        for shard in count.shards() {
            text.push_str(&explain(cluster, before, &plan, shard).unwrap());
        }
        text.push('\n');
        plan.assignment
    };
    let four = cluster.with(node(3)).unwrap();
    let layout = tell("n003 joins", &four, &before);
    tell("n001 is gone", &four.marking(&node(1).name, NodeState::Gone).unwrap(), &layout);
    tell("n002 retires", &four.marking(&node(2).name, NodeState::Retiring).unwrap(), &layout);
    compare("reasons.txt", &text);
    assert!(Shard::new(16, count).is_err());
}
