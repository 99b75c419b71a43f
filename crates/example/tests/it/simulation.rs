//! Thousands of random runs of a small cluster: hosts die, return, are drained and undrained, specs change, agents act
//! late. After every event: no decision takes a beacon from a host while fewer hosts than requested have it lit. When
//! the faults stop, every beacon becomes lit on the requested number of hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_control::keys::HostId;
use capstan_example::decide::{Change, place};
use capstan_example::facts::Facts;
use capstan_example::keys::BeaconName;
use capstan_example::spec::Spec;
use capstan_example::status::Placement;
use capstan_meta::record::Stored;
use capstan_testkit::seed;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::decisions::stored;

/// The number of runs.
const LIVES: u64 = 2_000;
/// Events per run.
const EVENTS: usize = 60;
/// Rounds after the faults stop within which everything is in place.
const ROUNDS: usize = 20;

struct World {
    facts: Facts,
    hosts: Vec<HostId>,
    rng: StdRng,
    rule: fn(&Facts) -> Vec<Change>,
}

impl World {
    fn new(seed: u64, rule: fn(&Facts) -> Vec<Change>) -> World {
        let hosts: Vec<HostId> = (0..5).map(|n| format!("h{n}").parse().unwrap()).collect();
        let specs = (0..3).map(|n| (format!("b{n}").parse().unwrap(), Spec { copies: 2 })).collect();
        let facts = Facts { specs, up: hosts.iter().cloned().collect(), ..Facts::default() };
        World { facts, hosts, rng: seed::rng(seed), rule }
    }

    fn event(&mut self) -> Result<(), String> {
        let host = self.hosts.choose(&mut self.rng).unwrap().clone();
        match self.rng.random_range(0..8) {
            0 => drop(self.facts.up.remove(&host)),
            1 => drop(self.facts.up.insert(host)),
            2 => drop(self.facts.leaving.insert(host)),
            3 => drop(self.facts.leaving.remove(&host)),
            4 => {
                let beacon = format!("b{}", self.rng.random_range(0..3)).parse().unwrap();
                self.facts.specs.insert(beacon, Spec { copies: self.rng.random_range(1..4) });
            }
            5 => self.agent(&host),
            _ => self.controller()?,
        }
        Ok(())
    }

    /// The agent of a host follows the placements.
    fn agent(&mut self, host: &HostId) {
        if !self.facts.up.contains(host) {
            return;
        }
        let ours = |seen: &Stored<Placement>| seen.record.hosts.contains(host);
        let wanted: BTreeSet<BeaconName> = self
            .facts
            .placements
            .iter()
            .filter(|(_, seen)| ours(seen))
            .map(|(beacon, _)| beacon.clone())
            .collect();
        self.facts.lit.retain(|(beacon, lit)| lit != host || wanted.contains(beacon));
        self.facts.lit.extend(wanted.into_iter().map(|beacon| (beacon, host.clone())));
    }

    fn controller(&mut self) -> Result<(), String> {
        for change in (self.rule)(&self.facts) {
            self.check(&change)?;
            self.commit(change);
        }
        Ok(())
    }

    /// Checks that a lit beacon is not taken away before enough other hosts have it lit.
    fn check(&self, change: &Change) -> Result<(), String> {
        let now = self
            .facts
            .placements
            .get(&change.beacon)
            .map(|seen| seen.record.hosts.clone())
            .unwrap_or_default();
        let (Some(next), Some(spec)) = (&change.hosts, self.facts.specs.get(&change.beacon)) else {
            return Ok(());
        };
        let lit = |host: &&HostId| self.facts.is_lit(&change.beacon, host);
        let (before, after) = (now.iter().filter(lit).count(), next.iter().filter(lit).count());
        if after < before.min(spec.copies) {
            return Err(format!(
                "{change:?} leaves {after} of {before} lit copies, {} asked for",
                spec.copies
            ));
        }
        Ok(())
    }

    fn commit(&mut self, change: Change) {
        match change.hosts {
            None => drop(self.facts.placements.remove(&change.beacon)),
            Some(hosts) => {
                let epoch = self.facts.placements.get(&change.beacon).map(|seen| seen.record.epoch);
                let record = Placement { epoch: epoch.unwrap_or_default().next(), hosts };
                self.facts.placements.insert(change.beacon, Arc::new(stored(record)));
            }
        }
    }

    fn settle(&mut self) -> Result<(), String> {
        self.facts.up = self.hosts.iter().cloned().collect();
        self.facts.leaving.clear();
        for _ in 0..ROUNDS {
            self.controller()?;
            for host in self.hosts.clone() {
                self.agent(&host);
            }
        }
        let missing: BTreeMap<_, _> = self
            .facts
            .specs
            .iter()
            .map(|(beacon, spec)| {
                (
                    beacon,
                    (spec.copies, self.hosts.iter().filter(|host| self.facts.is_lit(beacon, host)).count()),
                )
            })
            .filter(|(_, (wanted, lit))| wanted != lit)
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not as asked for: {missing:?}")) }
    }
}

fn live(seed: u64, rule: fn(&Facts) -> Vec<Change>) -> Result<(), String> {
    let mut world = World::new(seed, rule);
    for _ in 0..EVENTS {
        world.event()?;
    }
    world.settle()
}

#[test]
fn no_life_loses_a_beacon() {
    for seed in 0..LIVES {
        live(seed, place).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

/// A planted bug: removes before it adds.
fn hasty(facts: &Facts) -> Vec<Change> {
    let mut changes = place(facts);
    for change in &mut changes {
        if let Some(hosts) = &mut change.hosts {
            hosts.retain(|host| facts.is_usable(host));
        }
    }
    changes
}

#[test]
fn the_simulation_finds_a_rule_that_removes_before_it_adds() {
    assert!((0..LIVES).any(|seed| live(seed, hasty).is_err()));
}
