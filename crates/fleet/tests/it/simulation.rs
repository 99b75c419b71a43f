//! Do the rules hold when everything goes wrong? Thousands of simulated rollouts with faults from a seed.
//!
//! A failing seed is printed and replayed with `CAPSTAN_SEED=<seed>`; `CAPSTAN_SEEDS=<count>` runs more of them.

use std::collections::BTreeMap;

use capstan_fleet::encoding::Span;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::{Barrier, Rolling};
use capstan_fleet::safety::Violation;
use capstan_fleet::simulate::table::{TableOptions, table};
use capstan_fleet::simulate::{Faults, Sabotage, Scenario, simulate};
use capstan_fleet::spec::{Amount, Policy};
use capstan_testkit::seed::{known_seeds, seeds, soak};

/// Everything that must have happened somewhere, or the run has shown nothing.
const DEEDS: [&str; 20] = [
    "crash",
    "partition",
    "failover",
    "join",
    "leave",
    "pause",
    "resume",
    "order to stop",
    "recover",
    "retry",
    "start",
    "stop",
    "end",
    "release",
    "drain",
    "rollback",
    "return",
    "done",
    "failed",
    "lost race",
];

fn small_fleets(count: usize, first: u64) {
    let mut happened: BTreeMap<&str, u64> = BTreeMap::new();
    let mut fleets = 0;
    known_seeds(count, |seed| {
        let report = simulate(&Scenario::small(first.wrapping_add(seed)))
            .unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(report.outcome, Some(Outcome::Succeeded), "it did not come to rest: {report:?}");
        fleets += 1;
        for (deed, times) in report.deeds {
            *happened.entry(deed).or_default() += times;
        }
    });
    let missing: Vec<&str> =
        DEEDS.into_iter().filter(|deed| happened.get(deed).copied().unwrap_or(0) < fleets / 50).collect();
    assert!(fleets < 100 || missing.is_empty(), "too little of {missing:?} in {fleets} fleets: {happened:?}");
}

#[test]
fn small_fleets_keep_the_rules_and_come_to_rest() {
    small_fleets(soak(60, 20_000), 1_060);
}

/// The same again, on the other core.
#[test]
fn more_small_fleets_keep_the_rules_and_come_to_rest() {
    small_fleets(soak(60, 20_000), 1_000);
}

/// A fleet whose updater gives a host back again and again, and loses the race each time. The cause is not known yet.
#[test]
#[ignore = "a defect that is not mended: docs/fleet.md names it among the limits"]
fn a_host_that_cannot_be_given_back_does_not_hold_up_the_rest() {
    let report =
        simulate(&Scenario::small(341_205_071_258_743_658)).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(report.outcome, Some(Outcome::Succeeded), "it did not come to rest: {report:?}");
}

#[test]
fn a_seed_is_the_same_history_again() {
    seeds(3, |seed| {
        let scenario = Scenario::small(seed);
        assert_eq!(simulate(&scenario), simulate(&scenario));
    });
}

/// Each planted bug breaks a rule, and the rule that it should.
#[test]
#[ignore = "takes minutes unoptimised, and has not been seen through on a busy machine: run it with --run-ignored"]
fn planted_bugs_are_found() {
    let found = |sabotage, breaks: fn(&Violation) -> bool| {
        let caught = (0..100).find_map(|seed| simulate(&Scenario::small(seed).sabotaged(sabotage)).err());
        let caught = caught.unwrap_or_else(|| panic!("no seed found {sabotage:?}"));
        assert!(breaks(&caught), "{sabotage:?} was found as: {caught}");
    };
    found(Sabotage::UnguardedReports, |v| matches!(v, Violation::Generation { .. }));
    found(Sabotage::UnguardedLeader, |v| matches!(v, Violation::Leader(..)));
    found(Sabotage::ForgetsAHost, |v| matches!(v, Violation::Barrier { .. }));
    found(Sabotage::SkipsDrain, |v| matches!(v, Violation::NotDrained(_)));
    found(Sabotage::DeafToStop, |v| matches!(v, Violation::AfterStop(..)));
    found(Sabotage::IgnoresLimits, |v| matches!(v, Violation::Unavailable { .. }));
    found(Sabotage::ForgetsItsStep, |v| matches!(v, Violation::Order { .. }));
}

fn large(hosts: u32, kinds: Vec<capstan_fleet::release::StepKind>, faults: Faults, seed: u64) -> Scenario {
    let policy = Policy {
        waves: vec![Amount::Count(hosts / 100), Amount::Percent(20)],
        parallelism: Amount::Percent(20),
        failure_domain: Some("zone".to_owned()),
        max_unavailable: Amount::Percent(40),
        failure_budget: Amount::Percent(10),
        absent_budget: Amount::Percent(20),
        min_healthy: Span::secs(5),
        ..Policy::default()
    };
    Scenario {
        hosts,
        kinds,
        policy,
        faults,
        services: false,
        seed,
        sabotage: Sabotage::None,
        give_up_after: Span::secs(24 * 3_600),
    }
}

/// Less often than in small fleets: with ten thousand hosts even this is a crash every few seconds.
const REAL: Faults = Faults {
    crashes_per_hour: 0.05,
    partitions_per_hour: 0.05,
    slow_permille: 10,
    bad_permille: 10,
    failovers_per_hour: 4.0,
    churn_per_hour: 0.0,
    orders_per_hour: 0.0,
};

#[test]
#[ignore = "takes minutes unoptimised, and has not been seen through on a busy machine: run it with --run-ignored"]
fn a_thousand_hosts_meet_at_barriers_and_ten_thousand_in_the_long_form() {
    let hosts = soak(1_000, 10_000);
    seeds(soak(1, 10), |seed| {
        let report = simulate(&large(hosts, vec![Barrier, Barrier], REAL, seed)).unwrap();
        assert_eq!(report.outcome, Some(Outcome::Succeeded), "{report:?}");
        assert!(report.updated >= hosts as usize * 95 / 100, "{report:?}");
    });
}

#[test]
fn hundreds_of_hosts_roll_in_waves() {
    let hosts = soak(60, 10_000);
    seeds(soak(1, 3), |seed| {
        let report = simulate(&large(hosts, vec![Rolling], REAL, seed)).unwrap();
        assert_eq!(report.outcome, Some(Outcome::Succeeded), "{report:?}");
    });
}

/// A larger canary costs time and, with a release that is bad everywhere, hosts; more at the same time saves time.
#[test]
#[ignore = "takes minutes unoptimised, and has not been seen through on a busy machine: run it with --run-ignored"]
fn the_table_shows_what_a_policy_costs_and_saves() {
    let options = TableOptions {
        hosts: 60,
        bad_permille: 1_000,
        canaries: vec![1, 10],
        parallelism: vec![5, 25],
        bake: Span::secs(60),
        seed: 7,
    };
    let rows = table(&options).unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.bad_outcome == Some(Outcome::Failed)), "{rows:?}");
    assert!(rows.iter().all(|row| row.blast_radius <= row.canary as usize), "{rows:?}");
    assert!(rows[1].good_took < rows[0].good_took, "more at the same time is faster: {rows:?}");
}
