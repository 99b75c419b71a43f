//! How does a rollout behave before it is one? The real decision, the real workers and the real transactions on a
//! simulated store, clock and fleet, with faults from a seed; the rules of [`crate::safety`] are checked after every
//! event. The same seed is the same history.

mod host;
mod store;
pub mod table;
mod world;

use crate::encoding::Span;
use crate::history::Outcome;
use crate::release::StepKind;
use crate::safety::Violation;
use crate::spec::{Amount, Policy};

/// What goes wrong, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Crashes of hosts, each as a probability per host and simulated hour.
    pub crashes_per_hour: f64,
    /// Partitions of hosts, likewise.
    pub partitions_per_hour: f64,
    /// Hosts that are ten times slower than the others, of a thousand.
    pub slow_permille: u32,
    /// Hosts on which the release does not work, of a thousand.
    pub bad_permille: u32,
    /// Changes of the leader per simulated hour.
    pub failovers_per_hour: f64,
    /// Hosts that join and leave per simulated hour.
    pub churn_per_hour: f64,
    /// Operators that pause, resume, stop and recover, per simulated hour.
    pub orders_per_hour: f64,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Faults = Faults {
        crashes_per_hour: 0.0,
        partitions_per_hour: 0.0,
        slow_permille: 0,
        bad_permille: 0,
        failovers_per_hour: 0.0,
        churn_per_hour: 0.0,
        orders_per_hour: 0.0,
    };

    /// Everything goes wrong, often.
    pub const HARSH: Faults = Faults {
        crashes_per_hour: 8.0,
        partitions_per_hour: 8.0,
        slow_permille: 50,
        bad_permille: 50,
        failovers_per_hour: 30.0,
        churn_per_hour: 12.0,
        orders_per_hour: 30.0,
    };
}

/// A bug that is planted on purpose: a simulation that finds none of them proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// Workers report without the guard.
    UnguardedReports,
    /// Leaders write without their term's guard.
    UnguardedLeader,
    /// The updater forgets one host when it counts the hosts that are there.
    ForgetsAHost,
    /// Hosts run before they are drained.
    SkipsDrain,
    /// Workers do not see that a request is stopped.
    DeafToStop,
    /// The updater does not know any limit.
    IgnoresLimits,
    /// Workers forget what they have done when they restart, report and journal.
    ForgetsItsStep,
    /// The updater takes every host that has finished for one that is up.
    FinishedIsForever,
    /// A stop is an order to the leader, and nothing else.
    StopNeedsALeader,
    /// A worker that starts does not end what an earlier one left running.
    LeavesOrphans,
    /// A host that leaves is forgotten at once, whatever runs there.
    ForgetsWhoLeaves,
    /// A skipped host that fails keeps its slot.
    SkipHoldsItsSlot,
    /// The updater does not look at what hosts have in common.
    IgnoresUnits,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How many hosts.
    pub hosts: u32,
    /// The steps of the release.
    pub kinds: Vec<StepKind>,
    /// The rules.
    pub policy: Policy,
    /// What goes wrong.
    pub faults: Faults,
    /// Whether services run on the hosts, which have to be drained; three hosts share a shard.
    pub services: bool,
    /// Where all chance comes from.
    pub seed: u64,
    /// A planted bug.
    pub sabotage: Sabotage,
    /// When an operator stops the rollout, in simulated time, if one does so at a given instant.
    pub stop_at: Option<Span>,
    /// From then on nothing goes wrong any more, and operators put right what went wrong, in simulated time.
    pub quiet_after: Span,
    /// When the simulation is given up, in simulated time.
    pub give_up_after: Span,
}

impl Scenario {
    /// A small fleet with harsh faults.
    #[must_use]
    pub fn small(seed: u64) -> Scenario {
        use StepKind::{Barrier, Once, Rolling, SelfUpdate};
        let kinds = match seed % 4 {
            0 => vec![Barrier, Barrier, Barrier],
            1 => vec![SelfUpdate, Rolling],
            2 => vec![Rolling, Barrier, Once, Rolling],
            _ => vec![Barrier, Once, Barrier],
        };
        let policy = Policy {
            waves: vec![Amount::Count(1), Amount::Percent(30)],
            parallelism: Amount::Count(2),
            failure_domain: Some("zone".to_owned()),
            max_unavailable: Amount::Count(1),
            failure_budget: Amount::Count(u32::try_from(seed % 3).unwrap_or(0)),
            absent_budget: Amount::Percent(50),
            auto_rollback: seed.is_multiple_of(2),
            bake: Span::secs(20),
            min_healthy: Span::secs(5),
            ..Policy::default()
        };
        Scenario {
            hosts: 4 + u32::try_from(seed % 9).unwrap_or(0),
            kinds,
            policy,
            faults: Faults::HARSH,
            services: seed.is_multiple_of(2),
            seed,
            sabotage: Sabotage::None,
            stop_at: None,
            quiet_after: Span::secs(900),
            give_up_after: Span::secs(6 * 3_600),
        }
    }

    /// A handful of hosts for a few minutes in which even more goes wrong: thousands of them are a matter of seconds.
    #[must_use]
    pub fn tiny(seed: u64) -> Scenario {
        let small = Scenario::small(seed);
        let more = |per_hour: f64| per_hour * 4.0;
        Scenario {
            hosts: 3 + u32::try_from(seed % 3).unwrap_or(0),
            faults: Faults {
                crashes_per_hour: more(small.faults.crashes_per_hour),
                partitions_per_hour: more(small.faults.partitions_per_hour),
                failovers_per_hour: more(small.faults.failovers_per_hour),
                churn_per_hour: more(small.faults.churn_per_hour),
                orders_per_hour: more(small.faults.orders_per_hour),
                bad_permille: 200,
                ..small.faults
            },
            policy: Policy {
                bake: Span::secs(5),
                min_healthy: Span::secs(1),
                auto_rollback: !seed.is_multiple_of(3),
                ..small.policy
            },
            quiet_after: Span::secs(180),
            ..small
        }
    }

    /// The same with a planted bug.
    #[must_use]
    pub fn sabotaged(self, sabotage: Sabotage) -> Scenario {
        Scenario { sabotage, ..self }
    }
}

/// What became of a simulated rollout.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// How the last request ended; nothing if it was still under way.
    pub outcome: Option<Outcome>,
    /// How long it took, in simulated time.
    pub took: Span,
    /// Hosts that have the release.
    pub updated: usize,
    /// Hosts on which the release did not work and was tried: the blast radius.
    pub broken: usize,
    /// Events that were simulated.
    pub events: u64,
    /// Decisions that were made.
    pub decisions: u64,
    /// Transactions of hosts and updaters that were committed.
    pub commits: u64,
    /// Requests that there were.
    pub requests: u64,
    /// What the updater did next or waited for when it was over, and where every host stood.
    pub at_the_end: String,
    /// Names this history among all others.
    pub fingerprint: u64,
    /// What happened, by kind: a run in which nothing happened shows nothing.
    pub deeds: std::collections::BTreeMap<&'static str, u64>,
}

/// Runs a scenario. The error is the rule that was broken.
pub fn simulate(scenario: &Scenario) -> Result<Report, Violation> {
    world::SimWorld::new(scenario).run()
}
