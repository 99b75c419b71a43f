//! What does nonsense do to the server? It is answered with an error or its connection is closed, it changes nothing for
//! anybody else, and nothing panics. Seeded: a failure prints its seed and how to run it again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use capstan_meta::wire::proto::{etcdserverpb as pb, v3electionpb, v3lockpb};
use capstan_testkit::seed;
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::wire_support::{DEADLINE, Served, call, served};

/// Bodies thrown at the server for one seed.
const BODIES: usize = 400;

/// Every method, and what its streams look like to a client.
const METHODS: [&str; 44] = [
    "etcdserverpb.KV/Range",
    "etcdserverpb.KV/RangeStream",
    "etcdserverpb.KV/Put",
    "etcdserverpb.KV/DeleteRange",
    "etcdserverpb.KV/Txn",
    "etcdserverpb.KV/Compact",
    "etcdserverpb.Watch/Watch",
    "etcdserverpb.Lease/LeaseGrant",
    "etcdserverpb.Lease/LeaseRevoke",
    "etcdserverpb.Lease/LeaseKeepAlive",
    "etcdserverpb.Lease/LeaseTimeToLive",
    "etcdserverpb.Lease/LeaseLeases",
    "etcdserverpb.Cluster/MemberAdd",
    "etcdserverpb.Cluster/MemberRemove",
    "etcdserverpb.Cluster/MemberUpdate",
    "etcdserverpb.Cluster/MemberList",
    "etcdserverpb.Cluster/MemberPromote",
    "etcdserverpb.Maintenance/Alarm",
    "etcdserverpb.Maintenance/Status",
    "etcdserverpb.Maintenance/Defragment",
    "etcdserverpb.Maintenance/Hash",
    "etcdserverpb.Maintenance/HashKV",
    "etcdserverpb.Maintenance/Snapshot",
    "etcdserverpb.Maintenance/MoveLeader",
    "etcdserverpb.Maintenance/Downgrade",
    "etcdserverpb.Auth/AuthEnable",
    "etcdserverpb.Auth/AuthDisable",
    "etcdserverpb.Auth/AuthStatus",
    "etcdserverpb.Auth/Authenticate",
    "etcdserverpb.Auth/UserAdd",
    "etcdserverpb.Auth/UserGet",
    "etcdserverpb.Auth/UserList",
    "etcdserverpb.Auth/UserGrantRole",
    "etcdserverpb.Auth/RoleAdd",
    "etcdserverpb.Auth/RoleGet",
    "etcdserverpb.Auth/RoleGrantPermission",
    "etcdserverpb.Auth/RoleRevokePermission",
    "v3lockpb.Lock/Lock",
    "v3lockpb.Lock/Unlock",
    "v3electionpb.Election/Campaign",
    "v3electionpb.Election/Proclaim",
    "v3electionpb.Election/Leader",
    "v3electionpb.Election/Observe",
    "v3electionpb.Election/Resign",
];

/// Bytes as they are.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = usize;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let len = buf.remaining();
        buf.advance(len);
        Ok(Some(len))
    }
}

/// Panics of any thread while the tests of this file run.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let server = info.location().is_some_and(|at| at.file().contains("src/"));
            if server {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

fn run(test: impl AsyncFn(&Served, StdRng)) {
    count_panics();
    let rounds = seed::soak(2, 200);
    seed::seeds(rounds, |seed| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let before = PANICS.load(Ordering::SeqCst);
        runtime.block_on(async {
            let served = served().await;
            test(&served, seed::rng(seed)).await;
            canary(&served).await;
        });
        assert_eq!(PANICS.load(Ordering::SeqCst), before, "something panicked");
    });
}

/// Somebody else, who asks for something sensible and gets it.
async fn canary(served: &Served) {
    let channel = served.channel().await;
    let put = pb::PutRequest { key: "canary".into(), value: "sings".into(), ..Default::default() };
    let answer = call::<_, pb::PutResponse>(&channel, "/etcdserverpb.KV/Put", put);
    timeout(DEADLINE, answer).await.expect("the server hangs").unwrap();
    let range = pb::RangeRequest { key: "canary".into(), ..Default::default() };
    let answer = call::<_, pb::RangeResponse>(&channel, "/etcdserverpb.KV/Range", range);
    let found = timeout(DEADLINE, answer).await.expect("the server hangs").unwrap();
    assert_eq!(found.kvs[0].0.value, "sings");
}

/// Sends bodies to a method as one stream and reads what comes, for a moment: a lock may well wait, a watch never ends.
async fn throw(channel: &Channel, method: &'static str, bodies: Vec<Bytes>) {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    if grpc.ready().await.is_err() {
        return;
    }
    let path = PathAndQuery::from_maybe_shared(format!("/{method}")).unwrap();
    let asked = async {
        let answers = grpc.streaming(Request::new(tokio_stream::iter(bodies)), path, Raw).await;
        let Ok(answers) = answers else { return };
        let mut answers = answers.into_inner();
        while let Ok(Some(_)) = answers.message().await {}
    };
    timeout(Duration::from_millis(50), asked).await.ok();
}

/// Requests that make sense, of every kind.
fn sensible(rng: &mut StdRng) -> Vec<u8> {
    let key = || Bytes::from_static(b"canary");
    let put = || pb::PutRequest { key: key(), value: "v".into(), lease: 7, ..Default::default() };
    let txn = || pb::TxnRequest {
        compare: vec![pb::Compare { key: key(), result: 3, target: 1, ..Default::default() }],
        success: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put())) }],
        failure: vec![pb::RequestOp {
            request: Some(pb::request_op::Request::RequestTxn(pb::TxnRequest::default())),
        }],
    };
    let create = pb::WatchCreateRequest { key: key(), range_end: "z".into(), ..Default::default() };
    let leader = v3electionpb::LeaderKey { name: key(), key: key(), rev: 2, lease: 7 };
    match rng.random_range(0..8) {
        0 => put().encode_to_vec(),
        1 => txn().encode_to_vec(),
        2 => pb::RangeRequest { key: key(), range_end: "z".into(), limit: 5, ..Default::default() }
            .encode_to_vec(),
        3 => pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) }
            .encode_to_vec(),
        4 => pb::LeaseGrantRequest { ttl: 60, id: 7 }.encode_to_vec(),
        5 => v3lockpb::LockRequest { name: key(), lease: 7 }.encode_to_vec(),
        6 => v3electionpb::ProclaimRequest { leader: Some(leader), value: "v".into() }.encode_to_vec(),
        _ => nested(rng.random_range(1..200)),
    }
}

/// A transaction in a transaction in a transaction.
fn nested(depth: usize) -> Vec<u8> {
    let mut inner = Vec::new();
    for _ in 0..depth {
        // RequestOp.request_txn of TxnRequest.success.
        let mut op = vec![0x22];
        prost::encoding::encode_varint(inner.len() as u64, &mut op);
        op.append(&mut inner);
        inner.push(0x12);
        prost::encoding::encode_varint(op.len() as u64, &mut inner);
        inner.append(&mut op);
    }
    inner
}

fn mutated(rng: &mut StdRng) -> Vec<u8> {
    let mut body = sensible(rng);
    for _ in 0..rng.random_range(0..6) {
        if body.is_empty() {
            break;
        }
        let at = rng.random_range(0..body.len());
        match rng.random_range(0..5) {
            0 => body[at] ^= 1 << rng.random_range(0..8),
            1 => body[at] = rng.random(),
            2 => body.truncate(at),
            3 => body.insert(at, rng.random()),
            _ => body.extend_from_slice(&[0xff; 9]),
        }
    }
    body
}

fn random(rng: &mut StdRng, most: usize) -> Vec<u8> {
    let mut body = vec![0; rng.random_range(0..most)];
    rng.fill_bytes(&mut body);
    body
}

#[test]
fn bodies_that_are_not_messages() {
    run(async |served, mut rng| {
        let channel = served.channel().await;
        for _ in 0..BODIES {
            let method = METHODS[rng.random_range(0..METHODS.len())];
            let bodies = (0..rng.random_range(0..3)).map(|_| random(&mut rng, 200).into()).collect();
            throw(&channel, method, bodies).await;
        }
        // On the same connection too: a bad body is an error of its call, not of its connection.
        let range = pb::RangeRequest { key: "canary".into(), ..Default::default() };
        call::<_, pb::RangeResponse>(&channel, "/etcdserverpb.KV/Range", range).await.unwrap();
    });
}

#[test]
fn messages_that_are_nearly_right() {
    run(async |served, mut rng| {
        let channel = served.channel().await;
        for n in 0..BODIES {
            let method = METHODS[rng.random_range(0..METHODS.len())];
            let bodies = (0..rng.random_range(1..5)).map(|_| mutated(&mut rng).into()).collect();
            throw(&channel, method, bodies).await;
            if n % 100 == 0 {
                canary(served).await;
            }
        }
    });
}

#[test]
fn messages_that_are_far_too_large() {
    run(async |served, mut rng| {
        let channel = served.channel().await;
        for method in METHODS {
            let size = rng.random_range((3 << 19)..(6 << 20));
            throw(&channel, method, vec![vec![0x0a; size].into()]).await;
        }
        canary(served).await;
    });
}

/// Reads until the server closes; an open end means that it still waits for more, which is its right for a while.
async fn until_closed(socket: &mut TcpStream) {
    let mut answer = Vec::new();
    timeout(Duration::from_millis(100), socket.read_to_end(&mut answer)).await.ok();
}

#[test]
fn bytes_that_are_not_http() {
    run(async |served, mut rng| {
        for _ in 0..60 {
            let mut socket = TcpStream::connect(served.addr).await.unwrap();
            let mut bytes = match rng.random_range(0..4) {
                0 => Vec::new(),
                1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
                2 => b"GET / HTTP/1.1\r\n".to_vec(),
                _ => b"\x16\x03\x01\x02\x00\x01".to_vec(),
            };
            bytes.extend(random(&mut rng, 4000));
            // The server may close before it has read everything.
            socket.write_all(&bytes).await.ok();
            until_closed(&mut socket).await;
        }
    });
}

#[test]
fn http2_frames_that_make_no_sense() {
    run(async |served, mut rng| {
        for _ in 0..60 {
            let mut socket = TcpStream::connect(served.addr).await.unwrap();
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
            for _ in 0..rng.random_range(1..40) {
                let payload = random(&mut rng, 100);
                bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
                bytes.extend([rng.random_range(0..12), rng.random()]);
                bytes.extend_from_slice(&rng.random_range(0..9u32).to_be_bytes());
                bytes.extend(payload);
            }
            socket.write_all(&bytes).await.ok();
            until_closed(&mut socket).await;
        }
    });
}
