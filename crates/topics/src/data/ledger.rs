//! What has a subscription acknowledged? A floor, and ranges above it.

use std::collections::BTreeMap;

/// Acknowledged offsets. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Everything before it is acknowledged.
    floor: u64,
    /// First offset to the one behind the last; apart from each other and from the floor.
    above: BTreeMap<u64, u64>,
}

impl Ledger {
    /// What was stored. Ranges that touch the floor are taken into it.
    pub(crate) fn new(floor: u64, above: BTreeMap<u64, u64>) -> Ledger {
        let mut ledger = Ledger { floor, above: BTreeMap::new() };
        for (from, to) in above {
            ledger.add(from, to);
        }
        ledger
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    pub(crate) fn above(&self) -> &BTreeMap<u64, u64> {
        &self.above
    }

    pub(crate) fn has(&self, offset: u64) -> bool {
        offset < self.floor || self.above.range(..=offset).next_back().is_some_and(|(_, end)| offset < *end)
    }

    /// Acknowledges one offset; whether it was new.
    pub(crate) fn acknowledge(&mut self, offset: u64) -> bool {
        let new = !self.has(offset);
        if new {
            self.add(offset, offset + 1);
        }
        new
    }

    /// Acknowledges everything before an offset.
    pub(crate) fn raise(&mut self, floor: u64) {
        if floor > self.floor {
            self.add(self.floor, floor);
        }
    }

    /// Acknowledges everything from an offset up to another one.
    pub(crate) fn pass(&mut self, from: u64, to: u64) {
        self.add(from, to);
    }

    fn add(&mut self, mut from: u64, mut to: u64) {
        if to <= self.floor || from >= to {
            return;
        }
        // Ranges that overlap or touch become one with the new one.
        while let Some((&start, &end)) = self.above.range(..=to).next_back()
            && end >= from
        {
            self.above.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        if from <= self.floor {
            self.floor = to;
        } else {
            self.above.insert(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ranges_merge_and_the_floor_swallows_them() {
        let mut ledger = Ledger::new(2, BTreeMap::from([(4, 6), (9, 10)]));
        assert!(ledger.has(1) && !ledger.has(2) && ledger.has(5) && !ledger.has(6));
        assert!(ledger.acknowledge(6) && !ledger.acknowledge(6));
        assert_eq!((ledger.floor(), ledger.above()), (2, &BTreeMap::from([(4, 7), (9, 10)])));
        ledger.acknowledge(3);
        assert_eq!((ledger.floor(), ledger.above().len()), (2, 2));
        ledger.acknowledge(2);
        assert_eq!((ledger.floor(), ledger.above()), (7, &BTreeMap::from([(9, 10)])));
        ledger.raise(9);
        assert_eq!(ledger, Ledger::new(10, BTreeMap::new()));
        ledger.raise(3);
        assert_eq!(ledger.floor(), 10);
    }

    #[test]
    fn it_agrees_with_a_plain_set_in_any_order() {
        for seed in 0..200_u64 {
            let (mut ledger, mut plain) = (Ledger::default(), BTreeSet::new());
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for _ in 0..60 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let offset = (state >> 33) % 40;
                assert_eq!(ledger.acknowledge(offset), plain.insert(offset), "seed {seed}");
            }
            for offset in 0..42 {
                assert_eq!(ledger.has(offset), plain.contains(&offset), "seed {seed}, offset {offset}");
            }
            let floor = (0..).find(|offset| !plain.contains(offset)).unwrap_or_default();
            assert_eq!(ledger.floor(), floor, "seed {seed}");
        }
    }
}
