//! What does the wire itself add to the store? Headers, limits, streamed answers, pages for probes, encryption, closing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::wire::proto::etcdserverpb as pb;
use capstan_meta::wire::{self, Options};
use capstan_meta::{Backend, OwnedTask, Put};
use pb::request_op::Request as Ask;
use pb::response_op::Response as Told;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::wire_support::{DEADLINE, RawWatch, call, revision, served, served_with, stream, under};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

fn put(key: &str, value: Vec<u8>) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), value: value.into(), ..Default::default() }
}

fn all() -> pb::RangeRequest {
    pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() }
}

fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.unwrap_err();
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn headers_say_who_answers_and_inner_ones_only_when() {
    let served = served().await;
    let channel = served.channel().await;
    let about = served.store.status().await.unwrap();
    let whole = |revision| pb::ResponseHeader {
        cluster_id: about.cluster_id,
        member_id: about.member_id,
        revision,
        raft_term: about.term,
    };
    let inner = |revision| pb::ResponseHeader { revision, ..Default::default() };
    let answer: pb::PutResponse = call(&channel, PUT, put("a", b"1".to_vec())).await.unwrap();
    assert_eq!(answer.header, Some(whole(2)));
    let ops = [
        Ask::RequestPut(put("b", b"2".to_vec())),
        Ask::RequestRange(all()),
        Ask::RequestDeleteRange(pb::DeleteRangeRequest { key: "a".into(), ..Default::default() }),
        Ask::RequestTxn(pb::TxnRequest::default()),
    ];
    let txn = pb::TxnRequest {
        success: ops.map(|op| pb::RequestOp { request: Some(op) }).into(),
        ..Default::default()
    };
    let answer: pb::TxnResponse = call(&channel, TXN, txn).await.unwrap();
    assert_eq!(answer.header, Some(whole(3)));
    let headers = answer.responses.iter().map(|op| match op.response.as_ref().unwrap() {
        Told::ResponseRange(r) => r.header,
        Told::ResponsePut(r) => r.header,
        Told::ResponseDeleteRange(r) => r.header,
        Told::ResponseTxn(r) => r.header,
    });
    assert_eq!(headers.collect::<Vec<_>>(), [Some(inner(3)); 4]);
    let members = pb::MemberListRequest::default();
    let members: pb::MemberListResponse =
        call(&channel, "/etcdserverpb.Cluster/MemberList", members).await.unwrap();
    assert_eq!(members.header, Some(whole(0)));
    let url = format!("http://{}", served.addr);
    assert_eq!(members.members[0].client_ur_ls, [url]);
    let granted = pb::LeaseGrantRequest { ttl: 10, id: 7 };
    let granted: pb::LeaseGrantResponse =
        call(&channel, "/etcdserverpb.Lease/LeaseGrant", granted).await.unwrap();
    assert_eq!((granted.header, granted.id, granted.ttl), (Some(whole(3)), 7, 10));
}

#[tokio::test]
async fn a_request_may_be_large_but_not_too_large() {
    let served = served().await;
    let channel = served.channel().await;
    let fits: Result<pb::PutResponse, _> = call(&channel, PUT, put("k", vec![b'v'; 1_500_000])).await;
    assert_eq!(revision(&fits.unwrap().header), 2);
    let large: Result<pb::PutResponse, _> = call(&channel, PUT, put("k", vec![b'v'; 3 << 19])).await;
    assert_eq!(code(large), (Code::InvalidArgument, "etcdserver: request is too large".into()));
    let op = pb::RequestOp { request: Some(Ask::RequestPut(put("k", vec![b'v'; 3 << 19]))) };
    let txn = pb::TxnRequest { success: vec![op], ..Default::default() };
    let large: Result<pb::TxnResponse, _> = call(&channel, TXN, txn).await;
    assert_eq!(code(large), (Code::InvalidArgument, "etcdserver: request is too large".into()));
    let huge: Result<pb::PutResponse, _> = call(&channel, PUT, put("k", vec![b'v'; 3 << 20])).await;
    assert_eq!(code(huge), (Code::ResourceExhausted, "grpc: received message larger than max".into()));
    let still: pb::RangeResponse = call(&channel, RANGE, all()).await.unwrap();
    assert_eq!(revision(&still.header), 2);
}

#[tokio::test]
async fn malformed_requests_get_a_clear_answer() {
    let served = served().await;
    let channel = served.channel().await;
    let unsorted = pb::RangeRequest { sort_order: 9, ..all() };
    let answer: Result<pb::RangeResponse, _> = call(&channel, RANGE, unsorted).await;
    assert_eq!(code(answer), (Code::InvalidArgument, "etcdserver: invalid sort option".into()));
    let empty = pb::TxnRequest { success: vec![pb::RequestOp::default()], ..Default::default() };
    let answer: Result<pb::TxnResponse, _> = call(&channel, TXN, empty).await;
    assert_eq!(code(answer), (Code::InvalidArgument, "etcdserver: key not found".into()));
    let compare = pb::Compare { key: "k".into(), result: 77, ..Default::default() };
    let odd = pb::TxnRequest { compare: vec![compare], ..Default::default() };
    let answer: Result<pb::TxnResponse, _> = call(&channel, TXN, odd).await;
    assert_eq!(code(answer), (Code::InvalidArgument, "etcdserver: invalid compare in txn request".into()));
    let answer: Result<pb::TxnResponse, _> = call(&channel, "/nobody.Knows/It", all()).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
    let answer: Result<pb::TxnResponse, _> = call(&channel, "/etcdserverpb.KV/Unheard", all()).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
    let login = pb::AuthenticateRequest { name: "root".into(), password: "x".into() };
    let answer: Result<pb::AuthenticateResponse, _> =
        call(&channel, "/etcdserverpb.Auth/Authenticate", login).await;
    assert_eq!(code(answer), (Code::FailedPrecondition, "etcdserver: authentication is not enabled".into()));
}

#[tokio::test]
async fn a_range_can_be_streamed() {
    let served = served().await;
    for n in 0..30 {
        served.store.put(Put::new(format!("k{n:02}"), vec![b'v'; 100_000])).await.unwrap();
    }
    let channel = served.channel().await;
    let asked = pb::RangeRequest { limit: 29, ..all() };
    let parts: Vec<pb::RangeStreamResponse> =
        stream(&channel, "/etcdserverpb.KV/RangeStream", asked).await.unwrap();
    assert!(parts.len() > 4, "{} parts", parts.len());
    let parts: Vec<_> = parts.into_iter().map(|part| part.range_response.unwrap()).collect();
    let keys: Vec<_> =
        parts.iter().flat_map(|part| &part.kvs).map(|kv| kv.0.key_text().into_owned()).collect();
    assert_eq!(keys, (0..29).map(|n| format!("k{n:02}")).collect::<Vec<_>>());
    let last = parts.last().unwrap();
    assert_eq!((revision(&last.header), last.more, last.count), (31, true, 30));
    assert!(parts[..parts.len() - 1].iter().all(|part| part.header.is_none() && part.count == 0));
    let nothing: Vec<pb::RangeStreamResponse> = stream(
        &channel,
        "/etcdserverpb.KV/RangeStream",
        pb::RangeRequest { key: "none".into(), ..Default::default() },
    )
    .await
    .unwrap();
    assert_eq!(nothing.len(), 1, "an empty range is one part, with a header");
    let sorted = pb::RangeRequest { sort_order: 2, ..all() };
    let refused: Result<Vec<pb::RangeStreamResponse>, _> =
        stream(&channel, "/etcdserverpb.KV/RangeStream", sorted).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_snapshot_counts_down_and_ends_with_its_hash() {
    let served = served().await;
    for n in 0..100 {
        served.store.put(Put::new(format!("k{n}"), vec![b'v'; 1000])).await.unwrap();
    }
    let channel = served.channel().await;
    let parts: Vec<pb::SnapshotResponse> =
        stream(&channel, "/etcdserverpb.Maintenance/Snapshot", pb::SnapshotRequest {}).await.unwrap();
    let (hash, blobs) = parts.split_last().unwrap();
    let total: usize = blobs.iter().map(|part| part.blob.len()).sum();
    assert_eq!(total % 512, 0);
    let mut sent = 0;
    for part in blobs {
        assert!(part.blob.len() <= 32 << 10);
        sent += part.blob.len();
        assert_eq!(part.remaining_bytes as usize, total - sent);
    }
    let mut expected = Sha256::new();
    blobs.iter().for_each(|part| expected.update(&part.blob));
    assert_eq!(hash.blob, expected.finalize().to_vec());
}

/// Asks a plain HTTP/1.1 question.
async fn page(addr: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut socket = tokio::net::TcpStream::connect(addr).await.unwrap();
    let question = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(question.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, socket.read_to_string(&mut answer)).await.unwrap().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test]
async fn probes_find_their_pages_on_the_same_port() {
    let served = served().await;
    let ok = "HTTP/1.1 200 OK".to_owned();
    assert_eq!(page(served.addr, "/health").await, (ok.clone(), r#"{"health":"true","reason":""}"#.into()));
    let version = r#"{"etcdserver":"3.6.6","etcdcluster":"3.6.0"}"#;
    assert_eq!(page(served.addr, "/version").await, (ok, version.into()));
    assert_eq!(page(served.addr, "/secrets").await.0, "HTTP/1.1 404 Not Found");
}

#[tokio::test]
async fn a_connection_can_be_anything_that_carries_bytes() {
    let store = Embedded::in_memory(embedded::Options::default());
    let (near, far) = tokio::io::duplex(64 << 10);
    let incoming = tokio_stream::once(Ok(far));
    let backend = Arc::new(store.clone());
    let _server = OwnedTask::spawn(async move {
        wire::serve_incoming(incoming, backend, Options::default(), std::future::pending()).await.unwrap();
    });
    let mut near = Some(hyper_util::rt::TokioIo::new(near));
    let channel = tonic::transport::Endpoint::from_static("http://in.memory")
        .connect_with_connector(Connector(move || near.take()))
        .await
        .unwrap();
    let answer: pb::PutResponse = call(&channel, PUT, put("k", b"v".to_vec())).await.unwrap();
    assert_eq!(revision(&answer.header), 2);
}

/// Gives out one connection.
struct Connector<F>(F);

impl<F, IO> tonic::codegen::Service<tonic::codegen::http::Uri> for Connector<F>
where
    F: FnMut() -> Option<IO>,
{
    type Response = IO;
    type Error = std::io::Error;
    type Future = std::future::Ready<std::io::Result<IO>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::codegen::http::Uri) -> Self::Future {
        std::future::ready((self.0)().ok_or_else(|| std::io::Error::other("only one connection")))
    }
}

#[tokio::test]
async fn closing_lets_calls_finish_and_does_not_wait_for_the_stubborn() {
    let options = Options { drain: Duration::from_millis(200), ..Options::default() };
    let mut served = served_with(options).await;
    // A client that never reads: its watch cannot end politely.
    let channel = served.channel().await;
    let mut stubborn = RawWatch::on(&channel).await;
    stubborn.created(under("x")).await;
    for _ in 0..200 {
        served.store.put(Put::new("x", vec![b'v'; 64 << 10])).await.unwrap();
    }
    let idle = tokio::net::TcpStream::connect(served.addr).await.unwrap();
    served.close().await;
    let gone = tokio::net::TcpStream::connect(served.addr).await;
    assert!(gone.is_err(), "the port is free");
    drop((stubborn, idle));
}

#[tokio::test]
async fn encrypted_connections() {
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (authority.cert.pem(), authority.signing_key.serialize_pem());
    let tls = wire::Tls::from_pem(cert.as_bytes(), key.as_bytes(), None).unwrap();
    let served = served_with(Options { tls: Some(tls), ..Options::default() }).await;
    let trust = tonic::transport::ClientTlsConfig::new()
        .ca_certificate(tonic::transport::Certificate::from_pem(cert))
        .domain_name("localhost");
    let endpoint = tonic::transport::Channel::from_shared(format!("https://{}", served.addr)).unwrap();
    let channel = endpoint.tls_config(trust).unwrap().connect().await.unwrap();
    let answer: pb::PutResponse = call(&channel, PUT, put("k", b"v".to_vec())).await.unwrap();
    assert_eq!(revision(&answer.header), 2);
    assert!(wire::Tls::from_pem(b"nothing", key.as_bytes(), None).is_err());
}
