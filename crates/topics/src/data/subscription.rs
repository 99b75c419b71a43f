//! A subscription of a topic that is led here: its dispatcher, its consumers and their streams.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tonic::Status;

use super::dispatch::{Dispatch, Poison};
use super::ledger::Ledger;
use super::partition::Partition;
use super::seats::{CONSUMER_WINDOW, Seat};
use super::{detach, now_ms, pump};
use crate::error::TopicsError;
use crate::keys::SubscriptionName;
use crate::spec::{FailurePolicy, SubscriptionKind};
use crate::status::Progress;
use crate::wire::danube::StreamMessage;

/// A consumer that neither has a stream nor was heard of for so long (milliseconds) keeps no place.
pub(crate) const SILENT_MS: u64 = 15_000;

/// A client whose stream was replaced asks for another one at once; so long (milliseconds) that is told from a new wish.
const REPLACED_MS: u64 = 5_000;

/// What a subscription needs from its broker.
pub(crate) trait Surroundings: Send + Sync + 'static {
    /// Writes a checkpoint. False: the subscription is gone, or belongs to another broker by now.
    fn save(&self, progress: Checkpoint) -> BoxFuture<'static, Result<bool, TopicsError>>;

    /// Publishes a message that was delivered too often to its dead letter topic.
    fn bury(
        &self,
        topic: String,
        partition: Arc<Partition>,
        poison: Poison,
        subscription: String,
    ) -> BoxFuture<'static, Result<(), TopicsError>>;

    /// Messages a second that a subscription of this namespace delivers; zero: no limit.
    fn dispatch_rate(&self, partition: &Partition) -> u32;

    /// Milliseconds after which a message of this topic is not delivered any more; zero: never.
    fn message_ttl(&self, partition: &Partition) -> u64;
}

/// The progress of a subscription, to be written.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) topic: crate::spec::TopicName,
    pub(crate) subscription: SubscriptionName,
    pub(crate) progress: Progress,
}

/// A subscription.
pub(crate) struct Subscription {
    pub(crate) name: SubscriptionName,
    pub(super) partition: Weak<Partition>,
    pub(super) surroundings: Arc<dyn Surroundings>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Notify,
}

/// What the dispatcher knows, and what it works on.
pub(super) struct State {
    pub(super) dispatch: Dispatch,
    pub(super) outlets: HashMap<u64, Outlet>,
    /// Consumers that have subscribed and not asked for their stream since.
    claims: HashSet<u64>,
    /// When consumers were last heard of.
    seen: HashMap<u64, u64>,
    /// Numbers the streams.
    streams: u64,
    /// Acknowledgments since the last checkpoint, and since when there are some.
    pub(super) unsaved: u32,
    pub(super) unsaved_since: Option<u64>,
    /// Counts seeks.
    pub(super) seeks: u64,
    pub(super) policy: Option<FailurePolicy>,
    /// A task delivers.
    pub(super) pumping: bool,
}

/// Where messages for a consumer go.
pub(super) struct Outlet {
    stream: u64,
    /// The connection that it is on.
    peer: Option<SocketAddr>,
    /// When it took the place of another stream, in milliseconds.
    replaced_at: Option<u64>,
    pub(super) messages: mpsc::Sender<Result<StreamMessage, Status>>,
}

/// A stream that a consumer has while it asks for another one.
pub(crate) struct Rival {
    messages: mpsc::Sender<Result<StreamMessage, Status>>,
    /// The connection that it is on.
    pub(crate) peer: Option<SocketAddr>,
    /// It took the place of another stream a moment ago.
    pub(crate) is_successor: bool,
}

impl Rival {
    /// Resolves when the stream has ended.
    pub(crate) async fn ended(&self) {
        self.messages.closed().await;
    }
}

/// What a consumer asks for.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) seat: Seat,
    pub(crate) kind: SubscriptionKind,
    /// Consumers that a subscription of this namespace may have; zero: any number.
    pub(crate) limit: u32,
}

impl Subscription {
    pub(crate) fn new(
        name: SubscriptionName,
        kind: SubscriptionKind,
        progress: Progress,
        partition: &Arc<Partition>,
        surroundings: Arc<dyn Surroundings>,
    ) -> Arc<Subscription> {
        let policy = progress.failure_policy.clone();
        let acknowledged = partition.is_reliable();
        // Messages that are not kept are not counted over lives of a broker either: only new ones are delivered.
        let ledger = match acknowledged {
            true => Ledger::new(progress.floor.min(partition.end()), progress.acknowledged),
            false => Ledger::new(partition.end(), Default::default()),
        };
        let mut dispatch = Dispatch::new(kind, policy.clone().unwrap_or_default(), ledger, acknowledged);
        dispatch.set_max_unacked(progress.max_unacked_messages);
        let state = State::new(dispatch, progress.seeks, policy);
        Arc::new(Subscription {
            name,
            partition: Arc::downgrade(partition),
            surroundings,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    pub(crate) fn kind(&self) -> SubscriptionKind {
        self.state().dispatch.kind()
    }

    /// The names of the consumers that have a place.
    pub(crate) fn consumers(&self) -> Vec<String> {
        self.state().dispatch.seats().iter().map(|seat| seat.name.clone()).collect()
    }

    /// Gives a consumer a place. A consumer of the same name takes over.
    pub(crate) fn join(&self, join: Join) -> Result<(), TopicsError> {
        self.state().join(&self.name, join)
    }

    /// Notes that a consumer is alive.
    pub(crate) fn heard_of(&self, consumer: u64) -> bool {
        let mut state = self.state();
        let known = state.has_seat(consumer);
        if known {
            state.seen.insert(consumer, now_ms());
        }
        known
    }

    /// The stream that a consumer has already, unless it has subscribed again and means to replace it.
    pub(crate) fn rival(&self, consumer: u64) -> Option<Rival> {
        let state = self.state();
        let outlet = state.outlets.get(&consumer).filter(|_| !state.claims.contains(&consumer))?;
        let is_successor = outlet.replaced_at.is_some_and(|at| now_ms() < at + REPLACED_MS);
        Some(Rival { messages: outlet.messages.clone(), peer: outlet.peer, is_successor })
    }

    /// The stream of a consumer. An earlier stream of it ends.
    pub(crate) fn attach(
        self: &Arc<Subscription>,
        join: Join,
        peer: Option<SocketAddr>,
    ) -> Result<Messages, TopicsError> {
        let (messages, received) = mpsc::channel(CONSUMER_WINDOW);
        let consumer = join.seat.id;
        let mut state = self.state();
        let stream = state.attach(&self.name, join, peer, messages)?;
        let begin = !std::mem::replace(&mut state.pumping, true);
        drop(state);
        if begin {
            self.pump();
        }
        self.wake();
        Ok(Messages { received, subscription: self.clone(), consumer, stream })
    }

    /// A stream that was full has been read from.
    fn made_room(&self, consumer: u64, stream: u64) {
        let mut state = self.state();
        if state.outlets.get(&consumer).is_some_and(|outlet| outlet.stream == stream) {
            state.dispatch.made_room(consumer);
        }
        drop(state);
        self.wake();
    }

    fn detach_stream(&self, consumer: u64, stream: u64) {
        self.state().detach(consumer, stream);
        self.wake();
    }

    pub(crate) fn acknowledge(self: &Arc<Subscription>, offsets: &[u64]) {
        let mut state = self.state();
        for offset in offsets {
            if state.dispatch.acknowledge(*offset) {
                state.unsaved += 1;
                state.unsaved_since.get_or_insert_with(now_ms);
            }
        }
        let begin = state.unsaved > 0 && !std::mem::replace(&mut state.pumping, true);
        drop(state);
        if begin {
            self.pump();
        }
        self.wake();
    }

    /// Ends delivering: the streams of all consumers, for the last word.
    pub(super) fn take_outlets(&self) -> Vec<Outlet> {
        let mut state = self.state();
        state.pumping = false;
        state.outlets.drain().map(|(_, outlet)| outlet).collect()
    }

    fn pump(self: &Arc<Subscription>) {
        let subscription = self.clone();
        detach(async move { pump::run(subscription).await });
    }

    pub(crate) fn refuse(&self, offset: u64, delay: Option<u64>, reason: Option<String>) {
        self.state().dispatch.refuse(offset, delay, reason, now_ms());
        self.wake();
    }

    pub(crate) fn seek(&self, offset: u64, seeks: u64) {
        let mut state = self.state();
        state.dispatch.seek(offset);
        (state.seeks, state.unsaved, state.unsaved_since) = (seeks, 0, None);
        drop(state);
        self.wake();
    }

    pub(crate) fn set_policy(&self, policy: FailurePolicy) {
        let mut state = self.state();
        state.dispatch.set_policy(policy.clone());
        state.policy = Some(policy);
        drop(state);
        self.wake();
    }

    pub(crate) fn set_max_unacked(&self, limit: u32) {
        self.state().dispatch.set_max_unacked(Some(limit));
        self.wake();
    }

    pub(crate) fn report(&self) -> Report {
        let state = self.state();
        let dispatch = &state.dispatch;
        let acknowledged: u64 = dispatch.ledger().above().iter().map(|(from, to)| to - from).sum();
        Report {
            kind: dispatch.kind(),
            floor: dispatch.ledger().floor(),
            acknowledged,
            in_flight: dispatch.in_flight() as u64,
            redeliveries: dispatch.redeliveries,
            consumers: dispatch.seats().iter().map(|seat| seat.name.clone()).collect(),
        }
    }

    /// What is to be written now.
    pub(crate) fn checkpoint(&self, partition: &Partition) -> Checkpoint {
        self.state().checkpoint(self, partition)
    }
}

/// Where a subscription stands.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) kind: SubscriptionKind,
    pub(crate) floor: u64,
    /// Messages above the floor that are acknowledged.
    pub(crate) acknowledged: u64,
    pub(crate) in_flight: u64,
    pub(crate) redeliveries: u64,
    pub(crate) consumers: Vec<String>,
}

impl State {
    fn new(dispatch: Dispatch, seeks: u64, policy: Option<FailurePolicy>) -> State {
        State {
            dispatch,
            outlets: HashMap::new(),
            claims: HashSet::new(),
            seen: HashMap::new(),
            streams: 0,
            unsaved: 0,
            unsaved_since: None,
            seeks,
            policy,
            pumping: false,
        }
    }

    fn join(&mut self, name: &SubscriptionName, join: Join) -> Result<(), TopicsError> {
        let Join { seat, kind, limit } = join;
        let now = now_ms();
        self.drop_silent(now);
        let others = self.dispatch.seats().iter().filter(|known| known.id != seat.id).count();
        if self.dispatch.kind() != kind {
            if others > 0 {
                let why = format!("subscription {name} is {} and has consumers", self.dispatch.kind());
                return Err(TopicsError::Mismatch(why));
            }
            self.dispatch.set_kind(kind);
        }
        if kind == SubscriptionKind::Exclusive && others > 0 {
            let why = format!("subscription {name} is exclusive and has a consumer");
            return Err(TopicsError::Taken(why));
        }
        if limit > 0 && others >= usize::try_from(limit).unwrap_or(usize::MAX) {
            let why = format!("subscription {name} has {others} consumers, the limit of its namespace");
            return Err(TopicsError::Taken(why));
        }
        self.seen.insert(seat.id, now);
        self.claims.insert(seat.id);
        self.dispatch.join(seat);
        Ok(())
    }

    /// Takes the place from consumers that have no stream and were not heard of.
    fn drop_silent(&mut self, now: u64) {
        let silent: Vec<u64> = self
            .dispatch
            .seats()
            .iter()
            .filter(|seat| !seat.attached && self.seen.get(&seat.id).is_none_or(|at| at + SILENT_MS < now))
            .map(|seat| seat.id)
            .collect();
        for consumer in silent {
            self.seen.remove(&consumer);
            self.claims.remove(&consumer);
            self.dispatch.leave(consumer, now);
        }
    }

    /// Gives a consumer a stream, and numbers it. The place that it had may have ended with an earlier stream at any time
    /// before this; then it gets another one.
    fn attach(
        &mut self,
        name: &SubscriptionName,
        join: Join,
        peer: Option<SocketAddr>,
        messages: mpsc::Sender<Result<StreamMessage, Status>>,
    ) -> Result<u64, TopicsError> {
        let consumer = join.seat.id;
        if !self.has_seat(consumer) {
            self.join(name, join)?;
        }
        self.streams += 1;
        let stream = self.streams;
        self.claims.remove(&consumer);
        let replaced_at = self.outlets.contains_key(&consumer).then(now_ms);
        if self.outlets.insert(consumer, Outlet { stream, peer, replaced_at, messages }).is_some() {
            // What the earlier stream was given may not have arrived.
            self.again(consumer);
        }
        self.dispatch.attach(consumer);
        Ok(stream)
    }

    /// A stream has ended. Its consumer loses its place, unless it has another stream or has subscribed again.
    fn detach(&mut self, consumer: u64, stream: u64) {
        if self.outlets.get(&consumer).is_none_or(|outlet| outlet.stream != stream) {
            return;
        }
        self.outlets.remove(&consumer);
        if self.claims.contains(&consumer) {
            self.again(consumer);
        } else {
            self.seen.remove(&consumer);
            self.dispatch.leave(consumer, now_ms());
        }
    }

    fn has_seat(&self, consumer: u64) -> bool {
        self.dispatch.seats().iter().any(|seat| seat.id == consumer)
    }

    fn again(&mut self, consumer: u64) {
        let seat = self.dispatch.seats().iter().find(|seat| seat.id == consumer);
        let Some(seat) = seat.map(|seat| Seat::new(seat.id, seat.name.clone(), seat.filters.clone())) else {
            return;
        };
        self.dispatch.leave(consumer, now_ms());
        self.dispatch.join(seat);
    }

    pub(super) fn checkpoint(&self, subscription: &Subscription, partition: &Partition) -> Checkpoint {
        Checkpoint {
            topic: partition.name.clone(),
            subscription: subscription.name.clone(),
            progress: Progress {
                epoch: partition.epoch,
                topic_id: partition.record.id,
                floor: self.dispatch.ledger().floor(),
                acknowledged: self.dispatch.ledger().above().clone(),
                seeks: self.seeks,
                failure_policy: self.policy.clone(),
                max_unacked_messages: self.dispatch.max_unacked(),
            },
        }
    }
}

/// The messages of one consumer. Dropping it gives the consumer's place up.
pub(crate) struct Messages {
    received: mpsc::Receiver<Result<StreamMessage, Status>>,
    subscription: Arc<Subscription>,
    consumer: u64,
    stream: u64,
}

impl Stream for Messages {
    type Item = Result<StreamMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.received.poll_recv(context);
        // Whenever the stream may have been full: the dispatcher leaves it alone until then.
        if matches!(polled, Poll::Ready(Some(_))) && self.received.len() + 1 >= CONSUMER_WINDOW {
            self.subscription.made_room(self.consumer, self.stream);
        }
        polled
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.subscription.detach_stream(self.consumer, self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSUMER: u64 = 7;

    fn name() -> SubscriptionName {
        SubscriptionName::new("s").unwrap()
    }

    fn state() -> State {
        let (kind, policy) = (SubscriptionKind::Exclusive, FailurePolicy::default());
        State::new(Dispatch::new(kind, policy, Ledger::default(), true), 0, None)
    }

    fn join(consumer: u64) -> Join {
        let seat = Seat::new(consumer, format!("c{consumer}"), Vec::new());
        Join { seat, kind: SubscriptionKind::Exclusive, limit: 0 }
    }

    fn attach(state: &mut State, consumer: u64) -> Result<u64, TopicsError> {
        state.attach(&name(), join(consumer), None, mpsc::channel(1).0)
    }

    fn attached(state: &State) -> Vec<u64> {
        state.dispatch.seats().iter().filter(|seat| seat.attached).map(|seat| seat.id).collect()
    }

    #[test]
    fn a_stream_has_a_place_also_if_an_earlier_one_has_just_ended() {
        let mut state = state();
        state.join(&name(), join(CONSUMER)).unwrap();
        let first = attach(&mut state, CONSUMER).unwrap();
        // The consumer asks again; before its second stream is there, the first one ends.
        state.detach(CONSUMER, first);
        assert!(state.dispatch.seats().is_empty());
        let second = attach(&mut state, CONSUMER).unwrap();
        assert_eq!(attached(&state), [CONSUMER]);
        state.detach(CONSUMER, first);
        assert_eq!(attached(&state), [CONSUMER], "an end that is noticed late");
        state.detach(CONSUMER, second);
        attach(&mut state, CONSUMER + 1).unwrap();
        assert!(matches!(attach(&mut state, CONSUMER), Err(TopicsError::Taken(_))), "the place is another's");
    }

    #[test]
    fn a_consumer_that_has_subscribed_again_keeps_its_place_when_its_stream_ends() {
        let mut state = state();
        state.join(&name(), join(CONSUMER)).unwrap();
        let first = attach(&mut state, CONSUMER).unwrap();
        state.join(&name(), join(CONSUMER)).unwrap();
        state.detach(CONSUMER, first);
        assert!(matches!(state.join(&name(), join(CONSUMER + 1)), Err(TopicsError::Taken(_))));
        attach(&mut state, CONSUMER).unwrap();
        assert_eq!(attached(&state), [CONSUMER]);
    }
}
