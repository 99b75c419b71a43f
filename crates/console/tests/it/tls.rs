//! HTTP over TLS: which connections are served, and what a certificate opens.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Authority, HostNames, KeyRequest};
use capstan_access::enroll::{Signer, Welcome};
use capstan_access::keys::EnrolledKey;
use capstan_access::spec::EnrolledHost;
use capstan_access::tls::{ClientCerts, ClientConfig, LiveTls, TlsFiles, pinned_client};
use capstan_access::{Anonymous, Guard};
use capstan_console::{Peer, State, TlsListener, router};
use capstan_meta::OwnedTask;
use capstan_meta::record::{Extra, Key as _};
use capstan_testkit::{TempDir, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

const HOUR: Duration = Duration::from_secs(3600);
const DEADLINE: Duration = Duration::from_secs(60);

struct Served {
    authority: Authority,
    address: SocketAddr,
    state: State,
    dir: TempDir,
    _serving: OwnedTask,
}

/// Writes the chain and the key of a host, and its authority, below a name.
fn host(dir: &Path, authority: &Authority, host: &str, life: Duration) -> LiveTls {
    let KeyRequest { key, request } = KeyRequest::generate().unwrap();
    let names = HostNames { host: host.parse().unwrap(), addresses: Vec::new() };
    let chain = authority.sign(&request, &names, life).unwrap();
    let (own, ca) = (dir.join(format!("{host}.pem")), dir.join(format!("{host}-ca.pem")));
    files::replace(&own, &(chain + key.reveal()), Readers::Owner).unwrap();
    files::replace(&ca, authority.certificate(), Readers::All).unwrap();
    LiveTls::open(TlsFiles { cert: own.clone(), key: own, authority: Some(ca) }).unwrap()
}

/// A process that has the key of the authority, of which box1 is a host.
async fn served() -> Served {
    let (mut state, _) = super::state();
    let dir = TempDir::new("https").unwrap();
    let (authority, key) = Authority::create("test", 1000 * HOUR).unwrap();
    let (certificate, key_file) = (dir.join("ca.pem"), dir.join("ca.key"));
    files::replace(&certificate, authority.certificate(), Readers::All).unwrap();
    files::replace(&key_file, key.reveal(), Readers::Owner).unwrap();
    let signer = Signer { certificate, key: key_file, life: HOUR, welcome: Welcome::default() };
    state.signer = Some(Arc::new(signer));
    state.access = Guard::open(state.store.clone(), Anonymous::Refused).await.unwrap();
    let record = EnrolledHost { addresses: Vec::new(), since: 1, extra: Extra::default() };
    state.store.put(EnrolledKey { host: "box1".parse().unwrap() }.put(&record)).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = host(dir.path(), &authority, "server", HOUR).server(ClientCerts::Optional).unwrap();
    let listener = TlsListener::new(listener, config).unwrap();
    let address = axum::serve::Listener::local_addr(&listener).unwrap().address;
    let app = router(state.clone()).into_make_service_with_connect_info::<Peer>();
    let serving = OwnedTask::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Served { authority, address, state, dir, _serving: serving }
}

impl Served {
    /// Status and answer of a request over TLS, or why there is none.
    async fn ask(
        &self,
        tls: ClientConfig,
        name: &str,
        path: &str,
        body: &Value,
    ) -> std::io::Result<(StatusCode, String)> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
        let (method, body) = if body.is_null() { ("GET", String::new()) } else { ("POST", body.to_string()) };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        Ok((status.parse().map_err(std::io::Error::other)?, answer))
    }

    async fn renew(&self, tls: ClientConfig) -> std::io::Result<(StatusCode, String)> {
        let request = KeyRequest::generate().unwrap().request;
        self.ask(tls, "localhost", "/api/v1/certs/renew", &json!({ "request": request })).await
    }

    fn anyone(&self) -> ClientConfig {
        pinned_client(self.authority.fingerprint()).unwrap()
    }
}

#[tokio::test]
async fn a_host_renews_with_its_certificate_and_with_nothing_else() {
    let served = served().await;
    let box1 = host(served.dir.path(), &served.authority, "box1", HOUR).client().unwrap();
    let (status, answer) = served.renew(box1.clone()).await.unwrap();
    assert!(status == StatusCode::OK && answer.contains("BEGIN CERTIFICATE"), "{answer}");
    assert_eq!(served.renew(served.anyone()).await.unwrap().0, StatusCode::UNAUTHORIZED, "no certificate");
    let other = host(served.dir.path(), &served.authority, "box9", HOUR).client().unwrap();
    assert_eq!(served.renew(other).await.unwrap().0, StatusCode::FORBIDDEN, "never let in");
    let (status, _) = served.ask(box1.clone(), "localhost", "/api/v1/hosts", &Value::Null).await.unwrap();
    assert_eq!(status, StatusCode::UNAUTHORIZED, "a certificate of a host opens nothing else");
    let key = EnrolledKey { host: "box1".parse().unwrap() };
    served.state.store.delete(key.delete()).await.unwrap();
    assert_eq!(served.renew(box1).await.unwrap().0, StatusCode::FORBIDDEN, "revoked");
}

#[tokio::test]
async fn connections_of_strangers_are_refused_on_both_sides() {
    let served = served().await;
    let version = |tls, name| served.ask(tls, name, "/version", &Value::Null);
    assert_eq!(version(served.anyone(), "localhost").await.unwrap().0, StatusCode::OK);
    assert!(version(served.anyone(), "box2").await.is_err(), "not the name of the server");
    let foreign = Authority::create("foreign", HOUR).unwrap().0;
    let elsewhere = TempDir::new("https").unwrap();
    assert!(version(pinned_client(foreign.fingerprint()).unwrap(), "localhost").await.is_err());
    // It believes the server, and shows a certificate of another authority.
    let stranger = host(elsewhere.path(), &foreign, "box1", HOUR);
    files::replace(&elsewhere.path().join("box1-ca.pem"), served.authority.certificate(), Readers::All)
        .unwrap();
    drop(stranger);
    let own = elsewhere.path().join("box1.pem");
    let authority = Some(elsewhere.path().join("box1-ca.pem"));
    let stranger = LiveTls::open(TlsFiles { cert: own.clone(), key: own, authority }).unwrap();
    assert!(served.renew(stranger.client().unwrap()).await.is_err(), "of another authority");
    let brief = host(served.dir.path(), &served.authority, "box1", Duration::from_secs(1)).client().unwrap();
    eventually("the certificate has expired", DEADLINE, async || match served.renew(brief.clone()).await {
        Err(_) => Ok(()),
        Ok((status, _)) => Err(status),
    })
    .await;
}

#[tokio::test]
async fn plain_clients_are_told_why_and_slow_ones_delay_no_other() {
    let served = served().await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    plain.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    drop(idle);
    let mut answer = Vec::new();
    // Closed in order or reset: the answer came before.
    drop(tokio::time::timeout(DEADLINE, plain.read_to_end(&mut answer)).await.unwrap());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("served over TLS only"), "{answer}");
    let (status, _) = served.ask(served.anyone(), "localhost", "/version", &Value::Null).await.unwrap();
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_cookie_that_was_set_over_tls_is_sent_over_tls_only() {
    let served = served().await;
    let ann = capstan_access::api::NewIdentity {
        name: "ann".parse().unwrap(),
        kind: capstan_access::spec::IdentityKind::User,
        password: Some(capstan_access::Secret::new("a-password-of-ann")),
        roles: vec!["viewer".parse().unwrap()],
        grants: Vec::new(),
    };
    capstan_access::api::identity_create(&served.state.store, &ann, "test").await.unwrap();
    let body = json!({ "user": "ann", "password": "a-password-of-ann" });
    let (status, answer) = served.ask(served.anyone(), "localhost", "/api/v1/session", &body).await.unwrap();
    assert_eq!(status, StatusCode::OK, "{answer}");
    let set = answer.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie")).unwrap();
    assert!(set.contains("; Secure") && set.contains("HttpOnly"), "{set}");
}
