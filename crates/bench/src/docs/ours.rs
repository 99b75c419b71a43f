//! Our own document nodes under measurement.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use capstan_docs::api::Nodes as Listing;
use capstan_docs::decide::NodeState;
use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::http::Http;
use super::{CLIENTS, FOUND, Reached, TEXT};
use crate::cluster::Cluster;
use crate::load::load;
use crate::peer::rss_mib;

/// Documents of one request while a collection is filled.
const BATCH: usize = 500;
/// Connections that fill a collection.
const FILLERS: usize = 8;
/// Connections that insert while a cluster grows.
const WRITERS: usize = 8;
/// Timeout for a cluster to settle.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
const POLL_EVERY: Duration = Duration::from_millis(10);

const COLLECTION: &str = "/db/bench/items";

/// Document nodes and the cluster that they belong to.
pub(super) struct Nodes {
    cluster: Cluster,
    store: Store,
    copies: usize,
    urls: Vec<String>,
    /// The next document that is inserted.
    next: Arc<AtomicU64>,
    /// Ids of the documents of [`Nodes::fill`], by their number.
    ids: Arc<Mutex<Vec<String>>>,
}

impl Nodes {
    /// Starts as many nodes as copies.
    pub(super) async fn start(dir: &Path, copies: usize) -> Result<Nodes> {
        let cluster = Cluster::start(dir).await?;
        let store = Store::new(Etcd::connect(EtcdOptions::new([cluster.meta().to_owned()])).await?);
        let (next, ids) = (Arc::default(), Arc::default());
        let mut nodes = Nodes { cluster, store, copies, urls: Vec::new(), next, ids };
        for _ in 0..copies {
            nodes.add().await?;
        }
        nodes.settled().await?;
        Ok(nodes)
    }

    async fn add(&mut self) -> Result<()> {
        let name = format!("h{}", self.urls.len());
        let settings = [format!("docs.copies={}", self.copies)];
        let endpoints = self.cluster.host(&name, "docs", &settings).await?;
        self.urls.push(endpoints["docs"].as_str().context("no documents")?.to_owned());
        Ok(())
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.cluster.stop().await
    }

    /// Waits until every node is complete and nothing moves.
    async fn settled(&self) -> Result<()> {
        let listing = Listing::open(self.store.clone()).await?;
        let begin = Instant::now();
        loop {
            let nodes = listing.list();
            let complete = nodes.iter().filter(|node| node.state == NodeState::Ok && node.copies > 0).count();
            if complete == self.urls.len() && listing.moves().is_empty() {
                return Ok(());
            }
            ensure!(begin.elapsed() < SETTLED_WITHIN, "the cluster does not settle: {nodes:?}");
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Creates the collection and its index and fills it.
    pub(super) async fn fill(&self, documents: usize) -> Result<()> {
        let mut http = Http::connect(&self.urls[0]).await?;
        http.json("POST", "/db", &json!({ "name": "bench" })).await?;
        let collection = json!({ "collection": "items", "options": { "primaryKey": ["key"] } });
        http.json("POST", "/db/bench", &collection).await?;
        http.json("POST", &format!("{COLLECTION}/index/number"), &json!({ "options": {} })).await?;
        *self.ids.lock().await = vec![String::new(); documents];
        self.next.store(documents as u64, Ordering::Relaxed);
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for filler in 0..FILLERS {
            let mut http = Http::connect(&self.urls[filler % self.urls.len()]).await?;
            let (next, ids) = (next.clone(), self.ids.clone());
            tasks.spawn(async move {
                loop {
                    let from = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                    let to = (from + BATCH as u64).min(documents as u64);
                    if from >= to {
                        return Ok::<_, anyhow::Error>(());
                    }
                    let batch: Vec<Value> = (from..to).map(document).collect();
                    let answer = http.json("POST", COLLECTION, &json!({ "doc": batch })).await?;
                    let results = answer["result"].as_array().context("no results")?;
                    let mut ids = ids.lock().await;
                    for (at, result) in results.iter().enumerate() {
                        let id = result["value"]["replyMsg"][0]["_id"].as_str().context("no id")?;
                        ids[usize::try_from(from)? + at] = id.to_owned();
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }

    /// One document in one request.
    pub(super) async fn insert(&self, time: Duration) -> Result<Reached> {
        let next = self.next.clone();
        self.load(time, move |_| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            Request::post(&json!({ "doc": document(number) }))
        })
        .await
    }

    /// One document by its id, which its primary key gives it.
    pub(super) async fn point(&self, documents: usize, time: Duration) -> Result<Reached> {
        let ids = self.ids.lock().await.clone();
        self.load(time, move |random| {
            let id = &ids[usize::try_from(random % documents as u64).unwrap_or_default()];
            Request::get(format!("{COLLECTION}/{id}"))
        })
        .await
    }

    /// Documents by a range of an indexed field.
    pub(super) async fn range(&self, documents: usize, time: Duration) -> Result<Reached> {
        self.load(time, move |random| {
            let from = random % (documents.saturating_sub(FOUND).max(1) as u64);
            // {"number":{"$ge":from,"$lt":to}}
            let query =
                format!("%7B%22number%22:%7B%22$ge%22:{from},%22$lt%22:{}%7D%7D", from + FOUND as u64);
            Request::get(format!("{COLLECTION}?query={query}"))
        })
        .await
    }

    /// Requests of all clients over all nodes.
    async fn load(
        &self,
        time: Duration,
        request: impl Fn(u64) -> Request + Clone + Send + Sync + 'static,
    ) -> Result<Reached> {
        let mut connections = Vec::new();
        for client in 0..CLIENTS {
            connections.push(Mutex::new(Http::connect(&self.urls[client % self.urls.len()]).await?));
        }
        let connections = Arc::new(connections);
        let done = load(CLIENTS, time, move |client, number| {
            let (connections, request) = (connections.clone(), request(scatter(client as u64, number)));
            async move {
                let mut http = connections[client].lock().await;
                http.request(request.method, &request.path, &request.body).await?;
                Ok(())
            }
        })
        .await?;
        Ok(Reached { rate: done.rate, mean_ms: CLIENTS as f64 / done.rate * 1e3 })
    }

    /// The time that a further node takes to get its share, while writers insert.
    pub(super) async fn grow(&mut self) -> Result<Duration> {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let mut http = Http::connect(&self.urls[writer % self.urls.len()]).await?;
            let next = self.next.clone();
            writers.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) =
                        http.json("POST", COLLECTION, &json!({ "doc": document(number) })).await
                    {
                        return error;
                    }
                }
            });
        }
        let begin = Instant::now();
        self.add().await?;
        self.settled().await?;
        let took = begin.elapsed();
        if let Some(failed) = writers.try_join_next() {
            return Err(failed?.context("a writer failed while the cluster grew"));
        }
        Ok(took)
    }

    /// The resident memory of the first node in MiB.
    pub(super) fn rss_mib(&self) -> Result<f64> {
        rss_mib(self.cluster.pid("h0")?)
    }

    /// The time from starting a killed node until it answers a read.
    pub(super) async fn kill_and_restart(&mut self, documents: usize) -> Result<Duration> {
        let id = self.ids.lock().await[documents / 2].clone();
        let begin = Instant::now();
        let endpoints = self.cluster.kill_and_restart("h0").await?;
        self.urls = vec![endpoints["docs"].as_str().context("no documents")?.to_owned()];
        let path = format!("{COLLECTION}/{id}");
        loop {
            if let Ok(mut http) = Http::connect(&self.urls[0]).await
                && let Ok(answer) = http.json("GET", &path, &Value::Null).await
                && answer["_ok"] == true
            {
                return Ok(begin.elapsed());
            }
            ensure!(begin.elapsed() < SETTLED_WITHIN, "the node does not answer");
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

/// A request that a client sends.
struct Request {
    method: &'static str,
    path: String,
    body: Vec<u8>,
}

impl Request {
    fn get(path: String) -> Request {
        Request { method: "GET", path, body: Vec::new() }
    }

    fn post(body: &Value) -> Request {
        Request { method: "POST", path: COLLECTION.to_owned(), body: body.to_string().into_bytes() }
    }
}

fn document(number: u64) -> Value {
    json!({ "key": format!("k{number}"), "number": number, "text": "x".repeat(TEXT) })
}

/// A number that looks random, the same in every run.
fn scatter(client: u64, number: u64) -> u64 {
    (client << 40 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}
