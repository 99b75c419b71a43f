//! The schema registry with the newest client: versions, compatibility, topics that check their messages.

use anyhow::{Context as _, Result, bail, ensure};
use danube_client::{CompatibilityMode, DanubeClient, Producer, SchemaType, SubType};
use danube_core::proto::danube_schema::schema_registry_client::SchemaRegistryClient;
use danube_core::proto::danube_schema::{
    ConfigureTopicSchemaRequest, DeleteSchemaVersionRequest, GetTopicSchemaConfigRequest,
    ListSubjectsRequest, UpdateTopicValidationPolicyRequest,
};

use crate::newest::{consumer, next};
use crate::step;

const FIRST: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}"#;
const SECOND: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},
    {"name":"note","type":"string","default":""}]}"#;
const BROKEN: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},
    {"name":"must","type":"string"}]}"#;
const JSON: &str = r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#;
const PROTO: &str = "syntax = \"proto3\";\nmessage Order { int64 id = 1; }\n";

pub async fn all(client: &DanubeClient, run: &str) -> Result<()> {
    let topic = |name: &str| format!("/default/{name}-{run}");
    step("schema versions", versions(client, &format!("versions-{run}"))).await?;
    step("schema types", types(client, run)).await?;
    step("schema of a topic", bound(client, &topic("bound"), &format!("bound-{run}"))).await?;
    step("versions of producers", selection(client, &topic("selection"), &format!("selection-{run}")))
        .await?;
    step("validation policies", policies(client, &topic("policies"), &format!("policies-{run}"))).await?;
    Ok(())
}

async fn register(client: &DanubeClient, subject: &str, kind: SchemaType, text: &str) -> Result<u64> {
    let registry = client.schema();
    let new = registry.register_schema(subject).with_type(kind).with_schema_data(text.as_bytes().to_vec());
    Ok(new.with_description("a check").with_created_by("danube-check").execute().await?)
}

async fn versions(client: &DanubeClient, subject: &str) -> Result<()> {
    let registry = client.schema();
    let missing = registry.get_latest_schema(subject).await;
    ensure!(missing.is_err(), "a subject that is not there");
    let id = register(client, subject, SchemaType::Avro, FIRST).await?;
    ensure!(
        register(client, subject, SchemaType::Avro, FIRST).await? == id,
        "the same schema has the same id"
    );
    ensure!(registry.list_versions(subject).await? == [1]);
    ensure!(register(client, subject, SchemaType::Avro, SECOND).await? == id);
    ensure!(registry.list_versions(subject).await? == [1, 2]);
    let refused = register(client, subject, SchemaType::Avro, BROKEN).await;
    ensure!(refused.is_err(), "a field without a default breaks old data");
    ensure!(register(client, subject, SchemaType::Avro, "{not a schema").await.is_err());
    let latest = registry.get_latest_schema(subject).await?;
    ensure!(latest.version == 2 && latest.schema_id == id && latest.subject == subject);
    ensure!(latest.schema_definition_as_string().as_deref() == Some(SECOND), "the text as it was registered");
    ensure!(latest.schema_type == "avro" && latest.fingerprint.starts_with("sha256:"), "{latest:?}");
    let first = registry.get_schema_version(id, Some(1)).await?;
    ensure!(first.version == 1 && first.schema_definition_as_string().as_deref() == Some(FIRST));
    ensure!(registry.get_schema_by_id(id).await?.version == 2);
    let data = |text: &str| text.as_bytes().to_vec();
    let checked = registry.check_compatibility(subject, data(BROKEN), SchemaType::Avro, None).await?;
    ensure!(
        !checked.is_compatible && checked.errors.iter().any(|error| error.contains("must")),
        "{checked:?}"
    );
    let anything = Some(CompatibilityMode::None);
    let checked = registry.check_compatibility(subject, data(BROKEN), SchemaType::Avro, anything).await?;
    ensure!(checked.is_compatible && checked.errors.is_empty());
    ensure!(registry.set_compatibility_mode(subject, CompatibilityMode::None).await?.success);
    ensure!(register(client, subject, SchemaType::Avro, BROKEN).await? == id, "nothing is checked any more");
    let mut raw = SchemaRegistryClient::new(client.get_service_channel().await?);
    let gone = DeleteSchemaVersionRequest { subject: subject.to_owned(), version: 3 };
    ensure!(raw.delete_schema_version(gone).await?.into_inner().success);
    ensure!(registry.list_versions(subject).await? == [1, 2]);
    let subjects = raw.list_subjects(ListSubjectsRequest {}).await?.into_inner().subjects;
    let known = subjects.iter().find(|known| known.subject == subject).context("not in the list")?;
    ensure!(
        known.latest_version == 2 && known.compatibility_mode == "none" && known.schema_id == id,
        "{known:?}"
    );
    Ok(())
}

async fn types(client: &DanubeClient, run: &str) -> Result<()> {
    let all = [
        (SchemaType::JsonSchema, JSON),
        (SchemaType::Protobuf, PROTO),
        (SchemaType::String, ""),
        (SchemaType::Bytes, ""),
        (SchemaType::Number, ""),
    ];
    let mut ids = std::collections::BTreeSet::new();
    for (kind, text) in all {
        let name = kind.as_str().to_owned();
        let subject = format!("type-{name}-{run}");
        ids.insert(register(client, &subject, kind, text).await.with_context(|| name.clone())?);
        let known = client.schema().get_latest_schema(&subject).await?;
        ensure!(known.schema_type == name && known.version == 1, "{known:?}");
    }
    ensure!(ids.len() == 5, "every subject has an id of its own");
    Ok(())
}

async fn schema_producer(client: &DanubeClient, topic: &str, name: &str, subject: &str) -> Result<Producer> {
    let builder = client.new_producer().with_topic(topic).with_name(name).with_reliable_dispatch();
    let mut producer = builder.with_schema_subject(subject).build()?;
    producer.create().await?;
    Ok(producer)
}

async fn bound(client: &DanubeClient, topic: &str, subject: &str) -> Result<()> {
    let id = register(client, subject, SchemaType::JsonSchema, JSON).await?;
    register(client, &format!("{subject}-other"), SchemaType::JsonSchema, JSON).await?;
    let producer = schema_producer(client, topic, "producer", subject).await?;
    let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
    producer.send(br#"{"id":1}"#.to_vec(), None).await?;
    let message = next(&mut messages).await?;
    ensure!(message.schema_id == Some(id) && message.schema_version == Some(1), "{message:?}");
    consumer.ack(&message).await?;
    let other = schema_producer(client, topic, "other", &format!("{subject}-other")).await;
    ensure!(other.is_err(), "a topic has one subject");
    let missing =
        schema_producer(client, &format!("{topic}-2"), "producer", &format!("{subject}-missing")).await;
    ensure!(missing.is_err(), "a subject that is not registered");
    Ok(())
}

async fn selection(client: &DanubeClient, topic: &str, subject: &str) -> Result<()> {
    register(client, subject, SchemaType::Avro, FIRST).await?;
    register(client, subject, SchemaType::Avro, SECOND).await?;
    let builder = || client.new_producer().with_topic(topic).with_reliable_dispatch();
    let mut pinned = builder().with_name("pinned").with_schema_version(subject, 1).build()?;
    pinned.create().await?;
    let mut least = builder().with_name("least").with_schema_min_version(subject, 2).build()?;
    least.create().await?;
    let mut future = builder().with_name("future").with_schema_version(subject, 9).build()?;
    ensure!(future.create().await.is_err(), "a version that is not there");
    let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
    for (producer, version) in [(&pinned, 1), (&least, 2)] {
        producer.send(b"x".to_vec(), None).await?;
        let message = next(&mut messages).await?;
        ensure!(message.schema_version == Some(version), "{message:?}");
        consumer.ack(&message).await?;
    }
    Ok(())
}

/// None, warn and enforce, with and without a look at the payload.
async fn policies(client: &DanubeClient, topic: &str, subject: &str) -> Result<()> {
    let id = register(client, subject, SchemaType::JsonSchema, JSON).await?;
    let with = schema_producer(client, topic, "with", subject).await?;
    let mut without =
        client.new_producer().with_topic(topic).with_name("without").with_reliable_dispatch().build()?;
    without.create().await?;
    let at = client.resolve_topic_broker(topic).await?;
    let channel = client.get_broker_channel(&at).await?;
    let mut raw = SchemaRegistryClient::new(channel);
    let asked = GetTopicSchemaConfigRequest { topic_name: topic.to_owned() };
    let config = raw.get_topic_schema_config(asked.clone()).await?.into_inner();
    ensure!(config.schema_subject == subject && config.schema_id == id, "{config:?}");
    ensure!(
        config.validation_policy.eq_ignore_ascii_case("warn") && !config.enable_payload_validation,
        "{config:?}"
    );
    let (good, bad) = (br#"{"id":1}"#.to_vec(), br#"{"id":"text"}"#.to_vec());
    let cases = [
        // policy, payloads are checked, and what is taken: bad payload, no schema
        ("none", true, true, true),
        ("warn", true, true, true),
        ("enforce", false, true, false),
        ("enforce", true, false, false),
    ];
    for (policy, checked, takes_bad, takes_none) in cases {
        let update = UpdateTopicValidationPolicyRequest {
            topic_name: topic.to_owned(),
            validation_policy: policy.to_owned(),
            enable_payload_validation: checked,
        };
        ensure!(raw.update_topic_validation_policy(update).await?.into_inner().success);
        with.send(good.clone(), None).await.with_context(|| format!("{policy}: a good message"))?;
        let case = format!("{policy}, payloads checked: {checked}");
        ensure!(with.send(bad.clone(), None).await.is_ok() == takes_bad, "{case}: a bad payload");
        ensure!(without.send(good.clone(), None).await.is_ok() == takes_none, "{case}: no schema");
    }
    let wrong = UpdateTopicValidationPolicyRequest {
        topic_name: topic.to_owned(),
        validation_policy: "sometimes".to_owned(),
        enable_payload_validation: false,
    };
    let Err(refused) = raw.update_topic_validation_policy(wrong).await else { bail!("an unknown policy") };
    ensure!(refused.code() == tonic::Code::InvalidArgument, "{refused}");
    let request = ConfigureTopicSchemaRequest {
        topic_name: topic.to_owned(),
        schema_subject: format!("{subject}-missing"),
        validation_policy: "enforce".to_owned(),
        enable_payload_validation: true,
    };
    let Err(refused) = raw.configure_topic_schema(request).await else { bail!("an unknown subject") };
    ensure!(refused.code() == tonic::Code::NotFound, "{refused}");
    Ok(())
}
