//! The headline: every host of a running cluster is updated, one drained host at a time, while clients write, and
//! nothing is lost and nobody sees an error.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use capstan_testkit::eventually;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use serde_json::Value;

use crate::binary::Daemon;

const CLIENTS: u64 = 8;
const KEYS_EACH: u64 = 500;
/// A rollout over three hosts waits for each of them to be healthy for a while.
const ROLLOUT: Duration = Duration::from_secs(180);

/// What one client wrote and saw.
#[derive(Debug, Default)]
struct Account {
    values: HashMap<String, u64>,
    requests: u64,
    wrong: Vec<String>,
}

/// Writes and reads back its own keys until told to stop. Every answer is compared with what it wrote before.
async fn client(
    mut connection: ClusterConnection,
    me: u64,
    stop: Arc<AtomicBool>,
    sum: Arc<AtomicU64>,
) -> Account {
    let mut account = Account::default();
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let key = format!("client-{me}-{}", turn % KEYS_EACH);
        let read: Result<Option<u64>, _> = redis::cmd("GET").arg(&key).query_async(&mut connection).await;
        let wrote: Result<String, _> =
            redis::cmd("SET").arg(&key).arg(turn).query_async(&mut connection).await;
        let counted: Result<u64, _> =
            redis::cmd("INCR").arg(format!("count-{me}")).query_async(&mut connection).await;
        let expected = account.values.insert(key.clone(), turn);
        account.requests += 3;
        sum.fetch_add(3, Ordering::Relaxed);
        match (read, wrote, counted) {
            (Ok(read), Ok(_), Ok(count)) if read == expected && count == turn => {}
            answers => {
                account.wrong.push(format!("{key} in turn {turn}, expected {expected:?}: {answers:?}"))
            }
        }
    }
    account
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_host_is_updated_under_load_and_nothing_is_lost() {
    let up = Daemon::start("headline", &["up", "--port-base", "0", "--set", "host.id=one"]).await;
    let seeds = demo(&up).await;
    let stop = Arc::new(AtomicBool::new(false));
    let sum = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for me in 0..CLIENTS {
        let connection = ClusterClient::new(seeds.clone()).unwrap().get_async_connection().await.unwrap();
        clients.spawn(client(connection, me, stop.clone(), sum.clone()));
    }

    let sample = up.dir.join("data/sample").display().to_string();
    up.capstan(&["fleet", "release", "sample", &sample]).ok();
    up.capstan(&["fleet", "apply"]).ok();
    eventually("the release is on every host", ROLLOUT, async || complete(&up)).await;

    stop.store(true, Ordering::Relaxed);
    let accounts = clients.join_all().await;
    for account in &accounts {
        assert!(account.wrong.is_empty(), "{:#?}", account.wrong);
        assert!(account.requests > 100, "hardly any load");
    }
    let mut connection = ClusterClient::new(seeds).unwrap().get_async_connection().await.unwrap();
    for (key, value) in accounts.iter().flat_map(|account| &account.values) {
        let kept: Option<u64> = redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap();
        assert_eq!(kept, Some(*value), "{key}");
    }
    for host in 1..=3 {
        let admin = up.dir.join(format!("data/hosts/{host}/root/var/lib/dpkg"));
        let query = std::process::Command::new("dpkg-query").arg("--admindir").arg(admin).arg("-W").output();
        assert!(
            String::from_utf8_lossy(&query.unwrap().stdout).contains("capstan-sample\t1.0.0"),
            "host {host}"
        );
    }
}

fn complete(up: &Daemon) -> Result<(), String> {
    let said = up.capstan(&["fleet", "status"]).stdout;
    if said.starts_with("release 1.0.0: complete") { Ok(()) } else { Err(said) }
}

/// Where the cluster that was made for newcomers is reached, once all of its slots are served.
async fn demo(up: &Daemon) -> Vec<String> {
    let there = async || {
        let run = up.capstan(&["redis", "connect", "demo", "-o", "json"]);
        if run.code == 0 { Ok(run.json()) } else { Err(run.stderr) }
    };
    let connection: Value = eventually("the demo cluster is there", ROLLOUT, there).await;
    let seeds = connection["seeds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|seed| format!("redis://{}", seed.as_str().unwrap()));
    let seeds: Vec<String> = seeds.collect();
    eventually("the demo cluster serves", ROLLOUT, async || serves(&seeds).await).await;
    seeds
}

async fn serves(seeds: &[String]) -> Result<(), String> {
    let client = ClusterClient::new(seeds.to_vec()).map_err(|error| error.to_string())?;
    let mut connection = client.get_async_connection().await.map_err(|error| error.to_string())?;
    let set: Result<String, _> = redis::cmd("SET").arg("x").arg(1).query_async(&mut connection).await;
    set.map(drop).map_err(|error| error.to_string())
}
