//! RabbitMQ under measurement: quorum queues, persistent messages, publisher confirms, by as much of AMQP 0.9.1 as that
//! takes.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, BufMut as _, BytesMut};
use hdrhistogram::Histogram;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::{PAYLOAD, PRODUCERS, Reached, without};
use crate::load::{histogram, nanos};

const START_WITHIN: Duration = Duration::from_secs(30);
const WARM_UP_SHARE: u32 = 5;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;
/// Class and method of what is received.
const BASIC_ACK: (u16, u16) = (60, 80);

/// Where Debian keeps what is behind the script in the PATH, which insists on a user of its own.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Its version, if it is there.
pub(super) fn version() -> Option<String> {
    let found = std::fs::read_dir("/usr/lib/rabbitmq/lib").ok().and_then(|entries| {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("rabbitmq_server-").map(str::to_owned)).max()
    });
    if found.is_none() || !Path::new(SERVER).is_file() {
        without("RabbitMQ", "rabbitmq-server");
        return None;
    }
    found
}

/// A server with a directory of its own.
pub(super) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    pub(super) async fn start(dir: &Path) -> Result<Server> {
        std::fs::create_dir_all(dir)?;
        let dir = std::path::absolute(dir)?;
        let [port, dist] = crate::peer::free_ports()?;
        let epmd = crate::peer::free_ports()?[0];
        let config = dir.join("rabbitmq.conf");
        std::fs::write(&config, format!("listeners.tcp.1 = 127.0.0.1:{port}\nlog.console.level = error\n"))?;
        std::fs::write(dir.join("enabled_plugins"), "[].\n")?;
        let log = std::fs::File::create(dir.join("server.log"))?;
        let mut command = Command::new(SERVER);
        command
            .env("HOME", &dir)
            .env("RABBITMQ_NODENAME", format!("bench{port}@localhost"))
            .env("RABBITMQ_CONFIG_FILE", &config)
            .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
            .env("RABBITMQ_LOG_BASE", dir.join("logs"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
            .env("RABBITMQ_DIST_PORT", dist.to_string())
            .env("ERL_EPMD_PORT", epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_PID_FILE", dir.join("pid"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = command.spawn().context("cannot start rabbitmq-server")?;
        let mut server = Server { child, port };
        let begin = Instant::now();
        while Connection::dial(port).await.is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("rabbitmq-server ended with {status}; its log is {}/server.log", dir.display());
            }
            if begin.elapsed() > START_WITHIN {
                bail!("rabbitmq-server does not answer; its log is {}/server.log", dir.display());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(server)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id().context("rabbitmq-server has ended")?)?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        tokio::time::timeout(START_WITHIN, self.child.wait()).await.context("it does not stop")??;
        Ok(())
    }

    /// Eight publishers, each with this number of messages in flight.
    pub(super) async fn publish(&self, window: usize, time: Duration) -> Result<Reached> {
        let mut tasks = JoinSet::new();
        for number in 0..PRODUCERS {
            let mut connection = Connection::dial(self.port).await?;
            let queue = format!("q{window}-{number}");
            connection.declare(&queue).await?;
            tasks.spawn(publisher(connection, queue, window, time));
        }
        let mut all = histogram()?;
        while let Some(done) = tasks.join_next().await {
            all.add(done??)?;
        }
        let rate = all.len() as f64 / time.as_secs_f64();
        Ok(Reached { rate, p99_ms: all.value_at_quantile(0.99) as f64 / 1e6 })
    }
}

async fn publisher(
    mut connection: Connection,
    queue: String,
    window: usize,
    time: Duration,
) -> Result<Histogram<u64>> {
    let begin = Instant::now() + time / WARM_UP_SHARE;
    let end = begin + time;
    let (mut times, mut sent, mut confirmed) = (histogram()?, VecDeque::new(), 0_u64);
    let message = publish_frames(&queue, &vec![7; PAYLOAD]);
    while Instant::now() < end {
        while sent.len() < window {
            connection.stream.write_all(&message).await?;
            sent.push_back(Instant::now());
        }
        let (tag, multiple) = connection.confirm().await?;
        let now = Instant::now();
        // Confirms of one message may come in any order; how many there are is what is counted.
        let count = if multiple { tag.saturating_sub(confirmed) } else { 1 };
        confirmed = confirmed.max(tag);
        for _ in 0..count {
            if let Some(since) = sent.pop_front().filter(|_| now >= begin && now <= end) {
                times.record(nanos(now - since))?;
            }
        }
    }
    Ok(times)
}

struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Opens a connection and a channel that confirms.
    async fn dial(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream: BufReader::new(stream) };
        connection.stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        connection.expect((10, 10)).await?;
        let mut start = BytesMut::new();
        start.put_u32(0);
        short(&mut start, "PLAIN");
        long(&mut start, b"\0guest\0guest");
        short(&mut start, "en_US");
        connection.call(0, (10, 11), &start).await?;
        let mut tune = connection.expect((10, 30)).await?;
        let (channels, frame) = (tune.get_u16(), tune.get_u32());
        let mut answer = BytesMut::new();
        answer.put_u16(channels);
        answer.put_u32(frame);
        answer.put_u16(0);
        connection.call(0, (10, 31), &answer).await?;
        let mut open = BytesMut::new();
        short(&mut open, "/");
        short(&mut open, "");
        open.put_u8(0);
        connection.call(0, (10, 40), &open).await?;
        connection.expect((10, 41)).await?;
        connection.call(1, (20, 10), &[0]).await?;
        connection.expect((20, 11)).await?;
        connection.call(1, (85, 10), &[0]).await?;
        connection.expect((85, 11)).await?;
        Ok(connection)
    }

    /// Makes a durable quorum queue.
    async fn declare(&mut self, queue: &str) -> Result<()> {
        let mut table = BytesMut::new();
        short(&mut table, "x-queue-type");
        table.put_u8(b'S');
        long(&mut table, b"quorum");
        let mut declare = BytesMut::new();
        declare.put_u16(0);
        short(&mut declare, queue);
        declare.put_u8(0b0000_0010);
        long(&mut declare, &table);
        self.call(1, (50, 10), &declare).await?;
        self.expect((50, 11)).await.map(drop)
    }

    async fn call(&mut self, channel: u16, method: (u16, u16), arguments: &[u8]) -> Result<()> {
        let mut payload = BytesMut::new();
        payload.put_u16(method.0);
        payload.put_u16(method.1);
        payload.put_slice(arguments);
        let mut frame = BytesMut::new();
        put_frame(&mut frame, METHOD, channel, &payload);
        Ok(self.stream.write_all(&frame).await?)
    }

    /// The arguments of the next method, which must be this one.
    async fn expect(&mut self, method: (u16, u16)) -> Result<bytes::Bytes> {
        loop {
            let (kind, mut payload) = self.frame().await?;
            if kind != METHOD {
                continue;
            }
            let found = (payload.get_u16(), payload.get_u16());
            if found == method {
                return Ok(payload);
            }
            bail!("RabbitMQ answers with method {found:?}: {}", String::from_utf8_lossy(&payload));
        }
    }

    async fn confirm(&mut self) -> Result<(u64, bool)> {
        let mut arguments = self.expect(BASIC_ACK).await?;
        Ok((arguments.get_u64(), arguments.get_u8() & 1 == 1))
    }

    async fn frame(&mut self) -> Result<(u8, bytes::Bytes)> {
        let kind = self.stream.read_u8().await?;
        let _channel = self.stream.read_u16().await?;
        let length = usize::try_from(self.stream.read_u32().await?)?;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        if self.stream.read_u8().await? != END {
            bail!("a frame of RabbitMQ does not end");
        }
        Ok((kind, payload.into()))
    }
}

/// One persistent message.
fn publish_frames(queue: &str, payload: &[u8]) -> BytesMut {
    let mut method = BytesMut::new();
    method.put_u16(60);
    method.put_u16(40);
    method.put_u16(0);
    short(&mut method, "");
    short(&mut method, queue);
    method.put_u8(0);
    let mut header = BytesMut::new();
    header.put_u16(60);
    header.put_u16(0);
    header.put_u64(payload.len() as u64);
    // Only the delivery mode is given: persistent.
    header.put_u16(0x1000);
    header.put_u8(2);
    let mut frames = BytesMut::new();
    put_frame(&mut frames, METHOD, 1, &method);
    put_frame(&mut frames, HEADER, 1, &header);
    put_frame(&mut frames, BODY, 1, payload);
    frames
}

fn put_frame(to: &mut BytesMut, kind: u8, channel: u16, payload: &[u8]) {
    to.put_u8(kind);
    to.put_u16(channel);
    to.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    to.put_slice(payload);
    to.put_u8(END);
}

fn short(to: &mut BytesMut, text: &str) {
    to.put_u8(u8::try_from(text.len()).unwrap_or(u8::MAX));
    to.put_slice(text.as_bytes());
}

fn long(to: &mut BytesMut, bytes: &[u8]) {
    to.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    to.put_slice(bytes);
}
