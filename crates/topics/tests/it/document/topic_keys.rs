//! Keys under `/topics` and `/danube-data`.

use super::checks;

checks! {
    t_02_a_topic_is_created_in_one_transaction
    t_22_the_root_of_a_topic_counts_its_partitions
    t_23_the_delivery_of_a_topic_is_fixed
    t_24_producers_are_listed_and_leave_with_their_broker
    t_25_a_subscription_is_removed_with_everything_of_it
    t_26_cursors_begin_at_subscribe_and_only_grow
    t_33_an_unloaded_topic_says_where_it_ended
    t_34_nothing_is_written_under_subscriptions
    t_35_a_deleted_topic_leaves_nothing
    b_topics_that_two_brokers_create_and_delete_leave_nothing
    g_a_subscription_resumes_near_its_cursor
    h_a_cluster_that_is_restarted_has_lost_nothing
}

mod checks {
    use capstan_meta::LeaseId;
    use capstan_testkit::eventually;
    use capstan_topics::wire::danube::consumer_request::SubscriptionType;
    use capstan_topics::wire::danube_admin::{SubscriptionRequest, TopicRequest};
    use serde_json::{Value, json};
    use tonic::Code;

    use super::super::{Place, TOPIC, gone, json_at, keys};
    use crate::cluster::{Cluster, NON_RELIABLE, RELIABLE, SOON, offset, text};

    const ROOT: &str = "/topics/default/reliable_topic";
    const CURSOR: &str = "/topics/default/reliable_topic/subscriptions/s/cursor";

    fn topic() -> TopicRequest {
        TopicRequest { name: TOPIC.to_owned() }
    }

    async fn cursor_is(cluster: &Cluster, wanted: u64) {
        eventually("the cursor is written", SOON, async || match cluster.value(CURSOR).await {
            Some(text) if text == wanted.to_string() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    pub async fn t_02_a_topic_is_created_in_one_transaction(place: Place) {
        let mut cluster = place.cluster(&["a"]).await;
        // Without a broker nothing else is written meanwhile.
        cluster.end("a").await;
        let name = TOPIC.parse().unwrap();
        let delivery = capstan_topics::spec::Delivery::Reliable;
        capstan_topics::commit::create_topic(&cluster.store, &name, delivery, 1).await.unwrap();
        let mut revisions = Vec::new();
        for key in [
            ROOT,
            "/topics/default/reliable_topic/delivery",
            "/namespaces/default/topics/default/reliable_topic",
            "/cluster/unassigned/default/reliable_topic",
        ] {
            revisions.push(cluster.store.get(key.to_owned()).await.unwrap().unwrap().mod_revision);
        }
        revisions.dedup();
        assert_eq!(revisions.len(), 1, "{revisions:?}");
    }

    pub async fn t_22_the_root_of_a_topic_counts_its_partitions(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        client.producer(TOPIC, "p", RELIABLE).await;
        for number in 0..2 {
            client.producer(&format!("/default/parts-part-{number}"), "p", RELIABLE).await;
        }
        assert_eq!(json_at(&cluster, ROOT).await, json!(0));
        assert_eq!(json_at(&cluster, "/topics/default/parts").await, json!(2));
        assert_eq!(json_at(&cluster, "/topics/default/parts-part-1").await, json!(0));
    }

    pub async fn t_23_the_delivery_of_a_topic_is_fixed(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        client.producer(TOPIC, "p", RELIABLE).await;
        client.producer("/default/fast", "p", NON_RELIABLE).await;
        assert_eq!(json_at(&cluster, &format!("{ROOT}/delivery")).await, json!("Reliable"));
        assert_eq!(json_at(&cluster, "/topics/default/fast/delivery").await, json!("NonReliable"));
        let other = client.try_producer(TOPIC, "q", NON_RELIABLE).await.unwrap_err();
        assert_eq!(other.code(), Code::FailedPrecondition);
    }

    pub async fn t_24_producers_are_listed_and_leave_with_their_broker(place: Place) {
        let mut cluster = place.cluster(&["a"]).await;
        let producer = cluster.client().await.producer(TOPIC, "prod_json_reliable", RELIABLE).await;
        let key = format!("{ROOT}/producers/{}", producer.id);
        let expected = json!({
            "access_mode": 0, "producer_id": producer.id, "producer_name": "prod_json_reliable", "status": true,
            "topic_name": TOPIC,
        });
        assert_eq!(json_at(&cluster, &key).await, expected);
        let stored = cluster.store.get(key.clone()).await.unwrap().unwrap();
        assert_ne!(stored.lease, LeaseId::default(), "the list cannot grow for ever");
        cluster.end("a").await;
        assert_eq!(cluster.value(&key).await, None);
    }

    pub async fn t_25_a_subscription_is_removed_with_everything_of_it(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        let mut consumer = client.consumer(TOPIC, "s", "cons_reliable", SubscriptionType::Exclusive).await;
        let expected = json!({
            "consumer_id": null, "consumer_name": "cons_reliable", "subscription_name": "s", "subscription_type": 0,
        });
        assert_eq!(json_at(&cluster, &format!("{ROOT}/subscriptions/s")).await, expected);
        let other = client.try_consumer(TOPIC, "s", "other", SubscriptionType::Shared).await;
        assert_eq!(
            other.err().unwrap().code(),
            Code::FailedPrecondition,
            "another type, while it has consumers"
        );
        let request = || SubscriptionRequest { topic: TOPIC.to_owned(), subscription: "s".to_owned() };
        assert!(client.admin().unsubscribe(request()).await.is_err(), "it has a consumer");
        producer.send("0").await;
        consumer.take(1).await;
        drop(consumer);
        cursor_is(&cluster, 0).await;
        eventually("the subscription is removed", SOON, async || {
            client.admin().unsubscribe(request()).await.map_err(|status| status.to_string())
        })
        .await;
        assert_eq!(keys(&cluster, &format!("{ROOT}/subscriptions/")).await, [""; 0]);
        assert_eq!(keys(&cluster, "/capstan/topics/progress/").await, [""; 0]);
        producer.send("1").await;
        let mut again = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        producer.send("2").await;
        assert_eq!(again.take(1).await, ["2"], "a new subscription begins at the end");
    }

    pub async fn t_26_cursors_begin_at_subscribe_and_only_grow(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        for number in 0..3 {
            producer.send(&number.to_string()).await;
        }
        let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        cursor_is(&cluster, 2).await;
        for number in 3..1_010 {
            producer.send(&number.to_string()).await;
        }
        consumer.take_through(1_002).await;
        eventually("a thousand acknowledgments are written", SOON, async || {
            match cluster.value(CURSOR).await.and_then(|text| text.parse::<u64>().ok()) {
                Some(at) if at >= 1_000 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        consumer.take_through(1_009).await;
        // Nobody leaves and nothing more is acknowledged: the timer writes.
        cursor_is(&cluster, 1_009).await;
    }

    pub async fn t_33_an_unloaded_topic_says_where_it_ended(place: Place) {
        let cluster = place.cluster(&["a", "b"]).await;
        let client = cluster.client().await;
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        for number in 0..22 {
            producer.send(&number.to_string()).await;
        }
        let owner = cluster.owner(TOPIC).await;
        let other = cluster.nodes.keys().find(|name| **name != owner).unwrap();
        let from = cluster.nodes[&owner].broker.id();
        // By any broker, not only by the topic's own.
        let asked = cluster.client_of(other).await;
        eventually("the topic is unloaded", SOON, async || asked.admin().unload_topic(topic()).await).await;
        let state = json_at(&cluster, "/danube-data/storage/topics/default/reliable_topic/state").await;
        assert_eq!((&state["sealed"], &state["last_committed_offset"]), (&json!(true), &json!(21)));
        assert_eq!((&state["broker_id"], &state["next_offset"]), (&json!(from), &json!(22)));
        assert!(state["timestamp"].as_u64().unwrap() > 1_700_000_000);
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        producer.send("next").await;
        assert_eq!(offset(&consumer.next().await), 22);
    }

    pub async fn t_34_nothing_is_written_under_subscriptions(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        client.producer(TOPIC, "p", RELIABLE).await;
        let _consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Shared).await;
        assert_eq!(keys(&cluster, "/subscriptions").await, [""; 0]);
    }

    pub async fn t_35_a_deleted_topic_leaves_nothing(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        producer.send("0").await;
        consumer.take(1).await;
        client.admin().delete_topic(topic()).await.unwrap();
        eventually("nothing of the topic is left", SOON, async || {
            let found = keys(&cluster, "/").await;
            let left: Vec<_> = found.into_iter().filter(|key| key.contains("reliable_topic")).collect();
            // Producers live as long as their broker's lease, or a minute longer than their client.
            let left: Vec<_> = left.into_iter().filter(|key| !key.contains("/producers/")).collect();
            if left.is_empty() { Ok(()) } else { Err(left.join(" ")) }
        })
        .await;
    }

    pub async fn b_topics_that_two_brokers_create_and_delete_leave_nothing(place: Place) {
        let cluster = place.cluster(&["a", "b"]).await;
        let (one, other) = (cluster.client_of("a").await, cluster.client_of("b").await);
        let topics: Vec<String> = (0..10).map(|number| format!("/default/many-{number}")).collect();
        for topic in &topics {
            // Both at once; one of them makes it.
            tokio::join!(one.producer(topic, "p", RELIABLE), other.producer(topic, "q", RELIABLE));
        }
        for topic in &topics {
            let request = || TopicRequest { name: topic.clone() };
            let (mut first, mut second) = (one.admin(), other.admin());
            let gone = tokio::join!(first.delete_topic(request()), second.delete_topic(request()));
            assert!(gone.0.is_ok() || gone.1.is_ok(), "{gone:?}");
        }
        for prefix in ["/cluster/unassigned/", "/namespaces/default/topics/", "/capstan/topics/topic/"] {
            gone(&cluster, prefix).await;
        }
        gone(&cluster, "/capstan/topics/tombstone/").await;
    }

    pub async fn g_a_subscription_resumes_near_its_cursor(place: Place) {
        let mut cluster = place.cluster(&["a"]).await;
        let client = cluster.client().await;
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        for number in 0..20 {
            producer.send(&number.to_string()).await;
        }
        consumer.take(8).await;
        cluster.end("a").await;
        cluster.begin("a").await;
        let mut consumer =
            cluster.client().await.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        let first = consumer.next().await;
        assert!(offset(&first) <= 8, "{}", offset(&first));
        assert_eq!(text(&first), offset(&first).to_string());
    }

    pub async fn h_a_cluster_that_is_restarted_has_lost_nothing(place: Place) {
        let mut cluster = place.cluster(&["a", "b"]).await;
        let topics = ["/default/one", "/default/two", "/default/three"];
        for topic in topics {
            let mut producer = cluster.client().await.producer(topic, "p", RELIABLE).await;
            let _subscribed =
                cluster.client().await.consumer(topic, "s", "c", SubscriptionType::Shared).await;
            for number in 0..10 {
                producer.send(&format!("{topic} {number}")).await;
            }
        }
        for name in ["a", "b"] {
            cluster.end(name).await;
        }
        for name in ["a", "b"] {
            cluster.begin(name).await;
        }
        for topic in topics {
            let mut consumer =
                cluster.client().await.consumer(topic, "s", "c", SubscriptionType::Shared).await;
            let taken = consumer.take(10).await;
            let expected: Vec<String> = (0..10).map(|number| format!("{topic} {number}")).collect();
            assert_eq!(taken, expected);
            let leader: Value = json_at(&cluster, "/cluster/leader").await;
            assert!(leader.is_u64());
        }
    }
}
