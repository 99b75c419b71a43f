//! The simulation: real copies of tokens on engines that crash, with the real steward and the real states of nodes, in a
//! world that breaks at the worst moments. One seed, one world, the same every time.

mod engine;
mod moves;
mod records;
mod seen;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use capstan_testkit::seed;
use seen::Seen;
use world::{Bug, World};

/// Seeds of one test run; a soak runs a hundred times as many.
const SEEDS: usize = 2_000;
/// What happens in one world.
const STEPS: usize = 140;
/// Seeds within which a planted bug must be found.
const SEEDS_FOR_A_BUG: u64 = 300;

#[test]
fn nothing_acknowledged_is_lost_and_every_copy_is_the_same() {
    let mut seen = Seen::default();
    seed::seeds(seed::soak(SEEDS, SEEDS * 100), |seed| {
        let mut world = World::new(seed, Bug::None);
        world.run(STEPS);
        world.calm();
        seen.add(&world.seen);
    });
    eprintln!("{seen:?}");
    if std::env::var_os(seed::SEED).is_none() && std::env::var_os(seed::SEEDS).is_none() {
        seen.assert_everything_happened();
    }
}

#[test]
fn a_primary_that_serves_before_its_epoch_has_begun_is_found_out() {
    find(Bug::ServeBeforeBegin);
}

#[test]
fn a_log_that_is_shortened_before_the_engine_is_synced_is_found_out() {
    find(Bug::ShortenBeforeSync);
}

#[test]
fn a_copy_that_counts_before_it_is_complete_is_found_out() {
    find(Bug::CountTooEarly);
}

/// Runs seeds until the planted bug is found. Prints the seed, so that it can be replayed.
fn find(bug: Bug) {
    let is_found = |seed: &u64| {
        let run = || {
            let mut world = World::new(*seed, bug);
            world.run(STEPS);
            world.calm();
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    let found = (0..SEEDS_FOR_A_BUG).find(is_found);
    let found = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds"));
    eprintln!("{bug:?}: found by seed {found}");
}
