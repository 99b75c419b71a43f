//! Three brokers as processes, three copies, and everything that can happen to them under load: nothing acknowledged is
//! lost, no offset is used twice, the order is kept.

use std::time::{Duration, Instant};

use capstan_client::Client;
use capstan_testkit::seed::soak;
use capstan_testkit::{Port, Proxy, eventually};

use crate::binary::{DEADLINE, Daemon};
use crate::topics_load::{Load, TOPIC};

const HOSTS: u16 = 3;
const LEASE: &str = "host.lease_ttl=3s";
/// Longer than a lease.
const PAST_THE_LEASE: Duration = Duration::from_secs(4);

/// A host, and the links that lead to it.
struct Host {
    daemon: Daemon,
    /// Its way to the store.
    store: Proxy,
    /// The way of other holders to it.
    holder: Proxy,
    url: String,
    _ports: [Port; 2],
}

struct Brokers {
    hosts: Vec<Host>,
    _controller: Daemon,
    meta: Daemon,
}

impl Brokers {
    async fn start(label: &str) -> Brokers {
        let meta = Daemon::start_in_memory(label, &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
        let endpoint = meta.endpoint("meta");
        let args = ["controller", "--set", "host.id=k", "--meta", &endpoint];
        let args: Vec<&str> =
            args.into_iter().chain(["--set", "http.listen=127.0.0.1:0", "--set", LEASE]).collect();
        let controller = Daemon::start_in_memory(label, &args).await;
        let mut hosts = Vec::new();
        for number in 1..=HOSTS {
            hosts.push(Host::start(number, &meta).await);
        }
        Brokers { hosts, _controller: controller, meta }
    }

    fn client(&self) -> Client {
        Client::new(self.hosts.iter().map(|host| host.url.clone()))
    }

    /// The host that serves the topic.
    async fn owner(&self, client: &Client) -> usize {
        eventually("the topic is served", DEADLINE, async || {
            let owner = client.locate(TOPIC).await.map_err(|error| error.to_string())?;
            let at = self.hosts.iter().position(|host| Some(&host.url) == owner.as_ref());
            at.ok_or_else(|| format!("{owner:?}"))
        })
        .await
    }

    /// The host whose broker leads the load manager.
    async fn leader(&self) -> usize {
        eventually("a broker leads", DEADLINE, async || {
            let run = self.meta.capstan(&["brokers", "list", "-o", "json"]);
            if run.code != 0 {
                return Err(run.stderr);
            }
            let brokers = run.json();
            let leader =
                brokers["brokers"].as_array().unwrap().iter().find(|line| line["role"] == "Cluster_Leader");
            let address = leader.and_then(|leader| leader["address"].as_str()).unwrap_or_default();
            let at = self.hosts.iter().position(|host| host.url.ends_with(address) && !address.is_empty());
            at.ok_or_else(|| brokers.to_string())
        })
        .await
    }

    async fn three_copies(&self) {
        eventually("three copies are in sync", DEADLINE, async || {
            let run = self.meta.capstan(&["topics", "list", "-o", "json"]);
            if run.code != 0 {
                return Err(run.stderr);
            }
            let listed = run.json();
            if listed["topics"][0]["in_sync"] == 3 { Ok(()) } else { Err(listed.to_string()) }
        })
        .await;
    }

    async fn kill9(&mut self, at: usize) {
        self.hosts[at].daemon.process.kill9().unwrap();
        self.hosts[at].daemon.restart().await;
    }

    async fn unload(&self) {
        eventually("the topic is unloaded", DEADLINE, async || {
            let run = self.meta.capstan(&["topics", "unload", TOPIC]);
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        })
        .await;
    }
}

impl Host {
    async fn start(number: u16, meta: &Daemon) -> Host {
        let ports = [Port::reserve().unwrap(), Port::reserve().unwrap()];
        let at = meta.endpoint("meta");
        let store = Proxy::start(at.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap();
        let holder = Proxy::start(ports[0].addr()).await.unwrap();
        let dir = meta.dir.join(format!("h{number}"));
        let settings = [
            format!("host.id=h{number}"),
            format!("holders.dir={}", dir.display()),
            format!("holders.listen={}", ports[0].addr()),
            format!("holders.advertise={}", holder.addr()),
            format!("topics.listen={}", ports[1].addr()),
            "host.roles=topics".to_owned(),
            "access.anonymous=admin".to_owned(),
            "http.listen=127.0.0.1:0".to_owned(),
            LEASE.to_owned(),
        ];
        let (endpoint, url) = (store.endpoint(), format!("http://{}", ports[1].addr()));
        let args = ["host", "--meta", &endpoint];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let args: Vec<&str> = args.into_iter().chain(settings).collect();
        let daemon = Daemon::start_in_memory(&format!("h{number}"), &args).await;
        Host { daemon, store, holder, url, _ports: ports }
    }
}

/// What happens to the cluster.
#[derive(Clone, Copy, Debug)]
enum Disruption {
    KillOwner,
    KillLeader,
    PauseOwner,
    CutOwnerFromStore,
    CutOwnerFromHolders,
    CutFollower,
    Unload,
}

impl Disruption {
    async fn happen(self, brokers: &mut Brokers, client: &Client) {
        let owner = brokers.owner(client).await;
        match self {
            Disruption::KillOwner => brokers.kill9(owner).await,
            Disruption::KillLeader => {
                let leader = brokers.leader().await;
                brokers.kill9(leader).await;
            }
            Disruption::PauseOwner => {
                let process = &brokers.hosts[owner].daemon.process;
                process.pause().unwrap();
                wait(PAST_THE_LEASE).await;
                process.resume().unwrap();
            }
            Disruption::CutOwnerFromStore => {
                brokers.hosts[owner].store.cut().await;
                wait(PAST_THE_LEASE).await;
                brokers.hosts[owner].store.heal().await;
            }
            Disruption::CutOwnerFromHolders => {
                // Its links to the others stay, theirs to it do not: half a partition.
                brokers.hosts[owner].holder.cut().await;
                wait(Duration::from_secs(1)).await;
                brokers.hosts[owner].holder.heal().await;
            }
            Disruption::CutFollower => {
                let follower = (owner + 1) % brokers.hosts.len();
                brokers.hosts[follower].holder.cut().await;
                wait(Duration::from_secs(1)).await;
                brokers.hosts[follower].holder.heal().await;
            }
            Disruption::Unload => brokers.unload().await,
        }
    }
}

async fn wait(span: Duration) {
    // tidy: allow, because the length of a disruption is what this is about
    tokio::time::sleep(span).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_brokers_nothing_acknowledged_is_lost() {
    use Disruption::*;
    let began = Instant::now();
    let mut brokers = Brokers::start("chaos").await;
    let client = brokers.client();
    let load = Load::start(&client).await;
    brokers.three_copies().await;
    let short =
        [KillOwner, CutFollower, Unload, PauseOwner, CutOwnerFromHolders, KillLeader, CutOwnerFromStore];
    let rounds = soak(1, 20);
    let mut disruptions = 0;
    for _ in 0..rounds {
        for disruption in short {
            let since = Instant::now();
            disruption.happen(&mut brokers, &client).await;
            brokers.three_copies().await;
            eprintln!("{disruption:?} took {:?}", since.elapsed());
            disruptions += 1;
        }
    }
    load.finish(disruptions).await;
    eprintln!("{disruptions} disruptions in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unloading_in_a_loop_loses_nothing() {
    let brokers = Brokers::start("unloads").await;
    let client = brokers.client();
    let load = Load::start(&client).await;
    brokers.three_copies().await;
    let unloads = soak(8, 100);
    for _ in 0..unloads {
        brokers.unload().await;
    }
    load.finish(unloads).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_host_is_drained_and_its_daemon_replaced_under_load() {
    let mut brokers = Brokers::start("rolling").await;
    let client = brokers.client();
    let load = Load::start(&client).await;
    brokers.three_copies().await;
    for at in 0..usize::from(HOSTS) {
        let host = format!("h{}", at + 1);
        brokers.meta.capstan(&["hosts", "drain", &host, "--wait", "60s"]).ok();
        let daemon = &mut brokers.hosts[at].daemon;
        daemon.process.terminate(DEADLINE).await.unwrap();
        daemon.restart().await;
        brokers.meta.capstan(&["hosts", "undrain", &host, "--wait", "60s"]).ok();
        brokers.three_copies().await;
    }
    let slowest = load.finish(usize::from(HOSTS)).await;
    let bound = Duration::from_secs(soak(30, 10));
    assert!(slowest < bound, "{slowest:?}: a drained topic moves without an outage");
}
