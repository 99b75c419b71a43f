//! Damage by hand is found, explained and repaired.

use capstan_meta::{Delete, Put, Store};
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::spec::ClusterSpec;

use super::deeds::{break_things, c, scene};
use super::world::*;

/// A cluster of three, consistent and at rest.
async fn three(store: &Store) {
    pool(store, 4, 2).await;
    broker::create_cluster(store, &c(), &ClusterSpec::of(3)).await.unwrap();
    complete(store).await;
}

async fn put(store: &Store, key: &str, value: &str) {
    store.put(Put::new(key.to_owned(), value.to_owned())).await.unwrap();
}

/// After this damage, `check` reports this text, and `fix` repairs everything.
async fn repaired(store: Store, words: &str, harm: impl AsyncFnOnce(&Store)) {
    three(&store).await;
    harm(&store).await;
    let report = check::check(&tree(&store).await, 1);
    let said: Vec<String> =
        report.findings.iter().map(|found| format!("{}: {}", found.object, found.problem)).collect();
    assert!(said.iter().any(|said| said.contains(words)), "{words:?} is not in {said:#?}");
    let fixed = check::fix(&store).await.unwrap();
    assert!(fixed.left.is_empty() && !fixed.done.is_empty(), "{fixed:#?}");
    assert_sound(&tree(&store).await);
    assert_comes_to_rest(&store).await;
}

fn run(words: &str, harm: impl AsyncFnOnce(&Store)) {
    block_on(async { repaired(embedded_store(), words, harm).await });
}

async fn first_node(store: &Store) -> capstan_redis::status::NodeRecord {
    tree(store).await.clusters[&c()].nodes.values().next().unwrap().record.clone()
}

#[test]
fn a_copy_that_differs_is_copied_again() {
    run("differs from the record of cluster c", async |store| {
        let node = first_node(store).await;
        let key = format!("/hosts/{}/nodes/{}", node.proxy_address, node.address);
        store.delete(Delete::one(key)).await.unwrap();
    });
}

#[test]
fn an_unreadable_copy_is_copied_again() {
    run("cannot be read", async |store| {
        let node = first_node(store).await;
        put(store, &format!("/hosts/{}/nodes/{}", node.proxy_address, node.address), "not json").await;
    });
}

#[test]
fn a_node_that_lost_its_owner_gets_it_back() {
    run("has no owner, but cluster c lists it", async |store| {
        let node = first_node(store).await;
        put(store, &format!("/hosts/all_nodes/{}/{}", node.proxy_address, node.address), "").await;
    });
}

#[test]
fn a_node_of_nobody_is_released() {
    run("which does not list it", async |store| {
        let free = tree(store).await.free_nodes().next().unwrap();
        put(store, &format!("/hosts/all_nodes/{}/{}", free.proxy, free.node), "ghost").await;
    });
}

#[test]
fn slots_without_an_owner_are_given_one() {
    run("have no owner", async |store| {
        let mut node = first_node(store).await;
        node.slots.clear();
        let text = serde_json::to_string(&node).unwrap();
        put(store, &format!("/clusters/nodes/c/{}", node.address), &text).await;
        put(store, &format!("/hosts/{}/nodes/{}", node.proxy_address, node.address), &text).await;
    });
}

#[test]
fn slots_with_two_owners_keep_one() {
    run("belong to both", async |store| {
        let mut node = first_node(store).await;
        node.slots =
            vec![capstan_redis::status::SlotEntry::stable(capstan_redis::SlotRange::new(0, 16_383).unwrap())];
        let text = serde_json::to_string(&node).unwrap();
        put(store, &format!("/clusters/nodes/c/{}", node.address), &text).await;
        put(store, &format!("/hosts/{}/nodes/{}", node.proxy_address, node.address), &text).await;
    });
}

#[test]
fn a_tag_without_a_move_is_taken_away() {
    run("have a tag without a move", async |store| {
        let mut node = first_node(store).await;
        node.slots[0].tag = "migrating h:1 h:2 move=9 epoch=9".parse().unwrap();
        let text = serde_json::to_string(&node).unwrap();
        put(store, &format!("/clusters/nodes/c/{}", node.address), &text).await;
        put(store, &format!("/hosts/{}/nodes/{}", node.proxy_address, node.address), &text).await;
    });
}

#[test]
fn a_cluster_that_is_deleted_and_not_deleted_lives() {
    run("marked as being deleted", async |store| put(store, "/deleting/clusters/nodes/c", "1").await);
}

#[test]
fn the_rest_of_a_cluster_without_an_epoch_is_released() {
    run("records of it remain", async |store| {
        store.delete(Delete::one("/clusters/epoch/c")).await.unwrap();
    });
}

#[test]
fn a_specification_is_completed() {
    run("lacks node_number", async |store| {
        store.delete(Delete::one("/clusters/spec/node_number/c")).await.unwrap();
    });
}

#[test]
fn a_host_without_an_epoch_gets_one_above_all() {
    run("it has nodes but no epoch", async |store| {
        let node = first_node(store).await;
        store.delete(Delete::one(format!("/hosts/epoch/{}", node.proxy_address))).await.unwrap();
    });
}

#[test]
fn many_things_at_once_on_etcd() {
    block_on(async {
        let etcd = capstan_testkit::Etcd::start().await.unwrap();
        let store = etcd_store(etcd.endpoint()).await;
        scene(&store).await;
        break_things(&store).await;
        assert!(check::check(&tree(&store).await, 1).findings.len() >= 4);
        let fixed = check::fix(&store).await.unwrap();
        assert!(fixed.left.is_empty(), "{fixed:#?}");
        assert_comes_to_rest(&store).await;
    });
}
