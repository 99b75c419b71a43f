//! Consumes a subscription, acknowledges in batches, follows a topic that moves.

use tonic::Streaming;

use crate::wire::capstan::topics::v1::{AckManyRequest, Position, SeekRequest};
use crate::wire::danube::consumer_request::SubscriptionType;
use crate::wire::danube::consumer_service_client::ConsumerServiceClient;
use crate::wire::danube::{ConsumerRequest, ReceiveRequest, StreamMessage};
use crate::{Client, ClientError, Tries, answer};

/// What is consumed.
#[derive(Clone, Debug)]
pub struct Subscribe {
    /// The topic.
    pub topic: String,
    /// The subscription.
    pub subscription: String,
    /// The name of the consumer.
    pub consumer: String,
    /// How consumers share.
    pub kind: SubscriptionType,
    /// Where a new subscription begins.
    pub from: Position,
}

/// A consumer.
#[derive(Debug)]
pub struct Consumer {
    client: Client,
    subscribe: Subscribe,
    owner: String,
    messages: Streaming<StreamMessage>,
}

impl Consumer {
    pub(crate) async fn begin(client: Client, subscribe: Subscribe) -> Result<Consumer, ClientError> {
        client
            .seek(SeekRequest {
                topic: subscribe.topic.clone(),
                subscription: subscribe.subscription.clone(),
                to: Some(subscribe.from),
                r#type: subscribe.kind.into(),
                only_if_new: true,
            })
            .await?;
        let (owner, messages) = connect(&client, &subscribe).await?;
        Ok(Consumer { client, subscribe, owner, messages })
    }

    /// The next message. Cancel-safe.
    pub async fn next(&mut self) -> Result<StreamMessage, ClientError> {
        let mut tries = Tries::new();
        loop {
            match self.messages.message().await {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(status) => tries.failed(status)?,
            }
            tries.pause().await?;
            (self.owner, self.messages) = connect(&self.client, &self.subscribe).await?;
        }
    }

    /// Acknowledges messages by their offsets.
    pub async fn acknowledge(&self, offsets: Vec<u64>) -> Result<(), ClientError> {
        let mut tries = Tries::new();
        let mut owner = self.owner.clone();
        loop {
            let request = AckManyRequest {
                topic: self.subscribe.topic.clone(),
                subscription: self.subscribe.subscription.clone(),
                offsets: offsets.clone(),
            };
            match answer(self.client.topics(&owner)?.ack_many(request)).await {
                Ok(_) => return Ok(()),
                Err(status) => tries.failed(status)?,
            }
            tries.pause().await?;
            owner = self.client.owner(&self.subscribe.topic).await?;
        }
    }
}

async fn connect(
    client: &Client,
    subscribe: &Subscribe,
) -> Result<(String, Streaming<StreamMessage>), ClientError> {
    let mut tries = Tries::new();
    loop {
        let owner = client.owner(&subscribe.topic).await?;
        match receive(client, subscribe, &owner).await {
            Ok(messages) => return Ok((owner, messages)),
            Err(ClientError::Refused(status)) => tries.failed(*status)?,
            Err(error) => return Err(error),
        }
        tries.pause().await?;
    }
}

async fn receive(
    client: &Client,
    subscribe: &Subscribe,
    owner: &str,
) -> Result<Streaming<StreamMessage>, ClientError> {
    let mut consumers = ConsumerServiceClient::new(client.channel(owner)?);
    consumers = consumers.max_decoding_message_size(crate::MAX_MESSAGE_BYTES);
    let request = ConsumerRequest {
        request_id: 0,
        topic_name: subscribe.topic.clone(),
        consumer_name: subscribe.consumer.clone(),
        subscription: subscribe.subscription.clone(),
        subscription_type: subscribe.kind.into(),
        key_filters: Vec::new(),
    };
    let consumer_id = answer(consumers.subscribe(request)).await?.consumer_id;
    Ok(answer(consumers.receive_messages(ReceiveRequest { request_id: 0, consumer_id })).await?)
}
