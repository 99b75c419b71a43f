//! What does a move do next? Decided after every pass by what is left to copy and whether a release was
//! requested.

use std::time::Duration;

/// The longest estimated duration of the last pass: clients wait for it.
const SHORT_HOLD: Duration = Duration::from_millis(10);
/// The same after many passes, if clients write too much for the short hold.
const LONG_HOLD: Duration = Duration::from_millis(250);
/// Passes after which a longer hold is better than copying the same keys again and again.
const PATIENCE: u64 = 50;
/// A rest below this number of keys is always short enough.
const FEW_KEYS: u64 = 64;

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Copy the dirty keys.
    Pass,
    /// Nearly equal, and no release was requested: pause, then copy the dirty keys.
    Rest,
    /// Nearly equal, and a release was requested: close the gate.
    Hold,
    /// Any key may have changed: start over.
    StartOver,
}

/// The facts after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Keys written and not copied; `usize::MAX` if any key may be.
    pub dirty: usize,
    /// Passes so far.
    pub passes: u64,
    /// Keys copied per second.
    pub rate: u64,
    /// Whether a coordinator waits for the release.
    pub asked: bool,
}

pub(super) fn next(known: Known) -> Next {
    if known.dirty == usize::MAX {
        return Next::StartOver;
    }
    match (is_calm(known), known.asked) {
        (true, true) => Next::Hold,
        (true, false) => Next::Rest,
        (false, _) => Next::Pass,
    }
}

/// Whether the dirty keys can be copied while clients wait.
pub(super) fn is_calm(known: Known) -> bool {
    let hold = if known.passes < PATIENCE { SHORT_HOLD } else { LONG_HOLD };
    let within = (known.rate as f64 * hold.as_secs_f64()) as u64;
    known.passes > 0 && known.dirty as u64 <= within.max(FEW_KEYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_closes_its_gate_when_little_is_left_and_somebody_asks() {
        let known = Known { dirty: 0, passes: 1, rate: 50_000, asked: true };
        let cases = [
            (known, Next::Hold),
            (Known { asked: false, ..known }, Next::Rest),
            (Known { passes: 0, ..known }, Next::Pass),
            (Known { dirty: 500, ..known }, Next::Hold),
            (Known { dirty: 501, ..known }, Next::Pass),
            (Known { dirty: 501, asked: false, ..known }, Next::Pass),
            (Known { dirty: 64, rate: 1, ..known }, Next::Hold),
            (Known { dirty: 12_500, passes: PATIENCE, ..known }, Next::Hold),
            (Known { dirty: 12_501, passes: PATIENCE, ..known }, Next::Pass),
            (Known { dirty: usize::MAX, ..known }, Next::StartOver),
            (Known { dirty: usize::MAX, asked: false, passes: PATIENCE, ..known }, Next::StartOver),
        ];
        for (known, expected) in cases {
            assert_eq!(next(known), expected, "{known:?}");
        }
    }
}
