//! When does a process count as dead? When enough live reporters report it at the same time.
//!
//! A report is a key under its reporter's lease: it means "unreachable from here" as long as it exists. It is removed
//! when the reporter reaches the process again, or dies. No clocks are compared between machines, and each reporter
//! counts once. Services have their own report keys and implement [`ReportKey`] for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use capstan_meta::Compare;
use capstan_meta::record::{Key, Listing};

/// A key that names a reporter and a suspect.
pub trait ReportKey: Key {
    /// The type of a suspect.
    type Suspect: Clone + Ord + fmt::Debug;
    /// The type of a reporter.
    type Reporter: Clone + Ord + fmt::Debug;

    /// The suspect.
    fn suspect(&self) -> Self::Suspect;

    /// The reporter.
    fn reporter(&self) -> Self::Reporter;
}

/// How many reporters are required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The minimum, however few reporters are alive.
    pub at_least: usize,
}

impl Quorum {
    /// A majority of the live reporters, and at least the configured minimum.
    #[must_use]
    pub fn needed(self, alive: usize) -> usize {
        self.at_least.max(alive / 2 + 1)
    }

    /// How many live reporters must vouch for a suspect so that the rest are too few to declare it dead. With an even
    /// number this is half: of two reporters, one that lost its link to a suspect can neither kill nor stop it.
    #[must_use]
    pub fn standing_by(self, alive: usize) -> usize {
        (alive + 1).saturating_sub(self.needed(alive)).max(1)
    }
}

/// The verdict about one suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<K: ReportKey> {
    /// The suspect.
    pub suspect: K::Suspect,
    /// The report of each live reporter.
    pub reports: Vec<K>,
    /// How many are required.
    pub needed: usize,
}

impl<K: ReportKey> Verdict<K> {
    /// Whether enough reporters agree.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.reports.len() >= self.needed
    }

    /// Guards for the transaction that acts on it: every counted report still exists.
    pub fn guards(&self) -> impl Iterator<Item = Compare> {
        self.reports.iter().take(self.needed).map(Key::present)
    }
}

/// The verdicts from the reports and the live reporters of one revision. Pure.
///
/// Reports of dead reporters do not count: their lease is about to expire.
#[must_use]
pub fn verdicts<K: ReportKey>(
    reports: &Listing<K>,
    alive: &BTreeSet<K::Reporter>,
    quorum: Quorum,
) -> Vec<Verdict<K>> {
    let mut by_suspect: BTreeMap<K::Suspect, BTreeMap<K::Reporter, K>> = BTreeMap::new();
    for (key, _) in reports.iter().filter(|(key, _)| alive.contains(&key.reporter())) {
        by_suspect.entry(key.suspect()).or_default().insert(key.reporter(), key.clone());
    }
    let needed = quorum.needed(alive.len());
    let verdict = |(suspect, reports): (K::Suspect, BTreeMap<K::Reporter, K>)| Verdict {
        suspect,
        reports: reports.into_values().collect(),
        needed,
    };
    by_suspect.into_iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use capstan_meta::Revision;
    use capstan_meta::keys;
    use capstan_meta::record::Stored;

    use super::*;
    use crate::keys::HostId;

    keys! {
        /// Keys of this test.
        const CATALOGUE;

        /// A report as in the specification: the value is a time that is never compared.
        pub struct FailureKey { address: HostId, report_id: u64 } at "/failures/{address}/{report_id}" => i64 {
            writer: "a coordinator",
            lifetime: Leased,
        }
    }

    impl ReportKey for FailureKey {
        type Suspect = HostId;
        type Reporter = u64;

        fn suspect(&self) -> HostId {
            self.address.clone()
        }

        fn reporter(&self) -> u64 {
            self.report_id
        }
    }

    fn reports(list: &[(&str, u64)]) -> Listing<FailureKey> {
        let stored = Stored {
            record: 1,
            create_revision: Revision(2),
            mod_revision: Revision(2),
            lease: capstan_meta::LeaseId(1),
        };
        let mut listing = Listing::at(Revision(3));
        for (address, report_id) in list {
            let key = FailureKey { address: address.parse().unwrap(), report_id: *report_id };
            listing.entries.push((key, stored.clone().into()));
        }
        listing
    }

    fn dead(list: &[(&str, u64)], alive: &[u64], at_least: usize) -> Vec<String> {
        assert_eq!(CATALOGUE.len(), 1);
        let alive = alive.iter().copied().collect();
        let verdicts = verdicts(&reports(list), &alive, Quorum { at_least });
        verdicts
            .iter()
            .filter(|verdict| verdict.is_dead())
            .map(|verdict| verdict.suspect.to_string())
            .collect()
    }

    #[test]
    fn it_takes_a_majority_of_the_living_and_never_fewer_than_configured() {
        assert_eq!(dead(&[("a", 1), ("a", 2)], &[1, 2, 3], 2), ["a"]);
        assert_eq!(dead(&[("a", 1)], &[1, 2, 3], 1), [""; 0]);
        assert_eq!(dead(&[("a", 1)], &[1], 1), ["a"]);
        assert_eq!(dead(&[("a", 1)], &[1], 2), [""; 0], "alone, but two are required");
        assert_eq!(dead(&[("a", 1), ("a", 9)], &[1, 2], 2), [""; 0], "9 is not alive");
        assert_eq!(dead(&[("a", 1), ("b", 2)], &[1, 2], 1), [""; 0], "one each");
        assert_eq!(dead(&[], &[], 1), [""; 0]);
    }

    #[test]
    fn acting_on_a_verdict_is_guarded_by_the_reports_that_counted() {
        let alive = BTreeSet::from([1, 2, 3]);
        let verdicts = verdicts(&reports(&[("a", 1), ("a", 2), ("a", 3)]), &alive, Quorum { at_least: 2 });
        assert_eq!(verdicts[0].guards().count(), 2);
    }

    #[test]
    fn those_who_stand_by_leave_too_few_to_declare_it_dead() {
        let by = |alive, at_least| Quorum { at_least }.standing_by(alive);
        assert_eq!([1, 2, 3, 4, 5].map(|alive| by(alive, 1)), [1, 1, 2, 2, 3]);
        assert_eq!([1, 2, 3].map(|alive| by(alive, 3)), [1, 1, 1], "the rest are never enough");
        for alive in 1..50 {
            for at_least in 1..50 {
                let quorum = Quorum { at_least };
                assert!(alive - quorum.standing_by(alive) < quorum.needed(alive));
            }
        }
    }
}
