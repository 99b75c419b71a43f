//! A real redis-server for one test: own port, own directory, verified to be the process we started.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::{Port, Process, Ready, TempDir};

/// redis-server starts in milliseconds; a loaded machine needs longer.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Time from SIGTERM to exit.
const STOP_DEADLINE: Duration = Duration::from_secs(20);
/// More redirects than this are a loop.
const MOST_REDIRECTIONS: usize = 5;
/// The time for one reply to a command of a test.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// How to start a [`RedisServer`]; without persistence by default.
#[derive(Debug, Clone, Default)]
pub struct Options {
    arguments: Vec<String>,
}

impl Options {
    /// Adds a setting in redis-server's syntax: `.set("maxmemory", "1mb")`.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.arguments.extend([format!("--{name}"), value.into()]);
        self
    }

    /// Starts it and waits until it serves.
    pub async fn start(self) -> anyhow::Result<RedisServer> {
        let dir = TempDir::new("redis")?;
        let port = Port::reserve()?;
        let number = port.number().to_string();
        let fixed = ["--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let process = Process::builder("redis-server")
            .debian_package("redis-server")
            .directory(dir.path())
            .args(fixed.map(str::to_owned))
            .args(["--dir".to_owned(), dir.path().display().to_string()])
            .args(&self.arguments)
            .spawn(dir.join("redis.log"))?;
        let mut server = RedisServer { process, port, dir };
        server.serves().await?;
        Ok(server)
    }
}

/// A running redis-server; killed and removed on drop.
#[derive(Debug)]
pub struct RedisServer {
    // First, so that it is killed before its directory is removed.
    process: Process,
    port: Port,
    dir: TempDir,
}

impl RedisServer {
    /// Starts one with [`Options::default`].
    pub async fn start() -> anyhow::Result<Self> {
        Options::default().start().await
    }

    /// Options for another configuration.
    #[must_use]
    pub fn options() -> Options {
        Options::default()
    }

    /// Its address; the same after a restart.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process, for other operations.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// kill -9; [`restart`](Self::restart) brings it back.
    pub fn kill9(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.kill9()
    }

    /// SIGSTOP.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.process.pause()
    }

    /// SIGCONT.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.process.resume()
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.terminate(STOP_DEADLINE).await
    }

    /// Restarts it (killing it first if it still runs) on the same port, and waits until it serves.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process.restart()?;
        self.serves().await
    }

    async fn serves(&mut self) -> anyhow::Result<()> {
        self.process.ready(&Ready::Port(self.port.number()), START_DEADLINE).await
    }
}

/// A connection that exposes every byte of the protocol, for tests that compare raw replies.
#[derive(Debug)]
pub struct Wire {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    /// Connects.
    pub fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_DEADLINE))?;
        Ok(Self { socket, read: Vec::new() })
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(bytes).context("cannot send")
    }

    /// Sends a command as an array of bulks.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> anyhow::Result<()> {
        self.send(&command(arguments))
    }

    /// The next complete reply, as raw bytes.
    pub fn reply(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            if let Some(len) = reply_len(&self.read) {
                return Ok(self.read.drain(..len).collect());
            }
            let mut buffer = [0; 16 * 1024];
            let n = self.socket.read(&mut buffer).context("no reply")?;
            ensure!(n > 0, "the connection was closed after {:?}", String::from_utf8_lossy(&self.read));
            self.read.extend_from_slice(&buffer[..n]);
        }
    }

    /// Sends a command and returns its reply.
    pub fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> anyhow::Result<Vec<u8>> {
        self.command(arguments)?;
        self.reply()
    }

    /// [`ask`](Self::ask) with words separated by blanks; the reply as text.
    pub fn say(&mut self, words: &str) -> anyhow::Result<String> {
        let arguments: Vec<&str> = words.split(' ').collect();
        Ok(String::from_utf8_lossy(&self.ask(&arguments)?).into_owned())
    }

    /// Sends one command on its own connection and follows redirects.
    pub fn follow(first: SocketAddr, words: &str) -> anyhow::Result<String> {
        let mut at = first;
        for _ in 0..MOST_REDIRECTIONS {
            let said = Self::connect(at)?.say(words)?;
            match said.strip_prefix("-MOVED ").and_then(|moved| moved.trim().split(' ').nth(1)) {
                Some(target) => at = target.parse()?,
                None => return Ok(said),
            }
        }
        bail!("{words}: too many redirects")
    }

    /// Reads until the other side closes the connection.
    pub fn rest(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut rest = std::mem::take(&mut self.read);
        match self.socket.read_to_end(&mut rest) {
            Err(e) if e.kind() != std::io::ErrorKind::ConnectionReset => {
                Err(e).context("the connection stays open")
            }
            Ok(_) | Err(_) => Ok(rest),
        }
    }

    /// The socket, for other operations.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }
}

/// A command as an array of bulks.
pub fn command<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The length of the first complete reply in these bytes, if there is one.
fn reply_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    let values = |count: i64| (0..count).try_fold(end, |at, _| Some(at + reply_len(bytes.get(at..)?)?));
    match bytes[0] {
        b'$' | b'=' | b'!' => match number()? {
            -1 => Some(end),
            len => Some(end + usize::try_from(len).ok()? + 2).filter(|len| *len <= bytes.len()),
        },
        b'*' | b'~' | b'>' => values(number()?),
        b'%' => values(number()? * 2),
        b'|' => values(number()? * 2 + 1),
        _ => Some(end),
    }
}

/// Keys of about as many slots, all over the range.
pub fn spread_keys() -> impl Iterator<Item = String> {
    (0..60).map(|at| format!("key-{at}"))
}

/// Writes one value to each of the [`spread_keys`], starting at this proxy, without retries.
pub fn write_all(first: SocketAddr, value: &str) -> Result<(), String> {
    for key in spread_keys() {
        match Wire::follow(first, &format!("SET {key} {value}")) {
            Ok(said) if said == "+OK\r\n" => {}
            other => return Err(format!("{key}: {other:?}")),
        }
    }
    Ok(())
}

/// How many of the [`spread_keys`] have this value.
#[must_use]
pub fn count(first: SocketAddr, value: &str) -> usize {
    let expected = format!("${}\r\n{value}\r\n", value.len());
    let has = |key: &String| Wire::follow(first, &format!("GET {key}")).is_ok_and(|said| said == expected);
    spread_keys().filter(has).count()
}
