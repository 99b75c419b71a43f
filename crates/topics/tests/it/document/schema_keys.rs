//! Keys under `/schemas`.

use super::checks;

checks! {
    t_27_ids_are_given_once
    t_28_a_subject_has_all_its_versions
    t_29_versions_are_kept_one_by_one
    t_30_ids_lead_to_subjects
}

mod checks {
    use capstan_topics::wire::danube_schema::schema_registry_client::SchemaRegistryClient;
    use capstan_topics::wire::danube_schema::{
        DeleteSchemaVersionRequest, RegisterSchemaRequest, RegisterSchemaResponse,
        SetCompatibilityModeRequest,
    };
    use serde_json::json;
    use tonic::transport::Channel;

    use super::super::{Place, json_at, keys};
    use crate::cluster::{Cluster, channel};

    const FIRST: &str = r#"{"type":"record","name":"Product","fields":[{"name":"id","type":"long"}]}"#;
    const SECOND: &str = r#"{"type":"record","name":"Product","fields":[{"name":"id","type":"long"},{"name":"note","type":"string","default":""}]}"#;

    fn registry(cluster: &Cluster, broker: &str) -> SchemaRegistryClient<Channel> {
        SchemaRegistryClient::new(channel(cluster.nodes[broker].broker.url()))
    }

    async fn register(
        mut registry: SchemaRegistryClient<Channel>,
        subject: &str,
        text: &str,
    ) -> RegisterSchemaResponse {
        let request = RegisterSchemaRequest {
            subject: subject.to_owned(),
            schema_type: "avro".to_owned(),
            schema_definition: text.as_bytes().to_vec().into(),
            created_by: "danube-client".to_owned(),
            ..Default::default()
        };
        registry.register_schema(request).await.unwrap().into_inner()
    }

    pub async fn t_27_ids_are_given_once(place: Place) {
        let cluster = place.cluster(&["a", "b"]).await;
        let mut ids = Vec::new();
        for number in 0..4 {
            let (one, other) = (format!("one-{number}"), format!("other-{number}"));
            let both = tokio::join!(
                register(registry(&cluster, "a"), &one, FIRST),
                register(registry(&cluster, "b"), &other, FIRST)
            );
            ids.extend([both.0.schema_id, both.1.schema_id]);
        }
        ids.sort_unstable();
        assert_eq!(ids, (1..=8).collect::<Vec<u64>>());
        assert_eq!(json_at(&cluster, "/schemas/_global/next_schema_id").await, json!(9));
    }

    pub async fn t_28_a_subject_has_all_its_versions(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        register(registry(&cluster, "a"), "product-catalog", FIRST).await;
        register(registry(&cluster, "a"), "product-catalog", SECOND).await;
        let metadata = json_at(&cluster, "/schemas/product-catalog/metadata").await;
        for (field, value) in [
            ("compatibility_mode", json!("Backward")),
            ("created_by", json!("danube-client")),
            ("id", json!(1)),
            ("latest_version", json!(2)),
            ("subject", json!("product-catalog")),
            ("topics_using", json!([])),
        ] {
            assert_eq!(metadata[field], value, "{field}");
        }
        assert!(metadata["created_at"].is_u64() && metadata["updated_at"].is_u64());
        let versions = metadata["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 2);
        assert_eq!(versions[1]["version"], json!(2));
        assert!(versions[1]["fingerprint"].as_str().unwrap().starts_with("sha256:"));
        let request = SetCompatibilityModeRequest {
            subject: "product-catalog".to_owned(),
            compatibility_mode: "full".to_owned(),
        };
        registry(&cluster, "a").set_compatibility_mode(request).await.unwrap();
        let metadata = json_at(&cluster, "/schemas/product-catalog/metadata").await;
        assert_eq!(metadata["compatibility_mode"], "Full");
        assert_eq!(
            json_at(&cluster, "/schemas/product-catalog/compatibility").await,
            json!({"mode": "Full"})
        );
    }

    pub async fn t_29_versions_are_kept_one_by_one(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        register(registry(&cluster, "a"), "product-catalog", FIRST).await;
        register(registry(&cluster, "a"), "product-catalog", SECOND).await;
        let version = json_at(&cluster, "/schemas/product-catalog/versions/1").await;
        assert_eq!((&version["version"], &version["is_deprecated"]), (&json!(1), &json!(false)));
        assert_eq!(version["schema_def"]["Avro"]["raw_schema"], json!(FIRST));
        assert_eq!(version["schema_def"]["Avro"]["fingerprint"], version["fingerprint"]);
        assert_eq!(version["tags"], json!([]));
        let request = DeleteSchemaVersionRequest { subject: "product-catalog".to_owned(), version: 1 };
        registry(&cluster, "a").delete_schema_version(request).await.unwrap();
        let left = keys(&cluster, "/schemas/product-catalog/versions/").await;
        assert_eq!(left, ["/schemas/product-catalog/versions/2"]);
        let metadata = json_at(&cluster, "/schemas/product-catalog/metadata").await;
        assert_eq!(metadata["versions"].as_array().unwrap().len(), 1, "in the same transaction");
    }

    pub async fn t_30_ids_lead_to_subjects(place: Place) {
        let cluster = place.cluster(&["a"]).await;
        let made = register(registry(&cluster, "a"), "product-catalog", FIRST).await;
        let again = register(registry(&cluster, "a"), "product-catalog", FIRST).await;
        assert_eq!((made.schema_id, made.version, made.is_new_version), (1, 1, true));
        assert_eq!((again.schema_id, again.version, again.is_new_version), (1, 1, false));
        let index = json_at(&cluster, "/schemas/_index/by_id/1").await;
        assert_eq!(index, json!({"schema_id": 1, "subject": "product-catalog"}));
    }
}
