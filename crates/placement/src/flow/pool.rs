//! Which nodes of this worth are still to be reached? Sets that searches take from until they are empty.

use std::collections::BTreeMap;

use crate::shares::Groups;

/// Nodes of one worth, by group: a search skips a full group at once instead of node by node.
#[derive(Default)]
pub(super) struct Pool {
    groups: Vec<(u32, Vec<u32>)>,
}

/// Groups whose limit never binds are one set in a pool.
const UNBOUND: u32 = u32::MAX;

impl Pool {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Offers nodes from a scrambled place onwards until `choose` says what to do with one and stop.
    /// `admits` refuses whole groups.
    pub(super) fn visit(
        &mut self,
        offset: u64,
        mut admits: impl FnMut(Option<u32>) -> bool,
        mut choose: impl FnMut(u32) -> Choice,
    ) -> Option<u32> {
        let mut left = self.groups.len();
        let mut at = (offset % left.max(1) as u64) as usize;
        while left > 0 {
            left -= 1;
            at = if at < self.groups.len() { at } else { 0 };
            let (group, nodes) = &mut self.groups[at];
            if admits((*group != UNBOUND).then_some(*group)) {
                if let Some(node) = visit_nodes(nodes, offset >> 20, &mut choose) {
                    return Some(node);
                }
                if nodes.is_empty() {
                    self.groups.swap_remove(at);
                    continue;
                }
            }
            at += 1;
        }
        None
    }
}

/// What a search does with a node that it was offered.
pub(super) enum Choice {
    /// Not for this shard; leave it for others.
    Skip,
    /// No use to anybody any more.
    Drop,
    /// Take this one and stop; it stays for others.
    Stop,
}

fn visit_nodes(nodes: &mut Vec<u32>, offset: u64, choose: &mut impl FnMut(u32) -> Choice) -> Option<u32> {
    let mut left = nodes.len();
    let mut at = (offset % left.max(1) as u64) as usize;
    while left > 0 {
        left -= 1;
        at = if at < nodes.len() { at } else { 0 };
        match choose(nodes[at]) {
            Choice::Skip => at += 1,
            Choice::Drop => {
                nodes.swap_remove(at);
            }
            Choice::Stop => return Some(nodes[at]),
        }
    }
    None
}

/// Pools by worth, or by level and worth.
pub(super) struct Pools<K: Ord>(BTreeMap<K, Pool>);

impl<K: Ord + Copy> Pools<K> {
    pub(super) fn new(groups: &Groups, members: impl Iterator<Item = (K, u32)>) -> Self {
        let mut sorted: BTreeMap<K, BTreeMap<u32, Vec<u32>>> = BTreeMap::new();
        for (key, node) in members {
            let group = groups.of[node as usize];
            let group = if groups.binds(group) { group } else { UNBOUND };
            sorted.entry(key).or_default().entry(group).or_default().push(node);
        }
        let pool = |groups: BTreeMap<u32, Vec<u32>>| Pool { groups: groups.into_iter().collect() };
        Self(sorted.into_iter().map(|(key, groups)| (key, pool(groups))).collect())
    }

    pub(super) fn get(&mut self, key: K) -> Option<&mut Pool> {
        self.0.get_mut(&key).filter(|pool| !pool.is_empty())
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.0.iter().filter(|(_, pool)| !pool.is_empty()).map(|(&key, _)| key)
    }
}
