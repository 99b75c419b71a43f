//! Why does this shard move, or stay?

use std::fmt::Write as _;

use crate::assignment::{Assignment, Placement};
use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::node::{NodeName, NodeState};
use crate::plan::{NodeSummary, Plan, Step};
use crate::shard::Shard;

/// What happens to one shard under a plan, and the reason for each step, as lines of text.
pub fn explain(
    cluster: &Cluster,
    before: &Assignment,
    plan: &Plan,
    shard: Shard,
) -> Result<String, PlacementError> {
    let (Some(was), Some(will)) = (before.get(shard), plan.assignment.get(shard)) else {
        let last = plan.assignment.count().saturating_sub(1);
        return Err(PlacementError::NoSuchShard { shard: u64::from(shard.get()), last });
    };
    let mut text = format!("shard {shard}: {} -> {}\n", describe(was), describe(will));
    for holder in &was.holders {
        if let Some(reason) = reason_lost(cluster, holder) {
            line(&mut text, 'x', holder, &reason);
        }
    }
    let mut steps = 0;
    for step in plan.steps_of(shard) {
        steps += 1;
        match step {
            Step::Add(add) => {
                let from = add.source.as_ref().map_or("no node: it starts empty".into(), ToString::to_string);
                let reason = format!("{}; copied from {from}", reason_added(cluster, was, plan, &add.target));
                line(&mut text, '+', &add.target, &reason);
            }
            Step::RoleChange(change) => {
                line(&mut text, '<', &change.to, &reason_promoted(cluster, will, plan, change))
            }
            Step::Remove(removal) => {
                line(&mut text, 'x', &removal.node, &reason_removed(plan, &removal.node))
            }
        }
    }
    if steps == 0 {
        text.push_str("  stays: every rule holds with it where it is, and moving it would cost a copy\n");
    }
    Ok(text)
}

fn line(text: &mut String, mark: char, node: &NodeName, reason: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {mark} {node}: {reason}");
}

fn describe(placement: &Placement) -> String {
    if placement.holders.is_empty() {
        return "no node".into();
    }
    let names: Vec<&str> = placement.holders.iter().map(NodeName::as_str).collect();
    let primary = placement.primary.as_ref().map_or("none", NodeName::as_str);
    format!("{} (primary {primary})", names.join(", "))
}

fn fair(row: &NodeSummary) -> String {
    match row.fair_low == row.fair_high {
        true => row.fair_low.to_string(),
        false => format!("{} or {}", row.fair_low, row.fair_high),
    }
}

fn row<'p>(plan: &'p Plan, node: &NodeName) -> Option<&'p NodeSummary> {
    plan.nodes.iter().find(|row| row.node == *node)
}

fn reason_lost(cluster: &Cluster, holder: &NodeName) -> Option<String> {
    let node = cluster.node(holder)?;
    (node.state == NodeState::Gone).then(|| "is gone, and this copy with it".into())
}

fn reason_added(cluster: &Cluster, was: &Placement, plan: &Plan, target: &NodeName) -> String {
    let Some(row) = row(plan, target) else { return "takes this copy".into() };
    let stays =
        |holder: &&NodeName| cluster.node(holder).is_some_and(|node| node.state == NodeState::Serving);
    let short = was.holders.iter().filter(stays).count() < usize::from(cluster.copies().get());
    let why = if short { "a copy is missing, and" } else { "it" };
    format!("{why} had {} copies where {} is fair, and has {} now", row.stored_before, fair(row), row.stored)
}

fn reason_removed(plan: &Plan, node: &NodeName) -> String {
    match row(plan, node) {
        Some(row) if row.state == NodeState::Retiring => "is retiring; its copy is elsewhere first".into(),
        Some(row) if row.stored_before > row.fair_high => {
            format!("held {} copies where {} is fair", row.stored_before, fair(row))
        }
        Some(row) => {
            format!("gives way so that all rules hold; it keeps {} copies, {} is fair", row.stored, fair(row))
        }
        None => "is not needed here".into(),
    }
}

fn reason_promoted(cluster: &Cluster, will: &Placement, plan: &Plan, change: &crate::RoleChange) -> String {
    let primaries = row(plan, &change.to).map_or(0, |row| row.primaries);
    let Some(from) = &change.from else { return format!("first primary; it has {primaries} in all") };
    let state = cluster.node(from).map(|node| node.state);
    let why = match state {
        Some(NodeState::Gone) => "is gone",
        Some(NodeState::Retiring) => "is retiring",
        Some(NodeState::Serving) if will.holders.contains(from) => "hands it over to even out primaries",
        Some(NodeState::Serving) | None => "gives up its copy",
    };
    format!("primary in place of {from}, which {why}; it has {primaries} primaries in all")
}
