//! The measured processes: one redis-server, and the proxies in front of it.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::peer::free_ports;

/// Timeout for a start.
pub(super) const START_DEADLINE: Duration = Duration::from_secs(20);
/// How often a starting server is polled.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(10);
/// The kernel counts CPU time in hundredths of a second.
const TICK_US: f64 = 10_000.0;

/// A redis-server without persistence.
pub(super) struct Node {
    pub(super) port: u16,
    /// Its cluster bus port, if it has one.
    pub(super) bus: u16,
    _child: Child,
}

impl Node {
    pub(super) async fn start(dir: &Path) -> Result<Node> {
        Node::with(dir, &[]).await
    }

    /// A node in cluster mode, which stays a primary when its last slot has left.
    pub(super) async fn in_cluster_mode(dir: &Path) -> Result<Node> {
        Node::with(dir, &["--cluster-enabled", "yes", "--cluster-allow-replica-migration", "no"]).await
    }

    async fn with(dir: &Path, more: &[&str]) -> Result<Node> {
        let [port, bus] = free_ports()?;
        let dir = &dir.join(format!("node-{port}"));
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
        ]);
        command.arg(dir).args(more);
        if !more.is_empty() {
            // Otherwise the port is ten thousand higher, which may be taken or out of range.
            command.args(["--cluster-port", &bus.to_string()]);
        }
        let child = spawn(command, dir, "redis-server")?;
        answers(port).await.context("redis-server")?;
        Ok(Node { port, bus, _child: child })
    }
}

/// The kind of a proxy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Front {
    /// `capstan redis proxy` of this binary.
    Ours,
    /// twemproxy from the PATH.
    Nutcracker,
}

/// A running proxy.
pub(super) struct Running {
    pub(super) port: u16,
    child: Child,
}

impl Running {
    pub(super) async fn start(front: Front, node: &Node, dir: &Path) -> Result<Running> {
        let [port, stats] = free_ports()?;
        let command = match front {
            Front::Ours => ours(port, dir, "proxy")?,
            Front::Nutcracker => nutcracker(port, stats, node.port, dir)?,
        };
        let child = spawn(command, dir, &format!("{front:?}"))?;
        let running = Running { port, child };
        answers(port).await.with_context(|| format!("{front:?}"))?;
        if let Front::Ours = front {
            let told = format!("NMCTL SETDB 1 NOFLAG bench 127.0.0.1:{} 0-16383\r\n", node.port);
            let reply = ask(port, &told).await?;
            anyhow::ensure!(reply.starts_with("+OK"), "the proxy refused its slots: {reply}");
        }
        Ok(running)
    }

    /// A proxy of ours with its own name, without any slots yet.
    pub(super) async fn proxy(name: &str, dir: &Path) -> Result<Running> {
        let [port, _] = free_ports()?;
        let child = spawn(ours(port, dir, name)?, dir, name)?;
        answers(port).await.with_context(|| name.to_owned())?;
        Ok(Running { port, child })
    }

    /// CPU time so far, user and system.
    pub(super) fn cpu_us(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?))?;
        // The name in parentheses (field 2) may contain blanks; user and system time are fields 14 and 15.
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let ticks: Vec<f64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        Ok(ticks.iter().sum::<f64>() * TICK_US)
    }

    pub(super) fn rss_mib(&self) -> Result<f64> {
        crate::peer::rss_mib(self.pid()?)
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("the proxy has ended")
    }
}

fn ours(port: u16, dir: &Path, name: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this binary")?);
    command.args(["redis", "proxy", "--log-level", "warn", "--listen", &format!("127.0.0.1:{port}")]);
    command.arg("--state-dir").arg(dir.join(name));
    command.env_remove("CAPSTAN_CONFIG").env_remove("CAPSTAN_META");
    Ok(command)
}

fn nutcracker(port: u16, stats: u16, node: u16, dir: &Path) -> Result<Command> {
    let file = dir.join("nutcracker.yml");
    let text = format!(
        "bench:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  servers:\n   - 127.0.0.1:{node}:1\n"
    );
    std::fs::write(&file, text)?;
    let mut command = Command::new("nutcracker");
    command.arg("-c").arg(file).args(["-a", "127.0.0.1", "-s", &stats.to_string()]);
    Ok(command)
}

fn spawn(mut command: Command, dir: &Path, name: &str) -> Result<Child> {
    let log = File::create(dir.join(format!("{name}.log")))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    command
        .spawn()
        .with_context(|| format!("cannot start {name} (Debian: redis-server, redis-tools, nutcracker)"))
}

/// Waits until a server answers on the port.
async fn answers(port: u16) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < START_DEADLINE {
        if ask(port, "PING\r\n").await.is_ok_and(|reply| !reply.is_empty())
            || TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        {
            return Ok(());
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    bail!("nothing answers on port {port} after {START_DEADLINE:?}")
}

/// Sends one command and returns a reply that fits into a packet.
pub(super) async fn ask(port: u16, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(command.as_bytes()).await?;
    let mut reply = vec![0; 4096];
    let len = tokio::time::timeout(START_DEADLINE, stream.read(&mut reply)).await.context("no reply")??;
    Ok(String::from_utf8_lossy(&reply[..len]).into_owned())
}
