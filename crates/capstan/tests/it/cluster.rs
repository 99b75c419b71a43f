//! A cluster as it is run: a metadata store, two controllers and some hosts, each a process of its own. The hosts run
//! Redis nodes, are updated by the fleet, and are started again by a service manager whenever they end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use capstan_testkit::redis::{Wire, write_all};
use capstan_testkit::{Port, PortBlock, Process, Ready, TempDir, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::binary::{DEADLINE, Daemon, Run, capstan};

/// Redis nodes of a host.
const NODES: u16 = 2;
const PASSWORD: &str = "of-this-test";
const SECRET: &str = "redis.secret=of-this-test";
/// Enough for a cluster to be made, or for a rollout over a few hosts that are watched for a while.
pub const LONG: Duration = Duration::from_secs(120);

/// What the service manager of a machine does: it starts what is installed, again and again, and passes a stop on.
const SERVICE_MANAGER: &str = r#"
trap 'kill -TERM $pid; wait $pid; exit' TERM
while :; do
    cat "$ROOT/usr/share/capstan-sample/version" > "$ROOT/running" 2> "$ROOT/unknown" || echo none > "$ROOT/running"
    "$CAPSTAN" "$@" &
    pid=$!
    echo $pid > "$ROOT/pid"
    wait $pid
done
"#;

/// One machine.
pub struct Host {
    pub proxy: SocketAddr,
    pub root: PathBuf,
    manager: Process,
    _ports: (Port, PortBlock),
}

impl Host {
    /// What was installed when its daemon started.
    pub fn running(&self) -> String {
        std::fs::read_to_string(self.root.join("running")).unwrap_or_default().trim().to_owned()
    }

    /// Ends what a release left running to break it.
    pub fn heal(&self) {
        std::fs::write(self.root.join("healed"), "").unwrap();
    }

    /// kill -9 of everything that it runs, at once: nothing is started again.
    pub fn kill9(&mut self) {
        self.manager.kill9().unwrap();
        let daemon = std::fs::read_to_string(self.root.join("pid")).unwrap().trim().parse().unwrap();
        let below = children(daemon);
        kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
        for pid in below {
            // One that has ended meanwhile is no failure.
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.heal();
        // One that was killed has ended.
        if self.manager.signal(Signal::SIGTERM).is_ok() {
            let ended = || self.manager.exit_status().ok().flatten().ok_or("still running");
            drop(capstan_testkit::try_eventually_blocking("the host has stopped", DEADLINE, ended));
        }
    }
}

/// The processes that a process has started and that are still there.
fn children(of: i32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; behind it stand the state and the parent.
        let parent: i32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (parent == of).then_some(pid)
    });
    processes.collect()
}

pub struct Cluster {
    // First, so that hosts can leave while there is somebody to tell.
    pub hosts: Vec<Host>,
    _controllers: Vec<Daemon>,
    meta: Daemon,
    pub dir: TempDir,
}

impl Cluster {
    /// Hosts that are registered, with a fleet of them all and a sample's key to sign releases with.
    pub async fn start(label: &str, hosts: u16) -> Cluster {
        let dir = TempDir::new(label).unwrap();
        let meta = Daemon::start_in_memory(label, &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
        let endpoint = meta.endpoint("meta");
        let mut controllers = Vec::new();
        for number in 1..=2 {
            let id = format!("host.id=controller-{number}");
            let common = ["--meta", &endpoint, "--set", "http.listen=127.0.0.1:0", "--set", SECRET];
            let args: Vec<&str> = ["controller", "--set", &id].iter().chain(&common).copied().collect();
            controllers.push(Daemon::start(label, &args).await);
        }
        let mut cluster = Cluster { hosts: Vec::new(), _controllers: controllers, meta, dir };
        cluster.run(&["fleet", "release", "sample", "s", "--release", "1.0.0"]).ok();
        for number in 1..=hosts {
            cluster.add_host(number).await;
        }
        let members: Vec<String> = (1..=hosts).map(|number| format!("{number}=h{number}")).collect();
        let source = format!("source={}", cluster.dir.join("s/repository").display());
        let mut args = vec!["fleet", "init", "--with", &source, "--with", "auto-update=false"];
        args.extend(members.iter().map(String::as_str));
        cluster.run(&args).ok();
        cluster
    }

    async fn add_host(&mut self, number: u16) {
        let home = self.dir.join(format!("host-{number}"));
        let (root, ready) = (home.join("root"), home.join("ready.json"));
        std::fs::create_dir_all(&root).unwrap();
        let ports = (Port::reserve().unwrap(), PortBlock::reserve(NODES).unwrap());
        let path = |name: &str| home.join(name).display().to_string();
        let settings = [
            format!("host.id=h{number}"),
            "host.roles=redis,fleet".to_owned(),
            "http.listen=127.0.0.1:0".to_owned(),
            format!("redis.listen={}", ports.0.addr()),
            format!("redis.nodes={NODES}"),
            format!("redis.first_node_port={}", ports.1.base()),
            format!("redis.dir={}", path("redis")),
            SECRET.to_owned(),
            format!("fleet.lrn={number}"),
            format!("fleet.dir={}", path("fleet")),
            format!("fleet.root={}", root.display()),
            format!("fleet.trust={}", self.dir.join("s/trust.json").display()),
        ];
        let mut manager = Process::builder("sh")
            .env("CAPSTAN", env!("CARGO_BIN_EXE_capstan"))
            .env("ROOT", &root)
            .args(["-c", SERVICE_MANAGER, "service-manager", "host"])
            .args(["--meta", &self.meta.endpoint("meta"), "--ready-file", &ready.display().to_string()])
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .spawn(home.join("log"))
            .unwrap();
        manager.ready(&Ready::File(ready), DEADLINE).await.unwrap();
        self.hosts.push(Host { proxy: ports.0.addr(), root, manager, _ports: ports });
    }

    /// An operator's command.
    pub fn run(&self, args: &[&str]) -> Run {
        let meta = self.meta.endpoint("meta");
        let args: Vec<&str> = args.iter().copied().chain(["--meta", &meta]).collect();
        capstan(self.dir.path(), &args)
    }

    /// A Redis cluster with a replica of each node, once all of its slots are served and the replicas have everything.
    pub async fn create_redis(&self) -> Vec<SocketAddr> {
        let create = ["redis", "create", "demo", "--nodes", "3", "--replicas", "1"];
        eventually("the pool is large enough", LONG, async || match self.run(&create) {
            run if run.code == 0 => Ok(()),
            run => Err(run.stderr),
        })
        .await;
        let proxies: Vec<SocketAddr> = self.hosts.iter().map(|host| host.proxy).collect();
        eventually("the cluster serves", LONG, async || write_all(proxies[0], "first")).await;
        eventually("replicas have everything", LONG, async || self.replicas_are_in_sync()).await;
        proxies
    }

    /// Whether every replica of a host that is there has what its primary has, as the proxies say.
    pub fn replicas_are_in_sync(&self) -> Result<(), String> {
        let mut said = String::new();
        for host in &self.hosts {
            let mut wire = Wire::connect(host.proxy).map_err(|error| error.to_string())?;
            for words in [format!("AUTH admin {PASSWORD}"), "NMCTL INFO".to_owned()] {
                said += &wire.say(&words).map_err(|error| error.to_string())?;
            }
        }
        let word = |line: &str, name: &str| {
            line.split(' ').find_map(|word| word.strip_prefix(name)).map(str::to_owned)
        };
        let offset = |line: &str| word(line, "offset=").and_then(|offset| offset.parse::<u64>().ok());
        let sent = |primary: String| {
            said.lines().find(|line| line.starts_with(&format!("node:{primary} "))).and_then(offset)
        };
        let synced = |line: &&str| word(line, "of=").is_some_and(|primary| offset(line) == sent(primary));
        let replicas =
            said.lines().filter(|line| line.contains("role=replica") && line.contains("linked=true"));
        if replicas.filter(synced).count() == self.hosts.len() { Ok(()) } else { Err(said) }
    }
}
