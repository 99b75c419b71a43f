//! Three machines that joined with tokens: what they send each other, and to the store, cannot be read in between.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use capstan_meta::OwnedTask;
use capstan_testkit::etcd::Tls;
use capstan_testkit::{Etcd, Port, TempDir, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::binary::{DEADLINE, Daemon, capstan, command, finish};
use crate::certs::{First, join, own};

const TOPIC: &str = "/default/orders";
const PLANTED: &str = "planted-message-5127";

/// A wire with a listener on it: forwards connections and keeps what went over them.
struct Tap {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    _forwarding: OwnedTask,
}

impl Tap {
    async fn start(to: SocketAddr) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let forwarding = OwnedTask::spawn(forward_all(listener, to, seen.clone()));
        Tap { address, seen, _forwarding: forwarding }
    }

    fn seen(&self) -> Vec<u8> {
        self.seen.lock().unwrap().clone()
    }
}

async fn forward_all(listener: TcpListener, to: SocketAddr, seen: Arc<Mutex<Vec<u8>>>) {
    let mut forwarding = JoinSet::new();
    loop {
        while forwarding.try_join_next().is_some() {}
        let Ok((near, _)) = listener.accept().await else { return };
        // A process that is not there yet: the other side sees a closed connection, and tries again.
        let Ok(far) = TcpStream::connect(to).await else { continue };
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        forwarding.spawn(pump(near_in, far_out, seen.clone()));
        forwarding.spawn(pump(far_in, near_out, seen.clone()));
    }
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    seen: Arc<Mutex<Vec<u8>>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        seen.lock().unwrap().extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

struct Machine {
    _daemon: Daemon,
    /// The way of other holders to it.
    holder: Tap,
    /// Its way to the store.
    store: Tap,
    listen: SocketAddr,
    _dir: TempDir,
    _ports: [Port; 2],
}

impl Machine {
    async fn join(first: &First, host: &str) -> Machine {
        let (dir, ports) =
            (TempDir::new(host).unwrap(), [Port::reserve().unwrap(), Port::reserve().unwrap()]);
        let endpoint = first.store.endpoint("meta");
        let store = Tap::start(endpoint.strip_prefix("https://").unwrap().parse().unwrap()).await;
        let holder = Tap::start(ports[0].addr()).await;
        let settings = [
            format!("meta.endpoints=https://{}", store.address),
            format!("holders.listen={}", ports[0].addr()),
            format!("holders.advertise={}", holder.address),
            format!("holders.dir={}", dir.join("logs").display()),
            format!("topics.listen={}", ports[1].addr()),
            // Clients are not what is tested here.
            "access.anonymous=admin".to_owned(),
        ];
        let token = first.token(host, "topics").await;
        let joined = join(dir.path(), "etc", &token, &settings);
        assert_eq!(joined.code, 0, "{joined:#?}");
        let config = dir.join("etc/host.toml").display().to_string();
        let daemon = Daemon::start(host, &["host", "--config", &config]).await;
        Machine { _daemon: daemon, holder, store, listen: ports[0].addr(), _dir: dir, _ports: ports }
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
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
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{PLANTED}\n").as_bytes()).unwrap();
        finish(child.wait_with_output().unwrap())
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
    let replicated: usize = machines.iter().map(|machine| machine.holder.seen().len()).sum();
    assert!(replicated > 1_000, "holders exchanged {replicated} bytes only");
    for machine in &machines {
        let (holder, store) = (machine.holder.seen(), machine.store.seen());
        assert!(!store.is_empty());
        assert!(!contains(&holder, PLANTED) && !contains(&holder, "orders"), "a message in clear text");
        assert!(!contains(&store, "/capstan/") && !contains(&store, "orders"), "metadata in clear text");
    }
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
