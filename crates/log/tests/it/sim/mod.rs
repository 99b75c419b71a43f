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
/// Time in each world: many short lives find more than few long ones, except for what takes several steps to go wrong.
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
    find(Bug::AcknowledgeBeforeSync);
}

#[test]
fn a_controller_that_elects_outside_of_the_in_sync_set_is_found_out() {
    find(Bug::ElectAnyone);
}

#[test]
fn a_follower_that_skips_the_tail_cut_is_found_out() {
    find(Bug::SkipCut);
}

/// Runs seeds until the planted bug shows. Says which seed found it, so that it can be looked at.
fn find(bug: Bug) {
    let found = (0..SEEDS_FOR_A_BUG).find(|seed| {
        catch_unwind(AssertUnwindSafe(|| World::new(*seed, bug).run_chaos(LONG_CHAOS))).is_err()
    });
    let found = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds"));
    eprintln!("{bug:?}: found by seed {found}");
}
