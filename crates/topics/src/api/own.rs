//! Our own additions to the wire: pipelined publishing with sequences, reading, seeking, batched acknowledgments.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use capstan_access::Verb;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::gate::Watched;
use crate::agent::{Broker, Inner, producer_id, progress_at};
use crate::commit::{self, Begin};
use crate::data::envelope::MAX_SESSION;
use crate::data::message::Record;
use crate::data::partition::Partition;
use crate::data::publish::{Publication, Published};
use crate::data::read::{Found, Place};
use crate::data::{detach, now_ms};
use crate::error::TopicsError;
use crate::keys::SubscriptionName;
use crate::spec::{Delivery, SubscriptionKind, TopicName};
use crate::wire::capstan::topics::v1::topics_server::Topics;
use crate::wire::capstan::topics::v1::{
    AckManyReply, AckManyRequest, Position, PublishReply, PublishRequest, ReadRequest, SeekReply,
    SeekRequest, StatsReply, StatsRequest, SubscriptionStats, UnsubscribeReply, UnsubscribeRequest, position,
};
use crate::wire::danube::StreamMessage;

/// Publications of one stream that wait for their commit.
const IN_FLIGHT: usize = 1_024;
/// Messages that are read at a time: as many of 1 KiB as one read of the log brings.
const READ: usize = 1_024;
/// Messages that wait to be sent to a reader.
const READ_AHEAD: usize = 256;
/// How often a stream that follows looks whether the topic is still served here, if nothing says so.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Records of one publication.
const MAX_RECORDS: usize = 10_000;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer = oneshot::Receiver<Result<Published, TopicsError>>;

#[derive(Clone)]
pub(super) struct Own {
    broker: Broker,
}

impl Own {
    pub(super) fn new(broker: Broker) -> Own {
        Own { broker }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.broker.inner
    }
}

fn name(text: &str) -> Result<SubscriptionName, TopicsError> {
    SubscriptionName::new(text).map_err(|error| TopicsError::Invalid(error.to_string()))
}

async fn resolve(partition: &Partition, position: Option<Position>) -> Result<u64, TopicsError> {
    match position.and_then(|position| position.at) {
        None | Some(position::At::Latest(_)) => Ok(partition.end()),
        Some(position::At::Earliest(_)) => partition.start().await,
        Some(position::At::Offset(offset)) => Ok(offset.clamp(partition.start().await?, partition.end())),
        Some(position::At::Time(time)) => partition.offset_at(time).await,
    }
}

#[tonic::async_trait]
impl Topics for Own {
    type PublishStream = Replies<PublishReply>;
    type ReadStream = Replies<StreamMessage>;

    async fn publish(
        &self,
        request: Request<Streaming<PublishRequest>>,
    ) -> Result<Response<Self::PublishStream>, Status> {
        let (answers, pending) = mpsc::channel::<(u64, Answer)>(IN_FLIGHT);
        let inner = self.inner().clone();
        let (_, caller, requests) = request.into_parts();
        let caller = Request::from_parts(MetadataMap::new(), caller, ());
        let (failure, failed) = oneshot::channel();
        detach(async move {
            if let Err(status) = take_all(&inner, &caller, requests, answers).await {
                drop(failure.send(status));
            }
        });
        let replies = ReceiverStream::new(pending).then(|(sequence, answer)| async move {
            let gone = |_| TopicsError::NotReady("the publication was given up".to_owned());
            let published = answer.await.map_err(gone)??;
            Ok(PublishReply { offset: published.offset, sequence, duplicate: published.duplicate })
        });
        let end = futures_util::stream::once(failed).filter_map(|end| async move { end.ok().map(Err) });
        Ok(Response::new(Box::pin(replies.chain(end))))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        let pass = self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        let partition = self.inner().served(&topic).await?;
        let from = resolve(&partition, request.from).await?;
        let now = if request.follow { u64::MAX } else { partition.end() };
        let end = match request.count {
            0 => now,
            count => now.min(from.saturating_add(count)),
        };
        let (sender, messages) = mpsc::channel(READ_AHEAD);
        detach(async move {
            if let Err(error) = read_all(&partition, from, end, &sender).await {
                drop(sender.send(Err(error.into())).await);
            }
        });
        Ok(Response::new(Box::pin(Watched::new(ReceiverStream::new(messages), pass))))
    }

    async fn seek(&self, request: Request<SeekRequest>) -> Result<Response<SeekReply>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        let subscription = name(&request.subscription)?;
        let kind = SubscriptionKind::of(request.r#type).unwrap_or(SubscriptionKind::Shared);
        let partition = self.inner().served(&topic).await?;
        let to = resolve(&partition, request.to).await?;
        let known = self.inner().subscription(&topic, &subscription).await;
        let offset = match known {
            Ok((_, known)) if request.only_if_new => known.report().floor,
            Ok((_, known)) => {
                self.inner().seek(&partition, &known, to).await?;
                to
            }
            Err(TopicsError::NoSuchSubscription { .. }) => {
                let limit = self.inner().policy(&topic).max_subscriptions_per_topic;
                let progress = progress_at(&partition, to);
                let begin = Begin { consumer: String::new(), kind, progress, limit };
                self.inner().subscribe(&partition, &subscription, &begin).await?.report().floor
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Response::new(SeekReply { offset }))
    }

    async fn ack_many(&self, request: Request<AckManyRequest>) -> Result<Response<AckManyReply>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        let (_, subscription) = self.inner().subscription(&topic, &name(&request.subscription)?).await?;
        subscription.acknowledge(&request.offsets);
        self.inner().counters().acknowledged(request.offsets.len());
        Ok(Response::new(AckManyReply {}))
    }

    async fn unsubscribe(
        &self,
        request: Request<UnsubscribeRequest>,
    ) -> Result<Response<UnsubscribeReply>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        self.inner().unsubscribe(&topic, &name(&request.subscription)?).await?;
        Ok(Response::new(UnsubscribeReply {}))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsReply>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may_see(&request, &topic)?;
        Ok(Response::new(self.inner().stats(&topic).await?))
    }
}

/// Queues everything that a publisher sends, in its order.
async fn take_all(
    inner: &Arc<Inner>,
    caller: &Request<()>,
    mut requests: Streaming<PublishRequest>,
    answers: mpsc::Sender<(u64, Answer)>,
) -> Result<(), Status> {
    let mut publisher = None;
    while let Some(request) = requests.message().await? {
        let PublishRequest { topic, producer, sequence, records, session } = request;
        if !topic.is_empty() {
            let topic: TopicName = topic.parse()?;
            let pass = inner.may(caller, Verb::Produce, &topic)?;
            // A topic that is there keeps its delivery.
            let delivery = inner.record(&topic)?.map_or(Delivery::Reliable, |known| known.delivery);
            let id = inner.add_producer(&topic, &producer, delivery).await?;
            if session > MAX_SESSION {
                return Err(TopicsError::Invalid(format!("a session is at most {MAX_SESSION}")).into());
            }
            publisher = Some((topic, producer, id, session, pass));
        }
        let Some((topic, producer, id, session, pass)) = &mut publisher else {
            return Err(TopicsError::Invalid("the first request names no topic".to_owned()).into());
        };
        pass.is_good()?;
        if records.is_empty() {
            continue;
        }
        if records.len() > MAX_RECORDS {
            return Err(TopicsError::Invalid(format!("at most {MAX_RECORDS} records at a time")).into());
        }
        debug_assert_eq!(*id, producer_id(topic, producer));
        let base = i64::try_from(sequence).ok().filter(|base| *base > 0).unwrap_or(-1);
        let records = records.into_iter().map(|record| Record::of_own(record, producer)).collect();
        let publication = Publication { producer_id: *id, session: *session, sequence: base, records };
        let partition = inner.partition(topic).await?;
        inner.admit(&partition, producer, &publication).await?;
        let answer = if partition.is_reliable() {
            partition.enqueue(publication)?
        } else {
            let (reply, answer) = oneshot::channel();
            drop(reply.send(partition.publish(publication).await));
            answer
        };
        if answers.send((sequence, answer)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends messages up to this offset. Those that are not there yet are waited for, as long as the client is there and the
/// topic is served here.
async fn read_all(
    partition: &Partition,
    mut from: u64,
    end: u64,
    messages: &mpsc::Sender<Result<StreamMessage, Status>>,
) -> Result<(), TopicsError> {
    let mut place = Place::default();
    let (mut ends, mut standing) = (partition.ends(), partition.log.standing());
    while from < end {
        let announced = *ends.borrow_and_update();
        let count = usize::try_from(end - from).unwrap_or(READ).min(READ);
        match partition.fetch(&mut place, from, count).await? {
            Found::Gone { start } | Found::Compacted { next: start } => from = start,
            Found::Messages(found) if found.is_empty() => {
                if end <= announced {
                    return Ok(());
                }
                if partition.is_over() {
                    return Err(TopicsError::NotHere { topic: partition.text.clone(), at: None });
                }
                tokio::select! {
                    () = messages.closed() => return Ok(()),
                    Ok(()) = ends.changed() => {}
                    Ok(()) = standing.changed() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
            Found::Messages(found) => {
                for message in found {
                    from = message.offset + 1;
                    let message = message.to_wire(&partition.text, &partition.broker_url, "");
                    if messages.send(Ok(message)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// Statistics of a topic that is served here.
impl Inner {
    pub(crate) async fn stats(self: &Arc<Inner>, topic: &TopicName) -> Result<StatsReply, TopicsError> {
        let partition = self.served(topic).await?;
        // Subscriptions without consumers are shown as well.
        self.load_subscriptions(&partition).await?;
        let end = partition.end();
        let stats = |subscription: &Arc<crate::data::subscription::Subscription>| {
            let report = subscription.report();
            SubscriptionStats {
                name: subscription.name.to_string(),
                r#type: report.kind.number(),
                floor: report.floor,
                backlog: end.saturating_sub(report.floor).saturating_sub(report.acknowledged),
                in_flight: report.in_flight,
                redeliveries: report.redeliveries,
                consumers: report.consumers,
            }
        };
        let mut subscriptions: Vec<_> = partition.all_subscriptions().iter().map(stats).collect();
        subscriptions.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(StatsReply {
            start: partition.start().await?,
            end,
            producers: u32::try_from(self.producers_of(topic)).unwrap_or(u32::MAX),
            subscriptions,
            dropped: partition.dropped.load(std::sync::atomic::Ordering::Relaxed),
        })
    }

    /// Loads every subscription that is stored.
    pub(crate) async fn load_subscriptions(
        self: &Arc<Inner>,
        partition: &Partition,
    ) -> Result<(), TopicsError> {
        for (key, _) in self.store().list(&partition.name.subscriptions()).await?.iter() {
            self.subscription(&partition.name, &key.subscription).await?;
        }
        Ok(())
    }

    /// Sets a subscription back or forward: stored first, then in effect.
    pub(crate) async fn seek(
        &self,
        partition: &Arc<Partition>,
        subscription: &Arc<crate::data::subscription::Subscription>,
        to: u64,
    ) -> Result<(), TopicsError> {
        let mut checkpoint = subscription.checkpoint(partition);
        checkpoint.progress.floor = to;
        checkpoint.progress.acknowledged.clear();
        checkpoint.progress.seeks = checkpoint.progress.seeks.max(now_ms()) + 1;
        if !commit::save(self.store(), &checkpoint).await? {
            return Err(TopicsError::NotReady(format!("subscription {} was changed", subscription.name)));
        }
        subscription.seek(to, checkpoint.progress.seeks);
        Ok(())
    }

    /// Removes a subscription that has no consumers.
    pub(crate) async fn unsubscribe(
        self: &Arc<Inner>,
        topic: &TopicName,
        subscription: &SubscriptionName,
    ) -> Result<(), TopicsError> {
        let (partition, known) = self.subscription(topic, subscription).await?;
        let consumers = known.consumers();
        if !consumers.is_empty() {
            let why = format!("subscription {subscription} has {} consumers", consumers.len());
            return Err(TopicsError::Mismatch(why));
        }
        commit::unsubscribe(self.store(), topic, subscription).await?;
        partition.forget(subscription);
        Ok(())
    }
}
