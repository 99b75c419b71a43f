//! Certificates: what a private authority signs, which connections they open, and how they are replaced in a running
//! process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Authority, Fingerprint, HostNames, KeyRequest, describe};
use capstan_access::tls::{ClientCerts, LiveTls, TlsFiles, pinned_client};
use capstan_testkit::{TempDir, eventually_blocking};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

const HOUR: Duration = Duration::from_secs(3600);

fn names(host: &str) -> HostNames {
    HostNames { host: host.parse().unwrap(), addresses: vec!["10.1.2.3".parse().unwrap()] }
}

fn authority() -> Authority {
    Authority::create("test authority", 1000 * HOUR).unwrap().0
}

/// Writes what a host has: its authority, its chain and its key.
fn write_host(dir: &Path, authority: &Authority, host: &str) -> TlsFiles {
    let KeyRequest { key, request } = KeyRequest::generate().unwrap();
    let chain = authority.sign(&request, &names(host), HOUR).unwrap();
    let (own, roots) = (dir.join(format!("{host}.pem")), dir.join("ca.pem"));
    files::replace(&own, &(chain + key.reveal()), Readers::Owner).unwrap();
    files::replace(&roots, authority.certificate(), Readers::All).unwrap();
    TlsFiles { cert: own.clone(), key: own, authority: Some(roots) }
}

fn live(dir: &Path, authority: &Authority, host: &str) -> LiveTls {
    LiveTls::open(write_host(dir, authority, host)).unwrap()
}

/// A handshake without a network. Returns the certificates that each side has seen of the other: first the server's.
fn shake(client: ClientConfig, server: ServerConfig, name: &str) -> Result<[Vec<Vec<u8>>; 2], String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut std::mem::take(&mut wire).as_slice()).unwrap();
        server.process_new_packets().map_err(|error| error.to_string())?;
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut std::mem::take(&mut wire).as_slice()).unwrap();
        client.process_new_packets().map_err(|error| error.to_string())?;
    }
    let ders = |chain: Option<&[rustls::pki_types::CertificateDer<'_>]>| {
        chain.unwrap_or_default().iter().map(|der| der.to_vec()).collect()
    };
    Ok([ders(client.peer_certificates()), ders(server.peer_certificates())])
}

#[test]
fn hosts_of_one_authority_recognize_each_other_by_name_address_and_holder() {
    let (dir, authority) = (TempDir::new("certs").unwrap(), authority());
    let (a, b) = (live(dir.path(), &authority, "box1"), live(dir.path(), &authority, "box2"));
    for name in ["box2", "topics.box2", "docs.box2", "10.1.2.3"] {
        let server = b.server(ClientCerts::Required).unwrap();
        let [of_server, of_client] = shake(a.client().unwrap(), server, name).unwrap();
        assert!(!of_server.is_empty() && !of_client.is_empty(), "both sides showed a certificate");
    }
    for wrong in ["box1", "topics.box1", "box2.example.org", "10.1.2.4"] {
        let refused = shake(a.client().unwrap(), b.server(ClientCerts::Required).unwrap(), wrong);
        assert!(refused.is_err(), "{wrong} is not the name of box2");
    }
}

#[test]
fn strangers_are_refused_on_both_sides() {
    let (dir, elsewhere) = (TempDir::new("certs").unwrap(), TempDir::new("certs").unwrap());
    let here = live(dir.path(), &authority(), "box1");
    let stranger = live(elsewhere.path(), &authority(), "box1");
    let server = || here.server(ClientCerts::Required).unwrap();
    assert!(shake(stranger.client().unwrap(), server(), "box1").is_err(), "another authority");
    let fooled = here.client().unwrap();
    assert!(shake(fooled, stranger.server(ClientCerts::Ignored).unwrap(), "box1").is_err());
}

#[test]
fn a_client_without_a_certificate_is_refused_where_one_is_required() {
    let (dir, authority) = (TempDir::new("certs").unwrap(), authority());
    let here = live(dir.path(), &authority, "box1");
    let bare = || pinned_client(authority.fingerprint()).unwrap();
    let refused = shake(bare(), here.server(ClientCerts::Required).unwrap(), "box1");
    assert!(refused.unwrap_err().contains("no certificates"), "the server says why");
    let [_, of_client] = shake(bare(), here.server(ClientCerts::Optional).unwrap(), "box1").unwrap();
    assert!(of_client.is_empty());
}

#[test]
fn a_fingerprint_is_enough_to_check_a_server() {
    let (dir, authority) = (TempDir::new("certs").unwrap(), authority());
    let server = || live(dir.path(), &authority, "box1").server(ClientCerts::Ignored).unwrap();
    shake(pinned_client(authority.fingerprint()).unwrap(), server(), "box1").unwrap();
    let wrong_name = shake(pinned_client(authority.fingerprint()).unwrap(), server(), "box2");
    assert!(wrong_name.is_err());
    let other = pinned_client(self::authority().fingerprint()).unwrap();
    assert!(shake(other, server(), "box1").unwrap_err().contains("not of the authority of this token"));
    // A server that sends the pinned authority, but was not signed by it.
    let (elsewhere, liar) = (TempDir::new("certs").unwrap(), self::authority());
    let files = write_host(elsewhere.path(), &liar, "box1");
    let own = files::read(&files.cert).unwrap();
    files::replace(&files.cert, &(own + authority.certificate()), Readers::Owner).unwrap();
    let liar = LiveTls::open(files).unwrap().server(ClientCerts::Ignored).unwrap();
    assert!(shake(pinned_client(authority.fingerprint()).unwrap(), liar, "box1").is_err());
}

#[test]
fn a_renewed_certificate_is_used_by_the_next_handshake_and_a_bad_file_changes_nothing() {
    let (dir, authority) = (TempDir::new("certs").unwrap(), authority());
    let files = write_host(dir.path(), &authority, "box1");
    let (tls, own) = (LiveTls::open(files.clone()).unwrap(), files.cert);
    // One configuration for all handshakes, as a listener has.
    let (server, client) = (tls.server(ClientCerts::Required).unwrap(), tls.client().unwrap());
    let shown = || shake(client.clone(), server.clone(), "box1").unwrap().map(|chain| chain[0].clone());
    let before = shown();
    assert_eq!(before[0], before[1], "server and client have the same certificate");
    write_host(dir.path(), &authority, "box1");
    let renewed = eventually_blocking("the renewed certificate", HOUR / 60, || {
        let now = shown();
        if now[0] != before[0] && now[1] != before[1] { Ok(now) } else { Err("the former one") }
    });
    let good = files::read(&own).unwrap();
    let stranger = KeyRequest::generate().unwrap().key;
    let key_at = good.find("-----BEGIN PRIVATE KEY").unwrap();
    for bad in ["", "nothing", &good[..good.len() / 2], &(good[..key_at].to_owned() + stranger.reveal())] {
        files::replace(&own, bad, Readers::Owner).unwrap();
        // Long enough for several looks at the files.
        let until = std::time::Instant::now() + Duration::from_millis(700);
        while std::time::Instant::now() < until {
            assert_eq!(shown(), renewed, "a bad file is not used");
        }
    }
}

#[test]
fn the_authority_decides_about_names_and_ends() {
    let authority = Authority::create("short", HOUR).unwrap().0;
    let mine = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["other".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let greedy = params.serialize_request(&mine).unwrap().pem().unwrap();
    let chain = authority.sign(&greedy, &names("box1"), 1000 * HOUR).unwrap();
    let [own, signer] = describe(chain.as_bytes()).unwrap().try_into().unwrap();
    assert_eq!((own.subject.as_str(), own.issuer.as_str()), ("box1", "short"));
    assert_eq!(own.names, ["box1", "topics.box1", "docs.box1", "localhost"]);
    let loopback = ["127.0.0.1", "::1"].map(|address| address.parse().unwrap());
    assert_eq!(own.addresses, [names("box1").addresses, loopback.to_vec()].concat());
    assert!(!own.is_authority && signer.is_authority);
    assert!(own.not_after <= signer.not_after, "nothing outlives its authority");
    assert_eq!(Fingerprint::parse(&signer.fingerprint.to_string()).as_ref(), Some(authority.fingerprint()));

    let over = Authority::create("over", Duration::ZERO).unwrap().0;
    let request = KeyRequest::generate().unwrap().request;
    assert!(over.sign(&request, &names("box1"), HOUR).unwrap_err().to_string().contains("expired"));
    let crowd = HostNames { addresses: vec!["10.0.0.1".parse().unwrap(); 17], ..names("box1") };
    assert!(authority.sign(&request, &crowd, HOUR).is_err());
    for wrong in ["", "nothing", chain.as_str()] {
        assert!(authority.sign(wrong, &names("box1"), HOUR).is_err(), "not a request");
    }
}

#[test]
fn an_authority_needs_its_own_key() {
    let (first, key) = Authority::create("first", HOUR).unwrap();
    let (second, other) = Authority::create("second", HOUR).unwrap();
    assert!(Authority::from_pem(first.certificate(), &key).is_ok());
    assert!(Authority::from_pem(first.certificate(), &other).is_err(), "the key of another one");
    let request = KeyRequest::generate().unwrap();
    let chain = second.sign(&request.request, &names("box1"), HOUR).unwrap();
    let leaf = &chain[..chain.len() - second.certificate().len()];
    assert!(Authority::from_pem(leaf, &request.key).is_err(), "a host is no authority");
    assert!(!format!("{first:?} {request:?}").contains("PRIVATE"));
}

#[test]
fn an_end_is_near_by_the_kind_and_the_life_of_a_certificate() {
    const DAY: u64 = 24 * 3600;
    let authority = Authority::create("years", Duration::from_secs(365 * DAY)).unwrap().0;
    let request = KeyRequest::generate().unwrap().request;
    let chain = authority.sign(&request, &names("box1"), Duration::from_secs(7 * DAY)).unwrap();
    let [host, root] = describe(chain.as_bytes()).unwrap().try_into().unwrap();
    let before = |end: u64, days: u64| end - days * DAY;
    assert!(!root.ends_soon(before(root.not_after, 15)) && root.ends_soon(before(root.not_after, 13)));
    assert!(!host.ends_soon(before(host.not_after, 3)), "a host renews it at half of its life");
    assert!(host.ends_soon(before(host.not_after, 1)) && host.is_due(before(host.not_after, 3)));
    assert!(!host.is_due(before(host.not_after, 4)) && host.ends_soon(host.not_after + DAY));
    // One that lives for seconds is not overdue because it is valid before it was made.
    let chain = authority.sign(&request, &names("box1"), Duration::from_secs(10)).unwrap();
    let brief = &describe(chain.as_bytes()).unwrap()[0];
    assert!(!brief.is_due(brief.not_after - 6) && brief.is_due(brief.not_after - 4));
    assert!(!brief.ends_soon(brief.not_after - 3) && brief.ends_soon(brief.not_after - 1));
}
