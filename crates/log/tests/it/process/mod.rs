//! Real processes: three holders, 64 appenders, kill -9, SIGSTOP past the lease, cut links. Every acknowledged entry is
//! on every survivor at its offset, once; all holders have the same entries.

mod holder;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use capstan_log::{HolderId, LogConfig, LogName, referee};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::{OwnedTask, Store, wire};
use capstan_testkit::{Port, Process, Proxy, Ready, TempDir, eventually, process, seed};
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const HOLDERS: [&str; 3] = ["a", "b", "c"];
const APPENDERS: usize = 64;
const ROUNDS: usize = 30;
const SOON: Duration = Duration::from_secs(60);

fn log_name() -> LogName {
    "orders".parse().unwrap()
}

fn id(name: &str) -> HolderId {
    name.parse().unwrap()
}

struct Cluster {
    _dir: TempDir,
    store: Store,
    holders: BTreeMap<HolderId, Member>,
    /// By source and target.
    links: BTreeMap<(HolderId, HolderId), Proxy>,
    _tasks: Vec<OwnedTask>,
    _ports: Vec<Port>,
}

struct Member {
    process: Process,
    ready: Ready,
    clients: SocketAddr,
}

impl Cluster {
    async fn start() -> Cluster {
        let dir = TempDir::new("process").unwrap();
        let embedded = Embedded::in_memory(embedded::Options::default());
        let store = Store::new(embedded.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let serving =
            wire::serve(listener, Arc::new(embedded), wire::Options::default(), std::future::pending());
        let mut tasks = vec![OwnedTask::spawn(async move { drop(serving.await) })];
        referee::create(&store, &log_name(), HOLDERS.iter().map(|name| id(name)).collect(), 2).await.unwrap();
        let ports: Vec<Port> = (0..6).map(|_| Port::reserve().unwrap()).collect();
        let mut links = BTreeMap::new();
        for from in HOLDERS {
            for (to, port) in HOLDERS.iter().zip(&ports) {
                if *to != from {
                    links.insert((id(from), id(to)), Proxy::start(port.addr()).await.unwrap());
                }
            }
        }
        let mut holders = BTreeMap::new();
        for (number, name) in HOLDERS.iter().enumerate() {
            let ready = dir.join(format!("{name}.ready"));
            let mut arguments =
                vec![name.to_string(), dir.join(name).display().to_string(), endpoint.clone()];
            arguments.push(ports[number].addr().to_string());
            arguments.push(ports[number + 3].addr().to_string());
            let mine = links.iter().filter(|((from, _), _)| *from == id(name));
            arguments.extend(mine.map(|((_, to), proxy)| format!("{to}={}", proxy.addr())));
            let child = process::child_test("process::holder::child", &ready, &arguments).unwrap();
            let mut process = child.spawn(dir.join(format!("{name}.log"))).unwrap();
            let ready = Ready::File(ready);
            process.ready(&ready, SOON).await.unwrap();
            holders.insert(id(name), Member { process, ready, clients: ports[number + 3].addr() });
        }
        tasks.push(OwnedTask::spawn(control(store.clone())));
        Cluster { _dir: dir, store, holders, links, _tasks: tasks, _ports: ports }
    }

    async fn config(&self) -> LogConfig {
        referee::read(&self.store, &log_name()).await.unwrap().record
    }

    async fn all_in_sync(&self) {
        eventually("all holders are in sync", SOON, async || {
            let config = self.config().await;
            if config.in_sync.len() == HOLDERS.len() { Ok(()) } else { Err(format!("{config:?}")) }
        })
        .await;
    }

    async fn restart(&mut self, holder: &HolderId) {
        let member = self.holders.get_mut(holder).unwrap();
        if let Ready::File(path) = &member.ready {
            std::fs::remove_file(path).ok();
        }
        member.process.restart().unwrap();
        member.process.ready(&member.ready, SOON).await.unwrap();
    }
}

/// A minimal controller: a primary whose key is gone is replaced by an in-sync holder whose key exists.
async fn control(store: Store) {
    loop {
        // tidy: allow, because a controller looks again and again, this is its pace
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Ok(found) = referee::read(&store, &log_name()).await else { continue };
        if store.get(holder::alive_key(&found.record.primary)).await.is_ok_and(|key| key.is_some()) {
            continue;
        }
        for candidate in found.record.candidates() {
            if store.get(holder::alive_key(candidate)).await.is_ok_and(|key| key.is_some()) {
                let next = found.record.elect(candidate).unwrap();
                referee::propose(&store, &log_name(), found.mod_revision, &next).await;
                break;
            }
        }
    }
}

/// What was acknowledged: payload and offset.
type Acknowledged = Arc<Mutex<Vec<(String, u64)>>>;

/// Appends to any holder that accepts it, a new text every time: a failed append may be there or not, and is not
/// repeated.
async fn appender(
    number: usize,
    clients: Vec<SocketAddr>,
    acknowledged: Acknowledged,
    count: Arc<AtomicU64>,
) {
    let mut turn = 0;
    loop {
        turn += 1;
        let address = clients[turn % clients.len()];
        let Ok(stream) = TcpStream::connect(address).await else {
            // tidy: allow, because the holder is down, and nothing is gained by asking faster
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let mut stream = BufReader::new(stream);
        loop {
            let text = format!("{number}-{}", count.fetch_add(1, Ordering::Relaxed));
            let Ok(Ok(line)) = tokio::time::timeout(Duration::from_secs(3), ask(&mut stream, &text)).await
            else {
                break;
            };
            match line.trim_end().split_once(' ') {
                Some(("ok", offset)) => acknowledged.lock().unwrap().push((text, offset.parse().unwrap())),
                _ => {
                    // tidy: allow, because the holder is down, and nothing is gained by asking faster
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    break;
                }
            }
        }
    }
}

async fn ask(stream: &mut BufReader<TcpStream>, text: &str) -> std::io::Result<String> {
    stream.write_all(format!("append {text}\n").as_bytes()).await?;
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    Ok(line)
}

async fn read(address: SocketAddr) -> BTreeMap<u64, String> {
    let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
    stream.write_all(b"read\n").await.unwrap();
    let mut entries = BTreeMap::new();
    let mut line = String::new();
    loop {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        match line.trim_end().split_once(' ') {
            None => return entries,
            Some((offset, text)) => {
                let Ok(offset) = offset.parse() else { continue };
                assert_eq!(entries.insert(offset, text.to_owned()), None);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_survives_kills_pauses_and_cuts() {
    let seed = std::env::var(seed::SEED).ok().map_or_else(rand::random, |text| text.parse().unwrap());
    eprintln!("seed {seed}");
    let mut rng = seed::rng(seed);
    let mut cluster = Cluster::start().await;
    let (acknowledged, count) = (Acknowledged::default(), Arc::new(AtomicU64::new(0)));
    let clients: Vec<SocketAddr> = cluster.holders.values().map(|member| member.clients).collect();
    let mut appenders = JoinSet::new();
    for number in 0..APPENDERS {
        appenders.spawn(appender(number, clients.clone(), acknowledged.clone(), count.clone()));
    }
    let mut slowest = Duration::ZERO;
    for round in 0..seed::soak(ROUNDS, ROUNDS * 10) {
        cluster.all_in_sync().await;
        let before = acknowledged.lock().unwrap().len();
        let primary = cluster.config().await.primary;
        let victim = id(HOLDERS[rng.random_range(0..HOLDERS.len())]);
        let begin = Instant::now();
        match round % 10 {
            3 => {
                // Past its lease: the others continue without it, and it must not acknowledge anything on its own.
                cluster.holders[&primary].process.pause().unwrap();
                moves_on(&cluster, &primary).await;
                cluster.holders[&primary].process.resume().unwrap();
            }
            7 => {
                // A primary that is cut off from everyone commits nothing and waits; a follower falls behind.
                let victim = id(HOLDERS.iter().find(|name| id(name) != primary).unwrap());
                for ((from, to), link) in &cluster.links {
                    if *from == victim || *to == victim {
                        link.cut().await;
                    }
                }
                eventually("somebody is out of sync", SOON, async || {
                    let config = cluster.config().await;
                    if config.in_sync.len() < 3 { Ok(()) } else { Err(format!("{config:?}")) }
                })
                .await;
                for link in cluster.links.values() {
                    link.heal().await;
                }
            }
            _ => {
                cluster.holders.get_mut(&victim).unwrap().process.kill9().unwrap();
                cluster.restart(&victim).await;
            }
        }
        eventually("appends are acknowledged again", SOON, async || {
            let now = acknowledged.lock().unwrap().len();
            if now >= before + APPENDERS { Ok(()) } else { Err(now) }
        })
        .await;
        slowest = slowest.max(begin.elapsed());
    }
    appenders.abort_all();
    cluster.all_in_sync().await;
    let acknowledged = acknowledged.lock().unwrap().clone();
    let logs = same_everywhere(&cluster).await;
    for (text, offset) in &acknowledged {
        assert_eq!(logs.get(offset), Some(text), "acknowledged at {offset}");
    }
    let texts: BTreeSet<&String> = logs.values().collect();
    assert_eq!(texts.len(), logs.len(), "something is there twice");
    eprintln!(
        "{} acknowledged of {} sent, {} in the log, slowest recovery {slowest:?}",
        acknowledged.len(),
        count.load(Ordering::Relaxed),
        logs.len()
    );
}

async fn moves_on(cluster: &Cluster, from: &HolderId) {
    eventually("another primary leads", SOON, async || {
        let config = cluster.config().await;
        if config.primary != *from { Ok(()) } else { Err(format!("{config:?}")) }
    })
    .await;
}

/// The content of all holders, once it is equal.
async fn same_everywhere(cluster: &Cluster) -> BTreeMap<u64, String> {
    eventually("all holders have the same", SOON, async || {
        let mut logs = Vec::new();
        for member in cluster.holders.values() {
            logs.push(read(member.clients).await);
        }
        let lens: Vec<usize> = logs.iter().map(BTreeMap::len).collect();
        if logs.iter().all(|log| *log == logs[0]) { Ok(logs.remove(0)) } else { Err(format!("{lens:?}")) }
    })
    .await
}
