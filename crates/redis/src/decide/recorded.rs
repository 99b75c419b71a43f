//! What comes next? Pure: from the tree (and the proxies' reports) to the next transaction. Coordinators
//! commit it; several of them may plan the same step, and its guards let one succeed.

use crate::decide::{
    Creation, Draft, Spreading, plan_bump, plan_nodes, plan_release, plan_spreading, plan_start,
};
use crate::facts::{ClusterTree, Tree};
use crate::keys::ClusterName;

/// The next transactions, and what is waited for.
#[derive(Debug, Default)]
pub struct Steps {
    /// Transactions that can be tried now, the most urgent first. All are planned from the same tree: after
    /// one of them, plan again.
    pub commits: Vec<Draft>,
    /// What is waited for, as text.
    pub waits: Vec<String>,
}

impl Steps {
    /// Both together.
    #[must_use]
    pub fn and(mut self, other: Steps) -> Steps {
        self.commits.extend(other.commits);
        self.waits.extend(other.waits);
        self
    }
}

/// The steps of recorded work that is not completed.
#[must_use]
pub fn recorded(tree: &Tree, now: u64) -> Steps {
    let mut steps = Steps::default();
    for (name, cluster) in &tree.clusters {
        steps.commits.extend(plan_bump(tree, name, cluster));
        if cluster.exists() {
            complete(tree, name, cluster, now, &mut steps);
        } else if cluster.removing.is_some() {
            steps.commits.push(plan_release(tree, name, cluster, now));
        }
    }
    steps
}

fn complete(tree: &Tree, name: &ClusterName, cluster: &ClusterTree, now: u64, steps: &mut Steps) {
    match plan_nodes(tree, name, cluster, now) {
        Creation::Complete => {}
        Creation::Next(draft) => steps.commits.push(draft),
        Creation::Lacks(missing) => {
            steps.waits.push(format!("cluster {name}: no free node; {} are missing", missing.unplaced));
        }
    }
    steps.commits.extend(plan_start(tree, name, now));
    match plan_spreading(tree, name, cluster, now) {
        None => {}
        Some(Spreading::Next(draft)) => steps.commits.push(draft),
        Some(Spreading::Waits(why)) => steps.waits.push(why),
    }
}
