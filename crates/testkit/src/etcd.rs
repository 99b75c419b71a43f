//! A real etcd for one test: own ports, own directory, verified to be the process we started.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::eventually::try_eventually_real_time;
use crate::process::on_path;
use crate::{Port, Process, Ready, TempDir};

/// A single etcd starts in well under a second; a loaded machine with a slow disk needs longer.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Time from SIGTERM to exit: etcd closes its streams and its database.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// How to start an [`Etcd`]; the defaults are etcd's own, with automatic compaction off.
#[derive(Debug, Clone, Default)]
pub struct Options {
    arguments: Vec<String>,
    tls: Option<Tls>,
}

/// TLS options of the client port.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// The authority of client certificates; `None` requires none.
    pub client_ca: Option<PathBuf>,
}

impl Options {
    /// Adds a command-line argument in etcd's syntax: `--quota-backend-bytes=16777216`, `--max-txn-ops=10`.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Serves clients over TLS only.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Starts etcd and waits until it answers linearizable reads. Its data survives kill -9, but no power cut.
    pub async fn start(self) -> anyhow::Result<Etcd> {
        let dir = TempDir::in_memory("etcd")?;
        let (client, peer, health) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}", client.addr());
        let (peer_url, health_url) = (format!("http://{}", peer.addr()), format!("http://{}", health.addr()));
        let mut builder =
            Process::builder("etcd").debian_package("etcd-server").directory(dir.path()).args([
                "--name=test".to_owned(),
                format!("--data-dir={}", dir.join("data").display()),
                format!("--listen-client-urls={endpoint}"),
                format!("--advertise-client-urls={endpoint}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=test={peer_url}"),
                // Plain HTTP also where clients need TLS, so that the readiness check needs no certificate.
                format!("--listen-metrics-urls={health_url}"),
                "--auto-compaction-retention=0".to_owned(),
                "--logger=zap".to_owned(),
            ]);
        builder = builder.args(self.tls.iter().flat_map(Tls::arguments)).args(&self.arguments);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            builder = builder.env_remove(name);
        }
        let process = builder.spawn(dir.join("etcd.log"))?;
        let mut etcd = Etcd { process, endpoint, client, peer, health, dir };
        etcd.serves().await?;
        Ok(etcd)
    }
}

impl Tls {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--cert-file={}", self.cert.display()),
            format!("--key-file={}", self.key.display()),
        ];
        if let Some(ca) = &self.client_ca {
            arguments.push(format!("--trusted-ca-file={}", ca.display()));
            arguments.push("--client-cert-auth".to_owned());
        }
        arguments
    }
}

/// A running etcd of one member; killed and removed on drop.
#[derive(Debug)]
pub struct Etcd {
    // First, so that it is killed before its directory is removed.
    process: Process,
    endpoint: String,
    client: Port,
    peer: Port,
    health: Port,
    dir: TempDir,
}

impl Etcd {
    /// Starts one with [`Options::default`].
    pub async fn start() -> anyhow::Result<Self> {
        Options::default().start().await
    }

    /// Options for another configuration.
    #[must_use]
    pub fn options() -> Options {
        Options::default()
    }

    /// `http://127.0.0.1:<port>` (or `https`); the same after a restart.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The client port.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.client
    }

    /// Its directory; etcd's own is the subdirectory `data`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process, for other operations.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// kill -9; [`restart`](Self::restart) brings it back with its data.
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

    /// Restarts it (killing it first if it still runs) on the same ports and data, and waits until it serves.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process.restart()?;
        self.serves().await
    }

    /// Stops it, makes its data of a snapshot (`etcdctl snapshot save`), and starts it again.
    pub async fn restore(&mut self, snapshot: &Path) -> anyhow::Result<()> {
        self.process.kill9()?;
        let data = self.dir.join("data");
        std::fs::remove_dir_all(&data).context("cannot remove the data directory")?;
        let peer = format!("http://{}", self.peer.addr());
        let (snapshot, data) = (snapshot.display().to_string(), format!("--data-dir={}", data.display()));
        let cluster =
            [format!("--initial-cluster=test={peer}"), format!("--initial-advertise-peer-urls={peer}")];
        let arguments = ["snapshot", "restore", &snapshot, &data, "--name=test", &cluster[0], &cluster[1]];
        self.ctl(&arguments)?;
        self.restart().await
    }

    /// Runs `etcdctl` on it and returns its output; an exit code other than 0 is an error with the message.
    pub fn ctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        etcdctl(&self.endpoint, arguments)
    }

    async fn serves(&mut self) -> anyhow::Result<()> {
        self.process.ready(&Ready::Port(self.health.number()), START_DEADLINE).await?;
        self.process.ready(&Ready::Port(self.client.number()), START_DEADLINE).await?;
        let health = self.health.addr();
        // etcd answers this from a linearizable read.
        let look = async || match http_get(health, "/health").await {
            Ok(answer) if answer.contains("\"health\":\"true\"") => Ok(()),
            Ok(answer) => Err(answer),
            Err(e) => Err(format!("{e:#}")),
        };
        let healthy = try_eventually_real_time("etcd is healthy", START_DEADLINE, look).await;
        healthy.map_err(|timed_out| anyhow::Error::msg(self.process.about(&timed_out.to_string())))
    }
}

/// Runs Debian's `etcdctl` (API version 3) on any endpoint and returns its standard output.
pub fn etcdctl(endpoint: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let program = on_path(Path::new("etcdctl"), Some("etcd-client"))?;
    let mut command = Command::new(program);
    command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", endpoint).args(arguments);
    let output = command.output().context("cannot run etcdctl")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "etcdctl {arguments:?} on {endpoint}: {}: {stderr}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One HTTP/1.0 request: enough for a health page, without an HTTP client dependency.
async fn http_get(addr: std::net::SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(addr).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((_, body)) => Ok(body.to_owned()),
        None => bail!("not an HTTP answer: {answer:?}"),
    }
}
