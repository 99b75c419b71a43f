//! What does a move do next? Decided after every pass from what is left, what is possible and whether anybody asked.

use std::time::Duration;

/// How long the last pass may take, by the speed so far: clients wait for it.
const SHORT_HOLD: Duration = Duration::from_millis(10);
/// The same when clients write so much that the short hold is never reached.
const LONG_HOLD: Duration = Duration::from_millis(250);
/// Passes after which a longer hold is better than copying the same keys for ever.
const PATIENCE: u64 = 50;
/// Fewer keys than this are always few.
const FEW_KEYS: u64 = 64;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Copy what is dirty.
    Pass,
    /// Nearly equal, and nobody asks: rest a little, then copy what is dirty.
    Rest,
    /// Nearly equal, and somebody asks: close the gate.
    Hold,
    /// Anything may have changed: from the start.
    StartOver,
}

/// What is known after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Keys written and not copied; `usize::MAX` if all of them may be.
    pub dirty: usize,
    /// Passes so far.
    pub passes: u64,
    /// Keys copied in a second.
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

/// Whether what is dirty can be copied while clients wait.
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
