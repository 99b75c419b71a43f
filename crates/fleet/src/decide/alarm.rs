//! When must the decision be made again? Every question whether a time has passed registers that time.

use std::cell::Cell;
use std::time::Duration;

use crate::encoding::Moment;

/// The moment of a decision, and the next one at which it may turn out otherwise.
#[derive(Debug)]
pub struct Alarm {
    now: Moment,
    next: Cell<Option<Moment>>,
}

impl Alarm {
    /// An alarm that is not set.
    #[must_use]
    pub fn new(now: Moment) -> Alarm {
        Alarm { now, next: Cell::new(None) }
    }

    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// Whether so much time has passed since a moment. If not, the alarm is set to when it will have.
    pub(super) fn passed(&self, since: Moment, wait: Duration) -> bool {
        let at = since.plus(wait);
        if at <= self.now {
            return true;
        }
        self.at(at);
        false
    }

    /// The decision may be another one in the next minute: a window opens and closes with minutes.
    pub(super) fn next_minute(&self) {
        let minutes = self.now.as_epoch().as_secs() / 60 + 1;
        self.at(Moment::from_unix(minutes * 60));
    }

    fn at(&self, at: Moment) {
        self.next.set(Some(self.next.get().map_or(at, |next| next.min(at))));
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.next.get()
    }
}
