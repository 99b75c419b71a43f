//! `acks: replica` with coordinators: what is acknowledged survives the loss of its primary, whichever member follows.

use capstan_redis::spec::{Acks, ClusterSpec, Serving};
use capstan_testkit::eventually;
use capstan_testkit::redis::spread_keys;
use nix::sys::signal::Signal;

use super::pool::{Pool, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_every_member_acknowledged_survives_the_loss_of_the_primary() {
    let serving = Serving { acks: Acks::Replica, ..Serving::default() };
    let mut pool = Pool::start(3, 1, 1, ClusterSpec { replicas: 2, serving, ..ClusterSpec::of(1) }).await;
    eventually("writes are acknowledged", SOON, async || pool.write_all("early")).await;
    pool.in_sync().await;
    pool.warm().await;
    let primary = pool.owner("key-0").await;
    let replicas: Vec<_> = pool.nodes().await.into_iter().filter(|node| !node.is_primary()).collect();
    // A frozen member is waited for until it has left the set; then the other one is enough.
    let frozen = pool.signal(&replicas[0].address, Signal::SIGSTOP).await;
    eventually("the frozen replica is not waited for", SOON, async || pool.write_all("late")).await;
    assert!(!pool.members().await.contains(&replicas[0].address), "acknowledged without a member");
    nix::sys::signal::kill(frozen, Signal::SIGCONT).unwrap();
    pool.host(&primary.proxy_address).kill().await;
    pool.hosts.retain(|host| host.address != primary.proxy_address);
    let kept = async || match pool.count("late") {
        all if all == spread_keys().count() => Ok(()),
        some => Err(format!("{some} keys are there")),
    };
    eventually("nothing is lost", SOON, kept).await;
    eventually("the former replicas acknowledge", SOON, async || pool.write_all("last")).await;
    pool.end().await;
}
