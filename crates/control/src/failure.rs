//! When is somebody believed to be dead? When enough living reporters say so at the same time.
//!
//! A report is a key under its reporter's lease: it says "I cannot reach this one" for as long as it exists. It goes
//! when the reporter reaches it again, or dies. No clocks are compared between machines, and whoever reports twice
//! counts once. Services have report keys of their own; they implement [`ReportKey`] for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use capstan_meta::Compare;
use capstan_meta::record::{Key, Listing};
use capstan_meta::session::Session;

/// A key that says who suspects whom.
pub trait ReportKey: Key {
    /// Who can be suspected.
    type Suspect: Clone + Ord + fmt::Debug;
    /// Who can suspect.
    type Reporter: Clone + Ord + fmt::Debug;

    /// Who is suspected.
    fn suspect(&self) -> Self::Suspect;

    /// By whom.
    fn reporter(&self) -> Self::Reporter;
}

/// How many reporters it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Never fewer than this, however few reporters live.
    pub at_least: usize,
}

impl Quorum {
    /// A majority of the living, and never fewer than configured.
    #[must_use]
    pub fn needed(self, alive: usize) -> usize {
        self.at_least.max(alive / 2 + 1)
    }
}

/// What is to be believed about one suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<K: ReportKey> {
    /// Who is suspected.
    pub suspect: K::Suspect,
    /// The report of each living reporter.
    pub reports: Vec<K>,
    /// How many it takes.
    pub needed: usize,
}

impl<K: ReportKey> Verdict<K> {
    /// Whether enough reporters agree.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.reports.len() >= self.needed
    }

    /// Guards for the transaction that acts on it: every report that counted still stands.
    pub fn guards(&self) -> impl Iterator<Item = Compare> {
        self.reports.iter().take(self.needed).map(Key::present)
    }
}

/// What is to be believed, from the reports and the living reporters of one revision. Pure.
///
/// Reports of reporters that are not alive do not count: their lease is about to take them away.
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

/// What a reporter thinks of one peer, from its own attempts to reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspicion {
    missed: u32,
    reported: bool,
}

/// What a reporter does after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportChange {
    /// Report it.
    Report,
    /// Take the report back.
    Withdraw,
    /// Nothing.
    Keep,
}

impl Suspicion {
    /// An attempt succeeded or not; it takes `patience` failures in a row to be reported.
    pub fn observe(&mut self, reached: bool, patience: u32) -> ReportChange {
        self.missed = if reached { 0 } else { self.missed.saturating_add(1) };
        let suspected = self.missed >= patience.max(1);
        let before = std::mem::replace(&mut self.reported, suspected);
        match (before, suspected) {
            (false, true) => ReportChange::Report,
            (true, false) => ReportChange::Withdraw,
            (false, false) | (true, true) => ReportChange::Keep,
        }
    }
}

/// Reports a suspect for as long as this process lives, or until [`withdraw`]n.
pub fn report<K: ReportKey>(session: &Session, key: &K, record: &K::Record) {
    session.declare(key, record);
}

/// The suspect answers again.
pub async fn withdraw<K: ReportKey>(session: &Session, key: &K) {
    session.withdraw(key).await;
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

        /// A report as the documents write it: the value is a time that nobody compares.
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
    fn a_peer_is_reported_after_misses_in_a_row_and_taken_back_at_once() {
        let mut suspicion = Suspicion::default();
        let seen: Vec<_> = [false, true, false, false, false, true, true]
            .map(|reached| suspicion.observe(reached, 2))
            .into();
        use ReportChange::{Keep, Report, Withdraw};
        assert_eq!(seen, [Keep, Keep, Keep, Report, Keep, Withdraw, Keep]);
    }
}
