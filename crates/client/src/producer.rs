//! Publishes with many messages in flight. Every batch has a sequence; after a lost connection or a move, what is not
//! acknowledged is sent again, and the broker recognises what it has.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::wire::capstan::topics::v1::{PublishReply, PublishRequest, Record};
use crate::{Client, ClientError, Tries, answer};

/// Batches on their way at a time. The broker remembers as many of each producer.
const IN_FLIGHT: usize = 64;
/// Bits of the number of a session.
const SESSION_BITS: u32 = 48;

/// A producer.
#[derive(Debug)]
pub struct Producer {
    client: Client,
    topic: String,
    name: String,
    /// Tells this producer from earlier ones of the same name, whose sequences are not its own.
    session: u64,
    /// The sequence of the next record; zero is none.
    next: u64,
    unacknowledged: VecDeque<PublishRequest>,
    link: Option<Link>,
}

#[derive(Debug)]
struct Link {
    requests: mpsc::Sender<PublishRequest>,
    replies: Streaming<PublishReply>,
}

/// A batch that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The offset of its first record.
    pub offset: u64,
    /// How many records it has.
    pub records: usize,
}

impl Producer {
    pub(crate) fn new(client: Client, topic: &str, name: &str) -> Producer {
        let (topic, name) = (topic.to_owned(), name.to_owned());
        let session = rand::random_range(1..1 << SESSION_BITS);
        Producer { client, topic, name, session, next: 1, unacknowledged: VecDeque::new(), link: None }
    }

    /// Sends records; waits only while too many are on their way. Returns what was acknowledged meanwhile.
    pub async fn send(&mut self, records: Vec<Record>) -> Result<Vec<Acknowledged>, ClientError> {
        let mut acknowledged = Vec::new();
        while self.unacknowledged.len() >= IN_FLIGHT {
            acknowledged.push(self.acknowledged().await?);
        }
        let count = records.len() as u64;
        let request = PublishRequest { sequence: self.next, records, ..PublishRequest::default() };
        self.next += count;
        self.unacknowledged.push_back(request.clone());
        let sent = match &self.link {
            Some(link) => link.requests.send(request).await.is_ok(),
            None => false,
        };
        if !sent {
            self.link = None;
            self.connect().await?;
        }
        Ok(acknowledged)
    }

    /// Waits until everything is acknowledged.
    pub async fn flush(&mut self) -> Result<Vec<Acknowledged>, ClientError> {
        let mut acknowledged = Vec::new();
        while !self.unacknowledged.is_empty() {
            acknowledged.push(self.acknowledged().await?);
        }
        Ok(acknowledged)
    }

    /// How many batches are on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Waits for the oldest batch.
    pub async fn acknowledged(&mut self) -> Result<Acknowledged, ClientError> {
        let mut tries = Tries::new();
        loop {
            if self.link.is_none() {
                self.connect().await?;
            }
            let Some(link) = &mut self.link else { continue };
            match link.replies.message().await {
                Ok(Some(reply)) => {
                    let records = self.unacknowledged.pop_front().map_or(0, |batch| batch.records.len());
                    return Ok(Acknowledged { offset: reply.offset, records });
                }
                Ok(None) => {}
                Err(status) => tries.failed(status)?,
            }
            self.link = None;
            tries.pause().await?;
        }
    }

    /// Opens a stream to the broker that serves the topic, and sends again what is not acknowledged.
    async fn connect(&mut self) -> Result<(), ClientError> {
        let mut tries = Tries::new();
        loop {
            // A topic that is not there is created by the broker that is asked.
            let broker = match self.client.locate(&self.topic).await? {
                Some(owner) => owner,
                None => self.client.any().map(str::to_owned).unwrap_or_default(),
            };
            // Room for everything, so that nothing waits before the broker answers.
            let (requests, queued) = mpsc::channel(IN_FLIGHT * 2);
            let hello = PublishRequest {
                topic: self.topic.clone(),
                producer: self.name.clone(),
                session: self.session,
                ..PublishRequest::default()
            };
            let again = std::iter::once(hello).chain(self.unacknowledged.iter().cloned());
            for request in again {
                drop(requests.send(request).await);
            }
            match answer(self.client.topics(&broker)?.publish(ReceiverStream::new(queued))).await {
                Ok(replies) => {
                    self.link = Some(Link { requests, replies });
                    return Ok(());
                }
                Err(status) => tries.failed(status)?,
            }
            tries.pause().await?;
        }
    }
}
