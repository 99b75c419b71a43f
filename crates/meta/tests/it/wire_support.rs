//! What do the tests of the wire share? A store in memory, served on loopback, and a client that says on the wire
//! exactly what it is told to.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::wire::codec::WireCodec;
use capstan_meta::wire::proto::etcdserverpb as pb;
use capstan_meta::wire::{self, Options};
use capstan_meta::{OwnedTask, Store};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Long enough for a loaded machine, short enough to be noticed.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A store on the wire. Closed when dropped.
pub struct Served {
    pub addr: SocketAddr,
    pub store: Embedded,
    shutdown: Option<oneshot::Sender<()>>,
    ended: Option<oneshot::Receiver<()>>,
    _server: OwnedTask,
}

/// Serves an empty store.
pub async fn served() -> Served {
    served_with(Options::default()).await
}

/// Serves an empty store in this way.
pub async fn served_with(options: Options) -> Served {
    let store = Embedded::in_memory(embedded::Options::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (shutdown, asked) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel();
    let backend = Arc::new(store.clone());
    let server = OwnedTask::spawn(async move {
        let asked = async {
            asked.await.ok();
        };
        wire::serve(listener, backend, options, asked).await.unwrap();
        end.send(()).ok();
    });
    Served { addr, store, shutdown: Some(shutdown), ended: Some(ended), _server: server }
}

/// Serves this store; ends when the task is dropped.
pub async fn served_store(store: Embedded, options: Options) -> (String, OwnedTask) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = async move {
        wire::serve(listener, Arc::new(store), options, std::future::pending()).await.unwrap();
    };
    (endpoint, OwnedTask::spawn(serving))
}

impl Served {
    /// The store itself, past the wire.
    pub fn direct(&self) -> Store {
        Store::new(self.store.clone())
    }

    /// A connection.
    pub async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap()
    }

    /// The client that Rust programs use.
    pub async fn client(&self) -> etcd_client::Client {
        etcd_client::Client::connect([self.addr.to_string()], None).await.unwrap()
    }

    /// Asks the server to close and waits until it has.
    pub async fn close(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
        let ended = self.ended.take().unwrap();
        tokio::time::timeout(DEADLINE, ended).await.expect("server did not close in time").unwrap();
    }
}

/// One call with one answer.
pub async fn call<T, U>(channel: &Channel, path: &'static str, request: T) -> Result<U, Status>
where
    T: Message + Send + Sync + 'static,
    U: Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(path);
    let answer = grpc.unary(Request::new(request), path, WireCodec::<T, U>::default());
    Ok(answer.await?.into_inner())
}

/// One call with many answers.
pub async fn stream<T, U>(channel: &Channel, path: &'static str, request: T) -> Result<Vec<U>, Status>
where
    T: Message + Send + Sync + 'static,
    U: Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(path);
    let answer = grpc.server_streaming(Request::new(request), path, WireCodec::<T, U>::default());
    let mut answers = answer.await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer);
    }
    Ok(all)
}

/// A watch stream, message by message.
pub struct RawWatch {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl RawWatch {
    pub async fn open(served: &Served) -> RawWatch {
        RawWatch::on(&served.channel().await).await
    }

    pub async fn on(channel: &Channel) -> RawWatch {
        let (requests, queue) = mpsc::channel(1024);
        let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = WireCodec::<pb::WatchRequest, pb::WatchResponse>::default();
        let answers = grpc.streaming(Request::new(ReceiverStream::new(queue)), path, codec);
        let answers = answers.await.unwrap().into_inner();
        RawWatch { requests, answers }
    }

    pub async fn send(&self, request: pb::watch_request::RequestUnion) {
        self.requests.send(pb::WatchRequest { request_union: Some(request) }).await.unwrap();
    }

    pub async fn create(&self, request: pb::WatchCreateRequest) {
        self.send(pb::watch_request::RequestUnion::CreateRequest(request)).await;
    }

    pub async fn cancel(&self, watch_id: i64) {
        let request = pb::WatchCancelRequest { watch_id };
        self.send(pb::watch_request::RequestUnion::CancelRequest(request)).await;
    }

    pub async fn ask_progress(&self) {
        self.send(pb::watch_request::RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    }

    /// The next answer.
    pub async fn next(&mut self) -> pb::WatchResponse {
        self.try_next().await.unwrap().expect("the stream has ended")
    }

    /// The next answer, or how the stream ended.
    pub async fn try_next(&mut self) -> Result<Option<pb::WatchResponse>, Status> {
        tokio::time::timeout(DEADLINE, self.answers.message()).await.expect("no answer in time")
    }

    /// Creates a watcher and takes the answer to that.
    pub async fn created(&mut self, request: pb::WatchCreateRequest) -> pb::WatchResponse {
        self.create(request).await;
        let created = self.next().await;
        assert!(created.created, "not a created: {created:?}");
        created
    }

    /// Says nothing more, but goes on listening.
    pub fn finish(self) -> Streaming<pb::WatchResponse> {
        self.answers
    }
}

/// A watcher of everything under a prefix.
pub fn under(prefix: &str) -> pb::WatchCreateRequest {
    let range = capstan_meta::KeyRange::prefix(prefix.to_owned());
    pb::WatchCreateRequest { key: range.start, range_end: range.end, ..Default::default() }
}

/// The revision in an answer's header.
pub fn revision(header: &Option<pb::ResponseHeader>) -> i64 {
    header.as_ref().expect("an answer without a header").revision
}
