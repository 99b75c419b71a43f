//! One direction of one connection: a reader that timestamps chunks, and a writer that applies the current flow.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Counters, Direction, Flow, Weather};

/// The unit in which bytes are read.
const CHUNK: usize = 16 * 1024;
/// Chunks in flight in one direction (4 MiB): what a delay or a hold can buffer before backpressure.
const IN_FLIGHT: usize = 256;

/// The connection cannot continue.
#[derive(Debug)]
pub(super) struct Broken;

/// An item from the sender.
enum Item {
    Bytes(Vec<u8>),
    /// It has closed its half.
    End,
    /// It has reset the connection.
    Reset,
}

/// How much of a chunk may pass.
enum Allowed {
    All,
    /// This many bytes; then the connection must be cut.
    Upto(usize),
}

pub(super) struct Pump {
    direction: Direction,
    weather: Arc<watch::Sender<Weather>>,
    changes: watch::Receiver<Weather>,
    counters: Arc<Counters>,
    /// Whether something was discarded: nothing after it may pass.
    holed: bool,
    /// Whether the last item was discarded.
    ended: bool,
}

impl Pump {
    pub(super) fn new(
        direction: Direction,
        weather: Arc<watch::Sender<Weather>>,
        counters: Arc<Counters>,
    ) -> Self {
        let changes = weather.subscribe();
        Self { direction, weather, changes, counters, holed: false, ended: false }
    }

    pub(super) async fn run(mut self, from: OwnedReadHalf, to: OwnedWriteHalf) -> Result<(), Broken> {
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        let reading = async {
            read(from, sender).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            written = self.write(receiver, to) => written,
            () = reading => Ok(()),
        }
    }

    async fn write(
        &mut self,
        mut items: mpsc::Receiver<(Instant, Item)>,
        mut to: OwnedWriteHalf,
    ) -> Result<(), Broken> {
        loop {
            let Some((at, item)) = self.next(&mut items).await else { return Err(Broken) };
            if !self.may_pass(at).await {
                self.swallow(&item);
                continue;
            }
            match item {
                Item::Bytes(bytes) => self.forward(&bytes, &mut to).await?,
                Item::End => return to.shutdown().await.map_err(|_| Broken),
                Item::Reset => return Err(Broken),
            }
        }
    }

    /// The next item; `None` when the connection has a hole and bytes flow again.
    async fn next(&mut self, items: &mut mpsc::Receiver<(Instant, Item)>) -> Option<(Instant, Item)> {
        loop {
            if self.holed && !matches!(self.flow(), Flow::Swallow | Flow::Hold) {
                return None;
            }
            tokio::select! {
                item = items.recv(), if !self.ended => return item,
                changed = self.changes.changed() => changed.ok()?,
            }
        }
    }

    fn flow(&mut self) -> Flow {
        self.changes.borrow_and_update().flow(self.direction)
    }

    /// Waits until an item of this time may pass (true) or is discarded (false).
    async fn may_pass(&mut self, at: Instant) -> bool {
        loop {
            let wait = match self.flow() {
                Flow::Pass | Flow::CutAfter(_) => return true,
                Flow::Swallow => return false,
                Flow::Delay(delay) if at.elapsed() >= delay => return true,
                Flow::Delay(delay) => Some(at + delay),
                Flow::Hold => None,
            };
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() { return false },
                () = until(wait) => {}
            }
        }
    }

    fn swallow(&mut self, item: &Item) {
        self.holed = true;
        match item {
            Item::Bytes(bytes) => {
                self.counters.swallowed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            Item::End | Item::Reset => self.ended = true,
        }
    }

    async fn forward(&self, bytes: &[u8], to: &mut OwnedWriteHalf) -> Result<(), Broken> {
        let allowed = self.allow(bytes.len());
        let passing = match allowed {
            Allowed::All => bytes,
            Allowed::Upto(count) => &bytes[..count],
        };
        let counter = match self.direction {
            Direction::ToUpstream => &self.counters.to_upstream,
            Direction::ToClient => &self.counters.to_client,
        };
        counter.fetch_add(passing.len() as u64, Ordering::Relaxed);
        to.write_all(passing).await.map_err(|_| Broken)?;
        match allowed {
            Allowed::All => Ok(()),
            Allowed::Upto(_) => Err(Broken),
        }
    }

    /// Takes from the budget of [`Flow::CutAfter`]; taking the last of it ends the flow.
    fn allow(&self, wanted: usize) -> Allowed {
        let mut allowed = Allowed::All;
        self.weather.send_if_modified(|weather| {
            let flow = weather.flow_mut(self.direction);
            match flow {
                Flow::CutAfter(left) if *left <= wanted as u64 => {
                    allowed = Allowed::Upto(usize::try_from(*left).unwrap_or(wanted));
                    *flow = Flow::Pass;
                    true
                }
                Flow::CutAfter(left) => {
                    *left -= wanted as u64;
                    false
                }
                Flow::Pass | Flow::Delay(_) | Flow::Hold | Flow::Swallow => false,
            }
        });
        allowed
    }
}

/// Reads to the end. Items keep their arrival time, so that a delay affects latency, not throughput.
async fn read(mut from: OwnedReadHalf, items: mpsc::Sender<(Instant, Item)>) {
    loop {
        let mut chunk = vec![0; CHUNK];
        let (item, last) = match from.read(&mut chunk).await {
            Ok(0) => (Item::End, true),
            Ok(length) => {
                chunk.truncate(length);
                (Item::Bytes(chunk), false)
            }
            Err(_) => (Item::Reset, true),
        };
        if items.send((Instant::now(), item)).await.is_err() || last {
            return;
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
