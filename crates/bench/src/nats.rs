//! NATS JetStream as a peer: the server and a connection in its text protocol.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// How long a server may take until it accepts streams.
const START_WITHIN: Duration = Duration::from_secs(20);
/// The pause between two attempts to create a stream.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// The version of the installed server.
#[derive(Clone, Debug)]
pub(super) struct Version {
    number: String,
    /// `sync_interval: always` exists since 2.10.
    syncs: bool,
}

impl Version {
    /// `None` if no server is installed.
    pub(super) fn installed() -> Option<Version> {
        let output = std::process::Command::new("nats-server").arg("--version").output().ok()?;
        let number = String::from_utf8_lossy(&output.stdout).trim().replace("nats-server: v", "");
        let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
        let syncs = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) >= (2, 10);
        Some(Version { number, syncs })
    }

    /// Name, version and durability, for a row.
    pub(super) fn peer(&self) -> String {
        let promise = if self.syncs { "synced before acknowledged" } else { "acknowledged before synced" };
        format!("NATS JetStream {}, {promise}", self.number)
    }
}

/// A running server; it ends when this is dropped.
pub(super) struct Nats {
    child: tokio::process::Child,
    pub(super) port: u16,
}

impl Nats {
    pub(super) fn start(dir: &Path, version: &Version) -> Result<Nats> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        std::fs::create_dir_all(dir)?;
        let (store, path) = (dir.join("store"), dir.join("nats.conf"));
        let sync = if version.syncs { "sync_interval: always" } else { "" };
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\"\n max_file: 8GB\n {sync} }}\n",
            store.display()
        );
        std::fs::write(&path, config)?;
        let mut command = tokio::process::Command::new("nats-server");
        command.arg("-c").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.kill_on_drop(true).spawn().context("cannot start nats-server")?;
        Ok(Nats { child, port })
    }

    /// Creates a stream in a file, as soon as the server accepts it.
    pub(super) async fn create_stream(&self, name: &str, subject: &str) -> Result<()> {
        let begin = Instant::now();
        while let Err(error) = self.try_create(name, subject).await {
            if begin.elapsed() > START_WITHIN {
                return Err(error.context("nats-server does not accept a stream"));
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
        Ok(())
    }

    async fn try_create(&self, name: &str, subject: &str) -> Result<()> {
        let stream =
            format!(r#"{{"name":"{name}","subjects":["{subject}"],"storage":"file","num_replicas":1}}"#);
        let mut connection = Connection::dial(self.port, "_INBOX.setup").await?;
        connection.publish(&format!("$JS.API.STREAM.CREATE.{name}"), stream.as_bytes()).await?;
        let answer = connection.answer().await?;
        if answer.contains("\"error\"") { bail!("{answer}") } else { Ok(()) }
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// A connection whose publications are acknowledged to its inbox, in order.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    inbox: String,
}

impl Connection {
    pub(super) async fn dial(port: u16, inbox: &str) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream: BufReader::new(stream), inbox: inbox.to_owned() };
        connection.line().await?;
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {inbox} 1\r\n");
        connection.stream.write_all(hello.as_bytes()).await?;
        Ok(connection)
    }

    pub(super) async fn publish(&mut self, subject: &str, payload: &[u8]) -> Result<()> {
        let mut message = format!("PUB {subject} {} {}\r\n", self.inbox, payload.len()).into_bytes();
        message.extend_from_slice(payload);
        message.extend_from_slice(b"\r\n");
        Ok(self.stream.write_all(&message).await?)
    }

    /// Waits for the next acknowledgment; fails if it is a refusal.
    pub(super) async fn acknowledgment(&mut self) -> Result<()> {
        let answer = self.answer().await?;
        if answer.contains("\"seq\"") { Ok(()) } else { bail!("{answer}") }
    }

    async fn answer(&mut self) -> Result<String> {
        loop {
            let line = self.line().await?;
            if line.starts_with("PING") {
                self.stream.write_all(b"PONG\r\n").await?;
            } else if line.starts_with("MSG") {
                let length: usize = line.split_whitespace().last().unwrap_or_default().parse()?;
                let mut body = vec![0; length + 2];
                self.stream.read_exact(&mut body).await?;
                return Ok(String::from_utf8_lossy(&body).into_owned());
            } else if line.starts_with("-ERR") {
                bail!("{line}");
            }
        }
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            bail!("nats-server closed the connection");
        }
        Ok(line)
    }
}
