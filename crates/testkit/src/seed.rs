//! Randomized tests that can be replayed: a failure prints its seed and the command that replays it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Replays one seed.
pub const SEED: &str = "CAPSTAN_SEED";
/// Runs that many fresh seeds.
pub const SEEDS: &str = "CAPSTAN_SEEDS";
/// `1`: run the long forms.
pub const SOAK: &str = "CAPSTAN_SOAK";

/// A generator for a seed; the same seed gives the same numbers.
#[must_use]
pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Runs `test` with `count` seeds. When one panics, its seed and the replay command are printed and the panic continues.
///
/// The seeds are 0, 1, 2 ..., so that a change is judged by what it changes; the long form looks for new failures with
/// fresh seeds. `CAPSTAN_SEED=<n>` runs only that seed; `CAPSTAN_SEEDS=<count>` runs that many fresh ones.
pub fn seeds(count: usize, test: impl FnMut(u64)) {
    each(chosen(count), test);
}

fn each(seeds: Vec<u64>, mut test: impl FnMut(u64)) {
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| test(seed)));
        if let Err(panic) = outcome {
            eprintln!("seed {seed} failed; replay it with:\n    {}", replay_line(seed));
            resume_unwind(panic);
        }
    }
}

/// `short`, or `long` when `CAPSTAN_SOAK=1`.
#[must_use]
pub fn soak<T>(short: T, long: T) -> T {
    if std::env::var_os(SOAK).is_some_and(|on| on == "1") { long } else { short }
}

/// The seeds of this run.
fn chosen(count: usize) -> Vec<u64> {
    if let Some(seed) = number_from(SEED) {
        return vec![seed];
    }
    let fresh = number_from(SEEDS).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    match fresh.or(soak(None, Some(count))) {
        Some(count) => rand::rng().random_iter().take(count).collect(),
        None => (0..count as u64).collect(),
    }
}

/// A seed that is not a number would silently test something else, so it is a failure.
fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.trim().parse().unwrap_or_else(|e| panic!("{variable}={text} is not a number: {e}")))
}

/// The command that runs the current test with one seed. Test threads have the name of their test, except under
/// nextest, which sets a variable.
fn replay_line(seed: u64) -> String {
    let thread = std::thread::current().name().filter(|name| *name != "main").map(str::to_owned);
    let filter = thread.or_else(|| std::env::var("NEXTEST_TEST_NAME").ok()).unwrap_or_default();
    let package = std::env::var("CARGO_PKG_NAME").map(|name| format!("-p {name} ")).unwrap_or_default();
    format!("{SEED}={seed} cargo test {package}{filter}")
}
