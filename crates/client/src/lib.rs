//! A client of topics: publishes many messages in flight and exactly once, consumes in batches, follows topics that move.
//!
//! It knows the wire of `crates/topics` and nothing else of Capstan. Read first: [`Client`] (finds topics), [`Producer`],
//! [`Consumer`].

mod access;
mod consumer;
mod error;
mod producer;
pub mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use bytes::Bytes;
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

pub use access::{Access, Signature};
pub use consumer::{Consumer, Subscribe};
pub use error::ClientError;
pub use producer::{Acknowledged, Producer};
use wire::capstan::topics::v1::topics_client::TopicsClient;
use wire::capstan::topics::v1::{
    Position, ReadRequest, SeekRequest, StatsReply, StatsRequest, UnsubscribeRequest,
};
use wire::danube::discovery_client::DiscoveryClient;
use wire::danube::{StreamMessage, TopicLookupRequest};

/// How long an operation is tried again while a topic moves or brokers are not there.
const TRY_FOR: Duration = Duration::from_secs(30);
/// Failures with more than this between them are not of one kind.
const CALM: Duration = Duration::from_secs(10);
/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// A connection is asked for a sign of life this often, and given up if none comes within the second span: a broker that
/// is paused or cut off must not hold its clients.
const ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3));
/// How long a broker may take to answer one request; then it is asked again, or another one is.
const ANSWER: Duration = Duration::from_secs(10);
/// The largest message that is received.
const MAX_MESSAGE_BYTES: usize = 17 << 20;

/// A connection to a broker, with the client's credential.
pub type Link = InterceptedService<Channel, Signature>;

/// A client of a cluster of brokers. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    brokers: Arc<[String]>,
    access: Access,
    channels: Arc<Mutex<HashMap<String, Channel>>>,
    /// Counts lookups: each begins with another broker, so that one that is cut off misleads no client for long.
    lookups: Arc<AtomicUsize>,
}

impl Client {
    /// A client that finds its way from any of these brokers (`http://host:port`).
    pub fn new(brokers: impl IntoIterator<Item = impl Into<String>>) -> Client {
        let (brokers, access) = (brokers.into_iter().map(Into::into).collect(), Access::default());
        Client { brokers, access, channels: Arc::default(), lookups: Arc::default() }
    }

    /// The same client with a credential, or with an authority by which it knows brokers.
    #[must_use]
    pub fn with_access(self, access: Access) -> Client {
        Client { access, channels: Arc::default(), ..self }
    }

    /// The connection to a broker, opened when it is used.
    pub fn channel(&self, url: &str) -> Result<Link, ClientError> {
        Ok(InterceptedService::new(self.connection(url)?, self.access.signature()))
    }

    fn connection(&self, url: &str) -> Result<Channel, ClientError> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(url) {
            return Ok(channel.clone());
        }
        let channel = self.endpoint(url)?.connect_lazy();
        channels.insert(url.to_owned(), channel.clone());
        Ok(channel)
    }

    /// The same, opened at once: an error says that the broker cannot be reached.
    pub async fn connect(&self, url: &str) -> Result<Link, ClientError> {
        let cannot = |error: tonic::transport::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            ClientError::Unreachable { url: url.to_owned(), cause }
        };
        let channel = self.endpoint(url)?.connect().await.map_err(cannot)?;
        Ok(InterceptedService::new(channel, self.access.signature()))
    }

    fn endpoint(&self, url: &str) -> Result<Endpoint, ClientError> {
        let endpoint = Channel::from_shared(url.to_owned());
        let endpoint =
            endpoint.map_err(|_| ClientError::Invalid(format!("{url} is not the address of a broker")))?;
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(Duration::from_secs(2));
        let endpoint = match url.starts_with("https://") {
            true => endpoint.tls_config(self.access.tls()?),
            false => Ok(endpoint),
        };
        let endpoint =
            endpoint.map_err(|_| ClientError::Invalid("the authority cannot be used".to_owned()))?;
        let endpoint = endpoint.http2_keep_alive_interval(ALIVE.0).keep_alive_timeout(ALIVE.1);
        Ok(endpoint.keep_alive_while_idle(true))
    }

    pub(crate) fn topics(&self, url: &str) -> Result<TopicsClient<Link>, ClientError> {
        Ok(TopicsClient::new(self.channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
    }

    /// The broker that serves a topic, as soon as one does; nothing if there is no such topic.
    pub async fn locate(&self, topic: &str) -> Result<Option<String>, ClientError> {
        let mut tries = Tries::new();
        loop {
            let first = self.lookups.fetch_add(1, Ordering::Relaxed) % self.brokers.len().max(1);
            for broker in self.brokers.iter().cycle().skip(first).take(self.brokers.len()) {
                let request = TopicLookupRequest { request_id: 0, topic: topic.to_owned() };
                let mut discovery = DiscoveryClient::new(self.channel(broker)?);
                match answer(discovery.topic_lookup(request)).await {
                    Ok(found) => return Ok(Some(found.connect_url)),
                    Err(status) if status.code() == Code::NotFound => return Ok(None),
                    Err(status) => tries.failed(status)?,
                }
            }
            tries.pause().await?;
        }
    }

    /// The broker that serves a topic.
    pub(crate) async fn owner(&self, topic: &str) -> Result<String, ClientError> {
        let found = self.locate(topic).await?;
        found.ok_or_else(|| ClientError::NoSuchTopic(topic.to_owned()))
    }

    /// Any broker, for what any of them can do.
    #[must_use]
    pub fn any(&self) -> Option<&str> {
        self.brokers.first().map(String::as_str)
    }

    /// A producer with this name. Another one of the same name, such as that of an earlier start of a program, is no
    /// obstacle: each counts its own sequences.
    #[must_use]
    pub fn producer(&self, topic: &str, name: &str) -> Producer {
        Producer::new(self.clone(), topic, name)
    }

    /// A consumer of a subscription, which is made if it is not there.
    pub async fn consumer(&self, subscribe: Subscribe) -> Result<Consumer, ClientError> {
        Consumer::begin(self.clone(), subscribe).await
    }

    /// Sets the position of a subscription, which is made if it is not there. Returns the next offset.
    pub async fn seek(&self, request: SeekRequest) -> Result<u64, ClientError> {
        let mut tries = Tries::new();
        loop {
            let owner = self.owner(&request.topic).await?;
            match answer(self.topics(&owner)?.seek(request.clone())).await {
                Ok(reply) => return Ok(reply.offset),
                Err(status) => tries.failed(status)?,
            }
            tries.pause().await?;
        }
    }

    /// Messages of a topic, without a subscription; `count` 0: all that are there now.
    pub async fn read(
        &self,
        topic: &str,
        from: Position,
        count: u64,
    ) -> Result<tonic::Streaming<StreamMessage>, ClientError> {
        let mut tries = Tries::new();
        loop {
            let owner = self.owner(topic).await?;
            let request = ReadRequest { topic: topic.to_owned(), from: Some(from), count, follow: false };
            match answer(self.topics(&owner)?.read(request)).await {
                Ok(messages) => return Ok(messages),
                Err(status) => tries.failed(status)?,
            }
            tries.pause().await?;
        }
    }

    /// Where a topic and its subscriptions stand.
    pub async fn stats(&self, topic: &str) -> Result<StatsReply, ClientError> {
        let mut tries = Tries::new();
        loop {
            let owner = self.owner(topic).await?;
            match answer(self.topics(&owner)?.stats(StatsRequest { topic: topic.to_owned() })).await {
                Ok(stats) => return Ok(stats),
                Err(status) => tries.failed(status)?,
            }
            tries.pause().await?;
        }
    }

    /// Removes a subscription that has no consumers.
    pub async fn unsubscribe(&self, topic: &str, subscription: &str) -> Result<(), ClientError> {
        let owner = self.owner(topic).await?;
        let request = UnsubscribeRequest { topic: topic.to_owned(), subscription: subscription.to_owned() };
        answer(self.topics(&owner)?.unsubscribe(request)).await?;
        Ok(())
    }
}

/// The answer to a request, if it comes in time.
pub(crate) async fn answer<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, tonic::Status> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(tonic::Status::deadline_exceeded("the broker does not answer")),
    }
}

/// Attempts of one operation: what may pass is tried again for a while, counted from the first failure, and anew after a
/// calm. An operation may wait for long between failures, as a consumer does for messages.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// When the last pause ended, and when no more attempts are made.
    span: Option<(tokio::time::Instant, tokio::time::Instant)>,
    last: Option<tonic::Status>,
}

impl Tries {
    pub(crate) fn new() -> Tries {
        Tries::default()
    }

    /// Notes a failure; one that stays is returned.
    pub(crate) fn failed(&mut self, status: tonic::Status) -> Result<(), ClientError> {
        match status.code() {
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Unknown
            | Code::Cancelled => {
                self.last = Some(status);
                Ok(())
            }
            // Not what the broker said: the connection broke, as it does when a broker stops.
            _ if std::error::Error::source(&status).is_some() => {
                self.last = Some(status);
                Ok(())
            }
            _ => Err(status.into()),
        }
    }

    pub(crate) async fn pause(&mut self) -> Result<(), ClientError> {
        let now = tokio::time::Instant::now();
        let until = match self.span {
            Some((paused, until)) if now < paused + CALM => until,
            Some(_) | None => now + TRY_FOR,
        };
        if now >= until {
            let last = self.last.clone().unwrap_or_else(|| tonic::Status::unavailable("there is no broker"));
            return Err(last.into());
        }
        tokio::time::sleep(PAUSE).await;
        self.span = Some((tokio::time::Instant::now(), until));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_breaks_is_tried_again_and_a_refusal_is_not() {
        let mut tries = Tries::new();
        assert!(tries.failed(tonic::Status::internal("a damaged entry")).is_err());
        let mut broken = tonic::Status::internal("h2 protocol error: http2 error");
        broken.set_source(Arc::new(std::io::Error::other("GOAWAY")));
        assert!(tries.failed(broken).is_ok());
        assert!(tries.failed(tonic::Status::unavailable("moved")).is_ok());
    }
}
