//! Our two sides: a proxy and a node each, configured with the messages that coordinators would send.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::super::servers::{Node, Running, ask};
use super::{MOVING, STAYING, Sides, count};

/// Pause between two release requests; the source answers at once when it is ready.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Timeout for a move.
const MOVE_WITHIN: Duration = Duration::from_secs(600);

pub(super) struct Pair {
    nodes: [Node; 2],
    proxies: [Running; 2],
    epoch: u64,
}

impl Pair {
    /// Starts with all slots on the first side.
    pub(super) async fn start(dir: &Path) -> Result<Pair> {
        let nodes = [Node::start(dir).await?, Node::start(dir).await?];
        let proxies = [Running::proxy("proxy-0", dir).await?, Running::proxy("proxy-1", dir).await?];
        let mut pair = Pair { nodes, proxies, epoch: 0 };
        pair.settle(0).await?;
        Ok(pair)
    }

    pub(super) fn node_port(&self, side: usize) -> u16 {
        self.nodes[side].port
    }

    fn proxy(&self, side: usize) -> String {
        format!("127.0.0.1:{}", self.proxies[side].port)
    }

    /// A side's own entries: `claim` is its state for the moving slots.
    fn own(&self, side: usize, claim: &str) -> String {
        let node = format!("127.0.0.1:{}", self.nodes[side].port);
        let moving = format!("{}-{}", MOVING.0, MOVING.1);
        let claim = match claim {
            "" => String::new(),
            "stable" => format!(" bench {node} {moving}"),
            other => format!(" bench {node} {other} {moving}"),
        };
        let staying = match side {
            0 => format!(" bench {node} {}-{}", STAYING.0, STAYING.1),
            _ => String::new(),
        };
        format!("{claim}{staying}")
    }

    /// A side's entries about the other, which may own the moving slots.
    fn peer(&self, side: usize, owner: usize) -> String {
        let (other, proxy) = (1 - side, self.proxy(1 - side));
        let moving =
            if owner == other { format!(" bench {proxy} {}-{}", MOVING.0, MOVING.1) } else { String::new() };
        let staying = match other {
            0 => format!(" bench {proxy} {}-{}", STAYING.0, STAYING.1),
            _ => String::new(),
        };
        format!("{moving}{staying}")
    }

    async fn tell(&self, side: usize, message: &str, entries: &str) -> Result<()> {
        let words = format!("NMCTL {message} {} NOFLAG{entries}\r\n", self.epoch);
        let reply = ask(self.proxies[side].port, &words).await?;
        ensure!(reply.starts_with("+OK"), "{}: {reply}", words.trim());
        Ok(())
    }

    /// Assigns the moving slots to this side, which receives the message before the one that lost them.
    async fn settle(&mut self, owner: usize) -> Result<()> {
        self.epoch += 1;
        let loser = 1 - owner;
        self.tell(owner, "SETDB", &self.own(owner, "stable")).await?;
        self.tell(owner, "SETPEER", &self.peer(owner, owner)).await?;
        self.tell(loser, "SETPEER", &self.peer(loser, owner)).await?;
        self.tell(loser, "SETDB", &self.own(loser, "")).await
    }

    async fn begin(&mut self, from: usize) -> Result<()> {
        self.epoch += 1;
        let to = 1 - from;
        self.tell(to, "SETDB", &self.own(to, &format!("importing {}", self.proxy(from)))).await?;
        self.tell(from, "SETDB", &self.own(from, &format!("migrating {}", self.proxy(to)))).await
    }

    async fn released(&self, from: usize) -> Result<()> {
        let node = self.nodes[from].port;
        let words = format!(
            "NMCTL RELEASING {} NOFLAG bench 127.0.0.1:{node} {}-{}\r\n",
            self.epoch, MOVING.0, MOVING.1
        );
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < MOVE_WITHIN {
            last = ask(self.proxies[from].port, &words).await?;
            match last.as_bytes() {
                [b'+', ..] => return Ok(()),
                text if text.starts_with(b"-MIGRATING") => tokio::time::sleep(ASK_EVERY).await,
                _ => bail!("the move failed: {last}"),
            }
        }
        bail!("the move did not end within {MOVE_WITHIN:?}: {last}")
    }
}

impl Sides for Pair {
    fn ports(&self) -> [u16; 2] {
        [self.proxies[0].port, self.proxies[1].port]
    }

    async fn keys(&self, side: usize) -> Result<u64> {
        count(self.nodes[side].port).await
    }

    async fn shift(&mut self, from: usize) -> Result<()> {
        self.begin(from).await?;
        self.released(from).await.context("our move")?;
        self.settle(1 - from).await
    }
}
