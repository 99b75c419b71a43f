//! How does a message get into the log? Publishers queue; one task at a time gives offsets and appends what is queued in
//! batches, several of which are on their way to the disk; a publisher is answered when its batch is committed.
//!
//! The task begins with the first message and ends with the last. It does not end with a request, so that an append whose
//! publisher has gone away leaves no gap.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use capstan_log::disk::MAX_DATA;
use capstan_log::{LogError, Offset, Pending};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::sync::oneshot;

use super::envelope::{ENVELOPE_BYTES, Envelope, Format};
use super::message::{self, Message, Record};
use super::partition::{Partition, Tip};
use super::producers::{Life, Verdict};
use super::{detach, now_ms};
use crate::error::TopicsError;

/// Bytes that may wait in the queue of one partition; publishers beyond it are refused and try again.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Bytes of one publication, as they are stored. An entry of the log holds it, and so does a delivery: clients of the
/// public wire take 4 MiB, and ask for what they cannot take again at once. The rest is for what is added on the way: the
/// names of topic, subscription and broker, and what a dead letter says about its failure.
pub(crate) const MAX_PUBLICATION_BYTES: usize = MAX_DATA - (8 << 10);
/// Bytes and entries of one append.
const MAX_BATCH_BYTES: usize = 2 << 20;
const MAX_BATCH_ENTRIES: usize = 1_024;
/// Appends on their way at a time: while some are being synced, the next ones are written.
const MAX_IN_FLIGHT: usize = 8;

/// What waits to be appended.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// A task drains the queue.
    draining: bool,
}

#[derive(Debug)]
struct Waiting {
    publication: Publication,
    reply: Reply,
    bytes: usize,
}

type Reply = oneshot::Sender<Result<Published, TopicsError>>;

/// Records of one producer that are published together.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) producer_id: u64,
    /// The life of the producer; zero: none is given.
    pub(crate) session: u64,
    /// The sequence of the first record; negative: none.
    pub(crate) sequence: i64,
    /// Not empty.
    pub(crate) records: Vec<Record>,
}

/// Where records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// The offset of the first.
    pub(crate) offset: u64,
    /// They had been published before.
    pub(crate) duplicate: bool,
}

/// An append on its way.
#[derive(Default)]
struct Append {
    replies: Vec<(Reply, Published)>,
    messages: Vec<Arc<Message>>,
    end: u64,
}

impl Partition {
    /// Publishes records; resolves when they are committed.
    pub(crate) async fn publish(
        self: &Arc<Partition>,
        publication: Publication,
    ) -> Result<Published, TopicsError> {
        if !self.is_reliable() {
            return Ok(self.publish_at_best(publication).await);
        }
        self.enqueue(publication)?.await.map_err(|_| self.not_here())?
    }

    /// Waits while publishers are faster than this rate a second; zero: no limit.
    pub(crate) async fn pace(&self, records: u32, rate: u32) {
        if let Some(at) = self.rate.take(records, rate) {
            tokio::time::sleep_until(at).await;
        }
    }

    /// Queues records; publications of one task are appended in their order.
    pub(crate) fn enqueue(
        self: &Arc<Partition>,
        publication: Publication,
    ) -> Result<oneshot::Receiver<Result<Published, TopicsError>>, TopicsError> {
        let (reply, answer) = oneshot::channel();
        let bytes = message::payload_size(&publication.records);
        if bytes + ENVELOPE_BYTES > MAX_DATA {
            // The log would refuse the append, and with it what others publish at the same time.
            return Err(TopicsError::Log(LogError::TooLong(bytes)));
        }
        let begin = {
            let mut queue = self.queue();
            if queue.bytes > MAX_QUEUED_BYTES {
                return Err(TopicsError::NotReady(format!("too many messages wait for topic {}", self.text)));
            }
            queue.bytes += bytes;
            queue.waiting.push_back(Waiting { publication, reply, bytes });
            !std::mem::replace(&mut queue.draining, true)
        };
        if begin {
            let partition = self.clone();
            detach(async move { partition.drain().await });
        } else {
            self.more.notify_one();
        }
        Ok(answer)
    }

    /// Best effort: in memory only, and gone for consumers that are slow.
    async fn publish_at_best(&self, publication: Publication) -> Published {
        let mut tip = self.tip.lock().await;
        let (offset, append_time) = (tip.next, now_ms());
        let producer_id = publication.producer_id;
        let place =
            |(at, record): (u64, Record)| Arc::new(Message { offset: at, producer_id, append_time, record });
        let messages: Vec<_> = (offset..).zip(publication.records).map(place).collect();
        tip.next += messages.len() as u64;
        self.recent().push(messages);
        self.high.send_replace(tip.next);
        Published { offset, duplicate: false }
    }

    async fn drain(self: Arc<Partition>) {
        let mut tip = self.tip.lock().await;
        let mut appends = FuturesOrdered::new();
        loop {
            if appends.len() < MAX_IN_FLIGHT
                && let Some(batch) = self.take()
            {
                if let Some((append, pending)) = self.append(&mut tip, batch).await {
                    appends.push_back(async move { (append, pending.committed().await) });
                }
                continue;
            }
            tokio::select! {
                Some((append, outcome)) = appends.next() => self.finish(append, outcome),
                () = self.more.notified(), if appends.len() < MAX_IN_FLIGHT && !appends.is_empty() => {}
                else => {
                    if self.rest() {
                        return;
                    }
                }
            }
        }
    }

    /// Ends draining, unless something was queued.
    fn rest(&self) -> bool {
        let mut queue = self.queue();
        queue.draining = !queue.waiting.is_empty();
        !queue.draining
    }

    fn take(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MAX_BATCH_ENTRIES
            && let Some(next) = queue.waiting.front()
            && (batch.is_empty() || bytes + next.bytes <= MAX_BATCH_BYTES)
        {
            bytes += next.bytes;
            batch.extend(queue.waiting.pop_front());
        }
        queue.bytes -= bytes;
        (!batch.is_empty()).then_some(batch)
    }

    /// Gives offsets and submits. After a failure nothing more is appended: the log is read again first.
    async fn append(&self, tip: &mut Tip, batch: Vec<Waiting>) -> Option<(Append, Pending)> {
        if self.is_over() {
            batch.into_iter().for_each(|waiting| drop(waiting.reply.send(Err(self.not_here()))));
            return None;
        }
        let mut draft = Draft { tip, entries: Vec::new(), append: Append::default() };
        for waiting in batch {
            draft.add(waiting, self.epoch.0);
        }
        let Draft { entries, mut append, .. } = draft;
        if entries.is_empty() {
            self.answer_known(append.replies);
            return None;
        }
        append.end = tip.next;
        match self.log.submit(self.epoch, entries).await {
            Ok(pending) => Some((append, pending)),
            Err(error) => {
                self.end_now();
                append.fail(&error);
                None
            }
        }
    }

    /// Answers repetitions as soon as what they repeat is committed.
    fn answer_known(&self, replies: Vec<(Reply, Published)>) {
        let mut ends = self.ends();
        let topic = self.text.clone();
        detach(async move {
            let until = replies.iter().map(|(_, published)| published.offset).max().unwrap_or_default();
            let committed = ends.wait_for(|end| *end > until).await.is_ok();
            for (reply, published) in replies {
                let outcome = if committed {
                    Ok(published)
                } else {
                    Err(TopicsError::NotHere { topic: topic.clone(), at: None })
                };
                // A publisher that is gone needs no answer.
                drop(reply.send(outcome));
            }
        });
    }

    fn finish(&self, append: Append, outcome: Result<(Offset, Offset), LogError>) {
        match outcome {
            Ok(_) => {
                self.recent().push(append.messages);
                self.high.send_replace(append.end);
                for (reply, published) in append.replies {
                    drop(reply.send(Ok(published)));
                }
            }
            Err(error) => {
                // It may be there or not: the log knows, and is read again before anything else is published.
                self.end_now();
                append.fail(&error);
            }
        }
    }

    fn not_here(&self) -> TopicsError {
        TopicsError::NotHere { topic: self.text.clone(), at: None }
    }
}

impl Append {
    fn fail(self, error: &LogError) {
        for (reply, _) in self.replies {
            drop(reply.send(Err(error.clone().into())));
        }
    }
}

/// An append in the making.
struct Draft<'a> {
    tip: &'a mut Tip,
    entries: Vec<Bytes>,
    append: Append,
}

impl Draft<'_> {
    fn add(&mut self, waiting: Waiting, epoch: u64) {
        let Waiting { publication, reply, .. } = waiting;
        let Publication { producer_id, session, sequence, records } = publication;
        let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        match self.tip.producers.judge(Life { producer_id, session }, sequence, count) {
            Verdict::New => {}
            Verdict::Known { offset } => {
                self.append.replies.push((reply, Published { offset, duplicate: true }));
                return;
            }
            Verdict::OutOfOrder { expected } => {
                let why = format!("sequence {sequence} is out of order: the next one is {expected}");
                drop(reply.send(Err(TopicsError::Mismatch(why))));
                return;
            }
        }
        let payload = match message::encode(&records) {
            Ok(payload) => payload,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let times = records.iter().map(|record| record.created_at);
        let envelope = Envelope {
            format: Format::Native,
            count,
            base_offset: self.tip.next,
            leader_epoch: epoch,
            producer_id,
            producer_epoch: 0,
            session,
            base_sequence: sequence,
            base_timestamp: times.clone().next().unwrap_or_default(),
            max_timestamp: times.max().unwrap_or_default(),
            append_time: now_ms(),
        };
        self.entries.push(envelope.seal(&payload));
        self.append.replies.push((reply, Published { offset: envelope.base_offset, duplicate: false }));
        let place = |(offset, record): (u64, Record)| {
            Arc::new(Message { offset, producer_id, append_time: envelope.append_time, record })
        };
        self.append.messages.extend((envelope.base_offset..).zip(records).map(place));
        self.tip.producers.note(&envelope);
        self.tip.next = envelope.end();
    }
}
