//! The debugging commands of the document, with Debian's etcdctl on a real etcd.

use std::collections::BTreeSet;

use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_topics::wire::danube::consumer_request::SubscriptionType;

use super::{TOPIC, json_at};
use crate::cluster::{Cluster, RELIABLE};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_the_debugging_commands_of_the_document_show_what_it_says() {
    let etcd = capstan_testkit::Etcd::start().await.unwrap();
    let store = Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
    let cluster = Cluster::on(store, &["a"]).await;
    let client = cluster.client().await;
    let producer = client.producer(TOPIC, "p", RELIABLE).await;
    let _consumer = client.consumer(TOPIC, "subs_reliable", "c", SubscriptionType::Exclusive).await;
    let id = cluster.nodes["a"].broker.id();
    json_at(&cluster, &format!("/cluster/brokers/{id}/default/reliable_topic")).await;
    json_at(&cluster, &format!("/topics/default/reliable_topic/producers/{}", producer.id)).await;
    let lines = |arguments: &[&str]| -> Vec<String> {
        etcd.ctl(arguments).unwrap().lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
    };
    let expected: BTreeSet<String> = [
        "/cluster/leader".to_owned(),
        "/cluster/test".to_owned(),
        format!("/cluster/brokers/{id}/default/reliable_topic"),
        format!("/cluster/brokers/{id}/state"),
        format!("/cluster/load/{id}"),
        format!("/cluster/register/{id}"),
        "/namespaces/default/policy".to_owned(),
        "/namespaces/default/topics/default/reliable_topic".to_owned(),
        "/namespaces/system/policy".to_owned(),
        "/topics/default/reliable_topic".to_owned(),
        "/topics/default/reliable_topic/delivery".to_owned(),
        format!("/topics/default/reliable_topic/producers/{}", producer.id),
        "/topics/default/reliable_topic/subscriptions/subs_reliable".to_owned(),
    ]
    .into();
    let found: BTreeSet<String> = lines(&["get", "/", "--prefix", "--keys-only"]).into_iter().collect();
    let of_the_document: BTreeSet<String> =
        found.iter().filter(|key| !key.starts_with("/capstan/")).cloned().collect();
    assert_eq!(of_the_document, expected, "the keys of the document and no others");
    assert_eq!(lines(&["get", "/topics/default/reliable_topic"]), ["/topics/default/reliable_topic", "0"]);
    let owners = lines(&["get", "/cluster/brokers/", "--prefix"]);
    let owner = owners.iter().find(|line| line.contains("reliable_topic")).unwrap();
    assert_eq!(owner, &format!("/cluster/brokers/{id}/default/reliable_topic"));
    let delivery = lines(&["get", "/topics/default/reliable_topic/delivery", "--print-value-only"]);
    assert_eq!(delivery, ["\"Reliable\""]);
}
