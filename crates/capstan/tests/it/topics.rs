//! Topics as users meet them: lines in and out, and kill -9 of what serves them.

use std::io::Write as _;
use std::process::Stdio;

use capstan_client::wire::capstan::topics::v1::{Position, Record, position};
use capstan_client::{Client, Producer};
use capstan_testkit::eventually;
use serde_json::Value;

use crate::binary::{DEADLINE, Daemon, Run, command, finish};

const TOPIC: &str = "/default/orders";

/// Publishes lines with the command line.
fn produce(up: &Daemon, lines: &str) -> Run {
    let mut command = command(up.dir.path());
    command.args(["topics", "produce", TOPIC, "-o", "json", "--meta", &up.endpoint("meta")]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    finish(child.wait_with_output().unwrap())
}

#[tokio::test]
async fn lines_go_in_and_come_out_and_kill_9_loses_none() {
    let args = ["up", "--port-base", "0", "--set", "host.id=one", "--set", "up.hosts=1"];
    let mut up = Daemon::start("topics", &args).await;
    assert!(up.endpoint("topics").starts_with("http://127.0.0.1:"));
    let lines: String = (0..1_000).map(|number| format!("line {number}\n")).collect();
    assert_eq!(produce(&up, &lines).json()["published"], 1_000);
    up.process.kill9().unwrap();
    up.restart().await;
    assert_eq!(produce(&up, "one more\n").json()["last_offset"], 1_000);
    let consume =
        ["topics", "consume", TOPIC, "--subscription", "s", "--from", "earliest", "--count", "1001"];
    assert_eq!(up.capstan(&consume).ok(), lines + "one more\n");
    let listed = up.capstan(&["topics", "list", "-o", "json"]).json()["topics"].take();
    assert_eq!(listed[0]["topic"], Value::from("/default/hello"), "a newcomer finds a topic");
    assert_eq!((&listed[1]["topic"], &listed[1]["in_sync"]), (&Value::from(TOPIC), &Value::from(1)));
    up.capstan(&["topics", "seek", TOPIC, "--subscription", "s", "--to", "998"]).ok();
    let again = ["topics", "consume", TOPIC, "--subscription", "s", "--count", "3"];
    assert_eq!(up.capstan(&again).ok(), "line 998\nline 999\none more\n");
    let peeked = up.capstan(&["topics", "peek", TOPIC, "--from", "5", "--count", "1", "-o", "json"]).json();
    assert_eq!((&peeked["offset"], &peeked["payload"]), (&Value::from(5), &Value::from("line 5")));
    up.capstan(&["topics", "delete", TOPIC]).ok();
    up.capstan(&["topics", "delete", "/default/hello"]).ok();
    assert_eq!(up.capstan(&["topics", "list", "-o", "json"]).json()["topics"], Value::Array(Vec::new()));
}

/// A store, a controller and hosts that are brokers, each a process of its own.
struct Brokers {
    hosts: Vec<Daemon>,
    _controller: Daemon,
    meta: Daemon,
}

impl Brokers {
    async fn start(count: u16) -> Brokers {
        let meta = Daemon::start("brokers", &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
        let endpoint = meta.endpoint("meta");
        let common = ["--meta", &endpoint, "--set", "http.listen=127.0.0.1:0", "--set", "host.lease_ttl=3s"];
        let controller: Vec<&str> =
            ["controller", "--set", "host.id=k"].iter().chain(&common).copied().collect();
        let controller = Daemon::start("controller", &controller).await;
        let mut hosts = Vec::new();
        for number in 1..=count {
            let id = format!("host.id=h{number}");
            let dir = meta.dir.join(format!("h{number}"));
            let dir = format!("holders.dir={}", dir.display());
            let own = [
                "host",
                "--set",
                &id,
                "--set",
                &dir,
                "--set",
                "host.roles=topics",
                "--set",
                "access.anonymous=admin",
                "--set",
                "topics.listen=127.0.0.1:0",
            ];
            let args: Vec<&str> = own.iter().chain(&common).copied().collect();
            hosts.push(Daemon::start(&format!("h{number}"), &args).await);
        }
        Brokers { hosts, _controller: controller, meta }
    }

    fn client(&self) -> Client {
        Client::new(self.hosts.iter().map(|host| host.endpoint("topics")))
    }
}

async fn publish(producer: &mut Producer, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let value = Some(number.to_string().into());
        producer.send(vec![Record { value, ..Record::default() }]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_owner_loses_nothing_and_doubles_nothing() {
    let mut brokers = Brokers::start(3).await;
    let client = brokers.client();
    let mut producer = client.producer(TOPIC, "p");
    publish(&mut producer, 0..50).await;
    producer.flush().await.unwrap();
    eventually("three copies are in sync", DEADLINE, async || {
        let listed = brokers.meta.capstan(&["topics", "list", "-o", "json"]).json();
        if listed["topics"][0]["in_sync"] == 3 { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    let owner = client.locate(TOPIC).await.unwrap().unwrap();
    let killed = brokers.hosts.iter_mut().find(|host| host.endpoint("topics") == owner).unwrap();
    publish(&mut producer, 50..70).await;
    killed.process.kill9().unwrap();
    publish(&mut producer, 70..120).await;
    producer.flush().await.unwrap();
    killed.restart().await;
    let earliest = Position { at: Some(position::At::Earliest(true)) };
    let client = brokers.client();
    let mut messages = client.read(TOPIC, earliest, 0).await.unwrap();
    let mut found = Vec::new();
    while let Some(message) = messages.message().await.unwrap() {
        let offset = message.msg_id.as_ref().unwrap().topic_offset;
        found.push((offset, String::from_utf8(message.payload.to_vec()).unwrap()));
    }
    let expected: Vec<(u64, String)> = (0..120).map(|number| (number, number.to_string())).collect();
    assert_eq!(found, expected, "in order, each once, offsets without gaps");
}

/// Where `tools/install.sh test` has put the program that drives the public client.
fn danube_check() -> std::path::PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| crate::golden::repository("target"), std::path::PathBuf::from);
    let path = target.join("clients/danube/danube-check");
    assert!(path.exists(), "{} is missing; run tools/install.sh test, which needs a network", path.display());
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn public_clients_get_over_kill_9_of_a_broker() {
    let mut brokers = Brokers::start(3).await;
    for version in ["newest", "document"] {
        let topic = format!("/default/{version}");
        let client = brokers.client();
        let mut producer = client.producer(&topic, "first");
        publish(&mut producer, 0..1).await;
        producer.flush().await.unwrap();
        eventually("three copies are in sync", DEADLINE, async || {
            let listed = brokers.meta.capstan(&["topics", "list", "-o", "json"]).json();
            let known =
                listed["topics"].as_array().unwrap().iter().find(|known| known["topic"] == topic.as_str());
            if known.is_some_and(|known| known["in_sync"] == 3) { Ok(()) } else { Err(listed.to_string()) }
        })
        .await;
        let owner = client.locate(&topic).await.unwrap().unwrap();
        let other =
            brokers.hosts.iter().map(|host| host.endpoint("topics")).find(|url| *url != owner).unwrap();
        let mut flow = std::process::Command::new(danube_check());
        flow.args(["flow", version, &other, &topic, "100"]).stdin(Stdio::null());
        let mut flow = flow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(flow.stdout.take().unwrap()));
        assert!(lines.by_ref().map(Result::unwrap).any(|line| line == "under way"));
        let killed = brokers.hosts.iter_mut().find(|host| host.endpoint("topics") == owner).unwrap();
        killed.process.kill9().unwrap();
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        let output = finish(flow.wait_with_output().unwrap());
        assert!(
            output.code == 0 && rest.last().is_some_and(|last| last == "all passed"),
            "{rest:?} {output:?}"
        );
        let killed = brokers.hosts.iter_mut().find(|host| host.endpoint("topics") == owner).unwrap();
        killed.restart().await;
    }
}

/// Brokers of hosts let nothing in without a key; commands show the one that they are given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_asks_for_an_access_key_and_commands_show_theirs() {
    let meta = Daemon::start_in_memory("keys", &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
    let (endpoint, dir) = (meta.endpoint("meta"), meta.dir.join("h"));
    let holders = format!("holders.dir={}", dir.display());
    let settings =
        ["host.id=h", &holders, "host.roles=topics", "topics.listen=127.0.0.1:0", "http.listen=127.0.0.1:0"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let args: Vec<&str> = ["host", "--meta", &endpoint].into_iter().chain(settings).collect();
    let _host = Daemon::start_in_memory("h", &args).await;
    let args = ["controller", "--set", "host.id=k", "--meta", &endpoint, "--set", "http.listen=127.0.0.1:0"];
    let _controller = Daemon::start_in_memory("k", &args).await;
    let refused = meta.capstan(&["topics", "create", TOPIC]);
    assert_eq!(refused.code, 1, "{refused:#?}");
    assert!(refused.stderr.contains("the broker asks for an access key"), "{refused:#?}");
    meta.capstan(&[
        "access",
        "account",
        "create",
        "shop",
        "--grant",
        "topics:namespace/default:operate,produce",
    ])
    .ok();
    let key = meta.capstan(&["access", "key", "create", "shop", "-o", "json"]).json();
    let key = format!("access.key={}", key["key"].as_str().expect("the key"));
    meta.capstan(&["--set", &key, "topics", "create", TOPIC]).ok();
    let denied = meta.capstan(&["--set", &key, "topics", "peek", TOPIC]);
    assert!(denied.code == 1 && denied.stderr.contains("may not consume"), "{denied:#?}");
}
