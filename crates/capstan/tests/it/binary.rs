//! Runs of the binary: short ones to their end, long ones until they are stopped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use capstan_testkit::{PortBlock, Process, Ready, TempDir, try_eventually_blocking};
use nix::sys::signal::Signal;
use serde_json::Value;

/// A daemon that is not ready after this on a busy machine never will be.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A daemon that does not stop within this is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// What a short run left behind.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The data, if the run succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.stdout
    }

    /// The data as JSON, if the run succeeded.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// The binary, without the variables of whoever runs the tests.
pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capstan"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CAPSTAN_")) {
        command.env_remove(name);
    }
    command.env_remove("NOTIFY_SOCKET").env("NO_COLOR", "1").current_dir(dir).stdin(Stdio::null());
    command
}

/// Runs a command in a directory to its end.
pub fn capstan(dir: &Path, args: &[&str]) -> Run {
    finish(command(dir).args(args).output().unwrap())
}

pub fn finish(output: Output) -> Run {
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A daemon with everything it needs: its directory, its process, what it says about itself.
pub struct Daemon {
    pub dir: TempDir,
    pub process: Process,
    ready_file: PathBuf,
    _ports: Option<[PortBlock; 2]>,
}

impl Daemon {
    /// `capstan <args> --dir <own> --ready-file <own>`, ready.
    pub async fn start(label: &str, args: &[&str]) -> Daemon {
        Daemon::start_below(TempDir::new(label).unwrap(), args).await
    }

    /// The same in memory, where nothing waits for a disk that others keep busy.
    pub async fn start_in_memory(label: &str, args: &[&str]) -> Daemon {
        Daemon::start_below(TempDir::in_memory(label).unwrap(), args).await
    }

    async fn start_below(dir: TempDir, args: &[&str]) -> Daemon {
        let data = dir.join("data");
        Daemon::run(dir, args, &data).await
    }

    /// The same on a data directory that is there already.
    pub async fn start_in(label: &str, args: &[&str], data: &Path) -> Daemon {
        Daemon::run(TempDir::new(label).unwrap(), args, data).await
    }

    async fn run(dir: TempDir, args: &[&str], data: &Path) -> Daemon {
        let ready_file = dir.join("ready.json");
        let mut builder = Process::builder(env!("CARGO_BIN_EXE_capstan")).args(args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CAPSTAN_")) {
            builder = builder.env_remove(name);
        }
        // Only what has a store of its own has a directory.
        if matches!(args.first(), Some(&"up" | &"meta")) {
            builder = builder.args(["--dir".as_ref(), data.as_os_str()]);
        }
        let ports =
            local_hosts(args).map(|hosts| [hosts, 2 * hosts].map(|count| PortBlock::reserve(count).unwrap()));
        if let Some([proxies, nodes]) = &ports {
            let set = [
                format!("redis.listen=127.0.0.1:{}", proxies.base()),
                format!("redis.first_node_port={}", nodes.base()),
            ];
            builder = builder.args(set.iter().flat_map(|set| ["--set", set]));
        }
        let process =
            builder.args(["--ready-file".as_ref(), ready_file.as_os_str()]).spawn(dir.join("log")).unwrap();
        let mut daemon = Daemon { dir, process, ready_file, _ports: ports };
        daemon.ready().await;
        daemon
    }

    pub async fn ready(&mut self) {
        self.process.ready(&Ready::File(self.ready_file.clone()), DEADLINE).await.unwrap();
    }

    /// Starts the same command again after it has ended or been killed, and waits until it serves.
    pub async fn restart(&mut self) {
        std::fs::remove_file(&self.ready_file).unwrap();
        self.process.restart().unwrap();
        self.ready().await;
    }

    /// An endpoint from the ready file.
    pub fn endpoint(&self, name: &str) -> String {
        let text = std::fs::read_to_string(&self.ready_file).unwrap();
        let endpoints: Value = serde_json::from_str(&text).unwrap();
        endpoints[name].as_str().unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    /// An operator's command on this daemon's metadata.
    pub fn capstan(&self, args: &[&str]) -> Run {
        let meta = self.endpoint("meta");
        let args: Vec<&str> = args.iter().copied().chain(["--meta", &meta]).collect();
        capstan(self.dir.path(), &args)
    }

    /// etcdctl on this daemon's metadata.
    pub fn etcdctl(&self, args: &[&str]) -> Run {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.endpoint("meta")).args(args);
        finish(command.output().expect("etcdctl is needed: Debian's package etcd-client"))
    }
}

/// How many local hosts need ports that no other test takes before their redis-servers bind them; `None` if the test
/// chooses the ports, or there are no such hosts.
fn local_hosts(args: &[&str]) -> Option<u16> {
    if args.first() != Some(&"up") || args.iter().any(|arg| arg.starts_with("redis.listen=")) {
        return None;
    }
    let given = args.iter().find_map(|arg| arg.strip_prefix("up.hosts="));
    Some(given.map_or(3, |given| given.parse().unwrap())).filter(|hosts| *hosts > 0)
}

impl Drop for Daemon {
    /// In order, so that the redis-servers behind it stop with it: they outlive one that is killed, and should.
    fn drop(&mut self) {
        if self.process.signal(Signal::SIGTERM).is_ok() {
            let ended = || self.process.exit_status().ok().flatten().ok_or("still running");
            drop(try_eventually_blocking("the daemon has stopped", STOP_DEADLINE, ended));
        }
        end_below(self.dir.path());
    }
}

/// Kills what still works in this directory: the redis-servers of a daemon that was killed.
fn end_below(dir: &Path) {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let below = std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        let pid = process.file_name().to_string_lossy().parse::<i32>();
        if let Some(pid) = pid.ok().filter(|_| below) {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}

/// Status and body of a GET.
pub fn http(method: &str, url: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
