//! Is the control plane correct when everything else fails? Brokers, coordinators and proxies on one store in
//! memory, under a paused clock, with crashes, partitions, slowness and unknown outcomes from a seed.
//!
//! At no time may two proxies serve one slot; no epoch goes back; nothing is pushed before it is committed;
//! the tree is always consistent; and when the faults end, every slot of every cluster is served and nothing
//! is pending.

pub mod net;
pub mod proxy;
pub mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use capstan_testkit::seed::{seeds, soak};

use world::{Sabotage, simulate};

#[test]
fn small_worlds_keep_their_promises() {
    let (mut worlds, mut sum) = (0, world::Deeds::default());
    seeds(soak(25, 5_000), |seed| {
        let deeds = simulate(seed, None);
        worlds += 1;
        sum.crashes += deeds.crashes;
        sum.cuts += deeds.cuts;
        sum.outages += deeds.outages;
        sum.operations += deeds.operations;
        sum.replaced += deeds.replaced;
        sum.moved += deeds.moved;
        sum.messages += deeds.messages;
    });
    eprintln!("{worlds} worlds: {sum:?}");
    let enough = sum.crashes > worlds
        && sum.cuts > worlds
        && sum.outages > worlds
        && sum.replaced > worlds / 2
        && sum.moved > worlds / 2;
    assert!(worlds < 20 || enough, "too little happened in {worlds} worlds: {sum:?}");
}

/// A proxy was pushed slots that it had gained and lost again while its coordinators were busy.
#[test]
fn a_replaced_proxy_does_not_serve_beside_its_successor() {
    simulate(10_945_812_759_044_315_120, None);
}

/// A tree that was inconsistent for a moment.
#[test]
fn a_tree_is_sound_at_every_moment() {
    simulate(39, None);
}

/// A cluster that dropped a lost primary and was then made smaller: its creation was complete, and the slots
/// had no owner.
#[test]
fn slots_that_were_given_up_get_an_owner() {
    simulate(6_271_562_721_701_550_940, None);
}

#[test]
fn a_seed_is_the_same_history_again() {
    seeds(4, |seed| {
        let (one, other) = (simulate(seed, None), simulate(seed, None));
        let differs = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(at) = differs {
            let near = at.saturating_sub(3)..at + 3;
            panic!("{at}: {:#?}\n{:#?}", &one.trace[near.clone()], &other.trace[near]);
        }
        assert_eq!(one, other);
    });
}

/// A simulation that cannot fail proves nothing: each planted bug is found by some seed.
fn assert_found(sabotage: Sabotage, expected: &[&str]) {
    let found = (0..60).find_map(|seed| {
        let world = catch_unwind(AssertUnwindSafe(|| simulate(seed, Some(sabotage))));
        let panic = world.err()?;
        panic.downcast_ref::<String>().cloned()
    });
    let found = found.unwrap_or_else(|| panic!("no seed found {sabotage:?}"));
    assert!(expected.iter().any(|expected| found.contains(expected)), "{sabotage:?} was found as: {found}");
}

#[test]
fn a_report_before_the_lease_ran_out_is_found() {
    assert_found(Sabotage::ReportsBeforeTheLeaseRanOut, &["are served by"]);
}

#[test]
fn a_push_before_the_commit_is_found() {
    assert_found(Sabotage::PushesBeforeTheCommit, &["before it was committed"]);
}

#[test]
fn a_coordinator_that_grants_alone_without_the_store_is_found() {
    let sabotage = Some(Sabotage::GrantsAloneWithoutTheStore);
    let found = catch_unwind(|| world::the_only_link_has_no_store(1, sabotage)).unwrap_err();
    let found = found.downcast_ref::<String>().unwrap();
    assert!(found.contains("are served by"), "{found}");
}

#[test]
fn a_coordinator_that_lost_the_store_does_not_keep_an_owner_alive_alone() {
    seeds(soak(4, 500), |seed| world::the_only_link_has_no_store(seed, None));
}

#[test]
fn a_newcomer_takes_nothing_from_an_owner_that_others_may_still_grant() {
    seeds(soak(4, 500), world::a_newcomer_has_the_store);
}

#[test]
fn a_replacement_without_the_epoch_guard_is_found() {
    assert_found(Sabotage::ReplacesWithoutTheEpochGuard, &["not sound", "went back", "are served by"]);
}
