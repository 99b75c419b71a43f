//! Clients that speak TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use capstan_control::tasks::Supervisor;
use capstan_redis::agent::Nodes;
use capstan_redis::data::proxy::{Config, Proxy};
use capstan_testkit::RedisServer;
use capstan_testkit::redis::{Wire, command};
use rustls::pki_types::{PrivateKeyDer, ServerName};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_speak_tls_and_must_where_it_is_asked_for() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = signed.cert.der().clone();
    let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let supervisor = Supervisor::default();
    let config = Config { tls: Some(Arc::new(server)), ..super::config()? };
    let proxy = Proxy::start(config, Nodes::external(None), &supervisor)?;

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = rustls::ClientConnection::new(Arc::new(client), ServerName::try_from("localhost")?)?;
    let mut stream = rustls::StreamOwned::new(session, TcpStream::connect(proxy.address())?);
    let mut ask = |words: &[&str], len: usize| -> anyhow::Result<Vec<u8>> {
        stream.write_all(&command(words))?;
        let mut reply = vec![0; len];
        stream.read_exact(&mut reply)?;
        Ok(reply)
    };
    let node = node.address().to_string();
    assert_eq!(ask(&["NMCTL", "SETDB", "1", "NOFLAG", "db", &node, "0-16383"], 5)?, b"+OK\r\n");
    let long = "x".repeat(300_000);
    assert_eq!(ask(&["SET", "k", &long], 5)?, b"+OK\r\n");
    assert_eq!(ask(&["GET", "k"], long.len() + 11)?, format!("$300000\r\n{long}\r\n").into_bytes());
    let mut plain = Wire::connect(proxy.address())?;
    plain.command(&["PING"])?;
    assert!(!plain.rest()?.starts_with(b"+PONG"), "who does not speak TLS is not answered");
    Ok(())
}
