//! Certificates as operators meet them: an authority, a machine that joins with a token, hosts that renew by themselves
//! while clients are served, and no secret in sight.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use capstan_access::certs::{Description, describe};
use capstan_access::tls::{ClientConfig, LiveTls, TlsFiles};
use capstan_meta::etcd::{Etcd, EtcdIdentity, EtcdOptions, EtcdTls};
use capstan_meta::{Put, Store};
use capstan_testkit::redis::{RedisServer, Wire};
use capstan_testkit::{Port, Process, Ready, TempDir, eventually, seed};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::access::process_list;
use crate::binary::{DEADLINE, Daemon, Run, capstan, command, finish};

const REDIS_SECRET: &str = "planted-redis-secret-7361";

/// The first machine: an authority, a store that only its hosts reach, and a controller that signs.
pub struct First {
    pub dir: TempDir,
    pub store: Daemon,
    controller: Daemon,
}

impl First {
    pub async fn start() -> First {
        let dir = TempDir::new("first").unwrap();
        capstan(dir.path(), &["certs", "init", "--dir", "certs", "--host", "box1"]).ok();
        let certs = dir.join("certs").display().to_string();
        let tls = format!("tls.dir={certs}");
        let store =
            Daemon::start("store", &["meta", "serve", "--listen", "127.0.0.1:0", "--set", &tls]).await;
        let settings = format!(
            "[meta]\nendpoints = ['{}']\n[host]\nid = 'box1'\n[http]\nlisten = '127.0.0.1:0'\n\
             [tls]\ndir = '{certs}'\nrenew_every = '1s'\n[redis]\nsecret = '{REDIS_SECRET}'\n[log]\nlevel = 'debug'\n",
            store.endpoint("meta")
        );
        std::fs::write(dir.join("controller.toml"), settings).unwrap();
        let config = dir.join("controller.toml").display().to_string();
        let controller = Daemon::start("controller", &["controller", "--config", &config]).await;
        First { dir, store, controller }
    }

    fn certs(&self) -> PathBuf {
        self.dir.join("certs")
    }

    /// An operator's command on this machine.
    pub fn run(&self, args: &[&str]) -> Run {
        let config = self.dir.join("controller.toml").display().to_string();
        let args: Vec<&str> = args.iter().copied().chain(["--config", &config]).collect();
        capstan(self.dir.path(), &args)
    }

    pub async fn token(&self, host: &str, role: &str) -> String {
        let args = ["certs", "token", host, "--address", "127.0.0.1", "--role", role, "-o", "json"];
        let made = eventually("a process signs", DEADLINE, async || match self.run(&args) {
            run if run.code == 0 => Ok(run.json()),
            run => Err(run.stderr),
        });
        made.await["token"].as_str().unwrap().to_owned()
    }
}

/// Joins with a token from stdin.
pub fn join(dir: &Path, to: &str, token: &str, settings: &[String]) -> Run {
    let mut child = command(dir)
        .args(["join", "-", "--dir", to, "--set", "http.listen=127.0.0.1:0"])
        .args(settings.iter().flat_map(|setting| ["--set", setting]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    finish(child.wait_with_output().unwrap())
}

pub fn own(certs: &Path) -> Description {
    describe(&std::fs::read(certs.join("host.pem")).unwrap()).unwrap().remove(0)
}

async fn renewals(certs: &Path, count: usize) {
    let mut last = own(certs).fingerprint;
    for _ in 0..count {
        last = eventually("the certificate is renewed", DEADLINE, async || {
            let now = own(certs).fingerprint;
            if now == last { Err("the same") } else { Ok(now) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_machine_joins_with_a_token_and_renews_by_itself_until_it_is_revoked() {
    let first = First::start().await;
    assert!(first.controller.endpoint("http").starts_with("https://"));
    let token = first.token("box2", "redis").await;
    let dir = TempDir::new("second").unwrap();
    // It does not serve Redis here: that would need ports of its own.
    let alone = ["host.roles=", "tls.renew_every=1s"].map(str::to_owned);
    let joined = join(dir.path(), "etc", &token, &alone);
    assert_eq!(joined.code, 0, "{joined:#?}");
    let file = |name: &str| dir.join("etc").join(name);
    for name in ["host.toml", "certs/host.pem"] {
        let mode = std::fs::metadata(file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let settings = std::fs::read_to_string(file("host.toml")).unwrap();
    assert!(settings.contains("id = \"box2\"") && settings.contains(REDIS_SECRET), "{settings}");
    let again = join(dir.path(), "other", &token, &alone);
    assert!(again.code == 1 && again.stderr.contains("not valid"), "{again:#?}");
    assert!(!dir.join("other/host.toml").exists(), "a token is used once");
    let twice = join(dir.path(), "etc", &token, &alone);
    assert!(twice.code == 1 && twice.stderr.contains("joined already"), "{twice:#?}");

    let config = file("host.toml").display().to_string();
    let host = Daemon::start("box2", &["host", "--config", &config]).await;
    renewals(&file("certs"), 2).await;
    let hosts = first.run(&["hosts", "list"]).ok();
    assert!(hosts.contains("box2") && hosts.contains("up"), "{hosts}");
    first.run(&["certs", "revoke", "box2"]).ok();
    eventually("renewals are refused", DEADLINE, async || {
        let log = host.process.log_text();
        if log.contains("box2 is not enrolled") { Ok(()) } else { Err("not yet") }
    })
    .await;
    let shown = everything_shown(&first, &[&host, &first.store, &first.controller], &[joined, again, twice]);
    let authority_key = std::fs::read_to_string(first.certs().join("ca.key")).unwrap();
    let line = authority_key.lines().nth(1).unwrap();
    let secret = token.split(['_', '.']).nth(2).unwrap();
    for planted in [REDIS_SECRET, secret, line] {
        let at = shown.find(planted);
        assert!(at.is_none(), "{planted} in ...{}", &shown[at.unwrap_or(0).saturating_sub(300)..][..300]);
    }
}

/// Logs, events, metadata, process lists and what commands printed.
fn everything_shown(first: &First, daemons: &[&Daemon], runs: &[Run]) -> String {
    let mut shown = format!("{runs:?}") + &process_list();
    for daemon in daemons {
        shown += &daemon.process.log_text();
    }
    for args in [&["meta", "tree", "-o", "json"][..], &["events"], &["config", "show"], &["certs", "show"]] {
        shown += &first.run(args).ok();
    }
    let (ca, own) = (first.certs().join("ca.pem"), first.certs().join("host.pem"));
    let mut dump = Command::new("etcdctl");
    dump.env("ETCDCTL_API", "3").args(["--endpoints", &first.store.endpoint("meta")]);
    dump.arg("--cacert").arg(ca).arg("--cert").arg(&own).arg("--key").arg(&own);
    let dump = finish(dump.args(["get", "/", "--prefix"]).output().unwrap()).ok();
    assert!(dump.contains("/capstan/access/signers/"), "this looked at too little: {dump}");
    shown + &dump
}

fn identity(certs: &Path) -> EtcdTls {
    let own = std::fs::read(certs.join("host.pem")).unwrap();
    let ca = std::fs::read(certs.join("ca.pem")).unwrap();
    EtcdTls { ca, identity: Some(EtcdIdentity { cert: own.clone(), key: own }), domain: None }
}

async fn connect(endpoint: &str, certs: &Path) -> Result<Etcd, String> {
    let mut options = EtcdOptions::new([endpoint]);
    options.request_timeout = DEADLINE;
    options.connect_timeout = DEADLINE / 2;
    options.tls = Some(identity(certs));
    Etcd::connect(options).await.map_err(|error| error.to_string())
}

fn ping(client: ClientConfig, to: SocketAddr) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::from(to.ip());
    let connection = ClientConnection::new(Arc::new(client), name).map_err(std::io::Error::other)?;
    let socket = TcpStream::connect(to)?;
    socket.set_read_timeout(Some(DEADLINE))?;
    let mut stream = StreamOwned::new(connection, socket);
    set(&mut stream)?;
    Ok(stream)
}

fn set(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> std::io::Result<()> {
    stream.write_all(b"SET k v\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    if &answer == b"+OK\r\n" { Ok(()) } else { Err(std::io::Error::other(format!("{answer:?}"))) }
}

/// One connection that stays and one for every request. Returns how many requests were served.
fn redis_load(client: ClientConfig, to: SocketAddr, over: &AtomicBool) -> std::io::Result<u64> {
    let mut lasting = ping(client.clone(), to)?;
    let mut served = 0;
    while !over.load(Ordering::Relaxed) {
        ping(client.clone(), to)?;
        set(&mut lasting)?;
        served += 2;
    }
    Ok(served)
}

async fn store_load(endpoint: &str, certs: &Path, over: &AtomicBool) -> Result<u64, String> {
    let first = connect(endpoint, certs).await?;
    let renewal = first.tls_renewal();
    let lasting = Store::new(first);
    let mut served = 0;
    while !over.load(Ordering::Relaxed) {
        let fresh = Store::new(connect(endpoint, certs).await?);
        for store in [&fresh, &lasting] {
            store.put(Put::new("/load", "v")).await.map_err(|error| error.to_string())?;
            served += 1;
        }
        renewal.renew(identity(certs)).await.map_err(|error| error.to_string())?;
    }
    Ok(served)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_certificates_are_renewed() {
    let first = First::start().await;
    let (certs, dir) = (first.certs(), TempDir::new("proxy").unwrap());
    let own = certs.join("host.pem").display().to_string();
    let node = RedisServer::options().start().await.unwrap();
    let port = Port::reserve().unwrap();
    let address = port.addr();
    let mut proxy = Process::builder(env!("CARGO_BIN_EXE_capstan"))
        .args(["redis", "proxy", "--listen", &address.to_string(), "--tls-cert", &own, "--tls-key", &own])
        .args(["--log-level", "info"])
        .spawn(dir.join("log"))
        .unwrap();
    proxy.ready(&Ready::Port(address.port()), DEADLINE).await.unwrap();
    let told = format!("NMCTL SETDB 1 NOFLAG db {} 0-16383", node.address());
    assert_eq!(Wire::connect(address).unwrap().say(&told).unwrap(), "+OK\r\n");
    let (cert, key) = (certs.join("host.pem"), certs.join("host.pem"));
    let live = LiveTls::open(TlsFiles { cert, key, authority: Some(certs.join("ca.pem")) }).unwrap();
    let client = live.client().unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let of_redis = over.clone();
    let redis = tokio::task::spawn_blocking(move || redis_load(client, address, &of_redis));
    let renewing = async {
        let began = Instant::now();
        while began.elapsed() < seed::soak(Duration::from_secs(1), Duration::from_secs(60)) {
            renewals(&certs, 3).await;
        }
        over.store(true, Ordering::Relaxed);
    };
    let endpoint = first.store.endpoint("meta");
    let (store, ()) = tokio::join!(store_load(&endpoint, &certs, &over), renewing);
    let redis = redis.await.unwrap();
    assert!(matches!((&redis, &store), (Ok(1..), Ok(1..))), "redis {redis:?}, store {store:?}");
    let log = proxy.log_text();
    assert!(log.contains("certificate reloaded"), "{log}");
    let log = first.store.process.log_text();
    assert!(log.contains("certificate reloaded"), "{log}");
}

#[test]
fn an_authority_is_made_once_and_signs_for_others() {
    let dir = TempDir::new("authority").unwrap();
    let run = |args: &[&str]| capstan(dir.path(), args);
    run(&["certs", "init", "--host", "box1", "--address", "10.0.0.1"]).ok();
    let key = std::fs::metadata(dir.join("certs/ca.key")).unwrap().permissions().mode();
    assert_eq!(key & 0o777, 0o600);
    let before = std::fs::read(dir.join("certs/ca.pem")).unwrap();
    let again = run(&["certs", "init", "--host", "box1"]);
    assert!(again.code == 1 && again.stderr.contains("exists already"), "{again:#?}");
    assert_eq!(std::fs::read(dir.join("certs/ca.pem")).unwrap(), before);
    let shown = run(&["certs", "show", "-o", "json"]).json()["certificates"].clone();
    assert_eq!(shown[0]["certificate"]["is_authority"], true, "{shown}");
    assert_eq!(shown[1]["certificate"]["subject"], "box1", "{shown}");
    let first = own(&dir.join("certs"));
    run(&["certs", "renew"]).ok();
    let second = own(&dir.join("certs"));
    assert!(first.fingerprint != second.fingerprint && first.addresses == second.addresses, "{second:?}");
    run(&["certs", "issue", "etcd1", "--address", "10.0.0.9", "--to", "etcd1", "--life", "365d"]).ok();
    assert!(!dir.join("etcd1/ca.key").exists(), "the key of the authority stays where it is");
    assert_eq!(own(&dir.join("etcd1")).subject, "etcd1");
    let wrong = run(&["certs", "issue", "x", "--address", "10.0.0.9", "--to", "certs"]);
    assert!(wrong.code == 1 && wrong.stderr.contains("authority of its own"), "{wrong:#?}");
    let nonsense = run(&["join", "csk_0_0"]);
    assert!(nonsense.code == 1 && nonsense.stderr.contains("not a token"), "{nonsense:#?}");
}

#[tokio::test]
async fn what_other_machines_reach_needs_certificates() {
    let dir = TempDir::new("open").unwrap();
    let check = |settings: &[&str]| {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        capstan(dir.path(), &["config", "check"].into_iter().chain(set).collect::<Vec<_>>())
    };
    let open = ["http.listen=10.0.0.1:7700", "meta.listen=10.0.0.1:7701", "holders.listen=10.0.0.1:7731"];
    assert_eq!(check(&open).code, 64);
    let missing = check(&[&open[..], &["tls.dir=certs"]].concat());
    assert!(
        missing.code == 64
            && missing.stdout.contains("certs/host.pem") | missing.stderr.contains("certs/host.pem"),
        "{missing:#?}"
    );
    capstan(dir.path(), &["certs", "init", "--host", "box1", "--address", "10.0.0.1"]).ok();
    check(&[&open[..], &["tls.dir=certs"]].concat()).ok();
    assert_eq!(check(&["tls.dir=certs", "tls.life=1s"]).code, 64);
    let plain = ["tls.dir=certs", "redis.listen=10.0.0.1:7711"];
    assert_eq!(check(&plain).code, 64, "proxies and coordinators speak plainly there");
    // The certificate of the process does not name the local hosts of `capstan up`.
    let up = capstan(
        dir.path(),
        &[
            "up",
            "--port-base",
            "0",
            "--set",
            "tls.dir=certs",
            "--set",
            "holders.listen=0.0.0.0:0",
            "--set",
            "holders.advertise=10.0.0.1:7731",
        ],
    );
    assert!(up.code != 0 && up.stderr.contains("holders.listen"), "{up:#?}");
}
