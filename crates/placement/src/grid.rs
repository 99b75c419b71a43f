//! What does a plan look like? The grid of the specification: shards across, nodes down.

use std::fmt;

use crate::assignment::{Assignment, Placement};
use crate::node::{NodeName, NodeState};
use crate::plan::{NodeSummary, Plan};
use crate::shard::Shard;

/// Shards per row of grids: fits a terminal of 120 columns.
const BAND: u32 = 32;

/// A plan as a grid of marks: `M` primary, `S` replica, `+` added, `x` deleted, `<` promoted to primary, `>` demoted.
/// `12 / 4` at the end of a row: the node stores 12 copies and has 4 storage tasks.
#[derive(Debug, Clone, Copy)]
pub struct Grid<'a> {
    before: &'a Assignment,
    plan: &'a Plan,
}

impl<'a> Grid<'a> {
    /// Beyond this many shards only the totals per node are printed, because a wider grid is unreadable.
    pub const MAX_SHARDS: u32 = 256;

    /// The grid of `plan`, which was made for the layout `before`.
    pub fn new(before: &'a Assignment, plan: &'a Plan) -> Self {
        Self { before, plan }
    }

    fn rows(&self) -> impl Iterator<Item = &'a NodeSummary> {
        self.plan.nodes.iter().filter(|row| row.state != NodeState::Gone)
    }

    fn label_width(&self) -> usize {
        self.rows().map(|row| row.node.as_str().len()).max().unwrap_or(0).max(4)
    }

    fn band(&self, f: &mut fmt::Formatter<'_>, from: u32, to: u32) -> fmt::Result {
        let width = self.label_width();
        write!(f, "{:width$}  ", "")?;
        for shard in from..to {
            write!(f, "{:<3}", format!("{shard:x}"))?;
        }
        writeln!(f)?;
        for row in self.rows() {
            write!(f, "{:<width$}  ", row.node)?;
            for shard in from..to {
                write!(f, "{} ", self.cell(Shard::at(shard as usize), &row.node))?;
            }
            writeln!(f, "   < {} / {}", row.stored, row.tasks)?;
        }
        Ok(())
    }

    fn cell(&self, shard: Shard, node: &NodeName) -> &'static str {
        let before = role(self.before.get(shard), node);
        let after = role(self.plan.assignment.get(shard), node);
        match (before, after) {
            (Role::None, Role::None) => "  ",
            (Role::None, Role::Primary) => "M+",
            (Role::None, Role::Replica) => "S+",
            (Role::Primary | Role::Replica, Role::None) => " x",
            (Role::Primary, Role::Primary) => "M ",
            (Role::Replica, Role::Replica) => "S ",
            (Role::Replica, Role::Primary) => "M<",
            (Role::Primary, Role::Replica) => "S>",
        }
    }

    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.label_width();
        writeln!(
            f,
            "{:<width$}  {:>8}  {:>8}  {:>9}  {:>7}",
            "node", "stored", "fair", "primaries", "tasks"
        )?;
        for row in self.rows() {
            let fair = match row.fair_low == row.fair_high {
                true => row.fair_low.to_string(),
                false => format!("{}-{}", row.fair_low, row.fair_high),
            };
            let (stored, primaries, tasks) = (row.stored, row.primaries, row.tasks);
            writeln!(f, "{:<width$}  {stored:>8}  {fair:>8}  {primaries:>9}  {tasks:>7}", row.node)?;
        }
        Ok(())
    }
}

enum Role {
    None,
    Primary,
    Replica,
}

fn role(placement: Option<&Placement>, node: &NodeName) -> Role {
    match placement {
        Some(placement) if placement.primary.as_ref() == Some(node) => Role::Primary,
        Some(placement) if placement.holders.contains(node) => Role::Replica,
        Some(_) | None => Role::None,
    }
}

impl fmt::Display for Grid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.plan.assignment.count();
        if shards > Self::MAX_SHARDS {
            return self.totals(f);
        }
        for from in (0..shards).step_by(BAND as usize) {
            if from > 0 {
                writeln!(f)?;
            }
            self.band(f, from, shards.min(from + BAND))?;
        }
        Ok(())
    }
}

/// One line: what the plan costs, against what any plan must cost.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, adds, removals) = (self.tasks(), self.adds.len(), self.removals.len());
        write!(f, "tasks {tasks} ({adds} adds, {removals} removals), lower bound {}", self.bound.tasks)?;
        match tasks == self.bound.tasks {
            true => write!(f, ": optimal")?,
            false => write!(f, " for the whole of it")?,
        }
        write!(f, "; {} role changes", self.role_changes.len())?;
        let counted = self.bound.counted_adds;
        if counted < self.bound.proved_adds {
            write!(
                f,
                "\ncounting alone would allow {counted} adds; the rules together need {}",
                self.bound.proved_adds
            )?;
        }
        Ok(())
    }
}
