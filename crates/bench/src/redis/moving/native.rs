//! The peer: redis-servers in cluster mode, and redis-cli that moves slots between them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use super::super::servers::{Node, ask};
use super::{MOVING, Sides, count};

/// Timeout for two servers to form a cluster.
const AGREE_WITHIN: Duration = Duration::from_secs(60);
/// How often they are polled.
const POLL_EVERY: Duration = Duration::from_millis(50);

pub(super) struct Native {
    nodes: [Node; 2],
    ids: [String; 2],
}

impl Native {
    /// Starts with all slots on the first side.
    pub(super) async fn start(dir: &Path) -> Result<Native> {
        let nodes = [Node::in_cluster_mode(dir).await?, Node::in_cluster_mode(dir).await?];
        let [one, two] = [nodes[0].port, nodes[1].port];
        expect_ok(one, "CLUSTER ADDSLOTSRANGE 0 16383\r\n").await?;
        expect_ok(one, &format!("CLUSTER MEET 127.0.0.1 {two} {}\r\n", nodes[1].bus)).await?;
        let ids = [id(one).await?, id(two).await?];
        let native = Native { nodes, ids };
        native.agree().await?;
        Ok(native)
    }

    /// Waits until both have each other and all slots, as redis-cli requires.
    async fn agree(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < AGREE_WITHIN {
            let mut sound = 0;
            for node in &self.nodes {
                let info = ask(node.port, "CLUSTER INFO\r\n").await?;
                let knows = info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2");
                sound += usize::from(knows);
            }
            if sound == self.nodes.len() {
                return Ok(());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        bail!("two redis-servers did not become a cluster within {AGREE_WITHIN:?}")
    }
}

async fn expect_ok(port: u16, command: &str) -> Result<()> {
    let reply = ask(port, command).await?;
    ensure!(reply.starts_with("+OK"), "{}: {reply}", command.trim());
    Ok(())
}

async fn id(port: u16) -> Result<String> {
    let reply = ask(port, "CLUSTER MYID\r\n").await?;
    reply.lines().nth(1).map(str::to_owned).with_context(|| format!("CLUSTER MYID: {reply}"))
}

impl Sides for Native {
    fn ports(&self) -> [u16; 2] {
        [self.nodes[0].port, self.nodes[1].port]
    }

    async fn keys(&self, side: usize) -> Result<u64> {
        count(self.nodes[side].port).await
    }

    async fn shift(&mut self, from: usize) -> Result<()> {
        let slots = (MOVING.1 - MOVING.0 + 1).to_string();
        let output = Command::new("redis-cli")
            .args(["--cluster", "reshard", &format!("127.0.0.1:{}", self.nodes[from].port)])
            .args(["--cluster-from", &self.ids[from], "--cluster-to", &self.ids[1 - from]])
            .args(["--cluster-slots", &slots, "--cluster-yes"])
            .output()
            .await
            .context("there is no redis-cli in the PATH (Debian: apt install redis-tools)")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && !text.contains("ERR"), "reshard failed: {}", tail(&text));
        self.agree().await
    }
}

/// The end of a long text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" / ")
}
