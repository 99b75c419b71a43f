//! Which service gets a call? Decided by the path, without a routing tree: nine names are matched faster than looked up.
//!
//! Two plain HTTP pages that probes of this format ask for, `/health` and `/version`, are answered on the same port.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderValue, Request, Response, StatusCode, header};
use tonic::{Code, Status};

use super::proto::etcdserverpb::auth_server::AuthServer;
use super::proto::etcdserverpb::cluster_server::ClusterServer;
use super::proto::etcdserverpb::kv_server::KvServer;
use super::proto::etcdserverpb::lease_server::LeaseServer;
use super::proto::etcdserverpb::maintenance_server::MaintenanceServer;
use super::proto::etcdserverpb::watch_server::WatchServer;
use super::proto::v3electionpb::election_server::ElectionServer;
use super::proto::v3lockpb::lock_server::LockServer;
use super::service::Wire;

/// An answer under way.
pub(super) struct Answer(Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>);

impl Future for Answer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map_ok(too_large)
    }
}

/// All services of the wire, for one connection.
#[derive(Clone)]
pub(super) struct Dispatch {
    wire: Arc<Wire>,
}

impl Dispatch {
    pub(super) fn new(wire: Arc<Wire>) -> Dispatch {
        Dispatch { wire }
    }
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let wire = self.wire.clone();
        let limit = wire.options.limits.message_bytes();
        // Building a server is three words on the stack around a shared pointer.
        macro_rules! serve {
            ($server:ident) => {{
                let server = $server::from_arc(wire).max_decoding_message_size(limit);
                Answer(server.max_encoding_message_size(usize::MAX).call(request))
            }};
        }
        match request.uri().path().split('/').nth(1) {
            Some("etcdserverpb.KV") => serve!(KvServer),
            Some("etcdserverpb.Watch") => serve!(WatchServer),
            Some("etcdserverpb.Lease") => serve!(LeaseServer),
            Some("etcdserverpb.Maintenance") => serve!(MaintenanceServer),
            Some("etcdserverpb.Cluster") => serve!(ClusterServer),
            Some("etcdserverpb.Auth") => serve!(AuthServer),
            Some("v3lockpb.Lock") => serve!(LockServer),
            Some("v3electionpb.Election") => serve!(ElectionServer),
            Some("health") => Answer(Box::pin(health(wire))),
            Some("version") => Answer(Box::pin(ready(Ok(version(&wire))))),
            _ => Answer(Box::pin(ready(Ok(unknown(&request))))),
        }
    }
}

/// gRPC of this format says "resource exhausted" about a message that is too long to be read; tonic says "out of range".
fn too_large(response: Response<Body>) -> Response<Body> {
    const TONICS_WORDS: &str = "decoded%20message%20length%20too%20large";
    let headers = response.headers();
    if let Some(code) = headers.get(Status::GRPC_STATUS)
        && code.as_bytes() == b"11"
        && let Some(text) = headers.get(Status::GRPC_MESSAGE)
        && text.to_str().is_ok_and(|text| text.contains(TONICS_WORDS))
    {
        return Status::new(Code::ResourceExhausted, "grpc: received message larger than max").into_http();
    }
    response
}

/// Whether the store answers, and no alarm is raised.
async fn health(wire: Arc<Wire>) -> Result<Response<Body>, Infallible> {
    Ok(match wire.healthy().await {
        Ok(()) => page(StatusCode::OK, r#"{"health":"true","reason":""}"#.to_owned()),
        Err(status) => {
            let reason = serde_json::Value::from(status.message());
            page(StatusCode::SERVICE_UNAVAILABLE, format!(r#"{{"health":"false","reason":{reason}}}"#))
        }
    })
}

fn version(wire: &Wire) -> Response<Body> {
    let server = &wire.identity.version;
    let minor: Vec<_> = server.split('.').take(2).collect();
    let cluster = minor.join(".");
    page(StatusCode::OK, format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}.0"}}"#))
}

/// Unknown services are told so in gRPC's way, everything else in HTTP's.
fn unknown(request: &Request<Incoming>) -> Response<Body> {
    let content = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if content.is_some_and(|content| content.starts_with(b"application/grpc")) {
        return Status::unimplemented(format!("unknown service {}", request.uri().path())).into_http();
    }
    page(StatusCode::NOT_FOUND, r#"{"error":"not found"}"#.to_owned())
}

fn page(code: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::new(text));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
