//! P12: small cases against two independent solvers: an exhaustive table over all ways to count copies, and a textbook
//! flow on the full network.

use std::collections::BTreeMap;

use capstan_placement::{Assignment, Cluster, NodeName, Placement, Plan, plan};

use crate::churn::Dice;
use crate::support::{check_rules, copies, domain, node};

struct Small {
    cluster: Cluster,
    before: Assignment,
    names: Vec<NodeName>,
    /// Domain of each node, by number.
    domains: Vec<usize>,
}

fn random(dice: &mut Dice, most_shards: u64, most_nodes: u64, most_copies: u64) -> Small {
    let count = 2 + dice.roll(most_nodes - 1);
    let want = 1 + dice.roll(count.min(most_copies));
    let racks = 1 + dice.roll(count);
    let with_racks = dice.roll(2) == 0;
    let weights = 1 + dice.roll(3);
    let mut domains = Vec::new();
    let mut nodes = Vec::new();
    for at in 0..count as usize {
        let weight = capstan_placement::Weight::new(1 + dice.roll(weights)).unwrap();
        let rack = dice.roll(racks) as usize;
        let this = node(at).weighing(weight);
        domains.push(if with_racks { rack } else { 100 + at });
        nodes.push(if with_racks { this.within(domain(rack)) } else { this });
    }
    let names: Vec<NodeName> = nodes.iter().map(|node| node.name.clone()).collect();
    let cluster = Cluster::new(copies(want), nodes).unwrap();
    let shards = 1 + dice.roll(most_shards);
    // Sometimes a layout of the planner for a smaller cluster, sometimes a random one.
    let chaos = 1 + dice.roll(4);
    let mut placements = Vec::new();
    for _ in 0..shards {
        let mut holders: Vec<NodeName> = names
            .iter()
            .skip(usize::from(chaos > 2))
            .filter(|_| dice.roll(3) < chaos.min(2))
            .cloned()
            .collect();
        holders.truncate(want as usize + 1);
        placements.push(Placement { primary: holders.first().cloned(), holders });
    }
    Small { cluster, before: Assignment::new(placements).unwrap(), names, domains }
}

impl Small {
    fn holds(&self, shard: usize, node: usize) -> bool {
        self.before.iter().nth(shard).unwrap().1.holders.contains(&self.names[node])
    }

    /// The smallest number per domain with which enough distinct nodes exist.
    fn limit(&self) -> usize {
        let want = usize::from(self.cluster.copies().get());
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        self.domains.iter().for_each(|&d| *sizes.entry(d).or_default() += 1);
        (1..=want).find(|&l| sizes.values().map(|&s| s.min(l)).sum::<usize>() >= want).unwrap()
    }

    /// Every set of holders that the domain rule allows.
    fn choices(&self) -> Vec<Vec<usize>> {
        let want = usize::from(self.cluster.copies().get());
        let limit = self.limit();
        let sets = (0u32..1 << self.names.len()).filter(|set| set.count_ones() as usize == want);
        let sets = sets.map(|set| (0..self.names.len()).filter(|at| set >> at & 1 == 1).collect::<Vec<_>>());
        let fits = |set: &Vec<usize>| {
            set.iter().all(|&a| set.iter().filter(|&&b| self.domains[a] == self.domains[b]).count() <= limit)
        };
        sets.filter(fits).collect()
    }
}

/// Exhaustive: the least cost of reaching each vector of counts, shard by shard.
fn least(
    shards: usize,
    bounds: &[(u32, u32)],
    choices: impl Fn(usize) -> Vec<(Vec<usize>, (u64, u64))>,
) -> Option<(u64, u64)> {
    let mut table: BTreeMap<Vec<u32>, (u64, u64)> = BTreeMap::from([(vec![0; bounds.len()], (0, 0))]);
    for shard in 0..shards {
        let mut next: BTreeMap<Vec<u32>, (u64, u64)> = BTreeMap::new();
        let choices = choices(shard);
        for (counts, cost) in &table {
            for (set, more) in &choices {
                let mut counts = counts.clone();
                set.iter().for_each(|&node| counts[node] += 1);
                if set.iter().any(|&node| counts[node] > bounds[node].1) {
                    continue;
                }
                let cost = (cost.0 + more.0, cost.1 + more.1);
                next.entry(counts).and_modify(|known| *known = cost.min(*known)).or_insert(cost);
            }
        }
        table = next;
    }
    let fair = |counts: &Vec<u32>| counts.iter().zip(bounds).all(|(count, bound)| *count >= bound.0);
    table.into_iter().filter(|(counts, _)| fair(counts)).map(|(_, cost)| cost).min()
}

fn adds_on_old_nodes(small: &Small, plan: &Plan) -> u64 {
    let old = small.before.tally();
    plan.adds.iter().filter(|add| old.contains_key(&add.target)).count() as u64
}

#[test]
fn tiny_cases_agree_with_exhaustive_search() {
    for seed in 0..400 {
        println!("seed {seed}");
        let small = random(&mut Dice(seed), 7, 5, 3);
        let plan = plan(&small.cluster, &small.before).unwrap();
        check_rules(&small.cluster, &small.before, &plan);
        let bounds: Vec<(u32, u32)> = plan.nodes.iter().map(|n| (n.fair_low, n.fair_high)).collect();
        let sets = small.choices();
        let old = small.before.tally();
        let best = least(small.before.count() as usize, &bounds, |shard| {
            let cost = |set: &Vec<usize>| {
                let added: Vec<usize> = set.iter().copied().filter(|&at| !small.holds(shard, at)).collect();
                let on_old = added.iter().filter(|&&at| old.contains_key(&small.names[at])).count();
                (added.len() as u64, on_old as u64)
            };
            sets.iter().map(|set| (set.clone(), cost(set))).collect()
        });
        assert_eq!(Some((plan.adds.len() as u64, adds_on_old_nodes(&small, &plan))), best, "seed {seed}");
        assert_eq!(plan.bound.proved_adds, plan.adds.len() as u64, "seed {seed}");
        check_role_changes(&small, &plan, seed);
    }
}

/// Given the holders, no choice of primaries changes fewer of those that still hold their shard.
fn check_role_changes(small: &Small, plan: &Plan, seed: u64) {
    let want = u32::from(small.cluster.copies().get());
    let total: u32 = plan.nodes.iter().map(|n| n.primaries).sum();
    assert_eq!(total, small.before.count());
    // Bounds of the shares are finer than those of whole copies; compare within what was reached.
    let bounds: Vec<(u32, u32)> = plan
        .nodes
        .iter()
        .map(|n| {
            let (low, high) = (n.fair_low / want, n.fair_high.div_ceil(want));
            assert!((low..=high).contains(&n.primaries));
            (n.primaries, n.primaries)
        })
        .collect();
    let position = |name: &NodeName| small.names.iter().position(|other| other == name).unwrap();
    let changes = |shard: usize, to: &NodeName| {
        let was = small.before.iter().nth(shard).unwrap().1.primary.clone();
        let will = plan.assignment.iter().nth(shard).unwrap().1;
        u64::from(was.is_some_and(|was| will.holders.contains(&was) && was != *to))
    };
    let best = least(small.before.count() as usize, &bounds, |shard| {
        let holders = &plan.assignment.iter().nth(shard).unwrap().1.holders;
        holders.iter().map(|holder| (vec![position(holder)], (changes(shard, holder), 0))).collect()
    });
    let ours = plan
        .assignment
        .iter()
        .map(|(shard, p)| changes(shard.get() as usize, p.primary.as_ref().unwrap()))
        .sum();
    assert_eq!(best, Some((ours, 0)), "role changes, seed {seed}");
}

/// Bellman-Ford, one unit at a time, on every edge.
struct Network {
    edges: Vec<(usize, usize, i64, i64)>,
    vertices: usize,
}

impl Network {
    fn edge(&mut self, from: usize, to: usize, capacity: i64, cost: i64) {
        self.edges.push((from, to, capacity, cost));
        self.edges.push((to, from, 0, -cost));
    }

    fn cheapest(&mut self, source: usize, sink: usize) -> (i64, i64) {
        let (mut units, mut total) = (0, 0);
        loop {
            let mut distance = vec![i64::MAX / 2; self.vertices];
            let mut via = vec![usize::MAX; self.vertices];
            distance[source] = 0;
            let mut changed = true;
            while changed {
                changed = false;
                for (number, &(from, to, capacity, cost)) in self.edges.iter().enumerate() {
                    if capacity > 0 && distance[from] < i64::MAX / 4 && distance[from] + cost < distance[to] {
                        distance[to] = distance[from] + cost;
                        via[to] = number;
                        changed = true;
                    }
                }
            }
            if via[sink] == usize::MAX {
                return (units, total);
            }
            let mut at = sink;
            while at != source {
                let edge = via[at];
                self.edges[edge].2 -= 1;
                self.edges[edge ^ 1].2 += 1;
                at = self.edges[edge].0;
            }
            units += 1;
            total += distance[sink];
        }
    }
}

/// Fewest adds by the textbook: floors are met by a large reward.
fn textbook(small: &Small, plan: &Plan) -> i64 {
    const REWARD: i64 = 10_000;
    let (shards, nodes) = (small.before.count() as usize, small.names.len());
    let want = i64::from(small.cluster.copies().get());
    let mut kinds = small.domains.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let limit = small.limit() as i64;
    let (source, sink) = (0, 1);
    let shard_at = |shard: usize| 2 + shard;
    let group_at = |shard: usize, kind: usize| 2 + shards + shard * kinds.len() + kind;
    let node_at = |node: usize| 2 + shards + shards * kinds.len() + node;
    let mut network = Network { edges: Vec::new(), vertices: node_at(nodes) };
    for shard in 0..shards {
        network.edge(source, shard_at(shard), want, 0);
        for kind in 0..kinds.len() {
            network.edge(shard_at(shard), group_at(shard, kind), limit, 0);
        }
        for node in 0..nodes {
            let kind = kinds.binary_search(&small.domains[node]).unwrap();
            network.edge(group_at(shard, kind), node_at(node), 1, i64::from(!small.holds(shard, node)));
        }
    }
    let mut floors = 0;
    for (node, row) in plan.nodes.iter().enumerate() {
        network.edge(node_at(node), sink, i64::from(row.fair_low), -REWARD);
        network.edge(node_at(node), sink, i64::from(row.fair_high - row.fair_low), 0);
        floors += i64::from(row.fair_low);
    }
    let (units, cost) = network.cheapest(source, sink);
    assert_eq!(units, want * shards as i64);
    cost + floors * REWARD
}

#[test]
fn small_cases_agree_with_the_textbook() {
    for seed in 1000..1080 {
        println!("seed {seed}");
        let small = random(&mut Dice(seed), 24, 8, 3);
        let plan = plan(&small.cluster, &small.before).unwrap();
        check_rules(&small.cluster, &small.before, &plan);
        assert_eq!(plan.adds.len() as i64, textbook(&small, &plan), "seed {seed}");
        assert_eq!(plan.bound.proved_adds, plan.adds.len() as u64, "seed {seed}");
    }
}
