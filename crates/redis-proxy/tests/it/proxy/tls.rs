//! Clients with TLS, and clients that are required to use it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::ensure;
use capstan_control::tasks::Supervisor;
use capstan_redis_proxy::nodes::Nodes;
use capstan_redis_proxy::{ClientTls, Config, PlainClients, Proxy};
use capstan_testkit::process::on_path;
use capstan_testkit::redis::{Wire, command};
use capstan_testkit::{RedisServer, TempDir};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::clients::{installed, run, workload};

/// An authority, and certificates of the server and of a client, as PEM files.
fn certificates(dir: &Path) -> anyhow::Result<()> {
    let mut params = CertificateParams::new(vec![])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than in its certificates: OpenSSL would take them for self-signed.
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    std::fs::write(dir.join("ca.pem"), authority.pem())?;
    for name in ["server", "client"] {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        std::fs::write(dir.join(format!("{name}.pem")), params.signed_by(&key, &authority)?.pem())?;
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

fn tls(dir: &Path, asks: bool, plain: PlainClients) -> anyhow::Result<ClientTls> {
    let read = |name: &str| std::fs::read(dir.join(name));
    let authority = if asks { Some(read("ca.pem")?) } else { None };
    Ok(ClientTls::from_pem(&read("server.pem")?, &read("server.key")?, authority.as_deref(), plain)?)
}

struct Encrypted {
    proxy: Proxy,
    _node: RedisServer,
    _supervisor: Supervisor,
}

impl Encrypted {
    /// A proxy with a node and an admin password, configured over a plain connection, as by coordinators.
    async fn start(tls: ClientTls) -> anyhow::Result<Encrypted> {
        let (node, supervisor) = (RedisServer::start().await?, Supervisor::default());
        let config = Config { tls: Some(tls), admin_password: Some("secret".to_owned()), ..super::config()? };
        let proxy = Proxy::start(config, Nodes::external(None), &supervisor)?;
        let mut admin = Wire::connect(proxy.address())?;
        assert_eq!(admin.say("AUTH admin secret")?, "+OK\r\n");
        let message = format!("NMCTL SETDB 1 NOFLAG db {} 0-16383", node.address());
        assert_eq!(admin.say(&message)?, "+OK\r\n");
        assert_eq!(admin.say("SET by admin")?, "+OK\r\n", "an admin is served");
        Ok(Encrypted { proxy, _node: node, _supervisor: supervisor })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_speak_tls_on_the_same_port() -> anyhow::Result<()> {
    let dir = TempDir::new("tls")?;
    certificates(dir.path())?;
    let setup = Encrypted::start(tls(dir.path(), false, PlainClients::Served)?).await?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).map_err(anyhow::Error::msg)?)?;
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = rustls::ClientConnection::new(Arc::new(client), ServerName::try_from("localhost")?)?;
    let mut stream = rustls::StreamOwned::new(session, TcpStream::connect(setup.proxy.address())?);
    let mut ask = |words: &[&str], len: usize| -> anyhow::Result<Vec<u8>> {
        stream.write_all(&command(words))?;
        let mut reply = vec![0; len];
        stream.read_exact(&mut reply)?;
        Ok(reply)
    };
    let long = "x".repeat(300_000);
    assert_eq!(ask(&["SET", "k", &long], 5)?, b"+OK\r\n");
    assert_eq!(ask(&["GET", "k"], long.len() + 11)?, format!("$300000\r\n{long}\r\n").into_bytes());
    let mut plain = Wire::connect(setup.proxy.address())?;
    assert_eq!(plain.say("STRLEN k")?, ":300000\r\n");
    // An invalid handshake is answered with an alert, and has no effect on others.
    let mut liar = Wire::connect(setup.proxy.address())?;
    liar.send(b"\x16\x03\x01\xff\xffnothing of the kind")?;
    assert!(!liar.rest()?.starts_with(b"-ERR"));
    assert_eq!(plain.say("PING")?, "+PONG\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_speak_tls_is_told_to_where_it_is_asked_for() -> anyhow::Result<()> {
    let dir = TempDir::new("tls")?;
    certificates(dir.path())?;
    let setup = Encrypted::start(tls(dir.path(), true, PlainClients::Refused)?).await?;
    let address = setup.proxy.address();
    let mut plain = Wire::connect(address)?;
    let refused = "-ERR this proxy serves clients over TLS only; connect with TLS (redis-cli --tls)\r\n";
    for said in ["PING", "GET k", "SUBSCRIBE c", "MONITOR", "CLUSTER SLOTS", "MULTI"] {
        assert_eq!(plain.say(said)?, refused, "{said}");
    }
    let cli = on_path(Path::new("redis-cli"), Some("redis-tools"))?;
    let (port, file) = (address.port().to_string(), |name: &str| dir.join(name).display().to_string());
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let shown = ["-c", "-p", &port, "--tls", "--cacert", &ca, "--cert", &cert, "--key", &key];
    let said = run(&cli, &[&shown[..], &["SET", "k", "v"]].concat(), &[]).await?;
    assert_eq!(said.trim(), "OK");
    let said = run(&cli, &[&shown[..], &["-3", "HELLO", "3"]].concat(), &[]).await?;
    ensure!(said.contains("proto"), "{said}");
    // Without a client certificate the connection is refused.
    let stranger = run(&cli, &["-p", &port, "--tls", "--cacert", &ca, "GET", "k"], &[]).await;
    ensure!(stranger.as_ref().map_or(true, |said| said.contains("rror")), "{stranger:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_works_over_tls() -> anyhow::Result<()> {
    let dir = TempDir::new("tls")?;
    certificates(dir.path())?;
    let setup = Encrypted::start(tls(dir.path(), false, PlainClients::Refused)?).await?;
    let (python, port) = (installed("python/venv/bin/python")?, setup.proxy.address().port().to_string());
    let (script, ca) =
        (workload("python/tls.py").display().to_string(), dir.join("ca.pem").display().to_string());
    run(&python, &["-B", &script, &port, &ca], &[]).await?;
    Ok(())
}
