//! Where should every shard be, with the fewest moves? The complete plan: repair, drain and balance.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::assignment::{Assignment, Placement};
use crate::bounds;
use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::flow::{self, Holders, Instance, Present};
use crate::mix;
use crate::node::{NodeName, NodeState};
use crate::plan::{Add, Bound, NodeSummary, Plan, Removal, RoleChange};
use crate::primaries;
use crate::problem::{Problem, ShardNow};
use crate::shard::Shard;

/// The plan with the fewest adds after which every rule holds.
///
/// Each shard is on `copies` distinct serving nodes with at most the fair number per failure domain; copies per node
/// and primaries per node are within one of the weighted fair share. Among plans with equally few adds, one that adds
/// least to nodes that already hold something. A layout that satisfies all rules gives an empty plan.
pub fn plan(cluster: &Cluster, present: &Assignment) -> Result<Plan, PlacementError> {
    let problem = Problem::new(cluster, present)?;
    let solution =
        flow::solve(&copies_wanted(&problem)).map_err(|short| PlacementError::Unsolved { short: short.0 })?;
    let primaries = primaries::choose(&problem, &solution.holders)?;
    let proved_adds = bounds::proved_adds(&problem, &solution.prices);
    let wanted = u64::from(problem.copies()) * problem.shards.len() as u64;
    let bound = Bound {
        counted_adds: bounds::counted_adds(&problem),
        proved_adds,
        tasks: (2 * proved_adds + problem.copies_now()).saturating_sub(wanted),
    };
    Ok(write_down(&problem, &solution.holders, &primaries, Leavers::Release, bound))
}

fn copies_wanted<'p>(problem: &'p Problem<'_>) -> Instance<'p> {
    let listed = |shard: &ShardNow| shard.holders.iter().map(|&node| (node, 0)).collect();
    Instance {
        want: problem.copies(),
        low: problem.low(),
        high: problem.high(),
        listed: problem.shards.iter().map(listed).collect(),
        fresh: Some(bounds::costs_of_adding(problem)),
        groups: &problem.groups,
        start: (0..problem.shards.len()).map(|shard| within_limits(problem, shard)).collect(),
        served: vec![0; problem.shards.len()],
        present: Present::Movable,
        salt: problem.salt.clone(),
    }
}

/// Holders within the limits; the solver takes dropped ones back at no cost where it helps.
fn within_limits(problem: &Problem<'_>, shard: usize) -> Holders {
    let mut candidates = problem.shards[shard].holders.clone();
    candidates.sort_by_key(|&node| mix::pair(problem.salt[node as usize], shard as u64));
    let groups = &problem.groups;
    let mut kept = Holders::new();
    for node in candidates {
        let group = groups.of[node as usize];
        let beside = kept.iter().filter(|&&other| groups.of[other as usize] == group).count() as u32;
        if beside < groups.limit && (kept.len() as u32) < problem.copies() {
            kept.push(node);
        }
    }
    kept
}

/// What happens to copies on retiring nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leavers {
    /// Their copies are moved elsewhere and deleted.
    Release,
    /// They keep serving for now.
    Keep,
}

/// Turns holders and primaries by position into steps by name.
pub(crate) fn write_down(
    problem: &Problem<'_>,
    holders: &[Holders],
    primaries: &[Option<u32>],
    leavers: Leavers,
    bound: Bound,
) -> Plan {
    let mut writer = Writer {
        problem,
        sent: vec![0; problem.cluster.nodes().len()],
        adds: Vec::new(),
        role_changes: Vec::new(),
        removals: Vec::new(),
    };
    let positions = writer.cluster_positions();
    let placements = (0..holders.len())
        .map(|shard| writer.shard(shard, &holders[shard], primaries[shard], leavers, &positions))
        .collect();
    let assignment = Assignment::trusted(placements);
    let nodes = summarise(problem, &assignment, &writer.adds, &writer.removals);
    Plan {
        adds: writer.adds,
        role_changes: writer.role_changes,
        removals: writer.removals,
        bound,
        nodes,
        assignment,
    }
}

struct Writer<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Copies that each node sends, so that sources alternate.
    sent: Vec<u32>,
    adds: Vec<Add>,
    role_changes: Vec<RoleChange>,
    removals: Vec<Removal>,
}

impl Writer<'_, '_> {
    /// Position in the cluster of each serving node.
    fn cluster_positions(&self) -> Vec<u32> {
        let nodes = self.problem.cluster.nodes().iter().enumerate();
        nodes.filter(|(_, node)| node.state == NodeState::Serving).map(|(at, _)| at as u32).collect()
    }

    fn name(&self, node: u32) -> &NodeName {
        &self.problem.serving[node as usize].name
    }

    fn shard(
        &mut self,
        shard: usize,
        holders: &Holders,
        primary: Option<u32>,
        leavers: Leavers,
        positions: &[u32],
    ) -> Placement {
        let problem = self.problem;
        let now = &problem.shards[shard];
        let mut leaving: SmallVec<[u32; 4]> = SmallVec::new();
        leaving.extend(now.holders.iter().filter(|n| !holders.contains(n)).map(|&n| positions[n as usize]));
        if leavers == Leavers::Release {
            leaving.extend(now.retiring.iter().copied());
        }
        let mut live: SmallVec<[u32; 4]> = now.holders.iter().map(|&n| positions[n as usize]).collect();
        live.extend(now.retiring.iter().copied());
        self.add(shard, holders, &leaving, &live);
        for &node in &leaving {
            let node = problem.cluster.nodes()[node as usize].name.clone();
            self.removals.push(Removal { shard: Shard::at(shard), node });
        }
        let primary = self.change_role(shard, primary);
        let mut after: Vec<NodeName> = holders.iter().map(|&node| self.name(node).clone()).collect();
        if leavers == Leavers::Keep {
            let names = now.retiring.iter().map(|&node| &problem.cluster.nodes()[node as usize].name);
            after.extend(names.cloned());
        }
        after.sort();
        Placement { primary, holders: after }
    }

    /// The next primary: the chosen one, or the present one where none was chosen.
    fn change_role(&mut self, shard: usize, chosen: Option<u32>) -> Option<NodeName> {
        let from = self.problem.present.placements()[shard].primary.clone();
        let to = match chosen {
            Some(node) => self.name(node).clone(),
            None => return from,
        };
        if from.as_ref() != Some(&to) {
            self.role_changes.push(RoleChange { shard: Shard::at(shard), from, to: to.clone() });
        }
        Some(to)
    }

    /// A leaving copy is the source of the one that replaces it; otherwise holders alternate.
    fn add(&mut self, shard: usize, holders: &Holders, leaving: &[u32], live: &[u32]) {
        let mut added: SmallVec<[u32; 4]> = holders.clone();
        added.retain(|node| !self.problem.shards[shard].holders.contains(node));
        added.sort_unstable();
        for (turn, &target) in added.iter().enumerate() {
            let idle = live
                .iter()
                .min_by_key(|&&node| (self.sent[node as usize], mix::pair(shard as u64, u64::from(node))));
            let source = leaving.get(turn).or(idle).copied();
            if let Some(source) = source {
                self.sent[source as usize] += 1;
            }
            let source = source.map(|node| self.problem.cluster.nodes()[node as usize].name.clone());
            self.adds.push(Add { shard: Shard::at(shard), source, target: self.name(target).clone() });
        }
    }
}

/// Each node before and after.
pub(crate) fn summarise(
    problem: &Problem<'_>,
    after: &Assignment,
    adds: &[Add],
    removals: &[Removal],
) -> Vec<NodeSummary> {
    let mut tasks: BTreeMap<&NodeName, u32> = BTreeMap::new();
    let touched = adds.iter().map(|add| &add.target).chain(removals.iter().map(|removal| &removal.node));
    touched.for_each(|node| *tasks.entry(node).or_default() += 1);
    let (before, after) = (problem.present.tally(), after.tally());
    let mut shares = problem.shares.iter();
    let summary = |node: &crate::node::Node| {
        let share = if node.state == NodeState::Serving { shares.next() } else { None };
        let tally = after.get(&node.name).copied().unwrap_or_default();
        NodeSummary {
            node: node.name.clone(),
            state: node.state,
            stored_before: before.get(&node.name).map_or(0, |tally| tally.copies),
            stored: tally.copies,
            fair_low: share.map_or(0, |share| share.floor(1)),
            fair_high: share.map_or(0, |share| share.ceil(1)),
            primaries: tally.primaries,
            tasks: tasks.get(&node.name).copied().unwrap_or_default(),
        }
    };
    problem.cluster.nodes().iter().map(summary).collect()
}
