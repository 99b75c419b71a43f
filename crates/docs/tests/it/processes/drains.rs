//! Every host is drained and its daemon replaced under load: nothing is lost, and no request of a retrying client fails.

use std::time::Duration;

use capstan_testkit::eventually;
use serde_json::Value;

use super::workload::Workload;
use super::{Cluster, LONG};

async fn drain_is(cluster: &Cluster, host: &str, wanted: &str) {
    eventually("the drain is in the phase", LONG, async || {
        let listed: Value = serde_json::from_str(&cluster.run(&["hosts", "list", "-o", "json"])?)
            .map_err(|error| error.to_string())?;
        let hosts = listed["hosts"].as_array().ok_or("no list")?;
        let found = hosts.iter().find(|listed| listed["host"] == host).ok_or("no such host")?;
        let phase = found["drain"]["phase"].as_str().unwrap_or("none");
        if phase == wanted && found["up"] == true { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_host_is_drained_and_its_daemon_replaced_under_load() {
    let begun = std::time::Instant::now();
    let mut cluster = Cluster::start(3).await;
    let work = Workload::prepare(&cluster.client, cluster.urls()).await;
    let clients = work.start(6);
    for host in ["h1", "h2", "h3"] {
        cluster.run(&["hosts", "drain", host]).unwrap();
        drain_is(&cluster, host, "drained").await;
        let daemon = &mut cluster.nodes.get_mut(host).unwrap().daemon;
        daemon.process.terminate(Duration::from_secs(30)).await.unwrap();
        daemon.restart().await;
        cluster.run(&["hosts", "undrain", host]).unwrap();
        drain_is(&cluster, host, "none").await;
        cluster.all_ok().await;
        eprintln!("{host} was replaced after {:?}", begun.elapsed());
    }
    work.end(clients).await;
    eprintln!("{}", work.verify().await);
    cluster.digests_agree().await;
}
