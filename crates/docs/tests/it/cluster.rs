//! Nodes and a steward in one process, on one store, served over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use capstan_access::tls::LiveTls;
use capstan_docs::metrics::DocsMetrics;
use capstan_docs::node::SERVICE;
use capstan_docs::spec::ClusterSpec;
use capstan_docs::{Node, NodeOptions, Prepared, api};
use capstan_log::keys::LogKeys;
use capstan_log::replica::Timing;
use capstan_log::{HostOptions, disk};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::{OwnedTask, Store};
use capstan_steward::holder::{Holder, HolderOptions, id_of};
use capstan_steward::{Policy, Steward, controller};
use capstan_testkit::{Tap, TempDir, eventually};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub const SOON: Duration = Duration::from_secs(60);

pub struct Running {
    pub node: Node,
    pub http: SocketAddr,
    session: Session,
    pub holder: Holder,
    _server: OwnedTask,
}

pub struct Cluster {
    dir: TempDir,
    pub store: Store,
    pub nodes: BTreeMap<String, Running>,
    pub client: reqwest::Client,
    /// The RabbitMQ of nodes that are started from now on.
    pub queue: Option<String>,
    /// Whether nodes take part by themselves; the first node decides.
    pub auto_add: bool,
    /// The limit of copies from nodes that are started from now on.
    pub move_bytes_per_second: Option<NonZeroU64>,
    /// What all nodes count together.
    pub metrics: DocsMetrics,
    /// The limits of connections to nodes that are started from now on.
    pub limits: api::ConnectionLimits,
    /// The certificate and the authority of nodes that are started from now on.
    pub tls: Option<LiveTls>,
    /// The ways of other nodes and of clients to the nodes with certificates.
    pub taps: Vec<Tap>,
    _steward: OwnedTask,
}

fn policy() -> Policy {
    Policy { repair_after: 2, handover_within: 5, reserve_bytes: 0, slack_percent: 0, ..Policy::default() }
}

impl Cluster {
    pub async fn start(count: usize) -> Cluster {
        Cluster::start_with(count, None, true).await
    }

    /// One to which nodes have to be added.
    pub async fn start_closed(count: usize) -> Cluster {
        Cluster::start_with(count, None, false).await
    }

    /// One whose copies come over a RabbitMQ.
    pub async fn start_with(count: usize, queue: Option<String>, auto_add: bool) -> Cluster {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        let steward = OwnedTask::spawn(steward(store.clone()));
        let client =
            reqwest::Client::builder().no_proxy().pool_idle_timeout(Duration::from_secs(10)).build().unwrap();
        let dir = TempDir::new("docs").unwrap();
        let (nodes, metrics) = (BTreeMap::new(), DocsMetrics::default());
        let limits = api::ConnectionLimits::default();
        let mut cluster = Cluster {
            dir,
            store,
            nodes,
            client,
            queue,
            move_bytes_per_second: None,
            auto_add,
            metrics,
            limits,
            tls: None,
            taps: Vec::new(),
            _steward: steward,
        };
        cluster.fill(count).await;
        cluster
    }

    /// One whose nodes have certificates, and a client that trusts them.
    pub async fn start_encrypted(count: usize, tls: LiveTls, client: reqwest::Client) -> Cluster {
        let mut cluster = Cluster::start_with(0, None, true).await;
        (cluster.tls, cluster.client) = (Some(tls), client);
        cluster.fill(count).await;
        cluster
    }

    async fn fill(&mut self, count: usize) {
        let copies = count.min(3);
        for number in 1..=count {
            self.begin(&format!("n{number}"), copies).await;
        }
        for running in self.nodes.values() {
            tokio::time::timeout(SOON, running.node.serving()).await.unwrap();
        }
    }

    /// Starts a node, with the directory that it had before.
    pub async fn begin(&mut self, name: &str, copies: usize) {
        let session = Session::start(self.store.clone(), session_options());
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let log = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (id, service) = (name.parse().unwrap(), SERVICE.parse().unwrap());
        let dir = self.dir.join(name);
        let holder_id = id_of(&id, &service).unwrap();
        let mut holder = HolderOptions::new(holder_id.clone(), id.clone(), service, dir.join("log"));
        holder.log = HostOptions { timing: timing(), ..HostOptions::new(holder_id) };
        holder.disk = disk::Options {
            segment_bytes: 256 * 1024,
            journal_file_bytes: 1 << 20,
            checkpoint_bytes: 1 << 20,
        };
        let mut address = http.local_addr().unwrap();
        if self.tls.is_some() {
            let tap = Tap::start(address).await.unwrap();
            address = tap.address;
            self.taps.push(tap);
        }
        let (min_copies, auto_add) = (copies / 2 + 1, self.auto_add);
        let cluster = ClusterSpec { copies, min_copies, auto_add, ..ClusterSpec::default() };
        let options = NodeOptions {
            id,
            backups: dir.join("backups"),
            dir,
            http: address,
            tls: self.tls.clone(),
            cluster,
            cache_bytes: 8 << 20,
            queue: self.queue.clone(),
            move_bytes_per_second: self.move_bytes_per_second,
            metrics: self.metrics.clone(),
        };
        let prepared = Prepared::open(options, &self.store).await.unwrap();
        holder.joining = prepared.joining();
        let holder = Holder::start(holder, log, &self.store, &session, prepared.owner()).await.unwrap();
        let node = prepared.start(holder.clone(), &session).await.unwrap();
        let served = node.clone();
        let limits = self.limits;
        let server = OwnedTask::spawn(async move {
            api::serve(http, served, limits, std::future::pending()).await.unwrap();
        });
        self.nodes.insert(name.to_owned(), Running { node, http: address, session, holder, _server: server });
    }

    /// A directory of a node.
    pub fn dir_of(&self, name: &str, part: &str) -> std::path::PathBuf {
        self.dir.join(name).join(part)
    }

    /// Ends a node as a killed process would, except that its lease ends at once.
    pub async fn end(&mut self, name: &str) {
        let running = self.nodes.remove(name).unwrap();
        running.session.close().await.unwrap();
        running.node.stop().await.unwrap();
        drop(running);
        // Aborted tasks and syncs hold the engine until they are gone; before that it is neither opened nor removed.
        let lock = std::fs::File::open(self.dir_of(name, "engine").join("lock")).unwrap();
        let closed = async || lock.try_lock().map_err(|error| error.to_string());
        eventually("the engine is closed", SOON, closed).await;
    }

    pub fn url(&self, number: usize, path: &str) -> String {
        let running = self.nodes.values().nth(number % self.nodes.len()).unwrap();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/db{path}", running.http)
    }

    pub async fn send(&self, method: &str, number: usize, path: &str, body: Option<Value>) -> (u16, Value) {
        let method = method.parse().unwrap();
        let mut request = self.client.request(method, self.url(number, path));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.unwrap();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", 0, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", 1, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("PUT", 2, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        self.send("DELETE", 1, path, None).await
    }

    /// A database `db` with a collection `c` and this primary key.
    pub async fn collection(&self, key: Option<&str>) {
        assert_eq!(self.post("/db", serde_json::json!({ "name": "db" })).await.0, 202);
        let options = key.map_or(serde_json::json!({}), |key| serde_json::json!({ "primaryKey": [key] }));
        let body = serde_json::json!({ "collection": "c", "options": options });
        assert_eq!(self.post("/db/db", body).await.0, 202);
    }

    /// How many tokens a node holds, and whether any token is moving.
    pub async fn copies_of(&self, name: &str) -> (usize, bool) {
        let logs = self.store.list(&LogKeys {}).await.unwrap();
        let holder = format!("docs.{name}");
        let held = logs.iter().filter(|(_, log)| log.record.in_sync.iter().any(|one| one.as_str() == holder));
        let moving = logs.iter().any(|(_, log)| log.record.learner.is_some() || log.record.leaving.is_some());
        (held.count(), moving)
    }

    /// Waits until every holder of every token has the same data, and returns the number of documents.
    pub async fn digests_agree(&self) -> i64 {
        eventually("every holder has the same data", SOON, async || {
            let mut seen: BTreeMap<String, Vec<(String, i64)>> = BTreeMap::new();
            for number in 0..self.nodes.len() {
                let (_, answer) = self.send("GET", number, "/cluster/digest", None).await;
                for (token, about) in answer["tokens"].as_object().unwrap() {
                    let digest = about["digest"].as_str().unwrap().to_owned();
                    seen.entry(token.clone())
                        .or_default()
                        .push((digest, about["documents"].as_i64().unwrap()));
                }
            }
            let agree =
                seen.len() == 16 && seen.values().all(|copies| copies.windows(2).all(|two| two[0] == two[1]));
            let total = seen.values().map(|copies| copies[0].1).sum();
            if agree { Ok(total) } else { Err(format!("{seen:?}")) }
        })
        .await
    }
}

pub fn session_options() -> SessionOptions {
    // No lease runs out on a busy machine, which would change the primaries.
    let (ttl, margin) = (Duration::from_secs(30), Duration::from_secs(5));
    SessionOptions { ttl, margin, ..SessionOptions::default() }
}

fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(50),
        resend: Duration::from_millis(200),
        lag: Duration::from_millis(1_000),
        ..Timing::default()
    }
}

async fn steward(store: Store) {
    let session = Session::start(store.clone(), session_options());
    let steward = Steward::new(policy()).answering_for(vec![SERVICE.parse().unwrap()]);
    let stop = CancellationToken::new();
    controller::run(steward, &store, &session, "steward", |_| {}, &stop).await.unwrap();
}
