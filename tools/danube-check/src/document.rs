//! The client of the document's time, 0.6.2.

crate::common_checks!(danube_client_06, danube_core_06, super::document::made);

use danube_client_06::{CompatibilityMode, SchemaRegistryClient, SchemaType};

/// Builders of this version always build.
pub fn made<T>(built: T) -> Result<T> {
    Ok(built)
}

pub async fn all(urls: &[&str]) -> Result<()> {
    let run = run_name()?;
    common(urls, &run).await?;
    let client = connect(urls.first().context("no url")?).await?;
    let topic = format!("/default/old-schemas-{run}");
    step("schemas", schemas(&client, &topic, &format!("old-orders-{run}"))).await?;
    step("errors have details", details(&client)).await?;
    Ok(())
}

async fn schemas(client: &DanubeClient, topic: &str, subject: &str) -> Result<()> {
    let mut registry = SchemaRegistryClient::new(client).await?;
    let first = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}"#;
    let second = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},
        {"name":"note","type":"string","default":""}]}"#;
    let id = registry
        .register_schema(subject)
        .with_type(SchemaType::Avro)
        .with_schema_data(first)
        .execute()
        .await?;
    let again = registry.register_schema(subject).with_type(SchemaType::Avro).with_schema_data(second);
    ensure!(again.execute().await? == id);
    ensure!(registry.list_versions(subject).await? == [1, 2]);
    ensure!(registry.get_latest_schema(subject).await?.version == 2);
    ensure!(registry.get_schema_by_id(id).await?.version == 2);
    ensure!(
        registry.get_schema_version(id, Some(1)).await?.schema_definition_as_string().as_deref()
            == Some(first)
    );
    let broken = br#"{"type":"record","name":"Order","fields":[{"name":"must","type":"string"}]}"#.to_vec();
    let checked = registry.check_compatibility(subject, broken.clone(), SchemaType::Avro, None).await?;
    ensure!(!checked.is_compatible && !checked.errors.is_empty());
    let anything = Some(CompatibilityMode::None);
    ensure!(registry.check_compatibility(subject, broken, SchemaType::Avro, anything).await?.is_compatible);
    ensure!(registry.set_compatibility_mode(subject, CompatibilityMode::Full).await?.success);
    let builder = client.new_producer().with_topic(topic).with_name("producer").with_reliable_dispatch();
    let mut producer = builder.with_schema_version(subject, 1).build();
    producer.create().await?;
    let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
    producer.send(b"x".to_vec(), None).await?;
    let message = next(&mut messages).await?;
    ensure!(message.schema_id == Some(id) && message.schema_version == Some(1));
    consumer.ack(&message).await?;
    Ok(())
}

/// This version reads the details of an error from a trailer, and ends with a panic if it cannot.
async fn details(client: &DanubeClient) -> Result<()> {
    let mut wrong = client.new_producer().with_topic("not_a_topic").with_name("producer").build();
    let refused = wrong.create().await.err().context("a name without a namespace")?;
    let danube_client_06::errors::DanubeError::FromStatus(_, Some(details)) = &refused else {
        anyhow::bail!("no details: {refused}");
    };
    ensure!(details.error_type == 1, "the type for a wrong name: {details:?}");
    Ok(())
}
