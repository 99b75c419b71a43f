//! Which nodes of this worth are still unreached? Sets that searches take from until they are empty.

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

    /// Offers nodes from a scrambled position onwards until `choose` stops. `admits` rejects whole groups.
    pub(super) fn visit(
        &mut self,
        offset: u64,
        mut admits: impl FnMut(Option<u32>) -> bool,
        mut choose: impl FnMut(u32) -> Choice,
    ) -> Option<u32> {
        let mut chosen = None;
        let start = (offset % self.groups.len().max(1) as u64) as usize;
        wrapping(&mut self.groups, start, |(group, nodes)| {
            if !admits((*group != UNBOUND).then_some(*group)) {
                return Choice::Skip;
            }
            let start = ((offset >> 20) % nodes.len().max(1) as u64) as usize;
            let found = wrapping(nodes, start, |&mut node| choose(node));
            match found.map(|at| nodes[at]) {
                Some(node) => {
                    chosen = Some(node);
                    Choice::Stop
                }
                None if nodes.is_empty() => Choice::Drop,
                None => Choice::Skip,
            }
        });
        chosen
    }
}

/// What a search does with an offered node.
pub(super) enum Choice {
    /// Not for this shard; keep it for others.
    Skip,
    /// Not usable any more.
    Drop,
    /// Take this one and stop; it stays for others.
    Stop,
}

/// Visits every element once from `start` to the end and then from the beginning, dropping some on the way; returns
/// where it stopped, if anywhere.
fn wrapping<T>(list: &mut Vec<T>, start: usize, mut choose: impl FnMut(&mut T) -> Choice) -> Option<usize> {
    for (from, to) in [(start, usize::MAX), (0, start)] {
        let mut at = from;
        // Dropping moves the last element here: unvisited in the first pass, harmless in the second.
        while at < to.min(list.len()) {
            match choose(&mut list[at]) {
                Choice::Skip => at += 1,
                Choice::Drop => {
                    list.swap_remove(at);
                }
                Choice::Stop => return Some(at),
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_offered_whatever_is_dropped_on_the_way() {
        for start in 0..6 {
            for drop_mask in 0u32..64 {
                let mut list: Vec<u32> = (0..6).collect();
                let mut seen = 0u32;
                wrapping(&mut list, start, |&mut at| {
                    seen |= 1 << at;
                    if drop_mask >> at & 1 == 1 { Choice::Drop } else { Choice::Skip }
                });
                assert_eq!(seen, 63, "from {start}, dropping {drop_mask:b}");
                assert_eq!(list.len() as u32, 6 - drop_mask.count_ones());
            }
        }
    }
}
