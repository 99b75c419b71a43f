//! The document store as it is run: a metadata store, a controller and nodes, each a `capstan` process of its own.

pub mod drains;
pub mod faults;
pub mod growth;
pub mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use capstan_testkit::proxy::Proxy;
use capstan_testkit::{Port, Process, Ready, TempDir, eventually, process::capstan_binary};
use serde_json::Value;

/// What a busy machine may need until a cluster has settled.
pub const LONG: Duration = Duration::from_secs(120);

/// One process and where it says that it serves.
pub struct Daemon {
    pub process: Process,
    ready: PathBuf,
}

impl Daemon {
    async fn start(dir: &TempDir, name: &str, args: &[String]) -> Daemon {
        let ready = dir.join(format!("{name}.json"));
        let mut builder = Process::builder(capstan_binary().unwrap()).args(args);
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("CAPSTAN_")) {
            builder = builder.env_remove(variable);
        }
        let builder = builder.args(["--ready-file".as_ref(), ready.as_os_str()]);
        let mut process = builder.spawn(dir.join(format!("{name}.log"))).unwrap();
        process.ready(&Ready::File(ready.clone()), LONG).await.unwrap();
        Daemon { process, ready }
    }

    /// The same command again, after it has ended.
    pub async fn restart(&mut self) {
        std::fs::remove_file(&self.ready).unwrap();
        self.process.restart().unwrap();
        self.process.ready(&Ready::File(self.ready.clone()), LONG).await.unwrap();
    }
}

/// A node with its link to the metadata, which can be cut.
pub struct Node {
    pub daemon: Daemon,
    pub link: Proxy,
    pub url: String,
    _port: Port,
}

pub struct Cluster {
    pub nodes: BTreeMap<String, Node>,
    _controller: Daemon,
    _meta: Daemon,
    endpoint: String,
    pub client: reqwest::Client,
    dir: TempDir,
    _meta_port: Port,
}

impl Cluster {
    /// A cluster of so many nodes, all of them complete.
    pub async fn start(nodes: usize) -> Cluster {
        let dir = TempDir::new("docs-processes").unwrap();
        let port = Port::reserve().unwrap();
        let (listen, data) = (port.addr().to_string(), dir.join("meta").display().to_string());
        let args = ["meta", "serve", "--listen", &listen, "--dir", &data].map(str::to_owned);
        let meta = Daemon::start(&dir, "meta-serve", &args).await;
        let endpoint = format!("http://{listen}");
        let args = settings(&["controller"], &endpoint, &["host.id=k".to_owned()]);
        let controller = Daemon::start(&dir, "controller", &args).await;
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
        let nodes_up = BTreeMap::new();
        let mut cluster = Cluster {
            nodes: nodes_up,
            _controller: controller,
            _meta: meta,
            endpoint,
            client,
            dir,
            _meta_port: port,
        };
        for number in 1..=nodes {
            cluster.add(&format!("h{number}")).await;
        }
        cluster.all_ok().await;
        cluster
    }

    /// Starts a node; tokens come to it by themselves.
    pub async fn add(&mut self, name: &str) {
        let link =
            Proxy::start(self.endpoint.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap();
        let port = Port::reserve().unwrap();
        let own = [
            format!("host.id={name}"),
            "host.roles=docs".to_owned(),
            format!("holders.dir={}", self.dir.join(format!("{name}-log")).display()),
            format!("docs.dir={}", self.dir.join(format!("{name}-docs")).display()),
            format!("docs.listen={}", port.addr()),
        ];
        let args = settings(&["host"], &link.endpoint(), &own);
        let daemon = Daemon::start(&self.dir, name, &args).await;
        let url = format!("http://{}/db", port.addr());
        self.nodes.insert(name.to_owned(), Node { daemon, link, url, _port: port });
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.values().map(|node| node.url.clone()).collect()
    }

    /// An operator's command.
    pub fn run(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(capstan_binary().unwrap());
        command.args(args).args(["--meta", &self.endpoint]).stdin(Stdio::null()).env("NO_COLOR", "1");
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// The nodes, as `capstan docs nodes` lists them.
    pub fn listed(&self) -> Result<BTreeMap<String, Value>, String> {
        let listed: Value = serde_json::from_str(&self.run(&["docs", "nodes", "-o", "json"])?)
            .map_err(|error| error.to_string())?;
        let nodes = listed["nodes"].as_array().ok_or("no list")?;
        Ok(nodes
            .iter()
            .map(|node| (node["node"].as_str().unwrap_or_default().to_owned(), node.clone()))
            .collect())
    }

    /// Waits until every node that is not retired is complete, and nothing moves.
    pub async fn all_ok(&self) {
        eventually("every node is OK", LONG, async || {
            let listed = self.listed()?;
            let good = |node: &Value| node["state"] == "OK" || node["state"] == "Retired";
            let moves = self.run(&["docs", "moves", "-o", "json"])?;
            let settled = listed.len() == self.nodes.len()
                && listed.values().all(good)
                && moves.contains("\"moves\": []");
            if settled { Ok(()) } else { Err(format!("{listed:?} {moves}")) }
        })
        .await;
    }

    /// Waits until all holders of every token have the same data, and returns the number of documents.
    pub async fn digests_agree(&self) -> i64 {
        eventually("every holder has the same data", LONG, async || {
            let mut seen: BTreeMap<String, Vec<(String, i64)>> = BTreeMap::new();
            for url in self.urls() {
                let answer = self.client.get(format!("{url}/cluster/digest")).send().await;
                let answer: Value =
                    answer.map_err(|e| e.to_string())?.json().await.map_err(|e| e.to_string())?;
                for (token, about) in answer["tokens"].as_object().ok_or("no tokens")? {
                    let digest = about["digest"].as_str().unwrap_or_default().to_owned();
                    let documents = about["documents"].as_i64().unwrap_or(-1);
                    seen.entry(token.clone()).or_default().push((digest, documents));
                }
            }
            let agree = |copies: &Vec<(String, i64)>| {
                copies.len() >= 3 && copies.windows(2).all(|two| two[0] == two[1])
            };
            let total = seen.values().map(|copies| copies[0].1).sum();
            if seen.len() == 16 && seen.values().all(agree) { Ok(total) } else { Err(format!("{seen:?}")) }
        })
        .await
    }
}

fn settings(command: &[&str], meta: &str, own: &[String]) -> Vec<String> {
    let common = ["http.listen=127.0.0.1:0".to_owned(), "host.lease_ttl=3s".to_owned()];
    let mut args: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    args.extend(["--meta".to_owned(), meta.to_owned()]);
    args.extend(own.iter().chain(&common).flat_map(|setting| ["--set".to_owned(), setting.clone()]));
    args
}
