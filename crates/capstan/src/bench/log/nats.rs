//! NATS JetStream beside us: the same payloads, as many publishers, each waiting for its acknowledgment.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::{APPENDERS, Size, append_rate, entry};
use crate::bench::load::{load, median};
use crate::bench::{Row, progress};

/// NATS JetStream beside us, or nothing and a word about what is missing.
pub(super) async fn row(size: Size, dir: &Path) -> Result<Option<Row>> {
    let Ok(version) = std::process::Command::new("nats-server").arg("--version").output() else {
        progress("no NATS JetStream: nats-server is not in the PATH (Debian: apt-get install nats-server)");
        return Ok(None);
    };
    let version = String::from_utf8_lossy(&version.stdout).trim().replace("nats-server: v", "");
    let syncs = supports_sync(&version);
    let (mut ours, mut theirs) = (vec![], vec![]);
    for round in 0..size.rounds {
        progress(&format!("NATS JetStream {version}, round {}", round + 1));
        let store = dir.join(format!("nats-{round}"));
        let mut nats = Nats::start(&store, syncs).await?;
        let rate = nats.publish_rate(size.cell).await;
        nats.child.kill().await?;
        theirs.push(rate?);
        std::fs::remove_dir_all(&store)?;
        ours.push(append_rate(&dir.join("beside-nats"), 1, 1, size.cell).await?);
    }
    let promise = if syncs { "synced before acknowledged" } else { "acknowledged before synced" };
    let peer = format!("NATS JetStream {version}, {promise}");
    Ok(Some(Row::new(
        "Appends acknowledged, 64 publishers",
        median(ours),
        &peer,
        median(theirs),
        "entries/s",
    )))
}

/// `sync_interval: always` came with 2.10.
fn supports_sync(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) >= (2, 10)
}

struct Nats {
    child: tokio::process::Child,
    port: u16,
}

impl Nats {
    async fn start(dir: &Path, syncs: bool) -> Result<Nats> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        std::fs::create_dir_all(dir)?;
        let store = dir.join("store");
        let sync = if syncs { "sync_interval: always" } else { "" };
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\"\n max_file: 8GB\n {sync} }}\n",
            store.display()
        );
        let path = dir.join("nats.conf");
        std::fs::write(&path, config)?;
        let mut command = tokio::process::Command::new("nats-server");
        command.arg("-c").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.kill_on_drop(true).spawn().context("cannot start nats-server")?;
        let nats = Nats { child, port };
        let begin = Instant::now();
        while nats.create_stream().await.is_err() {
            if begin.elapsed() > Duration::from_secs(20) {
                bail!("nats-server does not take a stream");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(nats)
    }

    async fn create_stream(&self) -> Result<()> {
        let stream = r#"{"name":"bench","subjects":["bench.x"],"storage":"file","num_replicas":1}"#;
        let mut connection = Publisher::dial(self.port, "_INBOX.setup").await?;
        let answer = connection.request("$JS.API.STREAM.CREATE.bench", stream.as_bytes()).await?;
        if answer.contains("\"error\"") { bail!("{answer}") } else { Ok(()) }
    }

    async fn publish_rate(&self, time: Duration) -> Result<f64> {
        let mut publishers = Vec::new();
        for number in 0..APPENDERS {
            let inbox = format!("_INBOX.p{number}");
            publishers.push(Arc::new(Mutex::new(Publisher::dial(self.port, &inbox).await?)));
        }
        let publishers = Arc::new(publishers);
        let published = load(APPENDERS, time, move |client, _| {
            let publisher = Arc::clone(&publishers[client]);
            async move {
                let answer = publisher.lock().await.request("bench.x", &entry()).await?;
                if answer.contains("\"seq\"") { Ok(()) } else { bail!("{answer}") }
            }
        });
        Ok(published.await?.rate)
    }
}

/// One connection to NATS that publishes and waits for the acknowledgment, in NATS's own text protocol.
struct Publisher {
    stream: BufReader<TcpStream>,
    inbox: String,
}

impl Publisher {
    async fn dial(port: u16, inbox: &str) -> Result<Publisher> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut publisher = Publisher { stream: BufReader::new(stream), inbox: inbox.to_owned() };
        publisher.line().await?;
        let hello = format!("CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {inbox} 1\r\n");
        publisher.stream.write_all(hello.as_bytes()).await?;
        Ok(publisher)
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            bail!("nats-server closed the connection");
        }
        Ok(line)
    }

    async fn request(&mut self, subject: &str, payload: &[u8]) -> Result<String> {
        let mut message = format!("PUB {subject} {} {}\r\n", self.inbox, payload.len()).into_bytes();
        message.extend_from_slice(payload);
        message.extend_from_slice(b"\r\n");
        self.stream.write_all(&message).await?;
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
}
