//! The task behind a subscription with consumers: fetches, delivers, redelivers, writes checkpoints. It ends when the last
//! consumer is gone and everything is written, or when the topic is not led here any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tonic::Status;

use super::dispatch::Poison;
use super::now_ms;
use super::partition::Partition;
use super::read::{Found, Place};
use super::subscription::Subscription;
use super::throttle::Throttle;
use crate::error::TopicsError;

/// A checkpoint is written after so many acknowledgments ...
const SAVE_AFTER_ACKS: u32 = 1_000;
/// ... or so many milliseconds after the first of them.
const SAVE_AFTER_MS: u64 = 5_000;
/// Messages that are fetched at a time.
const FETCH: usize = 256;
/// Pause after a failure of the log or of a dead letter topic.
const RETRY: Duration = Duration::from_millis(RETRY_MS);
const RETRY_MS: u64 = 500;
/// The longest sleep: what was missed otherwise is seen then.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

struct Pump {
    subscription: Arc<Subscription>,
    partition: Arc<Partition>,
    place: Place,
    rate: Throttle,
    /// What failed is tried again then.
    retry_at: Option<tokio::time::Instant>,
}

/// Delivers until there is nothing left to do.
pub(super) async fn run(subscription: Arc<Subscription>) {
    let Some(partition) = subscription.partition.upgrade() else {
        // The topic was given up before the first turn: streams must not stay open.
        drop(subscription.take_outlets());
        return;
    };
    let (place, rate) = (Place::default(), Throttle::default());
    let mut pump = Pump { subscription, partition, place, rate, retry_at: None };
    let (mut ends, mut standing) = (pump.partition.ends(), pump.partition.log.standing());
    loop {
        if pump.partition.is_over() {
            pump.close().await;
            return;
        }
        ends.borrow_and_update();
        let worked = pump.turn().await;
        pump.save_if_due().await;
        if worked {
            tokio::task::yield_now().await;
            continue;
        }
        if pump.is_idle() {
            return;
        }
        tokio::select! {
            () = pump.subscription.changed.notified() => {}
            Ok(()) = ends.changed() => {}
            Ok(()) = standing.changed() => {}
            () = tokio::time::sleep(pump.sleep()) => {}
        }
    }
}

impl Pump {
    /// Fetches and delivers once; whether there may be more to do at once.
    async fn turn(&mut self) -> bool {
        let now = now_ms();
        let (room, from) = {
            let ttl = self.subscription.surroundings.message_ttl(&self.partition);
            let mut state = self.subscription.state();
            state.dispatch.time_out(now);
            state.dispatch.expire(ttl, now);
            (state.dispatch.room(), state.dispatch.position())
        };
        self.fetch_due().await;
        let waits = self.retry_at.is_some_and(|at| at > tokio::time::Instant::now());
        let fetched = if room > 0 && !waits { self.fetch(from, room.min(FETCH)).await } else { false };
        let delivered = self.deliver().await;
        self.bury().await;
        self.note_expired();
        fetched || delivered
    }

    /// Fetches delayed messages whose time has come, those that follow each other together.
    async fn fetch_due(&self) {
        let mut due = self.subscription.state().dispatch.take_due();
        due.sort_unstable();
        let runs = due.chunk_by(|one, next| one + 1 == *next).flat_map(|run| run.chunks(FETCH));
        for run in runs {
            // Where the reader goes on is another place.
            let found = self.partition.fetch(&mut Place::default(), run[0], run.len()).await;
            let mut state = self.subscription.state();
            let now = now_ms();
            match found {
                Ok(Found::Messages(messages)) => {
                    let missing = run.get(messages.len()..).unwrap_or_default();
                    missing.iter().for_each(|offset| state.dispatch.delay_again(*offset, now + RETRY_MS));
                    messages.into_iter().for_each(|message| state.dispatch.ripe(message, now));
                }
                Ok(Found::Gone { start } | Found::Compacted { next: start }) => {
                    for offset in run {
                        match *offset < start {
                            true => state.dispatch.put_aside(*offset),
                            false => state.dispatch.delay_again(*offset, now + RETRY_MS),
                        }
                    }
                }
                Err(error) => {
                    let topic = &self.partition.text;
                    tracing::warn!(topic, offset = run[0], %error, "delayed messages were not read; trying again");
                    run.iter().for_each(|offset| state.dispatch.delay_again(*offset, now + RETRY_MS));
                }
            }
        }
    }

    /// Messages that were too old move the cursor as acknowledgments do.
    fn note_expired(&self) {
        let mut state = self.subscription.state();
        let expired = state.dispatch.take_expired();
        if expired > 0 {
            state.unsaved += expired;
            state.unsaved_since.get_or_insert_with(now_ms);
            self.partition.expired.fetch_add(expired.into(), Ordering::Relaxed);
        }
    }

    async fn fetch(&mut self, from: u64, count: usize) -> bool {
        match self.partition.fetch(&mut self.place, from, count).await {
            Ok(Found::Messages(messages)) => {
                let found = !messages.is_empty();
                let mut state = self.subscription.state();
                // A seek may have come in between.
                if found && state.dispatch.position() == from {
                    state.dispatch.offer(messages, now_ms());
                }
                found
            }
            Ok(Found::Compacted { next }) => {
                let mut state = self.subscription.state();
                if state.dispatch.position() == from {
                    state.dispatch.pass_to(next);
                }
                true
            }
            Ok(Found::Gone { start }) => {
                let missed = start.saturating_sub(from);
                if self.partition.is_reliable() {
                    tracing::warn!(topic = %self.partition.text, subscription = %self.subscription.name, from, start,
                        "messages are gone before they were delivered");
                } else {
                    self.partition.dropped.fetch_add(missed, Ordering::Relaxed);
                }
                let mut state = self.subscription.state();
                state.dispatch.skip_to(start);
                missed > 0
            }
            Err(error) => {
                if !self.partition.is_over() {
                    tracing::warn!(topic = %self.partition.text, %error, "reading a topic failed; trying again");
                }
                self.pause();
                false
            }
        }
    }

    fn pause(&mut self) {
        self.retry_at = Some(tokio::time::Instant::now() + RETRY);
    }

    async fn deliver(&mut self) -> bool {
        let limit = self.subscription.surroundings.dispatch_rate(&self.partition);
        let mut delivered = false;
        loop {
            let sent = self.deliver_one();
            delivered |= sent;
            if !sent {
                return delivered;
            }
            if let Some(at) = self.rate.take(1, limit) {
                tokio::time::sleep_until(at).await;
                return delivered;
            }
        }
    }

    /// Sends the next message, if there is one and a consumer takes it.
    fn deliver_one(&self) -> bool {
        let now = now_ms();
        let mut state = self.subscription.state();
        let Some(delivery) = state.dispatch.next(now) else { return false };
        let partition = &self.partition;
        let message =
            delivery.message.to_wire(&partition.text, &partition.broker_url, self.subscription.name.as_str());
        let sent = match state.outlets.get(&delivery.seat) {
            Some(outlet) => outlet.messages.try_send(Ok(message)),
            None => Err(TrySendError::Closed(Ok(message))),
        };
        if sent.is_err() {
            state.dispatch.undelivered(&delivery, now);
        }
        true
    }

    /// Puts messages aside that were delivered too often.
    async fn bury(&mut self) {
        let (poison, topic) = {
            let mut state = self.subscription.state();
            let topic = state.dispatch.policy().dead_letter_topic.clone();
            (state.dispatch.take_poison(), topic)
        };
        if poison.is_empty() {
            return;
        }
        let topic = topic.unwrap_or_else(|| format!("{}-dlq", self.partition.text));
        for dead in poison {
            let offset = dead.message.offset;
            let buried = self.bury_one(topic.clone(), dead.clone()).await;
            match buried {
                Ok(()) => self.subscription.state().dispatch.put_aside(offset),
                Err(error) => {
                    tracing::warn!(topic, offset, %error, "a message was not put aside; trying again");
                    self.subscription.state().dispatch.keep_poison(dead);
                    self.pause();
                }
            }
        }
    }

    async fn bury_one(&self, topic: String, poison: Poison) -> Result<(), TopicsError> {
        let name = self.subscription.name.to_string();
        self.subscription.surroundings.bury(topic, self.partition.clone(), poison, name).await
    }

    async fn save_if_due(&mut self) {
        let due = {
            let state = self.subscription.state();
            let old = state.unsaved_since.is_some_and(|since| now_ms() >= since + SAVE_AFTER_MS);
            let last = state.unsaved > 0 && state.outlets.is_empty();
            state.unsaved >= SAVE_AFTER_ACKS || old || last
        };
        if due {
            self.save().await;
        }
    }

    /// Writes a checkpoint. What is acknowledged meanwhile is written with the next one.
    async fn save(&mut self) {
        let (checkpoint, unsaved) = {
            let mut state = self.subscription.state();
            let unsaved = std::mem::take(&mut state.unsaved);
            state.unsaved_since = None;
            (state.checkpoint(&self.subscription, &self.partition), unsaved)
        };
        match self.subscription.surroundings.save(checkpoint).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::debug!(subscription = %self.subscription.name, "checkpoint is not ours to write")
            }
            Err(error) => {
                tracing::warn!(topic = %self.partition.text, subscription = %self.subscription.name, %error,
                    "a cursor was not written; trying again");
                self.unsave(unsaved);
                self.pause();
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    fn unsave(&self, acknowledgments: u32) {
        let mut state = self.subscription.state();
        state.unsaved += acknowledgments;
        state.unsaved_since.get_or_insert_with(now_ms);
    }

    /// Whether the task may end: nothing is connected, nothing is unwritten.
    fn is_idle(&self) -> bool {
        let mut state = self.subscription.state();
        let idle = state.outlets.is_empty() && state.unsaved == 0;
        state.pumping = !idle;
        idle
    }

    /// The topic is led elsewhere by now: consumers are sent there.
    async fn close(&mut self) {
        // Consumers first: the store may not answer, and they are waited for elsewhere.
        for outlet in self.subscription.take_outlets() {
            let moved = TopicsError::NotHere { topic: self.partition.text.clone(), at: None };
            // A consumer that reads nothing finds the stream closed.
            drop(outlet.messages.try_send(Err(Status::from(moved))));
        }
        let unsaved = self.subscription.state().unsaved;
        if unsaved > 0 {
            // Refused if the next broker has written already; then some messages are delivered again.
            let checkpoint = self.subscription.checkpoint(&self.partition);
            if let Err(error) = self.subscription.surroundings.save(checkpoint).await {
                tracing::debug!(topic = %self.partition.text, %error, "the last cursor was not written");
            }
        }
    }

    fn sleep(&self) -> Duration {
        let now = now_ms();
        let state = self.subscription.state();
        let save = state.unsaved_since.map(|since| since + SAVE_AFTER_MS);
        let due = [state.dispatch.next_due(now), save].into_iter().flatten().min();
        let wait = due.map_or(LONGEST_SLEEP, |at| Duration::from_millis(at.saturating_sub(now).max(1)));
        let started = tokio::time::Instant::now();
        let retry = self.retry_at.filter(|at| *at > started);
        let wait = retry.map_or(wait, |at| wait.min(at.duration_since(started)));
        wait.clamp(Duration::from_millis(1), LONGEST_SLEEP)
    }
}
