//! Which unit of measured load should be on which node? Few moves, and none that the next measurement would undo.
//!
//! For topics: each is on one broker, its load is measured and noisy. A move happens only if it lowers the busier of
//! the two nodes by at least a threshold, a fraction of the mean utilisation. A moved unit returns only after the loads
//! have changed by twice that, so assignments do not flap.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::error::PlacementError;
use crate::node::{NodeName, NodeState};

/// The least utilised nodes that a move considers; more than one because capacities may differ.
const TARGETS_TRIED: usize = 8;
/// Utilisation is counted in millionths of a node's capacity.
const FULL: u128 = 1_000_000;

/// A node that carries load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carrier {
    /// Its name.
    pub name: NodeName,
    /// Its capacity, in the unit of the measured load.
    pub capacity: u64,
    /// Units on retiring and gone nodes move regardless of the gain.
    pub state: NodeState,
}

/// Something with a measured load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit<K> {
    /// Its key.
    pub key: K,
    /// Its measured load.
    pub load: u64,
    /// Its node, if any.
    pub on: Option<NodeName>,
}

/// When a move is worth it, and how many at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadPolicy {
    threshold_percent: u64,
    most_moves: usize,
}

impl LoadPolicy {
    /// A gain of `threshold_percent` (1 to 100) of the mean utilisation, and at most `most_moves` for balance.
    pub fn new(threshold_percent: u64, most_moves: u64) -> Result<Self, PlacementError> {
        let check = |what, value: u64, low, high| match (low..=high).contains(&value) {
            true => Ok(value),
            false => Err(PlacementError::BadLoadSetting { what, value, low, high }),
        };
        Ok(Self {
            threshold_percent: check("the threshold in percent", threshold_percent, 1, 100)?,
            most_moves: check("the number of moves", most_moves, 1, 1_000_000)? as usize,
        })
    }
}

/// Why a unit moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It has no node, or a retiring or gone one.
    Homeless,
    /// It lowers the busier node by at least the threshold.
    Gain,
}

/// One unit to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadMove<K> {
    /// The unit.
    pub key: K,
    /// The node before.
    pub from: Option<NodeName>,
    /// The node after.
    pub to: NodeName,
    /// The reason.
    pub reason: Reason,
}

/// The moves that are worthwhile now, in order of urgency.
pub fn balance_load<K: Ord + Clone + Display>(
    carriers: &[Carrier],
    units: &[Unit<K>],
    policy: LoadPolicy,
) -> Result<Vec<LoadMove<K>>, PlacementError> {
    check(carriers, units)?;
    let mut balance = Balance::new(carriers, units)?;
    let mut moves = balance.house();
    let housed = moves.len();
    while moves.len() < housed + policy.most_moves {
        let Some(step) = balance.best_move(policy) else { break };
        moves.push(balance.carry_out(step));
    }
    Ok(direct(moves))
}

/// Merges consecutive moves of one unit into one.
fn direct<K: Ord + Clone>(moves: Vec<LoadMove<K>>) -> Vec<LoadMove<K>> {
    let last: BTreeMap<K, NodeName> = moves.iter().map(|step| (step.key.clone(), step.to.clone())).collect();
    let mut seen = BTreeSet::new();
    let first = moves.into_iter().filter(|step| seen.insert(step.key.clone()));
    let straight = first.map(|step| LoadMove { to: last.get(&step.key).cloned().unwrap_or(step.to), ..step });
    straight.filter(|step| step.from.as_ref() != Some(&step.to)).collect()
}

fn check<K: Ord + Display>(carriers: &[Carrier], units: &[Unit<K>]) -> Result<(), PlacementError> {
    let mut names = BTreeSet::new();
    for carrier in carriers {
        let high = u64::MAX / 2;
        if carrier.capacity == 0 || carrier.capacity > high {
            let what = "the capacity of a node";
            return Err(PlacementError::BadLoadSetting { what, value: carrier.capacity, low: 1, high });
        }
        if !names.insert(&carrier.name) {
            return Err(PlacementError::DuplicateNode { name: carrier.name.to_string() });
        }
    }
    let mut keys = BTreeSet::new();
    for unit in units {
        let problem = match &unit.on {
            Some(on) if !names.contains(on) => format!("on {on}, which is not listed"),
            Some(_) | None if !keys.insert(&unit.key) => "twice".to_string(),
            Some(_) | None => continue,
        };
        return Err(PlacementError::BadLoadReport { unit: unit.key.to_string(), problem });
    }
    Ok(())
}

struct Balance<'a, K> {
    /// Serving nodes, sorted by name.
    nodes: Vec<&'a Carrier>,
    load: Vec<u128>,
    /// Units on each node, heaviest first.
    units: Vec<BTreeSet<(std::cmp::Reverse<u64>, &'a K)>>,
    homeless: Vec<&'a Unit<K>>,
}

struct Candidate<'a, K> {
    gain: u128,
    from: usize,
    to: usize,
    load: u64,
    key: &'a K,
}

impl<'a, K: Ord + Clone> Balance<'a, K> {
    fn new(carriers: &'a [Carrier], units: &'a [Unit<K>]) -> Result<Self, PlacementError> {
        let mut nodes: Vec<&Carrier> = carriers.iter().filter(|c| c.state == NodeState::Serving).collect();
        if nodes.is_empty() {
            return Err(PlacementError::TooFewNodes { copies: 1, serving: 0 });
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let positions: BTreeMap<&NodeName, usize> =
            nodes.iter().enumerate().map(|(at, n)| (&n.name, at)).collect();
        let mut balance = Self {
            load: vec![0; nodes.len()],
            units: vec![BTreeSet::new(); nodes.len()],
            homeless: Vec::new(),
            nodes,
        };
        for unit in units {
            match unit.on.as_ref().and_then(|on| positions.get(on)) {
                Some(&at) => balance.put(at, unit.load, &unit.key),
                None => balance.homeless.push(unit),
            }
        }
        balance.homeless.sort_by(|a, b| b.load.cmp(&a.load).then_with(|| a.key.cmp(&b.key)));
        Ok(balance)
    }

    fn put(&mut self, at: usize, load: u64, key: &'a K) {
        self.load[at] += u128::from(load);
        self.units[at].insert((std::cmp::Reverse(load), key));
    }

    fn utilisation(&self, at: usize, load: u128) -> u128 {
        load * FULL / u128::from(self.nodes[at].capacity)
    }

    /// Heaviest first, each to the node with the lowest result; units without load are spread by count.
    fn house(&mut self) -> Vec<LoadMove<K>> {
        let mut moves = Vec::new();
        for unit in std::mem::take(&mut self.homeless) {
            let after = |&at: &usize| {
                (self.utilisation(at, self.load[at] + u128::from(unit.load)), self.units[at].len(), at)
            };
            let Some(to) = (0..self.nodes.len()).min_by_key(after) else { break };
            self.put(to, unit.load, &unit.key);
            let (key, from, to) = (unit.key.clone(), unit.on.clone(), self.nodes[to].name.clone());
            moves.push(LoadMove { key, from, to, reason: Reason::Homeless });
        }
        moves
    }

    /// The move from the busiest node that lowers the busier of both nodes most, if it is worthwhile.
    fn best_move(&self, policy: LoadPolicy) -> Option<Candidate<'a, K>> {
        let mut by_heat: Vec<usize> = (0..self.nodes.len()).collect();
        by_heat.sort_by_key(|&at| (self.utilisation(at, self.load[at]), at));
        let from = by_heat.pop()?;
        let hot = self.utilisation(from, self.load[from]);
        let mut best: Option<Candidate<'a, K>> = None;
        for &(std::cmp::Reverse(load), key) in &self.units[from] {
            let without = self.utilisation(from, self.load[from] - u128::from(load));
            for &to in by_heat.iter().take(TARGETS_TRIED) {
                let with = self.utilisation(to, self.load[to] + u128::from(load));
                let gain = hot.saturating_sub(without.max(with));
                if best.as_ref().is_none_or(|best| gain > best.gain) {
                    best = Some(Candidate { gain, from, to, load, key });
                }
            }
        }
        best.filter(|best| {
            best.gain > 0 && best.gain * 100 >= self.mean() * u128::from(policy.threshold_percent)
        })
    }

    fn mean(&self) -> u128 {
        let capacity: u128 = self.nodes.iter().map(|node| u128::from(node.capacity)).sum();
        self.load.iter().sum::<u128>() * FULL / capacity.max(1)
    }

    fn carry_out(&mut self, step: Candidate<'a, K>) -> LoadMove<K> {
        self.load[step.from] -= u128::from(step.load);
        self.units[step.from].remove(&(std::cmp::Reverse(step.load), step.key));
        self.put(step.to, step.load, step.key);
        LoadMove {
            key: step.key.clone(),
            from: Some(self.nodes[step.from].name.clone()),
            to: self.nodes[step.to].name.clone(),
            reason: Reason::Gain,
        }
    }
}
