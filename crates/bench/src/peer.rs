//! The measured servers: separate processes on free ports, each in its own directory on the same disk.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use etcd_client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// Timeout for a start.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// Timeout from SIGTERM to exit.
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// How often a starting server is polled; short, because starts are measured.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `capstan meta serve` of this binary.
    Ours,
    /// `etcd` from the PATH, one node, default settings.
    Etcd,
}

/// A server that can be started, stopped, killed and restarted on the same data.
pub(crate) struct Peer {
    kind: Kind,
    dir: PathBuf,
    port: u16,
    peer_port: u16,
    child: Option<Child>,
}

impl Peer {
    /// A server with its own empty directory below `dir`; not started yet.
    pub(crate) fn new(kind: Kind, dir: &Path) -> Result<Peer> {
        let dir = dir.join(match kind {
            Kind::Ours => "capstan",
            Kind::Etcd => "etcd",
        });
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let [port, peer_port] = free_ports()?;
        Ok(Peer { kind, dir, port, peer_port, child: None })
    }

    /// Starts it and returns the time until it answered a linearizable read.
    pub(crate) async fn start(&mut self) -> Result<Duration> {
        let log = File::options().create(true).append(true).open(self.dir.join("server.log"))?;
        let begin = Instant::now();
        let mut command = self.command()?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        self.child = Some(command.spawn().with_context(|| format!("cannot start {:?}", self.kind))?);
        self.answer(begin).await?;
        Ok(begin.elapsed())
    }

    async fn answer(&mut self, begin: Instant) -> Result<()> {
        while begin.elapsed() < START_DEADLINE {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                bail!("{:?} ended with {status}; its log is {}/server.log", self.kind, self.dir.display());
            }
            if let Ok(mut client) = self.client().await
                && client.get("health", None).await.is_ok()
            {
                return Ok(());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        bail!(
            "{:?} did not answer within {START_DEADLINE:?}; its log is {}/server.log",
            self.kind,
            self.dir.display()
        )
    }

    fn command(&self) -> Result<Command> {
        let client = format!("http://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = match self.kind {
            Kind::Ours => Command::new(std::env::current_exe().context("cannot find this binary")?),
            Kind::Etcd => Command::new("etcd"),
        };
        match self.kind {
            Kind::Ours => command
                .args(["meta", "serve", "--log-level", "warn", "--listen"])
                .arg(format!("127.0.0.1:{}", self.port))
                .arg("--dir")
                .arg(self.dir.join("data")),
            Kind::Etcd => command
                .args(["--name", "bench", "--log-level", "error", "--data-dir"])
                .arg(self.dir.join("data"))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("bench={peer}")]),
        };
        command.env_remove("CAPSTAN_CONFIG").env_remove("CAPSTAN_META");
        Ok(command)
    }

    /// A new connection to it.
    pub(crate) async fn client(&self) -> Result<Client> {
        Ok(Client::connect([format!("127.0.0.1:{}", self.port)], None).await?)
    }

    /// Its resident memory in MiB.
    pub(crate) fn rss_mib(&self) -> Result<f64> {
        rss_mib(self.pid()?)
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.end(Signal::SIGTERM).await
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) async fn kill9(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).await
    }

    async fn end(&mut self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()?)?;
        kill(Pid::from_raw(pid), signal)?;
        if let Some(mut child) = self.child.take() {
            tokio::time::timeout(STOP_DEADLINE, child.wait()).await.context("the server does not stop")??;
        }
        Ok(())
    }

    fn pid(&self) -> Result<u32> {
        self.child.as_ref().and_then(Child::id).context("the server is not running")
    }
}

/// The resident memory of a process in MiB.
pub(super) fn rss_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// Two ports that are free at the moment.
pub(super) fn free_ports() -> Result<[u16; 2]> {
    let listen = || TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let (one, two) = (listen()?, listen()?);
    Ok([one.local_addr()?.port(), two.local_addr()?.port()])
}

/// The version from `etcd --version`, or why there is none.
pub(crate) fn etcd_version() -> Result<String> {
    let output = std::process::Command::new("etcd").arg("--version").output();
    let output =
        output.context("there is no etcd in the PATH to compare with (Debian: apt install etcd-server)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    Ok(format!("etcd {}", version.unwrap_or("of unknown version").trim()))
}
