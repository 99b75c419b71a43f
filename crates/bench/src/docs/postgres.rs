//! PostgreSQL under measurement: Debian's server, driven by its own `pgbench`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::{CLIENTS, FOUND, Reached};
use crate::peer::free_ports;

const START_WITHIN: Duration = Duration::from_secs(60);
/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The server refuses to run as root; Debian's package has made this user for it.
const USER: &str = "postgres";

/// An installed version.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    pub(super) version: String,
    programs: PathBuf,
}

impl Installed {
    /// The newest version, if there is one.
    pub(super) fn newest() -> Option<Installed> {
        let names = std::fs::read_dir(VERSIONS).ok()?;
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let version = names.filter_map(|name| name.parse::<u32>().ok()).max()?.to_string();
        let programs = Path::new(VERSIONS).join(&version).join("bin");
        programs.join("pgbench").is_file().then_some(Installed { version, programs })
    }
}

/// A server with a directory of its own and one table of documents.
pub(super) struct Server {
    child: Child,
    installed: Installed,
    dir: PathBuf,
    port: u16,
}

impl Server {
    /// Starts a server with its default settings, which sync before they commit.
    pub(super) async fn start(dir: &Path, installed: &Installed) -> Result<Server> {
        let dir = std::path::absolute(dir)?;
        std::fs::create_dir_all(&dir)?;
        let as_root = std::fs::metadata("/proc/self")?.uid() == 0;
        if as_root {
            let status = Command::new("chown").arg(USER).arg(&dir).status().await?;
            ensure!(status.success(), "postgres does not run as root, and there is no user {USER}");
        }
        let data = dir.join("data").display().to_string();
        let program = |name: &str| command(installed, as_root, &dir, name);
        let made = program("initdb").args(["-D", &data, "-U", USER, "-A", "trust", "-E", "UTF8"]).output();
        let made = made.await.context("cannot run initdb")?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = free_ports()?[0];
        let log = std::fs::File::create(dir.join("server.log"))?;
        let mut server = program("postgres");
        server.args(["-D", &data, "-p", &port.to_string(), "-h", "127.0.0.1", "-k", &data]);
        server.args(["-c", "max_connections=200", "-c", "shared_buffers=512MB"]);
        server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = server.spawn().context("cannot start postgres")?;
        let server = Server { child, installed: installed.clone(), dir, port };
        let begin = Instant::now();
        while let Err(error) = server.sql("SELECT 1").await {
            if begin.elapsed() > START_WITHIN {
                return Err(error.context("postgres does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(server)
    }

    /// Creates the table and its index and fills it.
    pub(super) async fn fill(&self, documents: usize) -> Result<()> {
        let sql = format!(
            "CREATE TABLE items (key text PRIMARY KEY, doc jsonb NOT NULL); \
             INSERT INTO items SELECT 'k' || n, jsonb_build_object('key', 'k' || n, 'number', n, 'text', \
             repeat('x', {text})) FROM generate_series(0, {last}) n; \
             CREATE INDEX items_number ON items (((doc->>'number')::bigint)); ANALYZE items",
            text = super::TEXT,
            last = documents - 1,
        );
        self.sql(&sql).await
    }

    /// One document in one transaction. A prepared statement needs the type of a parameter where nothing implies it.
    pub(super) async fn insert(&self, documents: usize, time: Duration) -> Result<Reached> {
        let script = format!(
            "\\set n random({documents}, 1000000000000)\n\
             INSERT INTO items VALUES ('k' || gen_random_uuid(), jsonb_build_object('key', 'k' || :n, 'number', :n::bigint, \
             'text', repeat('x', {})));\n",
            super::TEXT
        );
        self.bench(&script, time).await
    }

    /// One document by its primary key.
    pub(super) async fn point(&self, documents: usize, time: Duration) -> Result<Reached> {
        let script = format!(
            "\\set n random(0, {})\nSELECT doc FROM items WHERE key = 'k' || :n;\n",
            documents.saturating_sub(1)
        );
        self.bench(&script, time).await
    }

    /// Documents by a range of an indexed field.
    pub(super) async fn range(&self, documents: usize, time: Duration) -> Result<Reached> {
        let script = format!(
            "\\set n random(0, {})\nSELECT doc FROM items WHERE (doc->>'number')::bigint >= :n AND \
             (doc->>'number')::bigint < :n::bigint + {FOUND};\n",
            documents.saturating_sub(FOUND)
        );
        self.bench(&script, time).await
    }

    async fn bench(&self, script: &str, time: Duration) -> Result<Reached> {
        let path = self.dir.join("script.sql");
        std::fs::write(&path, script)?;
        let seconds = time.as_secs().max(1).to_string();
        let mut pgbench = self.client("pgbench");
        pgbench.args(["-n", "-M", "prepared", "-j", "2", "-c", &CLIENTS.to_string(), "-T", &seconds, "-f"]);
        let output = pgbench.arg(&path).arg("postgres").output().await.context("cannot run pgbench")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "pgbench: {}", String::from_utf8_lossy(&output.stderr));
        let figure = |name: &str| -> Result<f64> {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).context("pgbench said nothing")?;
            Ok(line.split_whitespace().next().context("no figure")?.parse()?)
        };
        Ok(Reached { rate: figure("tps = ")?, mean_ms: figure("latency average = ")? })
    }

    async fn sql(&self, sql: &str) -> Result<()> {
        let output =
            self.client("psql").args(["-q", "-v", "ON_ERROR_STOP=1", "-c", sql, "postgres"]).output();
        let output = output.await.context("cannot run psql")?;
        if !output.status.success() {
            bail!("psql: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    fn client(&self, name: &str) -> Command {
        let mut client = Command::new(self.installed.programs.join(name));
        client.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER]);
        client.stdin(Stdio::null());
        client
    }

    /// Stops it without waiting for clients.
    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id().context("postgres has ended")?)?;
        kill(Pid::from_raw(pid), Signal::SIGINT)?;
        tokio::time::timeout(START_WITHIN, self.child.wait()).await.context("it does not stop")??;
        Ok(())
    }
}

/// A program of the server, run as the user that it insists on.
fn command(installed: &Installed, as_root: bool, dir: &Path, name: &str) -> Command {
    let program = installed.programs.join(name);
    let mut command = match as_root {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    command.current_dir(dir).env("LC_ALL", "C");
    command
}
