//! Do the rules hold when everything goes wrong? Thousands of simulated rollouts with faults from a seed.
//!
//! A failing seed is printed and replayed with `CAPSTAN_SEED=<seed>`; `CAPSTAN_SEEDS=<count>` runs more of them.

use std::collections::BTreeMap;

use capstan_fleet::encoding::Span;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::{Barrier, Rolling};
use capstan_fleet::safety::Violation;
use capstan_fleet::simulate::table::{TableOptions, table};
use capstan_fleet::simulate::{Faults, Report, Sabotage, Scenario, simulate};
use capstan_fleet::spec::{Amount, Policy};
use capstan_testkit::seed::{seeds, soak};

/// Everything that must have happened somewhere, or the run has shown nothing.
const DEEDS: [&str; 23] = [
    "gone",
    "skip",
    "taken away",
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

/// A fleet keeps the rules and comes to rest.
fn comes_to_rest(scenario: &Scenario) -> Report {
    let report = simulate(scenario).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(report.outcome, Some(Outcome::Succeeded), "it did not come to rest: {report:?}");
    report
}

/// The seeds from this one on, and fresh ones in the long form.
fn come_to_rest(first: u64, count: usize, scenario: fn(u64) -> Scenario) {
    let mut happened: BTreeMap<&str, u64> = BTreeMap::new();
    let mut fleets = 0;
    seeds(count, |seed| {
        fleets += 1;
        for (deed, times) in comes_to_rest(&scenario(first.wrapping_add(seed))).deeds {
            *happened.entry(deed).or_default() += times;
        }
    });
    let missing: Vec<&str> = DEEDS.into_iter().filter(|deed| !happened.contains_key(deed)).collect();
    assert!(fleets < 200 || missing.is_empty(), "there was no {missing:?} in {fleets} fleets: {happened:?}");
}

#[test]
fn tiny_fleets_keep_the_rules_and_come_to_rest() {
    come_to_rest(0, soak(1_400, 50_000), Scenario::tiny);
}

/// The same again, on the other core.
#[test]
fn more_tiny_fleets_keep_the_rules_and_come_to_rest() {
    come_to_rest(1_000_000, soak(1_400, 50_000), Scenario::tiny);
}

#[test]
fn small_fleets_keep_the_rules_and_come_to_rest() {
    come_to_rest(0, soak(200, 20_000), Scenario::small);
}

/// A host that had failed and was tried again came behind something that was done once, and nobody told it to go on.
#[test]
fn a_retry_behind_what_was_done_once_is_obeyed() {
    comes_to_rest(&Scenario::tiny(6739519633261586891));
}

/// A host left while it was drained and joined again under the same number: no request was about it, nobody took its
/// drain back, and the other replicas of its shard could not be drained any more.
#[test]
fn a_drain_of_a_host_that_left_does_not_hold_up_the_rest() {
    comes_to_rest(&Scenario::small(341_205_071_258_743_658));
}

/// A host that was to do something once was cut off, did it, and was back when the next one was chosen.
#[test]
fn what_was_done_once_counts_whoever_was_chosen_since() {
    comes_to_rest(&Scenario::tiny(35));
}

/// More hosts left during a request than may be absent: nobody waited for them to come back.
#[test]
fn hosts_that_left_do_not_use_up_the_budget() {
    comes_to_rest(&Scenario::tiny(5_283_266_239_420_708_548));
}

/// Hosts left with the slots that they held, and nobody else could take them.
#[test]
fn hosts_that_left_hold_no_slots() {
    comes_to_rest(&Scenario::tiny(3_873_522_263_687_172_542));
}

/// An operator had a host tried again before the updater had seen that it failed: it kept its slot and did nothing.
#[test]
fn a_retry_that_is_quicker_than_the_updater_is_obeyed() {
    comes_to_rest(&Scenario::tiny(13_795_843_435_374_572_777));
}

/// A host came back from before what was done once, while the others were behind it: it was begun again, and who was
/// past it seemed to be too far.
#[test]
fn what_was_done_once_is_not_begun_again_for_who_comes_back() {
    comes_to_rest(&Scenario::small(17_321_447_926_952_250_387));
}

/// The host that had done something for all failed at the step behind it: the others waited for it to do it.
#[test]
fn what_was_done_once_counts_although_its_host_failed_later() {
    comes_to_rest(&Scenario::tiny(12_336_349_059_933_365_470));
}

/// A host joined under the number of one that had left, after a step was released that others had not begun yet.
#[test]
fn who_joins_behind_a_release_holds_nobody_up() {
    comes_to_rest(&Scenario::tiny(13_345_937_304_875_244_536));
}

/// Everybody had the release from the request before when a last order to stop ended the present one: that is not the
/// end as long as somebody is there to recover.
#[test]
fn a_late_order_to_stop_is_recovered_from() {
    comes_to_rest(&Scenario::tiny(11_331_010_047_590_349_880));
}

/// An operator who finds no leader, and the election that is under way anyway, made two of them.
#[test]
fn nobody_is_elected_while_another_leads() {
    (0..20).for_each(|seed| drop(comes_to_rest(&Scenario::small(seed))));
}

/// A decision was still on its way to the store when the next one was made from what was there before: both let a host
/// of the same shard begin.
#[test]
fn two_decisions_under_way_do_not_begin_two_hosts_of_a_shard() {
    comes_to_rest(&Scenario::small(17_793_359_885_839_660_726));
}

/// A host that was to do a step for all had gone back, and an operator had it tried again: no slot let its worker take up
/// the order, and the others waited for it.
#[test]
fn a_retry_of_the_host_that_does_a_step_for_all_is_obeyed() {
    comes_to_rest(&Scenario::small(2_069_527_626_574_457_018));
}

/// A host had gone back and was tried again at the step at which it had failed: it reported the release as complete
/// without the steps before that.
#[test]
fn a_host_that_went_back_runs_all_steps_again() {
    [49, 1_000_013].into_iter().for_each(|seed| drop(comes_to_rest(&Scenario::tiny(seed))));
    comes_to_rest(&Scenario::small(26));
}

/// A host that was still drained came back and began although another one of its failure domain was going back.
#[test]
fn a_host_that_is_out_anyway_waits_for_others_that_are_worked_on() {
    comes_to_rest(&Scenario::tiny(3_780_757_711_088_936_162));
}

/// A host that was only watched died and was ordered back while another one of its failure domain ran its step.
#[test]
fn a_host_goes_back_only_when_its_domain_has_room() {
    comes_to_rest(&Scenario::small(11_684_455_735_130_872_694));
}

/// A host that lagged behind caught up although one of an earlier wave had finished and was gone.
#[test]
fn no_host_catches_up_after_a_sign_of_harm() {
    comes_to_rest(&Scenario::small(13_462_975_201_554_119_280));
}

#[test]
fn a_seed_is_the_same_history_again() {
    seeds(3, |seed| {
        let scenario = Scenario::small(seed);
        assert_eq!(simulate(&scenario), simulate(&scenario));
    });
}

/// A planted bug breaks a rule, and the rule that it should. The search begins at a fleet that is known to find it.
fn is_found(sabotage: Sabotage, first: u64, breaks: fn(&Violation) -> bool) {
    let caught = (first..first + 2_000).find_map(|seed| {
        let caught = simulate(&Scenario::tiny(seed).sabotaged(sabotage)).err()?;
        eprintln!("{sabotage:?} was found by fleet {seed}: {caught}");
        Some(caught)
    });
    let caught = caught.unwrap_or_else(|| panic!("no fleet found {sabotage:?}"));
    assert!(breaks(&caught), "{sabotage:?} was found as: {caught}");
}

#[test]
fn planted_bugs_are_found() {
    is_found(Sabotage::UnguardedReports, 15, |v| matches!(v, Violation::Generation { .. }));
    is_found(Sabotage::UnguardedLeader, 130, |v| matches!(v, Violation::Leader(..)));
    is_found(Sabotage::ForgetsAHost, 0, |v| matches!(v, Violation::Barrier { .. }));
    is_found(Sabotage::SkipsDrain, 2, |v| matches!(v, Violation::NotDrained(_)));
    is_found(Sabotage::DeafToStop, 7, |v| matches!(v, Violation::AfterStop(..)));
    is_found(Sabotage::IgnoresLimits, 2, |v| matches!(v, Violation::Unavailable { .. }));
    is_found(Sabotage::ForgetsItsStep, 0, |v| matches!(v, Violation::Order { .. }));
    is_found(Sabotage::FinishedIsForever, 0, |v| matches!(v, Violation::Harm(..)));
    is_found(Sabotage::StopNeedsALeader, 0, |v| {
        matches!(v, Violation::AfterStop(..) | Violation::StillRuns(_))
    });
    is_found(Sabotage::LeavesOrphans, 0, |v| matches!(v, Violation::StillRuns(_)));
    is_found(Sabotage::ForgetsWhoLeaves, 0, |v| {
        matches!(v, Violation::Unavailable { .. } | Violation::Shard(..))
    });
    is_found(Sabotage::IgnoresUnits, 0, |v| matches!(v, Violation::Shard(..)));
}

/// A slot that is held for ever breaks no rule; it keeps the fleet from coming to rest before the worker timeout.
#[test]
fn a_slot_that_a_skipped_host_never_gives_back_is_found() {
    let limited = |seed: u64| Scenario { give_up_after: Span::secs(2_400), ..Scenario::tiny(seed) };
    let rests = |scenario: &Scenario| simulate(scenario).is_ok_and(|r| r.outcome == Some(Outcome::Succeeded));
    let caught = (0..400_u64).find(|seed| {
        let honest = limited(*seed);
        !rests(&honest.clone().sabotaged(Sabotage::SkipHoldsItsSlot)) && rests(&honest)
    });
    eprintln!("SkipHoldsItsSlot was found by fleet {:?}", caught.expect("no fleet found it"));
}

/// A host went back while it was cut off, and the request was stopped before it could say so: its confirmation repeated
/// what it had last written, that it has the release.
#[test]
fn a_stop_is_confirmed_with_what_is_true_by_now() {
    stops(11_912_795_556_665_255_749);
}

/// A stop at an instant that the seed decides; whether one was ordered.
fn stops(seed: u64) -> u64 {
    let at = Span(std::time::Duration::from_millis(seed.wrapping_mul(7_919) % 180_000));
    let scenario = Scenario { stop_at: Some(at), ..Scenario::tiny(seed) };
    let report = simulate(&scenario).unwrap_or_else(|violation| panic!("stop at {at}: {violation}"));
    assert_eq!(report.outcome, Some(Outcome::Succeeded), "it did not come to rest: {report:?}");
    report.deeds.get("order to stop").copied().unwrap_or(0)
}

/// A stop at a random instant, half of the time with a dead leader, among crashes and partitions: no step begins behind
/// it, every step ends within the bound, and who confirms tells the truth.
#[test]
fn a_stop_at_any_instant_is_obeyed() {
    let mut stopped = 0;
    seeds(soak(1_000, 10_000), |seed| stopped += stops(seed));
    eprintln!("{stopped} stops");
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
        stop_at: None,
        quiet_after: Span::secs(900),
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
