//! Our own cluster under measurement: a store, a controller and hosts, each a process of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::{Child, Command};

/// Timeout for a start or a stop.
const WITHIN: Duration = Duration::from_secs(60);
/// How often a starting process is polled; short, because starts are measured.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// The processes of a cluster, in the order of their starts.
pub(super) struct Cluster {
    dir: PathBuf,
    meta: String,
    members: Vec<Member>,
}

/// One process, and how it was started.
struct Member {
    name: String,
    args: Vec<String>,
    child: Child,
}

impl Cluster {
    /// Starts a store and a controller.
    pub(super) async fn start(dir: &Path) -> Result<Cluster> {
        std::fs::create_dir_all(dir)?;
        let dir = std::path::absolute(dir)?;
        let store = dir.join("store").display().to_string();
        let mut cluster = Cluster { dir, meta: String::new(), members: Vec::new() };
        let serve = ["meta", "serve", "--listen", "127.0.0.1:0", "--dir", &store];
        let ready = cluster.spawn("meta", serve.map(str::to_owned).to_vec()).await?;
        cluster.meta = ready["meta"].as_str().context("no store")?.to_owned();
        let args = cluster.args("controller", &["host.id=k".to_owned()]);
        cluster.spawn("controller", args).await?;
        Ok(cluster)
    }

    /// Starts a host with one role; returns its endpoints.
    pub(super) async fn host(&mut self, name: &str, role: &str, settings: &[String]) -> Result<Value> {
        let below = |part: &str| self.dir.join(format!("{name}-{part}")).display().to_string();
        let mut all = vec![
            format!("host.id={name}"),
            format!("host.roles={role}"),
            format!("holders.dir={}", below("holders")),
            format!("{role}.listen=127.0.0.1:0"),
        ];
        if role == "docs" {
            all.push(format!("docs.dir={}", below("docs")));
        }
        all.extend_from_slice(settings);
        let args = self.args("host", &all);
        self.spawn(name, args).await
    }

    /// The endpoint of the store.
    pub(super) fn meta(&self) -> &str {
        &self.meta
    }

    fn args(&self, command: &str, settings: &[String]) -> Vec<String> {
        let mut args = vec![command.to_owned(), "--meta".to_owned(), self.meta.clone()];
        for setting in settings.iter().map(String::as_str).chain(["http.listen=127.0.0.1:0"]) {
            args.extend(["--set".to_owned(), setting.to_owned()]);
        }
        args
    }

    /// The process id of a member.
    pub(super) fn pid(&self, name: &str) -> Result<u32> {
        let member = self.members.iter().find(|member| member.name == name).context("no such process")?;
        member.child.id().context("it has ended")
    }

    /// Kills a member with SIGKILL and starts it again on its data; returns its endpoints.
    pub(super) async fn kill_and_restart(&mut self, name: &str) -> Result<Value> {
        let at = self.members.iter().position(|member| member.name == name).context("no such process")?;
        let mut member = self.members.remove(at);
        member.child.kill().await?;
        self.spawn(name, member.args).await
    }

    /// Stops everything; hosts leave before the store does.
    pub(super) async fn stop(mut self) -> Result<()> {
        while let Some(mut member) = self.members.pop() {
            let pid = i32::try_from(member.child.id().context("it has ended")?)?;
            kill(Pid::from_raw(pid), Signal::SIGTERM)?;
            let ended = tokio::time::timeout(WITHIN, member.child.wait()).await;
            ended.with_context(|| format!("capstan {} does not stop", member.name))??;
        }
        Ok(())
    }

    async fn spawn(&mut self, name: &str, args: Vec<String>) -> Result<Value> {
        let (file, log) = (self.dir.join(format!("{name}.json")), self.dir.join(format!("{name}.log")));
        // The file of an earlier start would be taken for this one's.
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let out = std::fs::File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(std::env::current_exe().context("cannot find this binary")?);
        command.args(&args).args(["--log-level", "warn"]).arg("--ready-file").arg(&file);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).kill_on_drop(true);
        command.env_remove("CAPSTAN_CONFIG").env_remove("CAPSTAN_META");
        let mut child = command.spawn().with_context(|| format!("cannot start capstan {name}"))?;
        let begin = Instant::now();
        while begin.elapsed() < WITHIN {
            if let Some(status) = child.try_wait()? {
                bail!("capstan {name} ended with {status}; its log is {}", log.display());
            }
            if let Some(found) = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok())
            {
                self.members.push(Member { name: name.to_owned(), args, child });
                return Ok(found);
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        bail!("capstan {name} is not ready; its log is {}", log.display())
    }
}
