//! Certificates between hosts: only a peer whose certificate names it can connect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::Options;
use capstan_log::net::{AddressBook, Frame, Tls};
use capstan_log::{Disk, HolderId, Host, HostOptions, Log, LogName, NoSnapshots, referee};
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_testkit::{TempDir, eventually};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(20);

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for this name, signed by one authority; the other end must be signed by the other.
fn certificate(name: &str, signed_by: &Authority, trusts: &Authority) -> Tls {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let chain = params.signed_by(&key, signed_by).unwrap().pem();
    Tls::from_pem(chain.as_bytes(), key.serialize_pem().as_bytes(), trusts.pem().as_bytes()).unwrap()
}

fn log_name() -> LogName {
    "orders".parse().unwrap()
}

struct Cluster {
    dir: TempDir,
    store: Store,
    book: AddressBook,
    running: Vec<(Host, Session)>,
}

impl Cluster {
    async fn new(holders: &[&str]) -> Cluster {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        let ids: Vec<HolderId> = holders.iter().map(|name| name.parse().unwrap()).collect();
        referee::create(&store, &log_name(), ids.clone(), ids.len()).await.unwrap();
        let dir = TempDir::new("tls").unwrap();
        Cluster { dir, store, book: AddressBook::default(), running: Vec::new() }
    }

    async fn start(&mut self, name: &str, tls: Option<Tls>) -> Log {
        let me: HolderId = name.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.book.set(me.clone(), listener.local_addr().unwrap());
        let session = Session::start(self.store.clone(), SessionOptions::default());
        session.live().await.unwrap();
        let disk = Disk::open(&self.dir.join(name), Options::default()).unwrap();
        let options = HostOptions { tls, append_within: Duration::from_secs(2), ..HostOptions::new(me) };
        let (store, book, state) = (self.store.clone(), self.book.clone(), session.state());
        let host = Host::start(options, disk, store, state, Some(listener), book).await.unwrap();
        let log = host.open(&log_name(), Arc::new(NoSnapshots)).await.unwrap();
        self.running.push((host, session));
        log
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_with_certificates_replicate() {
    let authority = authority();
    let mut cluster = Cluster::new(&["a", "b"]).await;
    let a = cluster.start("a", Some(certificate("a", &authority, &authority))).await;
    let b = cluster.start("b", Some(certificate("b", &authority, &authority))).await;
    let data = Bytes::from(vec![7; 100_000]);
    eventually("it is committed on both", SOON, async || a.append(vec![data.clone()]).await).await;
    let entries = eventually("the follower shows it", SOON, async || {
        let batch = b.read(capstan_log::Offset(0), 1_000).await.unwrap();
        if batch.entries.is_empty() { Err("nothing yet") } else { Ok(batch.entries) }
    })
    .await;
    assert_eq!(entries[0].data, data);
}

/// Sends a hello in plain text and waits for the end of the connection.
async fn is_shut_out(address: std::net::SocketAddr, hello: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(hello).await.ok();
    let mut rest = Vec::new();
    // The other end may send a reason before it closes.
    tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_no_certificate_or_the_wrong_one_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let strangers = [
        ("no certificate", None),
        ("another authority's", Some(certificate("b", &theirs, &ours))),
        ("another holder's", Some(certificate("c", &ours, &ours))),
    ];
    for (what, tls) in strangers {
        let mut cluster = Cluster::new(&["a", "b"]).await;
        let a = cluster.start("a", Some(certificate("a", &ours, &ours))).await;
        cluster.start("b", tls).await;
        let appended = a.append(vec![Bytes::from_static(b"x")]).await;
        assert!(appended.is_err(), "{what}: {appended:?}");
        let config = referee::read(&cluster.store, &log_name()).await.unwrap().record;
        assert_eq!(config.in_sync.len(), 2, "{what}");
        let hello = Frame::Hello("b".parse().unwrap()).encode();
        let address = cluster.book.get(&"a".parse().unwrap()).unwrap();
        assert!(is_shut_out(address, &hello).await, "{what}");
    }
}
