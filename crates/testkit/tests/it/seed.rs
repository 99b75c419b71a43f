use std::collections::HashSet;
use std::panic::catch_unwind;

use capstan_testkit::TempDir;
use capstan_testkit::process::{child_arguments, child_test};
use capstan_testkit::seed::{rng, seeds};
use rand::RngExt;

use crate::DEADLINE;

#[test]
fn every_seed_is_fresh_and_a_generator_repeats_itself() {
    let mut seen = HashSet::new();
    seeds(50, |seed| assert!(seen.insert(seed)));
    assert_eq!(rng(7).random::<u64>(), rng(7).random::<u64>());
}

#[test]
fn a_panic_goes_on_and_stops_the_run() {
    let mut runs = 0;
    let outcome = catch_unwind(std::panic::AssertUnwindSafe(|| {
        seeds(10, |_| {
            runs += 1;
            assert!(runs < 3, "planted");
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(runs, 3);
}

/// Child role: fails for every seed.
#[test]
fn failing_child() {
    if child_arguments("seed::failing_child").is_some() {
        seeds(10, |seed| panic!("planted failure of seed {seed}"));
    }
}

#[tokio::test]
async fn a_failure_prints_the_line_that_replays_it() {
    let dir = TempDir::new("seed").unwrap();
    let child = child_test("seed::failing_child", &dir.join("ready"), [""; 0]).unwrap();
    let mut child = child.env("CAPSTAN_SEED", "4711").spawn(dir.join("log")).unwrap();
    assert!(!child.exited(DEADLINE).await.unwrap().success());
    let log = child.log_text();
    assert!(log.contains("planted failure of seed 4711"), "{log}");
    assert!(log.contains("CAPSTAN_SEED=4711 cargo test -p capstan-testkit seed::failing_child"), "{log}");
}
