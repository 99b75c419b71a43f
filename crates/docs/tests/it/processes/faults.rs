//! Nodes are killed, frozen, cut off, added and retired under writers: no acknowledged write is lost, no deleted
//! document comes back, every increment counts once, histories are linearizable, holders agree.

use capstan_testkit::seed::soak;
use capstan_testkit::{eventually, history::Rule};

use super::workload::{Done, INCREMENTS, Step, Workload, check};
use super::{Cluster, LONG};

fn step(invoked: u64, returned: u64, done: Done) -> Step {
    Step { invoked, returned, done }
}

#[test]
fn the_checker_catches_planted_bugs() {
    let history = [
        step(0, 1, Done::Appended(7)),
        step(2, 3, Done::Read(vec![7])),
        step(4, 5, Done::Appended(8)),
        step(6, 7, Done::Read(vec![7, 8])),
    ];
    assert_eq!(check(&history, &[7, 8]).unwrap().known, 4);
    let broken = |history: &[Step], end: &[u64]| check(history, end).unwrap_err()[0].rule;
    // An acknowledged append that is not there.
    assert_eq!(broken(&history[..3], &[7]), Rule::NothingLost);
    // A primary that serves before its epoch has begun: it has not applied what its predecessor acknowledged.
    let stale = [history[0].clone(), step(2, 3, Done::Read(Vec::new()))];
    assert_eq!(broken(&stale, &[7]), Rule::RealTime);
    // Two primaries: a read of a list that the other one has never had.
    let split = [history[0].clone(), step(2, 3, Done::Read(vec![9])), history[2].clone()];
    assert_eq!(broken(&split, &[7, 8]), Rule::ReadsAreTrue);
    // An increment that counts twice.
    assert!(check(&history[..2], &[7, 7]).is_err());
    // An append that came after another one and stands before it.
    assert_eq!(broken(&[history[0].clone(), history[2].clone()], &[8, 7]), Rule::RealTime);
}

async fn kill(cluster: &mut Cluster, name: &str) {
    let node = cluster.nodes.get_mut(name).unwrap();
    node.daemon.process.kill9().unwrap();
    node.daemon.restart().await;
}

async fn freeze_then_kill(cluster: &mut Cluster, name: &str) {
    let node = cluster.nodes.get_mut(name).unwrap();
    node.daemon.process.pause().unwrap();
    has_lost_its_lease(cluster, name).await;
    let node = cluster.nodes.get_mut(name).unwrap();
    node.daemon.process.kill9().unwrap();
    node.daemon.restart().await;
}

/// Waits until a node that is frozen or cut off has lost its lease.
async fn has_lost_its_lease(cluster: &Cluster, name: &str) {
    eventually("the node has lost its lease", LONG, async || {
        let listed = cluster.listed()?;
        if listed[name]["http"].is_null() { Ok(()) } else { Err(listed[name].to_string()) }
    })
    .await;
}

async fn cut_off(cluster: &mut Cluster, name: &str) {
    let node = cluster.nodes.get_mut(name).unwrap();
    node.link.cut().await;
    has_lost_its_lease(cluster, name).await;
    cluster.nodes[name].link.heal().await;
}

/// Waits until the cluster has recovered from one fault before the next one: more of them at once than there are copies
/// to spare would be another promise.
async fn recovered(cluster: &Cluster) {
    cluster.all_ok().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_under_writers_lose_nothing() {
    let begun = std::time::Instant::now();
    let mut cluster = Cluster::start(3).await;
    let work = Workload::prepare(&cluster.client, cluster.urls()).await;
    let clients = work.start(8);
    for round in 0..soak(1, 6) {
        let name = |at: usize| format!("h{}", (round + at) % 3 + 1);
        kill(&mut cluster, &name(0)).await;
        recovered(&cluster).await;
        freeze_then_kill(&mut cluster, &name(1)).await;
        recovered(&cluster).await;
        cut_off(&mut cluster, &name(2)).await;
        recovered(&cluster).await;
        eprintln!("round {round} after {:?}", begun.elapsed());
    }
    work.end(clients).await;
    eprintln!("{}; {INCREMENTS} increments in {:?}", work.verify().await, begun.elapsed());
    cluster.digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_added_and_one_retires_among_five_while_others_fail() {
    let begun = std::time::Instant::now();
    let mut cluster = Cluster::start(5).await;
    let work = Workload::prepare(&cluster.client, cluster.urls()).await;
    let clients = work.start(8);
    cluster.add("h6").await;
    work.use_nodes(cluster.urls());
    // Tokens move to it while it is killed, and while a node that gives some is.
    kill(&mut cluster, "h6").await;
    kill(&mut cluster, "h2").await;
    recovered(&cluster).await;
    assert_eq!(cluster.listed().unwrap()["h6"]["copies"], 8);
    eprintln!("added after {:?}", begun.elapsed());
    cluster.run(&["docs", "retire", "h1"]).unwrap();
    kill(&mut cluster, "h3").await;
    if soak(false, true) {
        freeze_then_kill(&mut cluster, "h5").await;
        cut_off(&mut cluster, "h4").await;
    }
    eventually("the node is retired", LONG, async || {
        let listed = cluster.listed()?;
        let left = (&listed["h1"]["state"], &listed["h1"]["copies"]);
        if left == (&"Retired".into(), &0.into()) { Ok(()) } else { Err(format!("{listed:?}")) }
    })
    .await;
    recovered(&cluster).await;
    work.end(clients).await;
    // What is retired may be deleted.
    cluster.nodes.remove("h1");
    work.use_nodes(cluster.urls());
    eprintln!("{}; {:?}", work.verify().await, begun.elapsed());
    cluster.digests_agree().await;
}
