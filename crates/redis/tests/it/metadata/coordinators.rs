//! Coordinators in real time, on a real etcd that restarts and is compacted.

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::{OwnedTask, Store};
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::coordinator::Coordinator;
use capstan_redis::facts::Tree;
use capstan_redis::spec::ClusterSpec;
use capstan_testkit::eventually;
use tokio_util::sync::CancellationToken;

use super::deeds::c;
use super::simulation::net::{Link, Net};
use super::simulation::proxy::SimProxy;
use super::simulation::world::timing;
use super::world::*;

const SOON: Duration = Duration::from_secs(40);

async fn coordinator(store: Store, net: &Arc<Net>, id: u64) -> OwnedTask {
    let link = Link { net: net.clone(), from: id };
    let here = address(&format!("10.9.9.9:{id}"));
    let coordinator =
        Coordinator::start(store, link, (format!("controller-{id}").parse().unwrap(), &here), timing(), id)
            .await
            .unwrap();
    OwnedTask::spawn(coordinator.run(CancellationToken::new()))
}

/// Every slot of the cluster is served, the tree is consistent and nothing is pending.
async fn settled(store: &Store, net: &Net) -> Result<Tree, String> {
    let tree = Tree::read(store).await.map_err(|error| error.to_string())?;
    let report = check::check(&tree, 0);
    let served = |state: &super::simulation::net::State| -> u32 {
        state.proxies.values().flat_map(SimProxy::serves).map(|(_, range)| range.len()).sum()
    };
    let (served, violation) = {
        let state = net.state();
        (served(&state), state.violation.clone())
    };
    assert_eq!(violation, None);
    match report.is_at_rest() && served == 16_384 {
        true => Ok(tree),
        false => Err(format!("{served} slots are served; {report:?}")),
    }
}

#[test]
fn a_restart_of_etcd_and_lost_history_are_survived() {
    block_on(async {
        let mut etcd = capstan_testkit::Etcd::start().await.unwrap();
        let connect = || Etcd::connect(EtcdOptions::new([etcd.endpoint()]));
        let (store, one, two) =
            (connect().await.unwrap(), connect().await.unwrap(), connect().await.unwrap());
        let store = Store::new(store);
        let net = Net::new(store.clone(), timing().reply_within, 1, None);
        net.state().lossy = false;
        for at in 1..=4 {
            let nodes = [node(at, 1), node(at, 2)];
            broker::add_host(&store, &proxy(at), &nodes).await.unwrap();
            net.state().proxies.insert(proxy(at), SimProxy::new(nodes));
        }
        let _first = coordinator(Store::new(one), &net, 1).await;
        let _second = coordinator(Store::new(two), &net, 2).await;
        broker::create_cluster(&store, &c(), &ClusterSpec { replicas: 1, ..ClusterSpec::of(2) })
            .await
            .unwrap();
        let tree = eventually("the cluster is served", SOON, async || settled(&store, &net).await).await;
        let in_sync = async || {
            let tree = settled(&store, &net).await?;
            let members: usize =
                tree.clusters[&c()].shards.values().map(|seen| seen.record.in_sync.len()).sum();
            if members == 4 { Ok(()) } else { Err(format!("{members} nodes are in sync")) }
        };
        eventually("every node is in sync", SOON, in_sync).await;
        // A host dies during a compaction: the cluster heals.
        store.compact(tree.revision).await.unwrap();
        let primary = tree.clusters[&c()].primaries().next().unwrap().record.proxy_address.clone();
        net.state().proxies.get_mut(&primary).unwrap().crash();
        let without = async || {
            let tree = settled(&store, &net).await?;
            let gone = !tree.clusters[&c()].proxies().contains(&primary);
            if gone { Ok(()) } else { Err("it still has nodes there".to_owned()) }
        };
        eventually("the dead host is replaced", SOON, without).await;
        net.state().proxies.get_mut(&primary).unwrap().restart();
        // Etcd is killed and restarted.
        etcd.kill9().unwrap();
        etcd.restart().await.unwrap();
        let grown = async || match broker::scale(&store, &c(), 3).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        eventually("the cluster can be changed", SOON, grown).await;
        let three = async || {
            let tree = settled(&store, &net).await?;
            let primaries = tree.clusters[&c()].primaries().count();
            if primaries == 3 { Ok(()) } else { Err(format!("{primaries} primaries")) }
        };
        eventually("the cluster has three primaries", SOON, three).await;
    });
}
