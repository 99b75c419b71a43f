//! What the command line and the console get.

use capstan_control::epoch::Epoch;
use capstan_meta::record::Key;
use capstan_meta::{Store, Txn};
use capstan_redis::Address;
use capstan_redis::api::{self, Phase};
use capstan_redis::keys::ShardKey;
use capstan_redis::shard::ShardRecord;
use capstan_redis::slots::SlotRange;
use capstan_redis::spec::ClusterSpec;

use super::deeds::c;
use super::world::*;

#[test]
fn a_cluster_is_shown_from_its_creation_to_its_end() {
    block_on(async {
        let store = embedded_store();
        pool(&store, 3, 2).await;
        let page =
            api::create(&store, &c(), &ClusterSpec { replicas: 1, ..ClusterSpec::of(3) }).await.unwrap();
        assert_eq!((page.line.primaries, page.line.slots, page.nodes.len()), (3, 16_384, 6));
        let map: Vec<(u16, u16)> = page.slot_map.iter().map(|line| (line.first, line.last)).collect();
        assert_eq!(map, [(0, 5461), (5462, 10_922), (10_923, 16_383)]);
        assert!(
            page.pending.iter().any(|line| line.contains("hosts are to be notified")),
            "{:?}",
            page.pending
        );
        complete(&store).await;
        assert_eq!(api::list(&store).await.unwrap()[0].phase, Phase::Active);
        let target = page.nodes[1].node.clone();
        let ids = api::move_slots(&store, &c(), SlotRange::new(0, 99).unwrap(), &target).await.unwrap();
        let moves = api::moves(&store).await.unwrap();
        assert_eq!((moves.len(), moves[0].id, moves[0].target.node.clone()), (1, ids[0], target));
        assert_eq!(api::list(&store).await.unwrap()[0].phase, Phase::Moving);
        api::cancel(&store, &c(), ids[0]).await.unwrap();
        let primary = page.nodes[0].node.clone();
        let refused = api::failover(&store, &c(), &primary, None).await.unwrap_err();
        assert!(refused.to_string().contains("not in sync"), "{refused}");
        in_sync(&store, &primary).await;
        let promoted = api::failover(&store, &c(), &page.nodes[0].node, None).await.unwrap();
        assert_eq!(api::show(&store, &c()).await.unwrap().nodes[0].node, promoted);
        let connection = api::connect(&store, &c()).await.unwrap();
        assert_eq!(connection.seeds.len(), 3);
        assert!(connection.example.starts_with("redis-cli -c -h 10.0.0."), "{}", connection.example);
        let wishes = api::node_wishes(&tree(&store).await, &proxy(1));
        assert!(wishes.iter().all(|wish| wish.owner.as_ref().is_some_and(|(name, _)| *name == c())));
        assert!(api::check(&store).await.unwrap().findings.is_empty());
        complete(&store).await;
        api::delete(&store, &c()).await.unwrap();
        assert_eq!(api::list(&store).await.unwrap(), []);
        let hosts = api::hosts_list(&store).await.unwrap();
        assert!(
            hosts.iter().all(|host| host.nodes.iter().all(|node| node.quarantine.is_some())),
            "{hosts:?}"
        );
        let wishes = api::node_wishes(&tree(&store).await, &proxy(1));
        assert!(wishes.iter().all(|wish| wish.owner.is_none()));
        for at in 1..=3 {
            api::hosts_remove(&store, &proxy(at)).await.unwrap();
        }
        assert_eq!(api::hosts_list(&store).await.unwrap(), []);
    });
}

#[test]
fn a_plan_to_scale_changes_nothing_and_says_what_it_would() {
    block_on(async {
        let store = embedded_store();
        pool(&store, 4, 1).await;
        api::create(&store, &c(), &ClusterSpec::of(2)).await.unwrap();
        complete(&store).await;
        let before = tree(&store).await.revision;
        let plan = api::scale_plan(&store, &c(), 4).await.unwrap();
        assert_eq!((plan.from, plan.to, plan.joining.len(), plan.retiring.len()), (2, 4, 2, 0));
        assert_eq!(plan.shifts.iter().map(|shift| shift.slots.len()).sum::<u32>(), 8192);
        let plan = api::scale_plan(&store, &c(), 1).await.unwrap();
        assert_eq!((plan.joining.len(), plan.retiring.len()), (0, 1));
        assert_eq!(tree(&store).await.revision, before);
    });
}

/// A coordinator has recorded the replica of this primary as in sync.
async fn in_sync(store: &Store, primary: &Address) {
    let tree = tree(store).await;
    let mut shard = ShardRecord::new(primary, Epoch(1));
    shard.in_sync.extend(tree.clusters[&c()].replicas_of(primary).map(|seen| seen.record.address.clone()));
    let key = ShardKey { cluster: c(), primary: primary.clone() };
    store.commit(Txn::new().then(key.put(&shard))).await.unwrap();
}
