//! Keys under `/cluster` and `/namespaces`.

use super::checks;

checks! {
    t_01_values_are_json_and_markers_are_null
    t_03_a_broker_sees_what_another_one_wrote
    t_10_the_cluster_has_a_name
    t_11_a_broker_registers_under_a_lease_and_leaves_at_once
    t_12_a_broker_keeps_its_number
    t_13_a_drained_broker_stays_drained_until_it_is_activated
    t_14_assignments_are_exact
    t_15_a_topic_that_was_created_without_a_leader_is_assigned
    t_18_load_reports_are_leased_and_real
    t_19_one_leader_and_the_next_one_when_it_is_gone
    t_20_namespaces_have_policies
    t_21_topics_are_listed_in_their_namespace
}

mod checks {
    use capstan_meta::LeaseId;
    use capstan_testkit::eventually;
    use capstan_topics::commit;
    use capstan_topics::spec::Delivery;
    use capstan_topics::wire::danube_admin::broker_admin_client::BrokerAdminClient;
    use capstan_topics::wire::danube_admin::namespace_admin_client::NamespaceAdminClient;
    use capstan_topics::wire::danube_admin::{
        ActivateBrokerRequest, Empty, NamespaceRequest, UnloadBrokerRequest,
    };
    use serde_json::{Value, json};
    use tonic::Code;

    use super::super::{Place, TOPIC, gone, json_at, keys};
    use crate::cluster::{Cluster, RELIABLE, SOON, channel};

    fn url(cluster: &Cluster) -> String {
        cluster.nodes.values().next().unwrap().broker.url().to_owned()
    }

    fn namespaces(cluster: &Cluster) -> NamespaceAdminClient<tonic::transport::Channel> {
        NamespaceAdminClient::new(channel(&url(cluster)))
    }

    pub async fn t_01_values_are_json_and_markers_are_null(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        cluster.client().await.producer(TOPIC, "p", RELIABLE).await;
        json_at(&cluster, "/cluster/leader").await;
        for root in ["/cluster/", "/namespaces/", "/topics/"] {
            let found = keys(&cluster, root).await;
            assert!(!found.is_empty(), "{root}");
            for key in found {
                if let Some(value) = cluster.value(&key).await {
                    serde_json::from_str::<Value>(&value).unwrap_or_else(|error| panic!("{key}: {error}"));
                }
            }
        }
        let marker = "/namespaces/default/topics/default/reliable_topic";
        assert_eq!(cluster.value(marker).await.as_deref(), Some("null"));
    }

    pub async fn t_03_a_broker_sees_what_another_one_wrote(place: Place) {
        let cluster = place.cluster(&["a", "b"]).await;
        let (one, other) = (cluster.client_of("a").await, cluster.client_of("b").await);
        for number in 0..5 {
            let topic = format!("/default/seen-{number}");
            one.producer(&topic, "p", RELIABLE).await;
            let request =
                capstan_topics::wire::danube::TopicLookupRequest { request_id: 1, topic: topic.clone() };
            // At once: a broker that does not know the topic asks the store before it says no.
            let found = other.discovery().topic_partitions(request).await.unwrap().into_inner();
            assert_eq!(found.partitions, [topic]);
        }
    }

    pub async fn t_10_the_cluster_has_a_name(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        assert_eq!(cluster.value("/cluster/test").await.as_deref(), Some("null"));
    }

    pub async fn t_11_a_broker_registers_under_a_lease_and_leaves_at_once(place: Place) {
        let mut cluster = place.cluster(&["a"]).await;
        let broker = &cluster.nodes["a"].broker;
        let (key, url) = (format!("/cluster/register/{}", broker.id()), broker.url().to_owned());
        let registered = json_at(&cluster, &key).await;
        let address = url.trim_start_matches("http://");
        for (field, value) in
            [("broker_addr", url.as_str()), ("admin_addr", &url), ("advertised_addr", address)]
        {
            assert_eq!(registered[field], json!(value), "{field}");
        }
        let stored = cluster.store.get(key.clone()).await.unwrap().unwrap();
        assert_ne!(stored.lease, LeaseId::default(), "it dies with its broker");
        cluster.end("a").await;
        assert_eq!(cluster.value(&key).await, None, "no wait for the lease");
    }

    pub async fn t_12_a_broker_keeps_its_number(place: Place) {
        let mut cluster = place.cluster(&["a", "b"]).await;
        let before = cluster.nodes["b"].broker.id();
        assert_ne!(before, cluster.nodes["a"].broker.id());
        cluster.end("b").await;
        cluster.begin("b").await;
        assert_eq!(cluster.nodes["b"].broker.id(), before);
    }

    pub async fn t_13_a_drained_broker_stays_drained_until_it_is_activated(place: Place) {
        let mut cluster = place.cluster(&["a", "b"]).await;
        let id = cluster.nodes["b"].broker.id();
        let key = format!("/cluster/brokers/{id}/state");
        assert_eq!(json_at(&cluster, &key).await, json!({"mode": "active", "reason": "boot"}));
        let mut admin = BrokerAdminClient::new(channel(cluster.nodes["a"].broker.url()));
        let request = UnloadBrokerRequest { broker_id: id.to_string(), ..Default::default() };
        assert!(admin.unload_broker(request).await.unwrap().into_inner().started);
        assert_eq!(json_at(&cluster, &key).await, json!({"mode": "drained", "reason": "no_topics"}));
        eventually("the other broker lists it as drained", SOON, async || {
            let listed = admin.clone().list_brokers(Empty {}).await.unwrap().into_inner().brokers;
            let found = listed.iter().find(|broker| broker.broker_id == id.to_string());
            match found.map(|broker| broker.broker_status.as_str()) {
                Some("drained") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        cluster.end("b").await;
        cluster.begin("b").await;
        assert_eq!(
            json_at(&cluster, &key).await["mode"],
            "drained",
            "a start does not undo an operator's word"
        );
        let request = ActivateBrokerRequest { broker_id: id.to_string(), reason: String::new() };
        assert!(admin.activate_broker(request).await.unwrap().into_inner().success);
        assert_eq!(json_at(&cluster, &key).await, json!({"mode": "active", "reason": "admin_activate"}));
    }

    pub async fn t_14_assignments_are_exact(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let (client, id) = (cluster.client().await, cluster.nodes["a"].broker.id());
        client.producer("/default/ab", "p", RELIABLE).await;
        assert_eq!(json_at(&cluster, &format!("/cluster/brokers/{id}/default/ab")).await, Value::Null);
        let request = capstan_topics::wire::danube::TopicLookupRequest {
            request_id: 1,
            topic: "/default/a".to_owned(),
        };
        let missing = client.discovery().topic_lookup(request).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "the beginning of a name is another name");
    }

    pub async fn t_15_a_topic_that_was_created_without_a_leader_is_assigned(place: Place) {
        let mut cluster = place.cluster(&["a"]).await;
        cluster.end("a").await;
        let topic = TOPIC.parse().unwrap();
        commit::create_topic(&cluster.store, &topic, Delivery::Reliable, 1).await.unwrap();
        let marker = "/cluster/unassigned/default/reliable_topic";
        assert_eq!(cluster.value(marker).await.as_deref(), Some("null"));
        cluster.begin("a").await;
        let id = cluster.nodes["a"].broker.id();
        json_at(&cluster, &format!("/cluster/brokers/{id}/default/reliable_topic")).await;
        gone(&cluster, "/cluster/unassigned/").await;
    }

    pub async fn t_18_load_reports_are_leased_and_real(place: Place) {
        let mut cluster = place.cluster(&["a"]).await;
        let key = format!("/cluster/load/{}", cluster.nodes["a"].broker.id());
        let report = json_at(&cluster, &key).await;
        let resources: Vec<&Value> =
            report["resources_usage"].as_array().unwrap().iter().map(|usage| &usage["resource"]).collect();
        assert_eq!(resources, ["CPU", "Memory"]);
        assert!(report["resources_usage"][1]["usage"].as_u64().unwrap() <= 100);
        assert_eq!((&report["topics_len"], &report["topic_list"]), (&json!(0), &json!([])));
        cluster.end("a").await;
        assert_eq!(cluster.value(&key).await, None, "no report of a broker that is gone");
    }

    pub async fn t_19_one_leader_and_the_next_one_when_it_is_gone(place: Place) {
        let mut cluster = place.cluster(&["a", "b"]).await;
        let leader = json_at(&cluster, "/cluster/leader").await.as_u64().unwrap();
        let term = json_at(&cluster, "/capstan/topics/term").await.as_u64().unwrap();
        let name = cluster.nodes.iter().find(|(_, node)| node.broker.id() == leader).unwrap().0.clone();
        let stored = cluster.store.get("/cluster/leader".to_owned()).await.unwrap().unwrap();
        assert_ne!(stored.lease, LeaseId::default());
        cluster.end(&name).await;
        eventually("another one leads", SOON, async || {
            let now = json_at(&cluster, "/cluster/leader").await.as_u64().unwrap();
            let grown = json_at(&cluster, "/capstan/topics/term").await.as_u64().unwrap() > term;
            if now != leader && grown { Ok(()) } else { Err(format!("{now}")) }
        })
        .await;
    }

    pub async fn t_20_namespaces_have_policies(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let mut admin = namespaces(&cluster);
        let named = |name: &str| NamespaceRequest { name: name.to_owned() };
        admin.create_namespace(named("shop")).await.unwrap();
        let expected = json!({
            "max_consumers_per_subscription": 0, "max_consumers_per_topic": 0, "max_message_size": 10_485_760,
            "max_producers_per_topic": 0, "max_publish_rate": 0, "max_subscription_dispatch_rate": 0,
            "max_subscriptions_per_topic": 0,
        });
        for namespace in ["default", "system", "shop"] {
            assert_eq!(json_at(&cluster, &format!("/namespaces/{namespace}/policy")).await, expected);
        }
        let policies = admin.get_namespace_policies(named("shop")).await.unwrap().into_inner().policies;
        assert_eq!(serde_json::from_str::<Value>(&policies).unwrap(), expected);
        let twice = admin.create_namespace(named("shop")).await.unwrap_err();
        assert_eq!(twice.code(), Code::NotFound, "as the original answers");
        let client = cluster.client().await;
        client.producer("/shop/orders", "p", RELIABLE).await;
        let mut brokers = BrokerAdminClient::new(channel(&url(&cluster)));
        let listed = brokers.list_namespaces(Empty {}).await.unwrap().into_inner().namespaces;
        assert_eq!(listed, ["default", "shop", "system"], "each once");
        assert!(admin.delete_namespace(named("shop")).await.is_err(), "it has a topic");
        let topic = capstan_topics::wire::danube_admin::TopicRequest { name: "/shop/orders".to_owned() };
        client.admin().delete_topic(topic).await.unwrap();
        admin.delete_namespace(named("shop")).await.unwrap();
        assert_eq!(cluster.value("/namespaces/shop/policy").await, None);
    }

    pub async fn t_21_topics_are_listed_in_their_namespace(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        cluster.client().await.producer(TOPIC, "p", RELIABLE).await;
        let key = "/namespaces/default/topics/default/reliable_topic";
        assert_eq!(json_at(&cluster, key).await, Value::Null);
        let request = NamespaceRequest { name: "default".to_owned() };
        let listed = namespaces(&cluster).get_namespace_topics(request).await.unwrap().into_inner().topics;
        assert_eq!(listed, ["default/reliable_topic"], "without the leading slash");
    }
}
