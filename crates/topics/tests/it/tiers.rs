//! Old messages in object storage: a directory, and a server that speaks S3.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use capstan_client::wire::capstan::topics::v1::{Position, position};
use capstan_testkit::proxy::{Direction, Flow};
use capstan_testkit::seed::soak;
use capstan_testkit::{Port, Process, Proxy, Ready, TempDir, eventually};
use capstan_topics::check;
use capstan_topics::tier::{Credentials, TierOptions};
use capstan_topics::wire::danube::ListSegmentDescriptorsRequest;
use capstan_topics::wire::danube::storage_service_client::StorageServiceClient;
use serde_json::Value;

use crate::cluster::{Cluster, SOON, channel};
use crate::retention::{consumer, number, offset, publish, read_all};

const TOPIC: &str = "/default/orders";
const OBJECTS: &str = "/danube-data/storage/topics/default/orders/objects/";
const LARGE: usize = 8 << 10;

/// Uploads at once and keeps nothing.
fn options(url: &str) -> TierOptions {
    TierOptions { local_bytes: 0, interval: Duration::from_millis(200), ..TierOptions::new(url) }
}

/// A directory, or a server of S3 behind links that can be cut.
#[allow(clippy::large_enum_variant, reason = "one for each test")]
enum Storage {
    Directory(TempDir),
    S3 { _server: Process, _port: Port, _dir: TempDir, link: Proxy, server: SocketAddr },
}

impl Storage {
    fn directory() -> Storage {
        Storage::Directory(TempDir::new("tier").unwrap())
    }

    async fn s3() -> Storage {
        let (dir, port) = (TempDir::new("s3").unwrap(), Port::reserve().unwrap());
        let builder = Process::builder(moto()).args(["-H", "127.0.0.1", "-p", &port.number().to_string()]);
        let mut process = builder.spawn(dir.join("log")).unwrap();
        process.ready(&Ready::Port(port.number()), SOON).await.unwrap();
        let link = Proxy::start(port.addr()).await.unwrap();
        assert!(http(port.addr(), "PUT", "/bucket").starts_with("HTTP/1.1 200"));
        Storage::S3 { server: port.addr(), _server: process, _port: port, _dir: dir, link }
    }

    fn options(&self) -> TierOptions {
        match self {
            Storage::Directory(dir) => options(&format!("file://{}", dir.path().display())),
            Storage::S3 { link, .. } => TierOptions {
                endpoint: Some(link.endpoint()),
                credentials: Some(Credentials { access_key: "key".into(), secret_key: "secret".into() }),
                ..options("s3://bucket/below")
            },
        }
    }

    /// The names of all objects.
    fn objects(&self) -> BTreeSet<String> {
        match self {
            Storage::Directory(dir) => files(dir.path().to_owned()).into_iter().collect(),
            Storage::S3 { server, .. } => {
                let listed = http(*server, "GET", "/bucket?list-type=2&prefix=below");
                let keys = listed.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
                keys.map(|key| key.rsplit('/').next().unwrap().to_owned()).collect()
            }
        }
    }
}

fn files(dir: PathBuf) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(files(path));
        } else {
            found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    found
}

/// The server that tools/clients.sh installs.
fn moto() -> PathBuf {
    let target = std::env::current_exe().unwrap();
    let installed = target.ancestors().map(|dir| dir.join("clients/s3/venv/bin/moto_server"));
    installed.into_iter().find(|path| path.is_file()).expect("tools/clients.sh installs moto_server")
}

fn http(server: SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {server}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The descriptors, by their keys.
async fn descriptors(cluster: &Cluster) -> Vec<(String, Value)> {
    let range = capstan_meta::Range::prefix(OBJECTS);
    let listed = cluster.store.range(range).await.unwrap();
    let entries = listed.kvs.iter().map(|kv| {
        let key = String::from_utf8(kv.key.to_vec()).unwrap();
        (key.strip_prefix(OBJECTS).unwrap().to_owned(), serde_json::from_slice(&kv.value).unwrap())
    });
    entries.filter(|(key, _)| key != "cur").collect()
}

/// How many messages the objects have, which follow each other without gaps.
fn uploaded(described: &[(String, Value)]) -> u64 {
    let mut next = 0;
    for (key, object) in described {
        assert_eq!(key, &format!("{next:020}"), "objects have no gaps");
        assert_eq!(object["start_offset"], next);
        next = object["end_offset"].as_u64().unwrap() + 1;
    }
    next
}

/// Publishes from this number on until so many messages are uploaded, and waits until the objects are those that are
/// described. Returns the number of messages. The newest file of a log is uploaded when the next one begins, and only
/// messages begin one.
async fn upload(cluster: &Cluster, storage: &Storage, published: u64, at_least: u64) -> u64 {
    let client = cluster.own_client();
    let mut published = published;
    eventually("old messages are uploaded", SOON, async || {
        let uploaded = uploaded(&descriptors(cluster).await);
        if uploaded >= at_least {
            return Ok(());
        }
        publish(&client, TOPIC, published..published + 10, LARGE).await;
        published += 10;
        Err(format!("only {uploaded} of {published} messages are uploaded"))
    })
    .await;
    eventually("each object is described, and there are no others", SOON, async || {
        let described = descriptors(cluster).await;
        uploaded(&described);
        let name = |object: &Value| object["object_id"].as_str().unwrap().to_owned();
        let names: BTreeSet<String> = described.iter().map(|(_, object)| name(object)).collect();
        let objects = storage.objects();
        if names == objects { Ok(()) } else { Err(format!("{names:?} are described, {objects:?} are there")) }
    })
    .await;
    published
}

async fn moves_and_reads(storage: Storage) {
    let mut cluster = Cluster::start_with(&["a", "b", "c"], Some(storage.options())).await;
    let client = cluster.own_client();
    publish(&client, TOPIC, 0..200, LARGE).await;
    let count = upload(&cluster, &storage, 200, 100).await;
    let (key, object) = descriptors(&cluster).await.swap_remove(0);
    assert_eq!((key.as_str(), &object["completed"]), ("00000000000000000000", &Value::Bool(true)));
    assert_eq!(object["offset_index"][0], serde_json::json!([0, 0]));
    assert!(object["size"].as_u64().unwrap() > 0 && object["checksum"].is_u64() && object["etag"].is_null());
    eventually("the cursor names the newest object", SOON, async || {
        let cursor = cluster.value(&format!("{OBJECTS}cur")).await.unwrap();
        let cursor: Value = serde_json::from_str(&cursor).unwrap();
        let newest = descriptors(&cluster).await.pop().unwrap().0;
        if cursor["start"] == newest { Ok(()) } else { Err(format!("{cursor}, {newest}")) }
    })
    .await;

    let mut segments = StorageServiceClient::new(channel(cluster.nodes["a"].broker.url()));
    let request = |after_offset| ListSegmentDescriptorsRequest { topic: TOPIC[1..].to_owned(), after_offset };
    let all = segments.list_segment_descriptors(request(0)).await.unwrap().into_inner().segments;
    assert_eq!(
        (all[0].start_offset, &all[0].segment_id),
        (0, &object["object_id"].as_str().unwrap().to_owned())
    );
    // After offset 0 means all of them, so the mark is a later end.
    let mark = all.iter().map(|segment| segment.end_offset).find(|end| *end > 0).unwrap();
    let later = segments.list_segment_descriptors(request(mark)).await.unwrap().into_inner();
    assert!(later.segments.iter().all(|segment| segment.start_offset > mark), "{later:?}");

    // Readers and consumers cross from the objects to the log.
    assert_eq!(read_all(&client, TOPIC).await, (0, count));
    let mut consumer = consumer(&client, TOPIC).await;
    for expected in 0..count {
        let message = consumer.next().await.unwrap();
        assert_eq!((offset(&message), number(&message)), (expected, expected));
        consumer.acknowledge(vec![expected]).await.unwrap();
    }
    let all = Position { at: Some(position::At::Time(1)) };
    let mut messages = client.read(TOPIC, all, 1).await.unwrap();
    assert_eq!(offset(&messages.message().await.unwrap().unwrap()), 0);

    // Another broker goes on with the same objects.
    let owner = cluster.owner(TOPIC).await;
    cluster.end(&owner).await;
    let client = cluster.own_client();
    let count = upload(&cluster, &storage, count, count).await;
    assert_eq!(read_all(&client, TOPIC).await, (0, count));

    cluster.client().await.admin().delete_topic(topic_request()).await.unwrap();
    eventually("the objects go with the topic", SOON, async || {
        let (described, objects) = (descriptors(&cluster).await, storage.objects());
        if described.is_empty() && objects.is_empty() { Ok(()) } else { Err(format!("{objects:?}")) }
    })
    .await;
}

fn topic_request() -> capstan_topics::wire::danube_admin::TopicRequest {
    capstan_topics::wire::danube_admin::TopicRequest { name: TOPIC.to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_messages_move_to_a_directory_and_are_read_from_there() {
    moves_and_reads(Storage::directory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_messages_move_to_s3_and_are_read_from_there() {
    moves_and_reads(Storage::s3().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_are_interrupted_leave_no_gap_and_no_orphan() {
    let storage = Storage::s3().await;
    let Storage::S3 { link, .. } = &storage else { unreachable!() };
    let mut cluster = Cluster::start_with(&["a", "b", "c"], Some(storage.options())).await;
    let mut published = 0;
    // Cut within the request: the object does not arrive. Cut within the answer: it is there, and its broker does not
    // know. A broker that ends in between leaves an object without a descriptor.
    let cuts = [(Direction::ToUpstream, 100), (Direction::ToUpstream, 100_000), (Direction::ToClient, 0)];
    for round in 0..soak(2, 30) {
        for (direction, bytes) in cuts {
            let client = cluster.own_client();
            link.set(direction, Flow::CutAfter(bytes + round));
            publish(&client, TOPIC, published..published + 60, LARGE).await;
            published += 60;
            let owner = cluster.owner(TOPIC).await;
            cluster.end(&owner).await;
            link.heal().await;
            cluster.begin(&owner).await;
        }
    }
    let count = upload(&cluster, &storage, published, published).await;
    assert_eq!(read_all(&cluster.own_client(), TOPIC).await, (0, count));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_that_fails_for_a_while_costs_nothing() {
    let storage = Storage::s3().await;
    let Storage::S3 { link, .. } = &storage else { unreachable!() };
    let cluster = Cluster::start_with(&["a"], Some(storage.options())).await;
    let client = cluster.own_client();
    publish(&client, TOPIC, 0..60, LARGE).await;
    link.cut().await;
    publish(&client, TOPIC, 60..160, LARGE).await;
    // tidy: allow, because the length of the failure is what this is about
    tokio::time::sleep(Duration::from_secs(soak(2, 60))).await;
    let is_found = async |wanted: bool| {
        let findings = cluster.findings().await;
        let found = findings.iter().any(|finding| finding.code == check::TIER_FAILS);
        if found == wanted { Ok(()) } else { Err(format!("{findings:?}")) }
    };
    eventually("a finding says that the storage fails", SOON, async || is_found(true).await).await;
    assert_eq!(client.stats(TOPIC).await.unwrap().end, 160);
    link.heal().await;
    eventually("the finding goes with the failure", SOON, async || is_found(false).await).await;
    let count = upload(&cluster, &storage, 160, 160).await;
    assert_eq!(read_all(&client, TOPIC).await, (0, count));
}
