//! What has each producer published? Enough of it to recognise what is published again.

use std::collections::{HashMap, VecDeque};

use super::envelope::Envelope;

/// Batches of a producer that are remembered: what may be in flight and published again.
const REMEMBERED: usize = 64;
/// Producers that are remembered; beyond it those that published longest ago are forgotten.
const MAX_PRODUCERS: usize = 10_000;

/// The state of all producers of a partition. Pure; rebuilt from the newest entries of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Producers {
    known: HashMap<Life, Producer>,
}

/// A producer, and which of its lives: a program that is started again counts its sequences from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    pub(crate) producer_id: u64,
    /// Zero: clients that do not tell their lives apart.
    pub(crate) session: u64,
}

#[derive(Clone, Debug, Default)]
struct Producer {
    /// The sequence of the next record.
    next: i64,
    batches: VecDeque<Batch>,
    /// The newest offset, to find those that are silent for long.
    newest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    sequence: i64,
    count: u32,
    offset: u64,
}

/// What a sequence says about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is new.
    New,
    /// It was published before, at this offset.
    Known { offset: u64 },
    /// Records are missing in front of it, or it is too old to tell.
    OutOfOrder { expected: i64 },
}

impl Producers {
    /// Notes an entry of the log.
    pub(crate) fn note(&mut self, envelope: &Envelope) {
        if envelope.base_sequence < 0 {
            return;
        }
        let life = Life { producer_id: envelope.producer_id, session: envelope.session };
        if self.known.len() >= MAX_PRODUCERS && !self.known.contains_key(&life) {
            let silent = self.known.iter().min_by_key(|(_, known)| known.newest).map(|(life, _)| *life);
            silent.map(|life| self.known.remove(&life));
        }
        let known = self.known.entry(life).or_default();
        known.next = envelope.base_sequence + i64::from(envelope.count);
        known.newest = envelope.base_offset;
        let (sequence, count, offset) = (envelope.base_sequence, envelope.count, envelope.base_offset);
        known.batches.push_back(Batch { sequence, count, offset });
        if known.batches.len() > REMEMBERED {
            known.batches.pop_front();
        }
    }

    /// What is to be done with a batch.
    pub(crate) fn judge(&self, life: Life, sequence: i64, count: u32) -> Verdict {
        let Some(known) = self.known.get(&life).filter(|_| sequence >= 0) else { return Verdict::New };
        if sequence == known.next {
            return Verdict::New;
        }
        let same =
            known.batches.iter().rev().find(|batch| batch.sequence == sequence && batch.count == count);
        match same {
            Some(batch) => Verdict::Known { offset: batch.offset },
            None => Verdict::OutOfOrder { expected: known.next },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::envelope::Format;

    fn batch(producer_id: u64, base_sequence: i64, count: u32, base_offset: u64) -> Envelope {
        Envelope {
            format: Format::Native,
            count,
            base_offset,
            leader_epoch: 1,
            producer_id,
            producer_epoch: 0,
            session: 0,
            base_sequence,
            base_timestamp: 0,
            max_timestamp: 0,
            append_time: 0,
        }
    }

    fn life(producer_id: u64, session: u64) -> Life {
        Life { producer_id, session }
    }

    #[test]
    fn what_is_published_again_gets_its_first_offset() {
        let mut producers = Producers::default();
        assert_eq!(producers.judge(life(1, 0), 5, 2), Verdict::New);
        producers.note(&batch(1, 5, 2, 100));
        assert_eq!(producers.judge(life(1, 0), 7, 1), Verdict::New);
        producers.note(&batch(1, 7, 1, 103));
        assert_eq!(producers.judge(life(1, 0), 5, 2), Verdict::Known { offset: 100 });
        assert_eq!(producers.judge(life(1, 0), 7, 1), Verdict::Known { offset: 103 });
        assert_eq!(producers.judge(life(1, 0), 9, 1), Verdict::OutOfOrder { expected: 8 });
        assert_eq!(producers.judge(life(1, 0), 5, 3), Verdict::OutOfOrder { expected: 8 });
        assert_eq!(producers.judge(life(2, 0), 9, 1), Verdict::New);
        assert_eq!(producers.judge(life(1, 0), -1, 1), Verdict::New);
    }

    #[test]
    fn another_life_of_a_producer_repeats_nothing_of_an_earlier_one() {
        let mut producers = Producers::default();
        producers.note(&Envelope { session: 7, ..batch(1, 1, 1, 0) });
        assert_eq!(producers.judge(life(1, 8), 1, 1), Verdict::New);
        producers.note(&Envelope { session: 8, ..batch(1, 1, 1, 1) });
        assert_eq!(producers.judge(life(1, 7), 1, 1), Verdict::Known { offset: 0 });
        assert_eq!(producers.judge(life(1, 8), 1, 1), Verdict::Known { offset: 1 });
    }
}
