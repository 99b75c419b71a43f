//! Three machines that joined with tokens: what they send each other, and to the store, cannot be read in between.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use capstan_testkit::etcd::Tls;
use capstan_testkit::{Etcd, Port, Tap, TempDir, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::binary::{DEADLINE, Daemon, Run, capstan, command, finish};
use crate::certs::{First, join, own};

const TOPIC: &str = "/default/orders";
const PLANTED: &str = "planted-message-5127";

struct Machine {
    _daemon: Daemon,
    /// The way of other holders to it.
    holder: Tap,
    /// Its way to the store.
    store: Tap,
    /// The way of clients to its broker.
    clients: Tap,
    listen: SocketAddr,
    _dir: TempDir,
    _ports: [Port; 2],
}

impl Machine {
    async fn join(first: &First, host: &str) -> Machine {
        let (dir, ports) =
            (TempDir::new(host).unwrap(), [Port::reserve().unwrap(), Port::reserve().unwrap()]);
        let endpoint = first.store.endpoint("meta");
        let store = Tap::start(endpoint.strip_prefix("https://").unwrap().parse().unwrap()).await.unwrap();
        let holder = Tap::start(ports[0].addr()).await.unwrap();
        let clients = Tap::start(ports[1].addr()).await.unwrap();
        let settings = [
            format!("meta.endpoints=https://{}", store.address),
            format!("holders.listen={}", ports[0].addr()),
            format!("holders.advertise={}", holder.address),
            format!("holders.dir={}", dir.join("logs").display()),
            format!("topics.listen={}", ports[1].addr()),
            format!("topics.advertise={}", clients.address),
            // Clients are not what is tested here.
            "access.anonymous=admin".to_owned(),
        ];
        let token = first.token(host, "topics").await;
        let joined = join(dir.path(), "etc", &token, &settings);
        assert_eq!(joined.code, 0, "{joined:#?}");
        let config = dir.join("etc/host.toml").display().to_string();
        let daemon = Daemon::start(host, &["host", "--config", &config]).await;
        Machine { _daemon: daemon, holder, store, clients, listen: ports[0].addr(), _dir: dir, _ports: ports }
    }
}

/// Publishes the planted message with this command.
fn produce(mut command: Command) -> Run {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that is refused does not read its input.
    drop(child.stdin.take().unwrap().write_all(format!("{PLANTED}\n").as_bytes()));
    finish(child.wait_with_output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_joined_replicate_and_nothing_between_them_is_clear_text() {
    let first = First::start().await;
    let mut machines = Vec::new();
    for host in ["box2", "box3", "box4"] {
        machines.push(Machine::join(&first, host).await);
    }
    let produce = || {
        let mut command = command(first.dir.path());
        command.args(["topics", "produce", TOPIC, "--config", "controller.toml"]);
        produce(command)
    };
    eventually("three brokers are there", DEADLINE, async || {
        let run = first.run(&["brokers", "list", "-o", "json"]);
        let known = run.stdout.matches("\"address\"").count();
        if known == machines.len() { Ok(()) } else { Err(format!("{run:?}")) }
    })
    .await;
    eventually("the message is published", DEADLINE, async || match produce() {
        run if run.code == 0 => Ok(()),
        run => Err(run.stderr),
    })
    .await;
    eventually("three copies are in sync", DEADLINE, async || {
        let listed = first.run(&["topics", "list", "-o", "json"]).json();
        if listed["topics"][0]["in_sync"] == 3 { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    let replicated: usize = machines.iter().map(|machine| machine.holder.bytes()).sum();
    assert!(replicated > 1_000, "holders exchanged {replicated} bytes only");
    for machine in &machines {
        let Machine { holder, store, clients, .. } = machine;
        assert!(store.bytes() > 0);
        assert!(!holder.has_seen(PLANTED) && !holder.has_seen("orders"), "a message in clear text");
        assert!(!clients.has_seen(PLANTED) && !clients.has_seen("orders"), "a message in clear text");
        assert!(!store.has_seen("/capstan/") && !store.has_seen("orders"), "metadata in clear text");
    }
    let published: usize = machines.iter().map(|machine| machine.clients.bytes()).sum();
    assert!(published > 1_000, "clients exchanged {published} bytes only");
    // A process without a certificate.
    let mut plain = TcpStream::connect(machines[0].listen).await.unwrap();
    plain.write_all(&[0; 64]).await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(DEADLINE, plain.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "the connection stayed open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_reaches_a_real_etcd_with_renewed_certificates_after_its_first_one_has_expired() {
    let dir = TempDir::new("etcd-tls").unwrap();
    capstan(dir.path(), &["certs", "init", "--host", "box1"]).ok();
    let issue = ["certs", "issue", "etcd1", "--address", "127.0.0.1", "--to", "etcd1", "--life", "365d"];
    capstan(dir.path(), &issue).ok();
    capstan(dir.path(), &["certs", "renew", "--set", "tls.dir=certs", "--set", "tls.life=10s"]).ok();
    let first = own(&dir.join("certs"));
    let file = |name: &str| dir.join("etcd1").join(name);
    let tls = Tls { cert: file("host.pem"), key: file("host.pem"), client_ca: Some(file("ca.pem")) };
    let mut etcd = Etcd::options().tls(tls).start().await.unwrap();
    let tls = format!("tls.dir={}", dir.join("certs").display());
    let endpoint = etcd.endpoint().to_owned();
    let settings = ["tls.life=10s", "tls.renew_every=1s", "host.id=box1", "http.listen=127.0.0.1:0", &tls];
    let args =
        ["host", "--meta", &endpoint].into_iter().chain(settings.iter().flat_map(|set| ["--set", set]));
    let host = Daemon::start("box1", &args.collect::<Vec<_>>()).await;
    let ca = format!("meta.tls_ca={}", file("ca.pem").display());
    let stranger = capstan(dir.path(), &["hosts", "list", "--meta", &endpoint, "--set", &ca]);
    assert_eq!(stranger.code, 69, "no certificate: {stranger:#?}");

    eventually("the first certificate has expired", DEADLINE, async || {
        let left = first.not_after.saturating_sub(capstan_meta::clock::since_epoch().as_secs());
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    etcd.kill9().unwrap();
    etcd.restart().await.unwrap();
    // Only the host itself can answer this, over a new connection.
    let drain = ["hosts", "drain", "box1", "--wait", "60s", "--meta", &endpoint, "--set", &tls];
    eventually("the host answers a drain", DEADLINE, async || match capstan(dir.path(), &drain) {
        run if run.code == 0 => Ok(()),
        run => Err(run.stderr),
    })
    .await;
    let log = host.process.log_text();
    assert!(log.contains("certificates for the store reloaded"), "{log}");
}

/// The answer of a port to these bytes, up to the end of the connection.
async fn answer_to(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_documents_and_topics_over_tls_and_plain_clients_are_told_why_they_do_not() {
    let dir = TempDir::new("tls-clients").unwrap();
    capstan(dir.path(), &["certs", "init", "--host", "box1"]).ok();
    capstan(dir.path(), &["certs", "init", "--dir", "other", "--host", "box1"]).ok();
    let tls = format!("tls.dir={}", dir.join("certs").display());
    let up = ["up", "--port-base", "0", "--set", &tls, "--set", "up.hosts=1"];
    let up = Daemon::start("up", &up).await;
    let (docs, topics) = (up.endpoint("docs"), up.endpoint("topics"));
    assert!(docs.starts_with("https://") && topics.starts_with("https://"), "{docs} {topics}");
    let right = ["--set", tls.as_str()];
    // The store is reached with the right certificates, and the rest with those of another authority, or without TLS.
    let file = |key: &str, name: &str| format!("{key}={}", dir.join("certs").join(name).display());
    let store =
        [file("meta.tls_ca", "ca.pem"), file("meta.tls_cert", "host.pem"), file("meta.tls_key", "host.pem")];
    let store: Vec<&str> = store.iter().flat_map(|set| ["--set", set.as_str()]).collect();
    let other = format!("tls.dir={}", dir.join("other").display());
    let wrong = [&store[..], &["--set", &other]].concat();
    let with = |args: &[&str], settings: &[&str]| up.capstan(&[args, settings].concat());

    eventually("the demo collection is there", DEADLINE, async || {
        let run = with(&["docs", "find", "demo", "planets"], &right);
        if run.code == 0 { Ok(()) } else { Err(run.stderr) }
    })
    .await;
    with(&["docs", "insert", "demo", "planets", "{\"name\": \"Vulcan\"}"], &right).ok();
    let found = with(&["docs", "find", "demo", "planets"], &right).ok();
    assert!(found.contains("Vulcan"), "{found}");
    let refused = with(&["docs", "databases"], &store);
    assert!(refused.code != 0 && refused.stderr.contains("served over TLS only"), "{refused:#?}");
    let refused = with(&["docs", "databases"], &wrong);
    assert!(refused.code != 0 && refused.stderr.contains("no node can be reached"), "{refused:#?}");

    let meta = up.endpoint("meta");
    let produce = |settings: &[&str]| {
        let mut command = command(dir.path());
        command.args(["topics", "produce", "/default/hello", "--meta", &meta]).args(settings);
        produce(command)
    };
    eventually("the message is published", DEADLINE, async || match produce(&right) {
        run if run.code == 0 => Ok(()),
        run => Err(run.stderr),
    })
    .await;
    for settings in [&store, &wrong] {
        let refused = produce(settings);
        assert_ne!(refused.code, 0, "{refused:#?}");
    }

    let docs = docs.strip_prefix("https://").unwrap().strip_suffix("/db").unwrap();
    let told = answer_to(docs, b"GET /db HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("served over TLS only"), "{told}");
    let http = up.endpoint("http");
    let told = answer_to(http.strip_prefix("https://").unwrap(), b"GET / HTTP/1.1\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("served over TLS only"), "{told}");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let told = answer_to(topics.strip_prefix("https://").unwrap(), preface).await;
    assert!(told.contains("served over TLS only"), "{told}");
}
