//! How are messages found in the log? By offset: a binary search over the envelopes, then on from there.

use std::sync::Arc;
use std::time::Duration;

use capstan_log::{Entry, Log, LogError, Offset};

use super::envelope::Envelope;
use super::message::{self, Message};
use super::partition::Partition;
use super::producers::Producers;
use crate::error::TopicsError;
use crate::tier::TierOfTopic;
use crate::tier::place::InTier;

/// Bytes of one read, if it finds that many.
const READ_BYTES: usize = 1 << 20;
/// Bytes that are read for each message that is asked for, within the bound above: a consumer that takes a few messages at
/// a time must not read a megabyte for each of them.
const BYTES_PER_MESSAGE: usize = 4 << 10;
/// Bytes that are asked for to look at one entry.
const ONE_ENTRY: usize = 1;
/// Entries of one step backwards.
const STEP: u64 = 256;
/// Entries and bytes at the end of the log from which the producers' state is rebuilt.
const WINDOW_ENTRIES: usize = 4_096;
const WINDOW_BYTES: usize = 16 << 20;

/// Where a reader goes on: this message stands in this entry or behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    known: Option<(u64, Offset)>,
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// Consecutive messages from the offset on; none if there is none yet.
    Messages(Vec<Arc<Message>>),
    /// The offset is gone; this is the first that is there.
    Gone {
        /// The first offset that can be read.
        start: u64,
    },
    /// Compaction has removed the message at the offset, and everything up to the next one.
    Compacted {
        /// Where to go on.
        next: u64,
    },
}

impl Partition {
    /// Messages from this offset on, from memory or from the log.
    pub(crate) async fn fetch(
        &self,
        place: &mut Place,
        from: u64,
        count: usize,
    ) -> Result<Found, TopicsError> {
        if from >= self.end() {
            return Ok(Found::Messages(Vec::new()));
        }
        let recent = {
            let recent = self.recent();
            (recent.from(from, count, READ_BYTES), recent.start())
        };
        match recent {
            (Some(messages), _) => Ok(Found::Messages(messages)),
            (None, start) if !self.is_reliable() => Ok(Found::Gone { start: start.unwrap_or(self.end()) }),
            (None, _) => match self.fetch_from_log(place, from, count).await? {
                Found::Gone { start } => self.fetch_from_tier(from, start, count).await,
                found => Ok(found),
            },
        }
    }

    /// What the log does not have any more, up to its first message.
    async fn fetch_from_tier(&self, from: u64, log_start: u64, count: usize) -> Result<Found, TopicsError> {
        let Some(tier) = &self.tier else { return Ok(Found::Gone { start: log_start }) };
        match tier.read(from, count).await? {
            InTier::Messages(messages) => Ok(Found::Messages(messages)),
            InTier::Compacted(next) => Ok(Found::Compacted { next }),
            InTier::Next(start) => Ok(Found::Gone { start: start.min(log_start) }),
            InTier::Behind => Ok(Found::Gone { start: log_start }),
        }
    }

    async fn fetch_from_log(&self, place: &mut Place, from: u64, count: usize) -> Result<Found, TopicsError> {
        let mut at = match place.known {
            Some((offset, at)) if offset == from => at,
            Some(_) | None => locate(&self.log, from).await?,
        };
        let bytes = count.saturating_mul(BYTES_PER_MESSAGE).min(READ_BYTES);
        let mut messages: Vec<Arc<Message>> = Vec::new();
        let mut last = at;
        loop {
            let batch = match self.log.read(at, bytes).await {
                Err(LogError::Truncated(start)) => {
                    let start = first_offset(&self.log, start).await?.unwrap_or(self.end());
                    return Ok(Found::Gone { start });
                }
                read => read?,
            };
            for entry in &batch.entries {
                let envelope = Envelope::open(&entry.data)?;
                if messages.is_empty() && envelope.base_offset > from {
                    return Ok(Found::Gone { start: envelope.base_offset });
                }
                if envelope.end() <= from {
                    continue;
                }
                if messages.len() >= count {
                    break;
                }
                messages
                    .extend(message::decode(&entry.data)?.into_iter().filter(|found| found.offset >= from));
                last = entry.offset;
            }
            if !messages.is_empty() || batch.next == at {
                place.known = self.cut(&mut messages, count, last);
                return Ok(Found::Messages(messages));
            }
            at = batch.next;
        }
    }

    /// Leaves out what is not announced or not asked for, and says where a reader goes on. `last` is the entry with the
    /// last of the messages; without it there would be fewer than `count`.
    fn cut(&self, messages: &mut Vec<Arc<Message>>, count: usize, last: Offset) -> Option<(u64, Offset)> {
        // What is committed in the log may not be announced yet.
        let (end, read) = (self.end(), messages.len());
        messages.retain(|found| found.offset < end);
        let is_announced = messages.len() == read;
        messages.truncate(count);
        let next = messages.last()?.offset + 1;
        // The next message is behind the last entry, or in it if the entry has more than were asked for.
        let at = if messages.len() < read { last } else { last.plus(1) };
        is_announced.then_some((next, at))
    }

    /// The first message that was taken at this time (milliseconds since 1970) or later.
    pub(crate) async fn offset_at(&self, time: u64) -> Result<u64, TopicsError> {
        if let Some(tier) = &self.tier
            && let Some(offset) = tier.offset_at(time).await?
        {
            return Ok(offset);
        }
        let at = self.log.offset_at(Duration::from_millis(time)).await?;
        Ok(first_offset(&self.log, at).await?.unwrap_or(self.end()))
    }

    /// The first message that can be read.
    pub(crate) async fn start(&self) -> Result<u64, TopicsError> {
        if !self.is_reliable() {
            return Ok(self.recent().start().unwrap_or(self.end()));
        }
        let start = self.log_start().await?;
        Ok(self.tier.as_ref().and_then(TierOfTopic::start).map_or(start, |oldest| oldest.min(start)))
    }

    /// The first message that the log has.
    pub(crate) async fn log_start(&self) -> Result<u64, TopicsError> {
        let start = log_start(&self.log).await?;
        Ok(first_offset(&self.log, start).await?.unwrap_or(self.end()))
    }
}

/// Where the log begins.
pub(super) async fn log_start(log: &Log) -> Result<Offset, TopicsError> {
    match log.read(Offset::ZERO, ONE_ENTRY).await {
        Err(LogError::Truncated(start)) => Ok(start),
        read => Ok(read.map(|_| Offset::ZERO)?),
    }
}

/// When the first message at or behind a place was taken.
pub(super) async fn time_of(log: &Log, at: Offset) -> Result<Option<Duration>, TopicsError> {
    Ok(first_entry(log, at).await?.map(|entry| entry.time))
}

/// The entry with the last message.
pub(super) async fn last_entry(log: &Log) -> Result<Option<Offset>, TopicsError> {
    let (mut to, mut start) = (log.committed()?, Offset::ZERO);
    while to > start {
        let from = Offset(to.0.saturating_sub(STEP)).max(start);
        match last_of(log, from, to).await {
            Err(TopicsError::Log(LogError::Truncated(first))) => start = first.max(start.plus(1)),
            Err(error) => return Err(error),
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => to = from,
        }
    }
    Ok(None)
}

async fn last_of(log: &Log, from: Offset, to: Offset) -> Result<Option<Offset>, TopicsError> {
    let (mut at, mut last) = (from, None);
    while at < to {
        let batch = log.read(at, READ_BYTES).await?;
        last = batch.entries.iter().rfind(|entry| entry.offset < to).map(|entry| entry.offset).or(last);
        if batch.next == at {
            break;
        }
        at = batch.next;
    }
    Ok(last)
}

/// The newest entry whose first message is not behind this offset; the beginning if there is none.
async fn locate(log: &Log, from: u64) -> Result<Offset, TopicsError> {
    let (mut low, mut high) = (Offset::ZERO, log.committed()?);
    while low < high {
        let middle = Offset(low.0 + high.since(low) / 2);
        match log.read(middle, ONE_ENTRY).await {
            Err(LogError::Truncated(start)) => low = start.max(low.plus(1)),
            Err(error) => return Err(error.into()),
            Ok(batch) => match batch.entries.first() {
                Some(entry) if Envelope::open(&entry.data)?.end() <= from => low = entry.offset.plus(1),
                Some(_) => high = middle,
                // An epoch began here: what counts is the entry behind it.
                None => match first_offset(log, batch.next).await? {
                    Some(offset) if offset <= from => low = batch.next,
                    Some(_) | None => high = middle,
                },
            },
        }
    }
    Ok(low)
}

/// The first message at or behind a place in the log.
async fn first_offset(log: &Log, at: Offset) -> Result<Option<u64>, TopicsError> {
    match first_entry(log, at).await? {
        Some(entry) => Ok(Some(Envelope::open(&entry.data)?.base_offset)),
        None => Ok(None),
    }
}

/// The first entry with messages at or behind a place in the log.
async fn first_entry(log: &Log, at: Offset) -> Result<Option<Entry>, TopicsError> {
    let mut at = at;
    loop {
        let batch = log.read(at, ONE_ENTRY).await?;
        if let Some(entry) = batch.entries.into_iter().next() {
            return Ok(Some(entry));
        }
        if batch.next == at {
            return Ok(None);
        }
        at = batch.next;
    }
}

/// The offset of the next message, and what is known about producers, from the end of the log.
pub(super) async fn tip(log: &Log, end: Offset) -> Result<(u64, Producers), TopicsError> {
    let mut newest: Vec<Envelope> = Vec::new();
    let (mut to, mut bytes, mut start) = (end, 0, Offset::ZERO);
    while to > start && (newest.is_empty() || (newest.len() < WINDOW_ENTRIES && bytes < WINDOW_BYTES)) {
        let from = Offset(to.0.saturating_sub(STEP)).max(start);
        match span(log, from, to).await {
            Err(TopicsError::Log(LogError::Truncated(first))) => {
                start = first.max(start.plus(1));
                continue;
            }
            Err(error) => return Err(error),
            Ok((envelopes, read)) => {
                newest.splice(0..0, envelopes);
                bytes += read;
            }
        }
        to = from;
    }
    if newest.is_empty() && start > Offset::ZERO {
        // Retention keeps the last message: without it the next offset is not known, and none may be used twice.
        return Err(TopicsError::Corrupt(format!("log {} has lost its last message", log.name())));
    }
    let mut producers = Producers::default();
    newest.iter().for_each(|envelope| producers.note(envelope));
    Ok((newest.last().map_or(0, Envelope::end), producers))
}

/// The envelopes of a span of the log, and the bytes of their entries.
async fn span(log: &Log, from: Offset, to: Offset) -> Result<(Vec<Envelope>, usize), TopicsError> {
    let (mut envelopes, mut bytes, mut at) = (Vec::new(), 0, from);
    while at < to {
        let batch = log.read(at, READ_BYTES).await?;
        for entry in batch.entries.iter().filter(|entry| entry.offset < to) {
            envelopes.push(Envelope::open(&entry.data)?);
            bytes += entry.data.len();
        }
        if batch.next == at {
            break;
        }
        at = batch.next;
    }
    Ok((envelopes, bytes))
}
