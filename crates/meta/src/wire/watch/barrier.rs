//! When have all watchers of a stream seen everything up to a revision? When each of them has said so.
//!
//! Pure: it is told what was asked and what each watcher reports, and says when to answer.

use std::collections::HashSet;

use super::watcher::Serial;
use crate::kv::Revision;

/// A question that waits for every watcher of the stream.
#[derive(Debug)]
pub(super) struct Barrier {
    /// Where the store was when the question came: older reports do not count.
    target: Revision,
    waiting: HashSet<Serial>,
    /// The least that any watcher has reported.
    seen: Option<Revision>,
    /// Somebody asked again meanwhile and is owed a newer answer.
    asked_again: bool,
}

/// What a closed barrier has found out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// Every watcher has seen everything up to here.
    pub(super) revision: Revision,
    /// The question must be put once more.
    pub(super) again: bool,
}

/// Whether a report counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// It does, or nobody waits for it.
    Taken,
    /// It is from before the question; the watcher must be asked again.
    TooOld,
}

impl Barrier {
    /// Waits for all of these watchers to come as far as the store was.
    pub(super) fn new(target: Revision, watchers: impl IntoIterator<Item = Serial>) -> Barrier {
        Barrier { target, waiting: watchers.into_iter().collect(), seen: None, asked_again: false }
    }

    /// The question came again before it was answered.
    pub(super) fn ask_again(&mut self) {
        self.asked_again = true;
    }

    /// A new watcher is on the stream; the answer must hold for it too.
    pub(super) fn join(&mut self, watcher: Serial) {
        self.waiting.insert(watcher);
    }

    /// A watcher is gone; nothing has to hold for it any more.
    pub(super) fn leave(&mut self, watcher: Serial) {
        self.waiting.remove(&watcher);
    }

    /// A watcher has delivered everything up to here.
    pub(super) fn report(&mut self, watcher: Serial, revision: Revision) -> Report {
        if revision < self.target {
            return Report::TooOld;
        }
        if self.waiting.remove(&watcher) {
            self.seen = Some(self.seen.map_or(revision, |seen| seen.min(revision)));
        }
        Report::Taken
    }

    /// The answer, once nobody is waited for.
    pub(super) fn passed(&self) -> Option<Passed> {
        let revision = self.seen.unwrap_or(self.target);
        self.waiting.is_empty().then_some(Passed { revision, again: self.asked_again })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_when_the_last_watcher_has_come_far_enough() {
        let mut barrier = Barrier::new(Revision(5), [1, 2]);
        assert_eq!(barrier.report(1, Revision(7)), Report::Taken);
        assert_eq!(barrier.passed(), None);
        assert_eq!(barrier.report(2, Revision(4)), Report::TooOld);
        assert_eq!(barrier.passed(), None);
        assert_eq!(barrier.report(2, Revision(6)), Report::Taken);
        assert_eq!(barrier.passed(), Some(Passed { revision: Revision(6), again: false }));
    }

    #[test]
    fn newcomers_are_waited_for_and_leavers_are_not() {
        let mut barrier = Barrier::new(Revision(5), [1]);
        barrier.join(2);
        assert_eq!(barrier.report(1, Revision(5)), Report::Taken);
        assert_eq!(barrier.passed(), None);
        barrier.leave(2);
        barrier.ask_again();
        assert_eq!(barrier.passed(), Some(Passed { revision: Revision(5), again: true }));
    }

    #[test]
    fn without_watchers_it_is_open() {
        let barrier = Barrier::new(Revision(9), []);
        assert_eq!(barrier.passed(), Some(Passed { revision: Revision(9), again: false }));
    }
}
