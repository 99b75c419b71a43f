//! Why does a node not reply? Its host can tell a dead process from one that loads, works or is stopped.

use capstan_redis_proxy::conversation::TalkError;

use super::process::{Pulse, ServerProcess};

/// Why a node does not reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It has not replied since it was started: it is loading.
    Loading,
    /// It executes a long command.
    Busy,
    /// It is alive and does nothing.
    Frozen,
    /// The state of its process is unknown.
    Down,
}

/// What is remembered of a process between two checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    /// Whether this process has replied without loading.
    pub answered: bool,
    /// The CPU time that it had used at the last missing reply.
    pub worked: u64,
}

/// Interprets a failed request to a node. The signs are updated; the second value grows with the activity of
/// the process.
pub(super) fn of(
    error: &TalkError,
    process: Option<&mut ServerProcess>,
    signs: &mut Signs,
) -> (Silence, u64) {
    let pulse = process.and_then(|process| process.pulse());
    let silence = judge(error, pulse, *signs);
    let worked = pulse.map_or(0, |pulse| pulse.worked);
    signs.worked = worked;
    (silence, worked)
}

fn judge(error: &TalkError, pulse: Option<Pulse>, signs: Signs) -> Silence {
    if error.has_code("LOADING") {
        return Silence::Loading;
    }
    if error.has_code("BUSY") {
        return Silence::Busy;
    }
    match (pulse, error) {
        // It replied, but not as expected.
        (_, TalkError::Refused { .. } | TalkError::Nonsense { .. } | TalkError::Unexpected { .. })
        | (None, _) => Silence::Down,
        (Some(pulse), _) if pulse.stopped => Silence::Frozen,
        (Some(_), _) if !signs.answered => Silence::Loading,
        (Some(pulse), _) if pulse.worked > signs.worked => Silence::Busy,
        (Some(_), _) => Silence::Frozen,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_that_lives_is_not_dead() {
        let to: crate::Address = "h:1".parse().unwrap();
        let late = TalkError::Late { to: to.clone(), within: Duration::ZERO };
        let refused = |text: &str| TalkError::Refused { to: to.clone(), text: text.to_owned() };
        let pulse = |stopped, worked| Some(Pulse { stopped, worked });
        let known = Signs { answered: true, worked: 5 };
        let cases = [
            (&late, None, known, Silence::Down),
            (&late, pulse(true, 9), known, Silence::Frozen),
            (&late, pulse(false, 9), known, Silence::Busy),
            (&late, pulse(false, 5), known, Silence::Frozen),
            (&late, pulse(false, 5), Signs::default(), Silence::Loading),
            (&refused("LOADING dataset"), pulse(false, 5), known, Silence::Loading),
            (&refused("BUSY script"), pulse(false, 5), known, Silence::Busy),
            (&refused("WRONGPASS"), pulse(false, 9), known, Silence::Down),
        ];
        for (error, pulse, signs, expected) in cases {
            assert_eq!(judge(error, pulse, signs), expected, "{error} {pulse:?} {signs:?}");
        }
    }
}
