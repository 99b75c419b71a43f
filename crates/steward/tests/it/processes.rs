//! Real processes: five holders, logs with three copies, appenders, and one fault after the other: kill -9, SIGSTOP past the
//! lease, a cut link, an emptied directory, a drain, a full disk, then a sixth holder and one that retires. Every
//! acknowledged entry is on every copy at its offset, no offset is given twice, reads are linearizable, and all logs are
//! back at three in-sync copies.

mod crowded;
mod holder;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use capstan_control::api::{drain, undrain};
use capstan_log::{HolderId, LogConfig, LogName, referee};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::{OwnedTask, Store, wire};
use capstan_steward::{Logs, WantedLog, decide};
use capstan_testkit::{Port, Process, Proxy, Ready, TempDir, eventually, process, seed};
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::cluster::{id, log, policy, service, steward};

const FIRST: [&str; 5] = ["a", "b", "c", "d", "e"];
const ADDED: &str = "f";
const APPENDERS: usize = 6;
const READERS: usize = 2;
/// The kinds of faults, and how often each happens in the short form.
const FAULTS: usize = 6;
const ROUNDS: usize = 2;
const SOON: Duration = Duration::from_secs(90);
/// Of the long form.
const LIFE: Duration = Duration::from_secs(600);

/// What was acknowledged, by log and offset.
type Acknowledged = Arc<Mutex<BTreeMap<LogName, BTreeMap<u64, String>>>>;
type Clients = Arc<Mutex<BTreeMap<HolderId, SocketAddr>>>;

struct Member {
    process: Process,
    ready: Ready,
    link: Proxy,
    _ports: [Port; 2],
}

struct Cluster {
    dir: TempDir,
    endpoint: String,
    store: Store,
    logs: Logs,
    names: Vec<LogName>,
    members: BTreeMap<HolderId, Member>,
    clients: Clients,
    _tasks: Vec<OwnedTask>,
}

impl Cluster {
    async fn start(logs: usize) -> Cluster {
        let dir = TempDir::new("processes").unwrap();
        let embedded = Embedded::in_memory(embedded::Options::default());
        let store = Store::new(embedded.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let serving =
            wire::serve(listener, Arc::new(embedded), wire::Options::default(), std::future::pending());
        let tasks = vec![
            OwnedTask::spawn(async move { drop(serving.await) }),
            OwnedTask::spawn(steward(store.clone())),
        ];
        let handle = Logs::open(store.clone(), policy()).await.unwrap();
        let mut cluster = Cluster {
            dir,
            endpoint,
            store,
            logs: handle,
            names: (0..logs).map(|number| log(&format!("log-{number}"))).collect(),
            members: BTreeMap::new(),
            clients: Clients::default(),
            _tasks: tasks,
        };
        for name in FIRST {
            cluster.add(name).await;
        }
        cluster.all_up(FIRST.len()).await;
        for name in cluster.names.clone() {
            cluster.logs.create(&name, &WantedLog::new(service(), 3)).await.unwrap();
        }
        cluster
    }

    async fn add(&mut self, name: &str) {
        let ports = [Port::reserve().unwrap(), Port::reserve().unwrap()];
        let link = Proxy::start(ports[0].addr()).await.unwrap();
        let ready = self.dir.join(format!("{name}.ready"));
        let arguments = [
            name.to_owned(),
            self.dir.join(name).display().to_string(),
            self.endpoint.clone(),
            ports[0].addr().to_string(),
            link.addr().to_string(),
            ports[1].addr().to_string(),
        ];
        let child = process::child_test("processes::holder::child", &ready, &arguments).unwrap();
        let mut process = child.spawn(self.dir.join(format!("{name}.log"))).unwrap();
        let ready = Ready::File(ready);
        process.ready(&ready, SOON).await.unwrap();
        self.clients.lock().unwrap().insert(id(name), ports[1].addr());
        self.members.insert(id(name), Member { process, ready, link, _ports: ports });
    }

    async fn restart(&mut self, holder: &HolderId) {
        let member = self.members.get_mut(holder).unwrap();
        if let Ready::File(path) = &member.ready {
            std::fs::remove_file(path).ok();
        }
        member.process.restart().unwrap();
        member.process.ready(&member.ready, SOON).await.unwrap();
    }

    async fn all_up(&self, count: usize) {
        eventually("all holders are up", SOON, async || {
            let up = self.logs.facts().holders.iter().filter(|holder| holder.is_up()).count();
            if up == count { Ok(()) } else { Err(up) }
        })
        .await;
    }

    async fn config(&self, name: &LogName) -> LogConfig {
        referee::read(&self.store, name).await.unwrap().record
    }

    async fn configs(&self) -> BTreeMap<LogName, LogConfig> {
        let mut configs = BTreeMap::new();
        for name in &self.names {
            configs.insert(name.clone(), self.config(name).await);
        }
        configs
    }

    /// Waits until every log satisfies the condition.
    async fn all(&self, what: &str, is: impl Fn(&LogConfig) -> bool) {
        eventually(what, SOON, async || {
            let configs = self.configs().await;
            let other = configs.iter().find(|(_, config)| !is(config));
            other.map_or(Ok(()), |(name, config)| Err(format!("{name}: {config:?}")))
        })
        .await;
    }

    async fn all_complete(&self) {
        self.all("all copies are in sync", is_complete).await;
    }

    /// Waits until the steward has nothing left to do.
    async fn settled(&self) -> BTreeMap<LogName, LogConfig> {
        eventually("nothing is left to do", SOON, async || {
            let configs = self.configs().await;
            let actions = decide(&self.logs.facts(), &policy()).actions;
            if actions.is_empty() && configs.values().all(is_complete) {
                return Ok(configs);
            }
            Err(format!("{actions:?}"))
        })
        .await
    }

    /// Appenders and readers; one that gets a wrong answer ends.
    fn start_clients(&self, known: &Acknowledged) -> Vec<OwnedTask> {
        let parts = || (self.names.clone(), self.store.clone(), self.clients.clone(), known.clone());
        let append = |number| {
            let (names, store, clients, known) = parts();
            OwnedTask::spawn(appender(number, names, store, clients, known))
        };
        let read = |number| {
            let (names, store, clients, known) = parts();
            OwnedTask::spawn(reader(number, names, store, clients, known))
        };
        (0..APPENDERS).map(append).chain((0..READERS).map(read)).collect()
    }

    /// One fault, and its end.
    async fn fault(&mut self, kind: usize, victim: &HolderId) -> &'static str {
        match kind {
            0 => {
                self.members.get_mut(victim).unwrap().process.kill9().unwrap();
                self.restart(victim).await;
                "kill -9"
            }
            1 => {
                self.members[victim].process.pause().unwrap();
                self.all("nothing is led by a stopped holder", |config| config.primary != *victim).await;
                self.members[victim].process.resume().unwrap();
                "SIGSTOP past the lease"
            }
            2 => {
                self.members[victim].link.cut().await;
                let lacks =
                    |config: &LogConfig| config.primary == *victim || !config.in_sync.contains(victim);
                self.all("a holder that cannot be reached is not in sync", lacks).await;
                self.members[victim].link.heal().await;
                "a cut link"
            }
            3 => {
                self.members.get_mut(victim).unwrap().process.kill9().unwrap();
                std::fs::remove_dir_all(self.dir.join(victim.to_string())).unwrap();
                self.restart(victim).await;
                "an emptied directory"
            }
            4 => {
                let host = victim.to_string().parse().unwrap();
                drain(&self.store, &host, "chaos", "", &[service()]).await.unwrap();
                self.all("a drained host leads nothing", |config| config.primary != *victim).await;
                undrain(&self.store, &host, "chaos", "").await.unwrap();
                "a drain"
            }
            _ => {
                let flag = crowded::flag(self.dir.join(victim.to_string()));
                std::fs::write(&flag, "").unwrap();
                self.all("a holder without space leads nothing", |config| config.primary != *victim).await;
                std::fs::remove_file(&flag).unwrap();
                "a full disk"
            }
        }
    }
}

fn is_complete(config: &LogConfig) -> bool {
    config.in_sync.len() == 3
        && config.holders.len() == 3
        && config.learner.is_none()
        && config.leaving.is_none()
}

/// Appends to one log after the other, a new text every time: a failed append may be there or not, and is not repeated.
async fn appender(number: usize, names: Vec<LogName>, store: Store, clients: Clients, known: Acknowledged) {
    for turn in 0.. {
        let name = &names[(turn * APPENDERS + number) % names.len()];
        let text = format!("{number}-{turn}");
        let Ok(found) = referee::read(&store, name).await else { continue };
        let address = clients.lock().unwrap().get(&found.record.primary).copied();
        let Some(address) = address else { continue };
        let asked = timeout(Duration::from_secs(3), ask(address, &format!("append {name} {text}\n"))).await;
        let first =
            asked.ok().and_then(Result::ok).and_then(|lines| lines.first().cloned()).unwrap_or_default();
        match first.strip_prefix("ok ") {
            Some(offset) => {
                let mut known = known.lock().unwrap();
                let before = known.entry(name.clone()).or_default().insert(offset.parse().unwrap(), text);
                assert_eq!(before, None, "{name}: offset {offset} was given twice");
            }
            // tidy: allow, because the primary is away, and nothing is gained by asking faster
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Asks primaries for read indices: each is after everything that was acknowledged before the question, and after every
/// earlier one of the same log.
async fn reader(number: usize, names: Vec<LogName>, store: Store, clients: Clients, known: Acknowledged) {
    let mut earlier: BTreeMap<LogName, u64> = BTreeMap::new();
    for turn in 0.. {
        let name = &names[(turn * READERS + number) % names.len()];
        let last = known.lock().unwrap().get(name).and_then(|known| known.keys().next_back().copied());
        let least = last.map_or(0, |last| last + 1).max(earlier.get(name).copied().unwrap_or(0));
        let Ok(found) = referee::read(&store, name).await else { continue };
        let address = clients.lock().unwrap().get(&found.record.primary).copied();
        let Some(address) = address else { continue };
        let asked = timeout(Duration::from_secs(3), ask(address, &format!("index {name}\n"))).await;
        let lines = asked.ok().and_then(Result::ok).unwrap_or_default();
        if let Some(index) = lines.first().and_then(|line| line.strip_prefix("ok ")) {
            let index = index.parse().unwrap();
            assert!(index >= least, "{name}: a read at {index}, and entries before {least} are committed");
            earlier.insert(name.clone(), index);
        }
        // tidy: allow, because this is the pace of a reader
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// All lines of an answer, up to the one that ends it.
async fn ask(address: SocketAddr, request: &str) -> std::io::Result<Vec<String>> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.write_all(request.as_bytes()).await?;
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_owned();
        let ends = line == "end" || line.starts_with("ok ") || line.starts_with("no ");
        lines.push(line);
        if ends {
            return Ok(lines);
        }
    }
}

/// Waits until every copy has everything acknowledged at its offset, and nothing twice.
async fn verify(cluster: &Cluster, known: &BTreeMap<LogName, BTreeMap<u64, String>>) {
    for (name, known) in known {
        eventually("all copies have everything", SOON, async || {
            // Read again every time: logs may be balanced still, and a holder does not answer for what it has no more.
            for holder in cluster.config(name).await.in_sync {
                let address = cluster.clients.lock().unwrap()[&holder];
                has_everything(address, name, known)
                    .await
                    .map_err(|why| format!("{name} on {holder}: {why}"))?;
            }
            Ok::<_, String>(())
        })
        .await;
    }
}

async fn has_everything(
    address: SocketAddr,
    name: &LogName,
    known: &BTreeMap<u64, String>,
) -> Result<(), String> {
    let asked = timeout(Duration::from_secs(5), ask(address, &format!("read {name}\n"))).await;
    let lines = asked.map_err(|late| late.to_string())?.map_err(|error| error.to_string())?;
    let found: Vec<_> = lines.iter().filter_map(|line| line.split_once(' ')).collect();
    let texts: BTreeSet<_> = found.iter().map(|(_, text)| *text).collect();
    let by_offset: BTreeMap<u64, &str> =
        found.iter().filter_map(|(at, text)| Some((at.parse().ok()?, *text))).collect();
    match known.iter().find(|(at, text)| by_offset.get(at) != Some(&text.as_str())) {
        Some((at, text)) => Err(format!("{at} is not {text}")),
        None if texts.len() < found.len() => Err("an entry is there twice".to_owned()),
        None => Ok(()),
    }
}

/// Copies that are on another holder than before.
fn moved(before: &BTreeMap<LogName, LogConfig>, after: &BTreeMap<LogName, LogConfig>) -> usize {
    let new = |(name, config): (&LogName, &LogConfig)| {
        config.holders.iter().filter(|holder| !before[name].holders.contains(holder)).count()
    };
    after.iter().map(new).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_while_processes_fail() {
    let number = seed::soak(7, rand::random());
    eprintln!("seed {number}");
    let mut rng = seed::rng(number);
    let mut cluster = Cluster::start(seed::soak(12, 200)).await;
    let known = Acknowledged::default();
    let clients = cluster.start_clients(&known);
    let began = Instant::now();
    let mut kind = 0;
    while kind < ROUNDS * FAULTS || began.elapsed() < seed::soak(Duration::ZERO, LIFE) {
        cluster.all_complete().await;
        let victim = id(FIRST[rng.random_range(0..FIRST.len())]);
        let what = cluster.fault(kind % FAULTS, &victim).await;
        let before = known.lock().unwrap().clone();
        eventually("every log takes appends again", SOON, async || {
            let known = known.lock().unwrap();
            let same = cluster.names.iter().find(|name| known.get(name) == before.get(name));
            same.map_or(Ok(()), |name| Err(name.to_string()))
        })
        .await;
        eprintln!("{:?}: {victim}: {what}", began.elapsed());
        assert!(clients.iter().all(|client| !client.is_finished()), "a client got a wrong answer, see above");
        kind += 1;
    }
    let before = cluster.settled().await;
    cluster.add(ADDED).await;
    cluster.all_up(FIRST.len() + 1).await;
    let with_added = cluster.settled().await;
    let retired = id(FIRST[rng.random_range(0..FIRST.len())]);
    cluster.logs.retire(&retired).await.unwrap();
    let gone = |config: &LogConfig| is_complete(config) && !config.holders.contains(&retired);
    cluster.all("a retired holder has nothing", gone).await;
    let without_retired = cluster.settled().await;
    cluster.members.get_mut(&retired).unwrap().process.kill9().unwrap();
    assert!(clients.iter().all(|client| !client.is_finished()), "a client got a wrong answer, see above");
    drop(clients);
    let taken = with_added.values().filter(|config| config.holders.contains(&id(ADDED))).count();
    let given = with_added.values().filter(|config| config.holders.contains(&retired)).count();
    let moves = (moved(&before, &with_added), moved(&with_added, &without_retired));
    eprintln!(
        "{} copies moved for {taken} on the added holder, {} for {given} on the retired one",
        moves.0, moves.1
    );
    assert!(moves.0 * 10 <= taken * 11 && moves.1 * 10 <= given * 11, "more copies than needed were made");
    let known = known.lock().unwrap().clone();
    verify(&cluster, &known).await;
    let entries: usize = known.values().map(BTreeMap::len).sum();
    eprintln!("{:?}: {entries} acknowledged in {} logs", began.elapsed(), known.len());
}
