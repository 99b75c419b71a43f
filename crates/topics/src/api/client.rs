//! The client wire of the public broker.

use std::sync::Arc;

use capstan_access::Verb;
use tonic::{Request, Response, Status};

use super::gate::Watched;
use crate::agent::Broker;
use crate::data::message::Record;
use crate::data::publish::Publication;
use crate::data::subscription::Messages;
use crate::error::TopicsError;
use crate::keys::SubscriptionName;
use crate::spec::{Delivery, SubscriptionKind, TopicName};
use crate::wire::danube::auth_service_server::AuthService;
use crate::wire::danube::consumer_service_server::ConsumerService;
use crate::wire::danube::discovery_server::Discovery;
use crate::wire::danube::health_check_server::HealthCheck;
use crate::wire::danube::producer_service_server::ProducerService;
use crate::wire::danube::topic_lookup_response::LookupType;
use crate::wire::danube::{
    AckRequest, AckResponse, AuthRequest, AuthResponse, ConsumerRequest, ConsumerResponse, DispatchStrategy,
    HealthCheckRequest, HealthCheckResponse, MessageResponse, MsgId, NackRequest, NackResponse,
    ProducerRequest, ProducerResponse, ReceiveRequest, StreamMessage, TopicLookupRequest,
    TopicLookupResponse, TopicPartitionsResponse, health_check_request, health_check_response,
};

/// Names of producers and consumers are text of clients: bounded, because they are kept.
const MAX_NAME: usize = 255;
/// Attributes and filters of one request.
const MAX_FILTERS: usize = 64;

/// Characters that are kept of why a consumer refuses a message.
const MAX_REASON: usize = 256;

#[derive(Clone)]
pub(super) struct Client {
    broker: Broker,
}

impl Client {
    pub(super) fn new(broker: Broker) -> Client {
        Client { broker }
    }

    fn inner(&self) -> &Arc<crate::agent::Inner> {
        &self.broker.inner
    }
}

/// The topic and the offset that an acknowledgment is about.
fn place(id: Option<&MsgId>) -> Result<(TopicName, u64), TopicsError> {
    let id = id.ok_or_else(|| TopicsError::Invalid("the request names no message".to_owned()))?;
    Ok((id.topic_name.parse()?, id.topic_offset))
}

fn subscription(text: &str) -> Result<SubscriptionName, TopicsError> {
    SubscriptionName::new(text).map_err(|error| TopicsError::Invalid(error.to_string()))
}

fn client_name(text: &str) -> Result<&str, TopicsError> {
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(TopicsError::Invalid(format!("a name has 1 to {MAX_NAME} bytes")));
    }
    Ok(text)
}

#[tonic::async_trait]
impl ProducerService for Client {
    async fn create_producer(
        &self,
        request: Request<ProducerRequest>,
    ) -> Result<Response<ProducerResponse>, Status> {
        let topic: TopicName = request.get_ref().topic_name.parse()?;
        self.inner().may(&request, Verb::Produce, &topic)?;
        let request = request.into_inner();
        let name = client_name(&request.producer_name)?;
        let delivery = match request.dispatch_strategy() {
            DispatchStrategy::Reliable => Delivery::Reliable,
            DispatchStrategy::NonReliable => Delivery::NonReliable,
        };
        if let Some(schema) = &request.schema_ref {
            self.inner().check_subject(&topic, &schema.subject).await?;
        }
        let producer_id = self.inner().add_producer(&topic, name, delivery).await?;
        if let Some(schema) = &request.schema_ref {
            self.inner().bind_schema(&topic, &schema.subject).await?;
        }
        let (request_id, producer_name) = (request.request_id, request.producer_name);
        Ok(Response::new(ProducerResponse { request_id, producer_id, producer_name }))
    }

    async fn send_message(
        &self,
        request: Request<StreamMessage>,
    ) -> Result<Response<MessageResponse>, Status> {
        let Some(id) = &request.get_ref().msg_id else {
            return Err(TopicsError::Invalid("the request names no topic".to_owned()).into());
        };
        let (topic, producer_id) = (id.topic_name.parse::<TopicName>()?, id.producer_id);
        self.inner().may(&request, Verb::Produce, &topic)?;
        let message = request.into_inner();
        let request_id = message.request_id;
        let name = message.producer_name.clone();
        let records = vec![Record::of_wire(message)];
        let publication = Publication { producer_id, session: 0, sequence: -1, records };
        self.inner().publish(&topic, &name, publication).await?;
        Ok(Response::new(MessageResponse { request_id }))
    }
}

#[tonic::async_trait]
impl ConsumerService for Client {
    type ReceiveMessagesStream = Watched<Messages>;

    async fn subscribe(
        &self,
        request: Request<ConsumerRequest>,
    ) -> Result<Response<ConsumerResponse>, Status> {
        let topic: TopicName = request.get_ref().topic_name.parse()?;
        self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        let subscription = subscription(&request.subscription)?;
        let name = client_name(&request.consumer_name)?;
        let number = request.subscription_type;
        let kind = SubscriptionKind::of(number)
            .ok_or_else(|| TopicsError::Invalid(format!("{number} is no type of subscription")))?;
        if request.key_filters.len() > MAX_FILTERS {
            return Err(TopicsError::Invalid(format!("at most {MAX_FILTERS} filters")).into());
        }
        let added = self.inner().add_consumer(&topic, &subscription, name, kind, request.key_filters.clone());
        let consumer_id = added.await?;
        let (request_id, consumer_name) = (request.request_id, request.consumer_name);
        Ok(Response::new(ConsumerResponse { request_id, consumer_id, consumer_name }))
    }

    async fn receive_messages(
        &self,
        request: Request<ReceiveRequest>,
    ) -> Result<Response<Watched<Messages>>, Status> {
        let (peer, consumer) = (super::peer(&request), request.get_ref().consumer_id);
        let topic = self.inner().topic_of_consumer(consumer)?;
        let pass = self.inner().may(&request, Verb::Consume, &topic)?;
        let messages = self.inner().receive(consumer, peer).await?;
        tracing::debug!(consumer, ?peer, "consumer receives");
        Ok(Response::new(Watched::new(messages, pass)))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        let (topic, offset) = place(request.get_ref().msg_id.as_ref())?;
        self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        let name = subscription(&request.subscription_name)?;
        let (_, subscription) = self.inner().subscription(&topic, &name).await?;
        subscription.acknowledge(&[offset]);
        self.inner().counters().acknowledged(1);
        Ok(Response::new(AckResponse { request_id: request.request_id }))
    }

    async fn nack(&self, request: Request<NackRequest>) -> Result<Response<NackResponse>, Status> {
        let (topic, offset) = place(request.get_ref().msg_id.as_ref())?;
        self.inner().may(&request, Verb::Consume, &topic)?;
        let request = request.into_inner();
        let name = subscription(&request.subscription_name)?;
        let (_, subscription) = self.inner().subscription(&topic, &name).await?;
        let reason = request.reason.map(|reason| reason.chars().take(MAX_REASON).collect());
        subscription.refuse(offset, request.delay_ms, reason);
        self.inner().counters().nacked();
        Ok(Response::new(NackResponse { request_id: request.request_id }))
    }
}

#[tonic::async_trait]
impl Discovery for Client {
    async fn topic_lookup(
        &self,
        request: Request<TopicLookupRequest>,
    ) -> Result<Response<TopicLookupResponse>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may_see(&request, &topic)?;
        let request = request.into_inner();
        let found = self.inner().locate(&topic).await?;
        let response_type =
            if found == self.inner().url() { LookupType::Connect } else { LookupType::Redirect };
        Ok(Response::new(TopicLookupResponse {
            request_id: request.request_id,
            response_type: response_type.into(),
            connect_url: found.clone(),
            broker_url: found,
            proxy: false,
        }))
    }

    async fn topic_partitions(
        &self,
        request: Request<TopicLookupRequest>,
    ) -> Result<Response<TopicPartitionsResponse>, Status> {
        let topic: TopicName = request.get_ref().topic.parse()?;
        self.inner().may_see(&request, &topic)?;
        let request = request.into_inner();
        let partitions = self.inner().partition_names(&topic).await?;
        let partitions = partitions.iter().map(TopicName::to_string).collect();
        Ok(Response::new(TopicPartitionsResponse { request_id: request.request_id, partitions }))
    }
}

#[tonic::async_trait]
impl HealthCheck for Client {
    async fn health_check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let request = request.into_inner();
        let is_producer = request.client() == health_check_request::ClientType::Producer;
        if !self.inner().heard_of(request.id, is_producer) {
            // An error ends the client's checks; "close" would have it register again every time.
            return Err(Status::not_found(format!(
                "client {} is not registered with this broker",
                request.id
            )));
        }
        let status = health_check_response::ClientStatus::Ok.into();
        Ok(Response::new(HealthCheckResponse { status }))
    }
}

#[tonic::async_trait]
impl AuthService for Client {
    /// Clients up to 0.10 turn an access key into a token here.
    async fn authenticate(&self, request: Request<AuthRequest>) -> Result<Response<AuthResponse>, Status> {
        let token = self.inner().token_for(request.into_inner().api_key).await?;
        Ok(Response::new(AuthResponse { token }))
    }
}
