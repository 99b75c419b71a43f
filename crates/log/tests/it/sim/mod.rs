//! The simulation: the real state machine on simulated disks, networks and clocks, with a controller that changes the
//! configuration at the worst moments. One seed, one world, the same every time.

mod check;
mod disk;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use capstan_testkit::seed;
use world::{Bug, Seen, World};

/// Seeds of one test run; a soak runs a thousand times as many.
const SEEDS: usize = 2_000;
/// Time in each world: many short runs find more than few long ones, except for bugs that need several steps.
const CHAOS: Duration = Duration::from_secs(4);
const LONG_CHAOS: Duration = Duration::from_secs(12);
/// Seeds within which a planted bug must be found.
const SEEDS_FOR_A_BUG: u64 = 3_000;

#[test]
fn nothing_committed_is_lost_changed_or_shown_too_early() {
    let mut seen = Seen::default();
    seed::seeds(seed::soak(SEEDS, SEEDS * 1_000), |seed| {
        let mut world = World::new(seed, Bug::None);
        world.run_chaos(CHAOS);
        world.run_calm();
        seen.add(&world.seen);
    });
    eprintln!("{seen:?}");
    if std::env::var_os(seed::SEED).is_none() && std::env::var_os(seed::SEEDS).is_none() {
        seen.assert_everything_happened();
    }
}

#[test]
fn a_log_that_acknowledges_before_the_sync_is_found_out() {
    find(Bug::AcknowledgeBeforeSync, 0);
}

#[test]
fn a_controller_that_elects_outside_of_the_in_sync_set_is_found_out() {
    find(Bug::ElectAnyone, 4);
}

#[test]
fn a_follower_that_skips_the_tail_cut_is_found_out() {
    find(Bug::SkipCut, 1);
}

#[test]
fn a_primary_that_ignores_the_number_of_copies_is_found_out() {
    find(Bug::IgnoreMinCopies, 35);
}

#[test]
fn a_primary_that_outlives_its_lease_is_found_out() {
    find(Bug::TrustTheLeaseTooLong, 17);
}

#[test]
fn a_primary_that_serves_before_its_epoch_has_begun_is_found_out() {
    find(Bug::ServeBeforeBegin, 1);
}

#[test]
fn a_copy_that_keeps_a_loss_secret_is_found_out() {
    find(Bug::KeepALossSecret, 1);
}

#[test]
fn acknowledgments_of_an_earlier_life_that_count_are_found_out() {
    find(Bug::BelieveEarlierLives, 9);
}

#[test]
fn a_proposal_that_is_forgotten_is_found_out() {
    find(Bug::ForgetAProposal, 24);
}

#[test]
fn a_log_that_leaves_out_some_syncs_is_found_out() {
    find(Bug::SkipSync, 0);
}

#[test]
fn a_set_that_grows_too_early_is_found_out() {
    find(Bug::GrowTooEarly, 0);
}

#[test]
fn a_primary_that_counts_only_itself_is_found_out() {
    find(Bug::CountOnlyItself, 0);
}

#[test]
fn a_primary_that_serves_reads_without_a_lease_is_found_out() {
    find(Bug::ReadWithoutLease, 22);
}

#[test]
fn acknowledgments_of_an_earlier_epoch_that_count_are_found_out() {
    find(Bug::BelieveEarlierEpochs, 2612);
}

#[test]
fn a_follower_that_obeys_a_replaced_primary_is_found_out() {
    find(Bug::ObeyOldPrimaries, 16);
}

#[test]
fn a_follower_that_does_not_compare_its_log_is_found_out() {
    find(Bug::SkipTheMatch, 1);
}

#[test]
fn a_follower_that_acknowledges_what_does_not_match_is_found_out() {
    find(Bug::AcknowledgeTheUnmatched, 4);
}

#[test]
fn a_durable_notice_of_an_earlier_generation_that_counts_is_found_out() {
    find(Bug::IgnoreGenerations, 1381);
}

/// Runs seeds until the planted bug is found, first the one that found it before: a change of the simulation makes that
/// one useless, and the next one is printed.
fn find(bug: Bug, known: u64) {
    let fails =
        |seed: u64| catch_unwind(AssertUnwindSafe(|| World::new(seed, bug).run_chaos(LONG_CHAOS))).is_err();
    let found = std::iter::once(known).chain(0..SEEDS_FOR_A_BUG).find(|seed| fails(*seed));
    let found = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds"));
    eprintln!("{bug:?}: found by seed {found}");
}
