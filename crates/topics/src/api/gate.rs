//! May this request go on? Its credential becomes an identity before any method runs, and a method asks what the identity
//! may do before it does anything. A method that declares no need is not served.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use capstan_access::secret::Token;
use capstan_access::{Credential, Guard, Identity, Object, Refused, Secret, Verb, decide};
use capstan_meta::clock;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap, header};
use tonic::{Request, Status};
use tower::{Layer, Service};

use crate::agent::{BROKER_HEADER, Inner};
use crate::error::TopicsError;
use crate::spec::TopicName;

/// Streams last for days: whether their credential is still good is looked at again after this time.
const CHECK_AGAIN: Duration = Duration::from_secs(5);

/// What a method needs before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing: it is how a client gets a credential.
    Public,
    /// A credential that is good. What it is about stands in the request: the method itself asks.
    Known,
    /// A grant.
    Grant(Verb, &'static [&'static str]),
}

const BROKERS: &[&str] = &["broker"];
const SCHEMAS: &[&str] = &["schemas"];

/// What a method needs; nothing if it is not declared here.
fn need(path: &str) -> Option<Need> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let need = match (service, method) {
        ("danube.AuthService", "Authenticate") => Need::Public,
        ("danube.ProducerService", "CreateProducer" | "SendMessage")
        | ("danube.ConsumerService", "Subscribe" | "ReceiveMessages" | "Ack" | "Nack")
        | ("danube.Discovery", "TopicLookup" | "TopicPartitions")
        | ("danube.HealthCheck", "HealthCheck")
        | ("danube.StorageService", "ListSegmentDescriptors")
        | ("capstan.topics.v1.Topics", "Publish" | "Read" | "Seek" | "AckMany" | "Unsubscribe" | "Stats")
        | (
            "danube_admin.NamespaceAdmin",
            "GetNamespaceTopics" | "GetNamespacePolicies" | "CreateNamespace" | "DeleteNamespace",
        )
        | (
            "danube_admin.TopicAdmin",
            "ListNamespaceTopics"
            | "CreateTopic"
            | "CreatePartitionedTopic"
            | "DeleteTopic"
            | "UnloadTopic"
            | "ListSubscriptions"
            | "Unsubscribe"
            | "DescribeTopic"
            | "SetSubscriptionFailurePolicy"
            | "GetSubscriptionFailurePolicy"
            | "SetSubscriptionDispatchConfig"
            | "GetSubscriptionDispatchConfig",
        )
        | (
            "danube_schema.SchemaRegistry",
            "ConfigureTopicSchema" | "UpdateTopicValidationPolicy" | "GetTopicSchemaConfig",
        ) => Need::Known,
        (
            "danube_admin.BrokerAdmin",
            "ListBrokers" | "GetLeaderBroker" | "ListNamespaces" | "GetClusterBalance",
        )
        | ("danube_admin.TopicAdmin", "ListBrokerTopics")
        | ("danube_admin.ClusterAdmin", "ClusterStatus") => Need::Grant(Verb::View, BROKERS),
        ("danube_admin.BrokerAdmin", "UnloadBroker" | "ActivateBroker" | "TriggerRebalance")
        | ("danube_admin.ClusterAdmin", "AddNode" | "PromoteNode" | "RemoveNode") => {
            Need::Grant(Verb::Operate, BROKERS)
        }
        (
            "danube_schema.SchemaRegistry",
            "GetSchema" | "GetLatestSchema" | "ListVersions" | "ListSubjects" | "CheckCompatibility",
        ) => Need::Grant(Verb::View, SCHEMAS),
        (
            "danube_schema.SchemaRegistry",
            "RegisterSchema" | "DeleteSchemaVersion" | "SetCompatibilityMode",
        ) => Need::Grant(Verb::Operate, SCHEMAS),
        _ => return None,
    };
    Some(need)
}

/// What a request comes from.
#[derive(Clone, Debug)]
enum Caller {
    /// Another broker of this cluster.
    Broker,
    /// A client, and the token that it presented.
    Client { identity: Identity, token: Option<Token> },
}

impl Inner {
    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, TopicsError> {
        if let Some(value) = headers.get(BROKER_HEADER) {
            let is_broker = value.to_str().is_ok_and(|text| self.is_broker(text));
            return if is_broker { Ok(Caller::Broker) } else { Err(refused(Refused::Invalid)) };
        }
        let token = headers.get(header::AUTHORIZATION).map(|value| {
            let (scheme, rest) = value.to_str().unwrap_or_default().split_once(' ').unwrap_or_default();
            // A credential that cannot be read is a wrong one, not none.
            if scheme.eq_ignore_ascii_case("bearer") { rest.trim() } else { "" }
        });
        let credential = token.map_or(Credential::None, |token| Credential::Token(Secret::new(token)));
        let identity = self.guard().authenticate(&credential).await.map_err(refused)?;
        Ok(Caller::Client { identity, token: token.and_then(Token::parse) })
    }

    /// Refuses a request that does not have what its method needs. Returns what the method may ask further.
    async fn enter(&self, path: &str, headers: &HeaderMap) -> Result<Option<Caller>, TopicsError> {
        let need = need(path).ok_or_else(|| TopicsError::Denied(format!("{path} is not served")))?;
        let caller = match need {
            Need::Public => return Ok(None),
            Need::Known | Need::Grant(..) => self.caller(headers).await?,
        };
        if let Need::Grant(verb, object) = need {
            allowed(self.guard(), &caller, &[verb], &object_of(object)?)?;
        }
        Ok(Some(caller))
    }

    /// Whether the caller may do this with a topic. Streams keep what is returned, to ask again.
    pub(super) fn may<T>(
        &self,
        request: &Request<T>,
        verb: Verb,
        topic: &TopicName,
    ) -> Result<Pass, TopicsError> {
        self.may_any(request, only(verb), topic)
    }

    /// Whether the caller may see a topic: also those may that publish to it or consume it.
    pub(super) fn may_see<T>(&self, request: &Request<T>, topic: &TopicName) -> Result<(), TopicsError> {
        self.may_any(request, &[Verb::Produce, Verb::Consume, Verb::View], topic).map(drop)
    }

    pub(super) fn may_any<T>(
        &self,
        request: &Request<T>,
        verbs: &'static [Verb],
        topic: &TopicName,
    ) -> Result<Pass, TopicsError> {
        let object = object_of(&["namespace", topic.namespace.as_str(), topic.local.as_str()])?;
        self.pass(request, verbs, object)
    }

    /// Whether the caller may do this with a namespace.
    pub(super) fn may_within<T>(
        &self,
        request: &Request<T>,
        verb: Verb,
        namespace: &str,
    ) -> Result<(), TopicsError> {
        self.pass(request, only(verb), object_of(&["namespace", namespace])?).map(drop)
    }

    fn pass<T>(
        &self,
        request: &Request<T>,
        verbs: &'static [Verb],
        object: Object,
    ) -> Result<Pass, TopicsError> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| refused(Refused::Missing))?;
        allowed(self.guard(), &caller, verbs, &object)?;
        let (guard, checked) = (self.guard().clone(), Instant::now());
        Ok(Pass { guard, caller, verbs, object, checked })
    }

    /// The token for an access key: the key itself, which is what requests present.
    pub(super) async fn token_for(&self, api_key: String) -> Result<String, TopicsError> {
        let credential = Credential::Token(Secret::new(api_key.clone()));
        self.guard().authenticate(&credential).await.map_err(refused)?;
        Ok(api_key)
    }
}

fn only(verb: Verb) -> &'static [Verb] {
    match verb {
        Verb::View => &[Verb::View],
        Verb::Operate => &[Verb::Operate],
        Verb::Read => &[Verb::Read],
        Verb::Write => &[Verb::Write],
        Verb::Produce => &[Verb::Produce],
        Verb::Consume => &[Verb::Consume],
        Verb::Admin => &[Verb::Admin],
    }
}

fn refused(why: Refused) -> TopicsError {
    TopicsError::Unauthenticated(why.to_string())
}

fn object_of(segments: &[&str]) -> Result<Object, TopicsError> {
    Object::within("topics", segments).map_err(|error| TopicsError::Invalid(error.to_string()))
}

/// Whether a caller may do one of these.
fn allowed(guard: &Guard, caller: &Caller, verbs: &[Verb], object: &Object) -> Result<(), TopicsError> {
    let Caller::Client { identity, .. } = caller else { return Ok(()) };
    let policy = guard.policy();
    if verbs.iter().any(|verb| decide(&policy, identity, *verb, object).is_allowed()) {
        return Ok(());
    }
    let (name, verb) = (&identity.name, verbs.last().copied().unwrap_or(Verb::Admin));
    tracing::info!(identity = name, %verb, %object, "request denied");
    Err(TopicsError::Denied(format!(
        "{name} may not {verb} {object}; `capstan access why {name} {verb} {object}` says why"
    )))
}

/// What a request was allowed.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    guard: Guard,
    caller: Caller,
    verbs: &'static [Verb],
    object: Object,
    checked: Instant,
}

impl Pass {
    /// Whether it is still good: keys expire and are revoked, grants are taken back.
    pub(super) fn is_good(&mut self) -> Result<(), TopicsError> {
        if self.checked.elapsed() < CHECK_AGAIN {
            return Ok(());
        }
        self.checked = Instant::now();
        if let Caller::Client { identity, token: Some(token) } = &mut self.caller {
            let now = clock::since_epoch().as_secs();
            let known = self.guard.policy().identify(token, now);
            *identity = known.ok_or_else(|| refused(Refused::Invalid))?;
        }
        allowed(&self.guard, &self.caller, self.verbs, &self.object)
    }
}

/// A stream of messages that ends when its credential does. A message that is held back is delivered to another consumer.
pub(super) struct Watched<S> {
    messages: S,
    pass: Pass,
}

impl<S> Watched<S> {
    pub(super) fn new(messages: S, pass: Pass) -> Watched<S> {
        Watched { messages, pass }
    }
}

impl<S, T> Stream for Watched<S>
where
    S: Stream<Item = Result<T, Status>> + Unpin,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.messages).poll_next(context));
        match (next, self.pass.is_good()) {
            (Some(_), Err(error)) => Poll::Ready(Some(Err(error.into()))),
            (next, _) => Poll::Ready(next),
        }
    }
}

/// Puts a gate before every method.
#[derive(Clone)]
pub(super) struct Gates(pub(super) Arc<Inner>);

impl<S> Layer<S> for Gates {
    type Service = Gate<S>;

    fn layer(&self, methods: S) -> Gate<S> {
        Gate { inner: self.0.clone(), methods }
    }
}

/// The gate before the methods.
#[derive(Clone)]
pub(super) struct Gate<S> {
    inner: Arc<Inner>,
    methods: S,
}

impl<S, B> Service<http::Request<B>> for Gate<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.methods.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        // The one that is ready is used up, and a fresh one stays.
        let fresh = self.methods.clone();
        let mut methods = std::mem::replace(&mut self.methods, fresh);
        let inner = self.inner.clone();
        Box::pin(async move {
            match inner.enter(request.uri().path(), request.headers()).await {
                Ok(caller) => {
                    caller.map(|caller| request.extensions_mut().insert(caller));
                    methods.call(request).await
                }
                Err(error) => Ok(Status::from(error).into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOS: [&str; 4] = [
        include_str!("../../proto/danube.proto"),
        include_str!("../../proto/danube_admin.proto"),
        include_str!("../../proto/danube_schema.proto"),
        include_str!("../../proto/capstan_topics.proto"),
    ];

    /// The paths of all methods.
    fn methods() -> Vec<String> {
        let word = |line: &str, at: usize| line.split([' ', '(', ';', '{']).nth(at).unwrap().to_owned();
        let mut found = Vec::new();
        for text in PROTOS {
            let (mut package, mut service) = (String::new(), String::new());
            for line in text.lines().map(str::trim) {
                match line.split(' ').next() {
                    Some("package") => package = word(line, 1),
                    Some("service") => service = word(line, 1),
                    Some("rpc") => found.push(format!("/{package}.{service}/{}", word(line, 1))),
                    _ => {}
                }
            }
        }
        found
    }

    #[test]
    fn every_method_declares_its_need_and_one_is_public() {
        let methods = methods();
        assert!(methods.len() > 50, "{methods:?}");
        let public: Vec<_> = methods.iter().filter(|path| need(path).expect(path) == Need::Public).collect();
        assert_eq!(public, ["/danube.AuthService/Authenticate"]);
        for unknown in
            ["", "/", "/danube.AuthService", "/danube.AuthService/Other", "danube.AuthService/Authenticate"]
        {
            assert_eq!(need(unknown), None, "{unknown}");
        }
    }
}
