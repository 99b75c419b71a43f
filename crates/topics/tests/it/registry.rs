//! The registry's wire: the public broker's rules and words, which its clients look for.

use capstan_topics::wire::danube::producer_service_client::ProducerServiceClient;
use capstan_topics::wire::danube::{ProducerRequest, SchemaReference};
use capstan_topics::wire::danube_schema::schema_registry_client::SchemaRegistryClient;
use capstan_topics::wire::danube_schema::{
    CheckCompatibilityRequest, RegisterSchemaRequest, SetCompatibilityModeRequest,
};
use tonic::Code;
use tonic::transport::Channel;

use crate::cluster::{Cluster, channel};

const ONE: &str = r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#;
const TWO: &str = r#"{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string"}},
    "required":["id","name"]}"#;

struct Registry(SchemaRegistryClient<Channel>);

impl Registry {
    async fn register(&mut self, subject: &str, text: &str) -> Result<u32, Code> {
        let request = RegisterSchemaRequest {
            subject: subject.to_owned(),
            schema_type: "json_schema".to_owned(),
            schema_definition: text.as_bytes().to_vec().into(),
            ..RegisterSchemaRequest::default()
        };
        let registered = self.0.register_schema(request).await.map_err(|status| status.code())?;
        Ok(registered.into_inner().version)
    }

    /// Whether a second version is accepted after the first one, and said to be so before.
    async fn follows(&mut self, subject: &str, mode: &str, first: &str, second: &str) -> bool {
        self.register(subject, first).await.unwrap();
        let request =
            SetCompatibilityModeRequest { subject: subject.to_owned(), compatibility_mode: mode.to_owned() };
        self.0.set_compatibility_mode(request).await.unwrap();
        let request = CheckCompatibilityRequest {
            subject: subject.to_owned(),
            new_schema_definition: second.as_bytes().to_vec().into(),
            schema_type: "json_schema".to_owned(),
            compatibility_mode: None,
        };
        let checked = self.0.check_compatibility(request).await.unwrap().into_inner();
        let registered = self.register(subject, second).await;
        assert_eq!(registered, if checked.is_compatible { Ok(2) } else { Err(Code::Internal) });
        checked.is_compatible
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_schemas_are_compared_as_the_public_broker_does() {
    let cluster = Cluster::start(&["a"]).await;
    let mut registry = Registry(SchemaRegistryClient::new(channel(cluster.nodes["a"].broker.url())));
    assert!(!registry.follows("removed", "backward", TWO, ONE).await, "a required property is removed");
    assert!(registry.follows("removed-forward", "forward", TWO, ONE).await);
    assert!(!registry.follows("added", "forward", ONE, TWO).await, "a required property is added");
    assert!(registry.follows("added-backward", "backward", ONE, TWO).await);
    assert!(registry.follows("anything", "none", TWO, ONE).await);
    let of =
        |value| format!(r#"{{"type":"object","properties":{{"v":{{"type":"integer","const":{value}}}}}}}"#);
    assert!(registry.follows("const", "backward", &of(1), &of(2)).await, "values are not compared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_is_told_that_its_subject_is_not_found() {
    let cluster = Cluster::start(&["a"]).await;
    let request = ProducerRequest {
        producer_name: "p".to_owned(),
        topic_name: "/default/orders".to_owned(),
        schema_ref: Some(SchemaReference { subject: "missing".to_owned(), version_ref: None }),
        ..ProducerRequest::default()
    };
    let mut producers = ProducerServiceClient::new(channel(cluster.nodes["a"].broker.url()));
    let refused = producers.create_producer(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("not found"), "{refused}");
}
