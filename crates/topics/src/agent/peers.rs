//! How do brokers talk to each other? As clients do, with an introduction in place of a client's credential: every broker
//! makes a token when it starts and registers its hash; who presents the token is that broker.

use std::path::PathBuf;
use std::time::Duration;

use capstan_access::Guard;
use capstan_access::secret::{Token, TokenKind};
use capstan_access::tls::{ClientCerts, LiveTls, ServerConfig, TlsFiles};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use super::broker::Inner;
use crate::error::TopicsError;
use crate::keys::RegisterKey;
use crate::spec::TopicName;

/// Carries the introduction of a broker: its number and its token.
pub(crate) const BROKER_HEADER: &str = "x-capstan-broker";

/// How long another broker may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A connection to another broker.
pub(crate) type Peer = InterceptedService<Channel, Introduction>;

/// TLS of a broker: its certificate for clients, and the authority by which it knows other brokers.
#[derive(Clone, Debug)]
pub struct BrokerTls {
    pub(crate) live: LiveTls,
    authority: PathBuf,
}

impl BrokerTls {
    /// Loads the files. They are looked at again while the broker runs.
    pub fn open(cert: PathBuf, key: PathBuf, authority: PathBuf) -> std::io::Result<BrokerTls> {
        let files = TlsFiles { cert, key, authority: Some(authority.clone()) };
        Ok(BrokerTls { live: LiveTls::open(files)?, authority })
    }
}

/// What a broker says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Introduction(MetadataValue<Ascii>);

impl Interceptor for Introduction {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(BROKER_HEADER, self.0.clone());
        Ok(request)
    }
}

/// The token of a broker that starts.
pub(super) fn new_token() -> Token {
    Token::generate(TokenKind::Session)
}

impl Inner {
    /// What decides about requests.
    pub(crate) fn guard(&self) -> &Guard {
        &self.options.guard
    }

    /// How connections of clients are encrypted, if they are.
    pub(crate) fn tls(&self) -> Result<Option<ServerConfig>, TopicsError> {
        let config = self.options.tls.as_ref().map(|tls| tls.live.server(ClientCerts::Ignored)).transpose();
        config.map_err(|error| TopicsError::Invalid(format!("TLS of topics: {error}")))
    }

    /// The topic of a consumer that is registered here.
    pub(crate) fn topic_of_consumer(&self, id: u64) -> Result<TopicName, TopicsError> {
        let known = self.clients.consumer(id).map(|consumer| consumer.topic);
        known.ok_or_else(|| TopicsError::NotRegistered(format!("consumer {id}")))
    }

    /// Whether an introduction is that of a broker that is up, as the view shows it.
    pub(crate) fn is_broker(&self, text: &str) -> bool {
        let Some((number, token)) = text.split_once(' ') else { return false };
        let (Ok(broker), Some(token)) = (number.parse(), Token::parse(token)) else { return false };
        let Ok(Some(known)) = self.view.snapshot().get(&RegisterKey { broker }) else { return false };
        known.record.token_hash.as_deref().is_some_and(|hash| token.has_hash(hash))
    }

    /// Connects to another broker.
    pub(crate) async fn peer(&self, url: &str) -> Result<Peer, TopicsError> {
        let failed = |why: &dyn std::fmt::Display| {
            TopicsError::NotReady(format!("the broker at {url} does not answer: {why}"))
        };
        let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| failed(&error))?;
        endpoint = endpoint.connect_timeout(ANSWER_WITHIN).timeout(ANSWER_WITHIN);
        if let Some(tls) = &self.options.tls {
            // The introduction is a secret.
            if endpoint.uri().scheme_str() != Some("https") {
                return Err(failed(&"it is not served over TLS, and this broker is"));
            }
            let pem = tokio::fs::read(&tls.authority).await.map_err(|error| failed(&error))?;
            let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            endpoint = endpoint.tls_config(config).map_err(|error| failed(&error))?;
        }
        let text = format!("{} {}", self.id, self.token.text().reveal());
        let mut introduction = MetadataValue::try_from(text).map_err(|error| failed(&error))?;
        introduction.set_sensitive(true);
        let channel = endpoint.connect().await.map_err(|error| failed(&error))?;
        Ok(InterceptedService::new(channel, Introduction(introduction)))
    }
}
