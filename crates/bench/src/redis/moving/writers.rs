//! Clients that write while slots move: each sends its next SET after the previous reply, and follows redirects.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use rand::RngExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::super::super::load::{histogram, nanos};
use super::set;

const CLIENTS: usize = 4;
/// Redirects and retries of one command before it is an error.
const MAX_HOPS: usize = 1_000;
/// Pause before a retry.
const AGAIN: Duration = Duration::from_millis(1);

/// The latencies of writes.
#[derive(Debug)]
pub(super) struct Seen(Histogram<u64>);

impl Seen {
    pub(super) fn p99_ms(&self) -> f64 {
        self.0.value_at_quantile(0.99) as f64 / 1e6
    }

    pub(super) fn longest_ms(&self) -> f64 {
        self.0.max() as f64 / 1e6
    }
}

/// Clients that write until they are stopped.
pub(super) struct Writers {
    seen: Arc<Mutex<Histogram<u64>>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<Result<()>>,
}

impl Writers {
    pub(super) fn start(ports: [u16; 2], keys: u32) -> Result<Writers> {
        let (seen, stop) = (Arc::new(Mutex::new(histogram()?)), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(write(ports, keys, seen.clone(), stop.clone()));
        }
        Ok(Writers { seen, stop, clients })
    }

    /// The latencies since the last call.
    pub(super) fn take(&self) -> Result<Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Seen(std::mem::replace(&mut *seen, histogram()?)))
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn write(
    ports: [u16; 2],
    keys: u32,
    seen: Arc<Mutex<Histogram<u64>>>,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let mut client = Client::connect(ports).await?;
    while !stop.load(Ordering::Relaxed) {
        let command = set(rand::rng().random_range(0..keys));
        let sent = Instant::now();
        client.send(&command).await?;
        let took = nanos(sent.elapsed());
        seen.lock().unwrap_or_else(PoisonError::into_inner).record(took)?;
    }
    Ok(())
}

/// A connection to each side, and the one that is tried first.
struct Client {
    sides: [BufReader<TcpStream>; 2],
    ports: [u16; 2],
    at: usize,
}

impl Client {
    async fn connect(ports: [u16; 2]) -> Result<Client> {
        let open = async |port| {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            anyhow::Ok(BufReader::new(stream))
        };
        Ok(Client { sides: [open(ports[0]).await?, open(ports[1]).await?], ports, at: 0 })
    }

    /// Sends a command until it succeeds, following redirects.
    async fn send(&mut self, command: &str) -> Result<()> {
        for _ in 0..MAX_HOPS {
            let reply = self.exchange(self.at, command).await?;
            let mut words = reply.split(' ');
            match words.next() {
                Some("+OK") => return Ok(()),
                Some("-MOVED") => self.at = self.side(words.nth(1))?,
                Some("-ASK") => {
                    let side = self.side(words.nth(1))?;
                    self.exchange(side, "ASKING\r\n").await?;
                    if self.exchange(side, command).await?.starts_with("+OK") {
                        return Ok(());
                    }
                }
                Some("-TRYAGAIN") => tokio::time::sleep(AGAIN).await,
                Some(_) | None => bail!("unexpected reply to a writer: {reply}"),
            }
        }
        bail!("too many redirects of a writer")
    }

    fn side(&self, address: Option<&str>) -> Result<usize> {
        let port = address.and_then(|address| address.rsplit(':').next()).and_then(|port| port.parse().ok());
        self.ports.iter().position(|known| Some(*known) == port).context("redirected to an unknown address")
    }

    async fn exchange(&mut self, side: usize, command: &str) -> Result<String> {
        let stream = &mut self.sides[side];
        stream.get_mut().write_all(command.as_bytes()).await?;
        let mut reply = String::new();
        stream.read_line(&mut reply).await?;
        Ok(reply.trim_end().to_owned())
    }
}
