//! When is a watch asked for a sign of life, and when is it given up? Pure: time is handed in.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Moment;

/// While the watch holds others up, it is asked again this soon after an answer: a view of several ranges then lags by
/// little more than a round trip.
const ASK_LAGGING: Duration = Duration::from_millis(5);

/// How often a watch is asked, and how long it may take to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    /// A watch that nobody waits for is asked for progress this often.
    pub(super) heartbeat: Duration,
    /// A watch that has not answered for so long is broken.
    pub(super) answer_within: Duration,
    /// While somebody waits for a revision, it is asked this often.
    pub(super) ask_awaited: Duration,
}

/// Why a watch is to make progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Only to prove that it lives.
    Heartbeat,
    /// Somebody waits for a revision.
    Awaited,
    /// Other watches of the view are ahead.
    Lagging,
}

/// The signs of life of one watch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulse {
    rhythm: Rhythm,
    opened_at: Instant,
    heard_at: Instant,
    /// Whether anything ever came.
    alive: bool,
    asked_at: Option<Instant>,
    /// The first question since the last answer.
    unanswered_since: Option<Moment>,
    /// The newest moment of which it is proven that the watch was complete.
    proven_at: Option<Moment>,
}

impl Pulse {
    pub(super) fn new(rhythm: Rhythm, now: Instant) -> Pulse {
        Pulse {
            rhythm,
            opened_at: now,
            heard_at: now,
            alive: false,
            asked_at: None,
            unanswered_since: None,
            proven_at: None,
        }
    }

    /// When it is to be asked next.
    pub(super) fn ask_at(&self, need: Need) -> Instant {
        match need {
            // Whatever it brings by itself: events do not say that none is missing.
            Need::Heartbeat => self.asked_at.unwrap_or(self.opened_at) + self.rhythm.heartbeat,
            Need::Awaited => self.asked_at.map_or(self.heard_at, |asked| asked + self.rhythm.ask_awaited),
            // An answer that did not bring enough is followed by the next question soon, silence is not.
            Need::Lagging if self.unanswered_since.is_none() => {
                self.asked_at.map_or(self.heard_at, |asked| asked + ASK_LAGGING)
            }
            Need::Lagging => self.ask_at(Need::Awaited),
        }
    }

    /// When it is broken if nothing is heard until then.
    pub(super) fn broken_at(&self) -> Option<Instant> {
        self.unanswered_since.map(|since| since.at.max(self.heard_at) + self.rhythm.answer_within)
    }

    /// Whether it was asked and never brought anything at all since it was opened.
    pub(super) fn is_mute(&self) -> bool {
        !self.alive && self.unanswered_since.is_some()
    }

    pub(super) fn asked(&mut self, now: Moment) {
        self.asked_at = Some(now.at);
        self.unanswered_since.get_or_insert(now);
    }

    /// Something came. It may have been on its way for long, so it proves nothing about the last question.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
        self.alive = true;
    }

    /// An answer came: the watch was complete when the question was asked, which is the proof.
    pub(super) fn answered(&mut self, now: Instant) {
        self.heard(now);
        self.proven_at = self.unanswered_since.take().or(self.proven_at);
    }

    pub(super) fn proven_at(&self) -> Option<Moment> {
        self.proven_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RHYTHM: Rhythm = Rhythm {
        heartbeat: Duration::from_secs(5),
        answer_within: Duration::from_secs(4),
        ask_awaited: Duration::from_millis(100),
    };

    fn moment(at: Instant) -> Moment {
        Moment { at, suspended: Duration::from_secs(50) }
    }

    #[test]
    fn a_quiet_watch_is_asked_and_then_given_up() {
        let start = Instant::now();
        let mut pulse = Pulse::new(RHYTHM, start);
        assert_eq!(pulse.ask_at(Need::Heartbeat), start + RHYTHM.heartbeat);
        assert_eq!(pulse.broken_at(), None);
        let asked = start + RHYTHM.heartbeat;
        pulse.asked(moment(asked));
        pulse.asked(moment(asked + RHYTHM.ask_awaited));
        assert_eq!(pulse.broken_at(), Some(asked + RHYTHM.answer_within));
        assert_eq!(pulse.proven_at(), None);
        assert!(pulse.is_mute());
        pulse.answered(asked + RHYTHM.ask_awaited);
        assert_eq!(pulse.proven_at(), Some(moment(asked)), "proof as of the first question");
        assert_eq!(pulse.broken_at(), None);
        pulse.asked(moment(asked + RHYTHM.heartbeat));
        assert!(!pulse.is_mute(), "it has answered before");
    }

    #[test]
    fn a_watch_that_always_brings_something_is_asked_too() {
        let start = Instant::now();
        let mut pulse = Pulse::new(RHYTHM, start);
        let busy = |pulse: &mut Pulse, from: Instant| {
            (1..=5).for_each(|second| pulse.heard(from + Duration::from_secs(second)));
        };
        busy(&mut pulse, start);
        let asked = start + RHYTHM.heartbeat;
        assert_eq!((pulse.ask_at(Need::Heartbeat), pulse.proven_at()), (asked, None));
        pulse.asked(moment(asked));
        busy(&mut pulse, asked);
        assert_eq!(pulse.ask_at(Need::Heartbeat), asked + RHYTHM.heartbeat);
        assert_eq!(pulse.proven_at(), None, "what came may be older than the question");
        let last = asked + Duration::from_secs(5);
        assert_eq!(pulse.broken_at(), Some(last + RHYTHM.answer_within), "it is alive");
        pulse.answered(last);
        assert_eq!((pulse.proven_at(), pulse.broken_at()), (Some(moment(asked)), None));
    }

    #[test]
    fn who_is_waited_for_is_asked_at_once_and_then_again_and_again() {
        let start = Instant::now();
        let mut pulse = Pulse::new(RHYTHM, start);
        assert_eq!(pulse.ask_at(Need::Awaited), start);
        pulse.asked(moment(start));
        assert_eq!(pulse.ask_at(Need::Awaited), start + RHYTHM.ask_awaited);
        assert_eq!(pulse.ask_at(Need::Lagging), start + RHYTHM.ask_awaited, "it has not answered");
        pulse.answered(start);
        assert_eq!(pulse.ask_at(Need::Lagging), start + ASK_LAGGING);
    }
}
