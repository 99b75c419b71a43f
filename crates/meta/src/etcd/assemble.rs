//! What a watch response means: whole revisions in order, each once, out of fragments, repetitions and progress
//! answers. Pure; the shell is in `watch`.

use std::sync::Arc;

use etcd_client::proto::{PbEvent, PbWatchResponse};

use super::errors::Failure;
use super::prefix::Prefix;
use super::{answer, history};
use crate::error::MetaError;
use crate::kv::Revision;
use crate::request::{Event, WatchMessage};

/// The watch id of an answer to a progress request: it speaks for the whole stream.
const WHOLE_STREAM: i64 = -1;

/// Streams in a row that may find a server that is behind, before the store counts as one that went back.
const BEHIND_AT_MOST: u32 = 6;

/// Where a watch stands.
#[derive(Debug)]
pub(super) struct Assembler {
    prefix: Prefix,
    /// First revision that has not been delivered; zero until the server has said what "now" is.
    next: i64,
    /// Newest revision that the consumer was told about, as event or as progress.
    told: i64,
    /// Parts of a response that is not complete.
    fragments: Vec<PbEvent>,
    /// How many streams in a row began before what the consumer was told.
    behind: u32,
}

/// What to do about a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing; the server lives.
    Quiet,
    /// Hand this to the consumer.
    Deliver(WatchMessage),
    /// The watch, or this stream of it, is over.
    End(Failure),
}

impl Assembler {
    pub(super) fn new(prefix: Prefix, from: Revision) -> Assembler {
        Assembler { prefix, next: from.0, told: 0, fragments: Vec::new(), behind: 0 }
    }

    /// Where a new stream has to begin. Half a response is forgotten: it comes again.
    pub(super) fn resume(&mut self) -> i64 {
        self.fragments.clear();
        self.next
    }

    /// First revision that has not been delivered.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// Takes a response. `ordered` says whether this server's progress answers come behind the events before them.
    pub(super) fn accept(&mut self, response: PbWatchResponse, ordered: bool) -> Step {
        let now = answer::revision(response.header.as_ref());
        if response.canceled {
            return Step::End(history::cancelled(&response.cancel_reason, response.compact_revision));
        }
        if response.created {
            return self.begin(now);
        }
        let part = response.fragment || !self.fragments.is_empty() || !response.events.is_empty();
        if part {
            self.fragments.extend(response.events);
            return if response.fragment { Step::Quiet } else { self.deliver() };
        }
        if ordered {
            self.next = self.next.max(now.0 + 1);
        } else if response.watch_id == WHOLE_STREAM {
            return Step::Quiet;
        }
        self.progress(now)
    }

    /// A stream begins. One whose server has not reached what the consumer was told may have found a member that lags; if it
    /// stays so, the store went back in time, and what the consumer knows is history that never was.
    fn begin(&mut self, now: Revision) -> Step {
        if now.0 < self.told {
            self.behind += 1;
            return Step::End(match self.behind < BEHIND_AT_MOST {
                true => Failure::Broken(format!("the server is at revision {now}, {} was seen", self.told)),
                false => Failure::Refused(MetaError::Compacted { oldest: now }),
            });
        }
        self.behind = 0;
        if self.next == 0 {
            self.next = now.0 + 1;
        }
        Step::Quiet
    }

    /// Tells the consumer that it has seen everything up to here. A member that lags says less than another one said
    /// before: that is no news.
    pub(super) fn progress(&mut self, revision: Revision) -> Step {
        if revision.0 < self.told {
            return Step::Quiet;
        }
        self.told = revision.0;
        Step::Deliver(WatchMessage::Progress(revision))
    }

    /// A complete response: what is new of it.
    fn deliver(&mut self) -> Step {
        let parts = std::mem::take(&mut self.fragments);
        let wanted = |event: &Event| event.kv.mod_revision.0 >= self.next;
        let events: Arc<[Event]> =
            parts.into_iter().filter_map(|event| answer::event(&self.prefix, event)).filter(wanted).collect();
        let Some(last) = events.last() else { return Step::Quiet };
        let revision = last.kv.mod_revision;
        self.next = revision.0 + 1;
        self.told = self.told.max(revision.0);
        Step::Deliver(WatchMessage::Events { revision, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::{PbKeyValue, PbResponseHeader};

    fn at(revision: i64) -> PbWatchResponse {
        let header = PbResponseHeader { revision, ..Default::default() };
        PbWatchResponse { header: Some(header), ..Default::default() }
    }

    fn events(header: i64, of: &[(i64, &str)]) -> PbWatchResponse {
        let event = |(revision, key): &(i64, &str)| PbEvent {
            kv: Some(PbKeyValue {
                key: key.as_bytes().to_vec(),
                mod_revision: *revision,
                version: 1,
                ..Default::default()
            }),
            ..Default::default()
        };
        PbWatchResponse { events: of.iter().map(event).collect(), ..at(header) }
    }

    fn part(response: PbWatchResponse) -> PbWatchResponse {
        PbWatchResponse { fragment: true, ..response }
    }

    fn created(revision: i64) -> PbWatchResponse {
        PbWatchResponse { created: true, ..at(revision) }
    }

    fn answer_to_progress(revision: i64) -> PbWatchResponse {
        PbWatchResponse { watch_id: WHOLE_STREAM, ..at(revision) }
    }

    /// `(newest revision, revisions and keys)` of what was delivered.
    fn delivered(step: Step) -> (i64, Vec<(i64, String)>) {
        let Step::Deliver(WatchMessage::Events { revision, events }) = step else { panic!("{step:?}") };
        let each = |event: &Event| (event.kv.mod_revision.0, event.kv.key_text().into_owned());
        (revision.0, events.iter().map(each).collect())
    }

    fn assembler(from: i64) -> Assembler {
        Assembler::new(Prefix::new(""), Revision(from))
    }

    #[test]
    fn a_watch_from_now_resumes_behind_the_revision_it_was_created_at() {
        let mut watch = assembler(0);
        assert_eq!(watch.accept(created(7), true), Step::Quiet);
        assert_eq!(watch.resume(), 8);
        // A second stream does not move it.
        assert_eq!(watch.accept(created(12), true), Step::Quiet);
        assert_eq!(watch.resume(), 8);
    }

    #[test]
    fn fragments_become_one_message() {
        let mut watch = assembler(5);
        assert_eq!(watch.accept(part(events(9, &[(5, "a")])), true), Step::Quiet);
        assert_eq!(watch.accept(part(events(9, &[(5, "b")])), true), Step::Quiet);
        let whole = delivered(watch.accept(events(9, &[(5, "c"), (6, "a")]), true));
        assert_eq!(whole, (6, vec![(5, "a".into()), (5, "b".into()), (5, "c".into()), (6, "a".into())]));
        assert_eq!(watch.resume(), 7);
    }

    #[test]
    fn half_a_response_of_a_broken_stream_is_forgotten() {
        let mut watch = assembler(5);
        watch.accept(part(events(9, &[(5, "a")])), true);
        assert_eq!(watch.resume(), 5);
        assert_eq!(delivered(watch.accept(events(9, &[(5, "a")]), true)).1.len(), 1);
    }

    #[test]
    fn what_was_delivered_or_not_asked_for_is_dropped() {
        let mut watch = assembler(5);
        assert_eq!(watch.accept(events(9, &[(3, "old")]), true), Step::Quiet);
        assert_eq!(delivered(watch.accept(events(9, &[(4, "old"), (5, "a")]), true)).1, [(5, "a".into())]);
        assert_eq!(watch.accept(events(9, &[(5, "a")]), true), Step::Quiet);
        assert_eq!(delivered(watch.accept(events(9, &[(5, "a"), (6, "b")]), true)).1, [(6, "b".into())]);
    }

    #[test]
    fn ordered_progress_moves_the_place_to_resume_and_unordered_does_not() {
        let mut watch = assembler(5);
        let progress = |revision| Step::Deliver(WatchMessage::Progress(Revision(revision)));
        assert_eq!(watch.accept(answer_to_progress(9), false), Step::Quiet);
        assert_eq!(watch.resume(), 5);
        assert_eq!(watch.accept(at(6), false), progress(6));
        assert_eq!(watch.resume(), 5, "of an old server even that is not believed");
        assert_eq!(watch.accept(answer_to_progress(9), true), progress(9));
        assert_eq!(watch.resume(), 10);
        assert_eq!(watch.accept(answer_to_progress(8), true), Step::Quiet, "a lagging member");
    }

    #[test]
    fn progress_before_a_future_start_does_not_move_the_start() {
        let mut watch = assembler(100);
        let step = watch.accept(answer_to_progress(9), true);
        assert_eq!(step, Step::Deliver(WatchMessage::Progress(Revision(9))));
        assert_eq!(watch.resume(), 100);
    }

    #[test]
    fn a_cancelled_watch_ends_with_its_reason() {
        let mut watch = assembler(5);
        let cancelled = PbWatchResponse { canceled: true, compact_revision: 8, ..at(0) };
        let compacted = MetaError::Compacted { oldest: Revision(8) };
        assert_eq!(watch.accept(cancelled, true), Step::End(Failure::Refused(compacted)));
    }

    #[test]
    fn a_server_that_stays_behind_went_back() {
        let mut assembler = assembler(0);
        assert_eq!(assembler.accept(created(9), true), Step::Quiet);
        delivered(assembler.accept(events(12, &[(12, "a")]), true));
        for _ in 1..BEHIND_AT_MOST {
            assert!(matches!(assembler.accept(created(11), true), Step::End(Failure::Broken(_))));
        }
        let back = Failure::Refused(MetaError::Compacted { oldest: Revision(11) });
        assert_eq!(assembler.accept(created(11), true), Step::End(back));
        assert_eq!(assembler.accept(created(12), true), Step::Quiet, "a member that lagged");
        assert!(matches!(assembler.accept(created(11), true), Step::End(Failure::Broken(_))));
    }
}
