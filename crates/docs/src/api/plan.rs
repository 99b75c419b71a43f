//! What would the steward do about the tokens now? Its own decisions, made in advance on a copy of the records.

use std::collections::BTreeSet;
use std::fmt;

use capstan_log::LogConfig;
use capstan_meta::{Store, clock};
use capstan_placement::{
    Add, Assignment, Bound, Cluster, Copies, Domain, Grid, Node, NodeName, NodeState, NodeSummary, Placement,
    PlacementError, Plan, Removal, RoleChange, plan,
};
use capstan_steward::facts::Records;
use capstan_steward::{Facts, Policy, forecast};
use serde_json::{Value, json};

use crate::error::DocsError;
use crate::id::Token;
use crate::keys::ClusterKey;
use crate::node::SERVICE;

/// The moves that the steward would make if no node starts, stops or fails meanwhile.
#[derive(Clone, Debug)]
pub struct MovePlan {
    before: Assignment,
    plan: Plan,
    /// Storage tasks that no plan can avoid, where that can be told.
    bound: Option<u64>,
    steps: Vec<String>,
    settled: bool,
}

impl MovePlan {
    /// Reads the records and decides. Changes nothing.
    pub async fn read(store: &Store) -> Result<MovePlan, DocsError> {
        let none = || DocsError::NotFound("there is no document store yet".to_owned());
        let cluster = store.read(&ClusterKey {}).await?.ok_or_else(none)?.record;
        let (records, now) = (Records::read(store).await?, clock::since_epoch().as_secs());
        let unmade = || DocsError::Busy("not every token has been made yet".to_owned());
        decided(records, cluster.token_digits, cluster.copies, now).map_err(broken)?.ok_or_else(unmade)
    }

    /// Whether nothing would move.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// The plan for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "tasks": self.plan.tasks(), "lower_bound": self.bound, "adds": self.plan.adds,
            "removals": self.plan.removals, "role_changes": self.plan.role_changes, "nodes": self.plan.nodes,
            "before": self.before, "after": self.plan.assignment, "steps": self.steps, "settled": self.settled,
        })
    }
}

fn broken(error: PlacementError) -> DocsError {
    DocsError::Broken(error.to_string())
}

/// The plan, or nothing if there are not all tokens yet.
fn decided(
    records: Records,
    digits: u8,
    copies: usize,
    now: u64,
) -> Result<Option<MovePlan>, PlacementError> {
    let policy = Policy::default();
    let nodes = nodes_of(&Facts::new(records.clone(), now), &policy)?;
    let logs = records.logs.iter().map(|(name, seen)| (Token::of_log(name), &seen.record));
    let Some(before) = assignment(logs, digits)? else { return Ok(None) };
    let found = forecast(records, &policy, now);
    let logs = found.logs.iter().map(|(name, config)| (Token::of_log(name), config));
    let Some(after) = assignment(logs, digits)? else { return Ok(None) };
    let best = Cluster::new(Copies::new(copies as u64)?, nodes.iter().cloned())
        .and_then(|cluster| plan(&cluster, &before))
        .ok();
    let mut made = difference(&before, after, &nodes);
    let bound = best.map(|best| best.bound);
    made.bound = bound.unwrap_or(made.bound);
    let steps = found.steps.into_iter().filter(|step| step.starts_with("log docs-")).collect();
    let bound = bound.map(|bound| bound.tasks);
    Ok(Some(MovePlan { before, plan: made, bound, steps, settled: found.settled }))
}

/// The nodes of the service, by name.
fn nodes_of(facts: &Facts, policy: &Policy) -> Result<Vec<Node>, PlacementError> {
    let service = facts.service(SERVICE);
    let known = facts.holders.iter().filter(|holder| Some(holder.service) == service);
    let mut nodes = Vec::new();
    for holder in known {
        let Some(record) = &holder.record else { continue };
        let state = match (holder.is_lost(policy, facts.now), holder.is_retiring()) {
            (true, _) => NodeState::Gone,
            (false, true) => NodeState::Retiring,
            (false, false) => NodeState::Serving,
        };
        let node = Node { state, ..Node::new(NodeName::new(record.record.host.as_str())?) };
        nodes.push(match &record.record.domain {
            Some(domain) => node.within(Domain::new(domain)?),
            None => node,
        });
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(nodes)
}

/// The holders of every token; nothing if a token has no record.
fn assignment<'c>(
    logs: impl Iterator<Item = (Option<Token>, &'c LogConfig)>,
    digits: u8,
) -> Result<Option<Assignment>, PlacementError> {
    let node = |holder: &str| NodeName::new(holder.strip_prefix("docs.").unwrap_or(holder));
    let mut placements = vec![None; Token::all(digits).count()];
    for (token, config) in logs {
        let Some(place) = token.and_then(|token| placements.get_mut(usize::from(token.number()))) else {
            continue;
        };
        let holders = config.holders.iter().map(|holder| node(holder.as_str()));
        let mut holders: Vec<NodeName> = holders.collect::<Result<_, _>>()?;
        holders.sort();
        *place = Some(Placement { primary: Some(node(config.primary.as_str())?), holders });
    }
    match placements.into_iter().collect::<Option<Vec<Placement>>>() {
        Some(placements) => Assignment::new(placements).map(Some),
        None => Ok(None),
    }
}

/// The steps between two layouts.
fn difference(before: &Assignment, after: Assignment, nodes: &[Node]) -> Plan {
    let (mut adds, mut removals, mut role_changes) = (Vec::new(), Vec::new(), Vec::new());
    for ((shard, old), (_, new)) in before.iter().zip(after.iter()) {
        let (had, has): (BTreeSet<_>, BTreeSet<_>) =
            (old.holders.iter().collect(), new.holders.iter().collect());
        let added = has.difference(&had);
        adds.extend(added.map(|node| Add { shard, source: old.primary.clone(), target: (*node).clone() }));
        removals.extend(had.difference(&has).map(|node| Removal { shard, node: (*node).clone() }));
        if let Some(to) = new.primary.clone().filter(|_| old.primary != new.primary) {
            role_changes.push(RoleChange { shard, from: old.primary.clone(), to });
        }
    }
    let count = |list: &Assignment, node: &NodeName| {
        let holds = list.iter().filter(|(_, placed)| placed.holders.contains(node)).count();
        u32::try_from(holds).unwrap_or(u32::MAX)
    };
    let serving = nodes.iter().filter(|node| node.state == NodeState::Serving).count().max(1) as u64;
    let copies: u64 = after.iter().map(|(_, placed)| placed.holders.len() as u64).sum();
    let share = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let summary = |node: &Node| {
        let name = &node.name;
        let is_serving = node.state == NodeState::Serving;
        let led = after.iter().filter(|(_, placed)| placed.primary.as_ref() == Some(name)).count();
        let tasks = adds.iter().filter(|add: &&Add| add.target == *name).count()
            + removals.iter().filter(|removal: &&Removal| removal.node == *name).count();
        NodeSummary {
            node: name.clone(),
            state: node.state,
            stored_before: count(before, name),
            stored: count(&after, name),
            fair_low: if is_serving { share(copies / serving) } else { 0 },
            fair_high: if is_serving { share(copies.div_ceil(serving)) } else { 0 },
            primaries: u32::try_from(led).unwrap_or(u32::MAX),
            tasks: u32::try_from(tasks).unwrap_or(u32::MAX),
        }
    };
    let nodes = nodes.iter().map(summary).collect();
    let bound = Bound { counted_adds: 0, proved_adds: 0, tasks: 0 };
    Plan { adds, role_changes, removals, bound, nodes, assignment: after }
}

/// The grid before and after, then the grid of changes and what they cost.
impl fmt::Display for MovePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let still = |layout: &Assignment| {
            let nodes: Vec<Node> = self
                .plan
                .nodes
                .iter()
                .map(|row| Node { state: row.state, ..Node::new(row.node.clone()) })
                .collect();
            let plan = difference(layout, layout.clone(), &nodes);
            Grid::new(layout, &plan).to_string()
        };
        writeln!(f, "before:\n{}", still(&self.before))?;
        writeln!(f, "after:\n{}", still(&self.plan.assignment))?;
        writeln!(f, "changes:\n{}", Grid::new(&self.before, &self.plan))?;
        let (adds, removals) = (self.plan.adds.len(), self.plan.removals.len());
        write!(f, "tasks {} ({adds} adds, {removals} removals)", self.plan.tasks())?;
        if let Some(bound) = self.bound {
            write!(f, ", lower bound {bound}")?;
        }
        write!(f, "; {} role changes", self.plan.role_changes.len())?;
        if !self.settled {
            write!(f, "; more would follow")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use capstan_log::HolderId;
    use capstan_meta::record::Stored;
    use capstan_meta::{LeaseId, Revision};
    use capstan_steward::{HolderRecord, HolderStatus, WantedLog};

    use super::*;

    fn seen<R>(record: R) -> Arc<Stored<R>> {
        let at = Revision(1);
        Arc::new(Stored { record, create_revision: at, mod_revision: at, lease: LeaseId::NONE })
    }

    /// 16 tokens on three nodes, and this many nodes that have nothing.
    fn records(more: usize) -> Records {
        let mut records = Records::default();
        let holder = |number: usize| -> HolderId { format!("docs.n{number}").parse().unwrap() };
        for number in 1..=3 + more {
            let record = HolderRecord::new(format!("n{number}").parse().unwrap(), SERVICE.parse().unwrap());
            records.holders.push((holder(number), seen(record)));
            let status = HolderStatus::new("127.0.0.1:1".parse().unwrap(), 100 << 30, 200 << 30);
            records.alive.push((holder(number), seen(status)));
        }
        for token in Token::all(1) {
            let first = usize::from(token.number());
            let holders = (0..3).map(|by| holder((first + by) % 3 + 1)).collect();
            records.logs.push((token.log().unwrap(), seen(LogConfig::new(holders, 2).unwrap())));
            let wanted = WantedLog::new(SERVICE.parse().unwrap(), 3).committed_on(2);
            records.wanted.push((token.log().unwrap(), seen(wanted)));
        }
        records
    }

    #[test]
    fn a_fourth_node_is_planned_with_the_fewest_tasks() {
        let plan = decided(records(1), 1, 3, 100).unwrap().unwrap();
        assert_eq!((plan.plan.adds.len(), plan.plan.removals.len(), plan.bound), (12, 12, Some(24)));
        assert!(
            plan.plan.adds.iter().all(|add| add.target.as_str() == "n4"),
            "only the new node gets copies"
        );
        let text = plan.to_string();
        assert!(text.contains("before:\n      0  1  2"), "{text}");
        assert!(
            text.contains("< 16 / 0") && text.contains("< 12 / 4") && text.contains("< 12 / 12"),
            "{text}"
        );
        assert!(text.contains("tasks 24 (12 adds, 12 removals), lower bound 24;"), "{text}");
        let value = plan.to_json();
        assert_eq!((&value["tasks"], value["after"].as_array().map(Vec::len)), (&json!(24), Some(16)));
        assert_eq!(value["before"][0]["holders"], json!(["n1", "n2", "n3"]));
    }

    #[test]
    fn a_balanced_cluster_moves_nothing_and_an_unmade_one_has_no_plan() {
        let plan = decided(records(0), 1, 3, 100).unwrap().unwrap();
        assert!(plan.is_empty() && plan.settled, "{plan}");
        let mut unmade = records(0);
        unmade.logs.pop();
        assert!(decided(unmade, 1, 3, 100).unwrap().is_none());
    }
}
