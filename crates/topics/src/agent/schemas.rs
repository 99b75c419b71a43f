//! What topics do with schemas: the first producer that names a subject binds it; messages are checked by policy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use capstan_meta::record::Key;
use capstan_meta::settle::{Next, settle};
use capstan_meta::{Store, Txn};
use capstan_schemas::api::Which;
use capstan_schemas::{Definition, Registry, SchemaError, Subject, Validator, VersionInfo};

use super::broker::Inner;
use crate::data::message::Record;
use crate::error::TopicsError;
use crate::spec::{SchemaConfig, TopicName, ValidationPolicy};

/// Compiled schemas that are kept; beyond it all are compiled anew.
const MAX_VALIDATORS: usize = 1_024;

/// The registry, and schemas that were compiled.
pub(super) struct Schemas {
    registry: Registry,
    validators: Mutex<HashMap<(u64, u32), Arc<Validator>>>,
}

impl Schemas {
    pub(super) async fn open(store: &Store) -> Result<Schemas, TopicsError> {
        let registry = Registry::open(store.clone()).await.map_err(failed)?;
        Ok(Schemas { registry, validators: Mutex::default() })
    }

    /// The compiled version of a schema.
    async fn validator(&self, id: u64, version: Option<u32>) -> Result<Arc<Validator>, TopicsError> {
        let which = version.map_or(Which::Latest, Which::Version);
        let info = self.registry.by_id(id, which).await.map_err(failed)?;
        let key = (id, info.version.version);
        if let Some(known) = self.validators().get(&key) {
            return Ok(known.clone());
        }
        let parsed = Definition::of_stored(&info.version.schema_def).map_err(failed)?;
        let compiled = parsed.validator().map_err(|error| TopicsError::Schema(error.to_string()))?;
        let compiled = Arc::new(compiled);
        let mut validators = self.validators();
        if validators.len() >= MAX_VALIDATORS {
            validators.clear();
        }
        validators.insert(key, compiled.clone());
        Ok(compiled)
    }

    fn validators(&self) -> std::sync::MutexGuard<'_, HashMap<(u64, u32), Arc<Validator>>> {
        self.validators.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: SchemaError) -> TopicsError {
    match error {
        SchemaError::Store(error) => error.into(),
        SchemaError::Contended(error) => error.into(),
        SchemaError::NoSubject(_) | SchemaError::NoVersion(..) | SchemaError::NoId(_) => {
            TopicsError::Mismatch(error.to_string())
        }
        SchemaError::Name(_)
        | SchemaError::Invalid { .. }
        | SchemaError::UnknownType(_)
        | SchemaError::UnknownMode(_)
        | SchemaError::Incompatible { .. }
        | SchemaError::InUse { .. }
        | SchemaError::Full(_) => TopicsError::Invalid(error.to_string()),
    }
}

impl Inner {
    pub(crate) fn schemas(&self) -> &Registry {
        &self.schemas.registry
    }

    /// The schema of a topic, as the view shows it.
    pub(crate) fn schema_of(&self, topic: &TopicName) -> Result<Option<SchemaConfig>, TopicsError> {
        let found = self.view().snapshot().get(&topic.schema_key());
        let found = found.map_err(|bad| TopicsError::Corrupt(bad.to_string()))?;
        Ok(found.map(|stored| stored.record.clone()))
    }

    /// The newest version of the schema that a topic is bound to.
    pub(crate) async fn bound_version(&self, topic: &TopicName) -> Result<Option<VersionInfo>, TopicsError> {
        let Some(bound) = self.schema_of(topic)?.filter(|bound| !bound.subject.is_empty()) else {
            return Ok(None);
        };
        let subject = Subject::new(bound.subject).map_err(|error| TopicsError::Corrupt(error.to_string()))?;
        match self.schemas.registry.version(&subject, Which::Latest).await {
            Ok(found) => Ok(Some(found)),
            // The subject of a topic cannot be deleted; one that was written by hand may be missing.
            Err(SchemaError::NoSubject(_)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether a producer may name a subject: it is registered, and the topic has no other.
    pub(crate) async fn check_subject(&self, topic: &TopicName, subject: &str) -> Result<u64, TopicsError> {
        let name = Subject::new(subject).map_err(|error| TopicsError::Invalid(error.to_string()))?;
        if let Some(bound) = self.schema_of(topic)?.filter(|bound| !bound.subject.is_empty())
            && bound.subject != subject
        {
            let why = format!("topic {topic} has the schema {}, not {subject}", bound.subject);
            return Err(TopicsError::Mismatch(why));
        }
        match self.schemas.registry.version(&name, Which::Latest).await {
            Ok(info) => Ok(info.schema_id),
            // Clients look for these words.
            Err(SchemaError::NoSubject(_)) => {
                Err(TopicsError::Mismatch(format!("schema subject {subject} not found; register it first")))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Binds a subject to a topic that has none.
    pub(crate) async fn bind_schema(&self, topic: &TopicName, subject: &str) -> Result<(), TopicsError> {
        if self.schema_of(topic)?.is_some_and(|bound| bound.subject == subject) {
            return Ok(());
        }
        let schema_id = self.check_subject(topic, subject).await?;
        self.set_schema(topic, |known| match known {
            Some(known) if !known.subject.is_empty() => known.clone(),
            _ => {
                SchemaConfig { subject: subject.to_owned(), schema_id, ..known.cloned().unwrap_or_default() }
            }
        })
        .await?;
        // Another producer may have been first.
        self.check_subject(topic, subject).await?;
        let name = Subject::new(subject).map_err(|error| TopicsError::Invalid(error.to_string()))?;
        self.schemas.registry.bind(&name, &topic.to_string()).await.map_err(failed)
    }

    /// Gives a topic the schema that an operator wants, whatever it had. The subject is noted as used first, so that it
    /// cannot be deleted under the topic.
    pub(crate) async fn rebind_schema(
        &self,
        topic: &TopicName,
        config: &SchemaConfig,
    ) -> Result<(), TopicsError> {
        if self.record(topic)?.is_none() {
            return Err(TopicsError::NoSuchTopic(topic.to_string()));
        }
        let before = self.schema_of(topic)?;
        let subject =
            |text: &str| Subject::new(text).map_err(|error| TopicsError::Invalid(error.to_string()));
        let registry = &self.schemas.registry;
        registry.bind(&subject(&config.subject)?, &topic.to_string()).await.map_err(failed)?;
        self.set_schema(topic, |_| config.clone()).await?;
        match before.filter(|before| before.subject != config.subject) {
            Some(before) => self.unbind_schema(topic, &before).await,
            None => Ok(()),
        }
    }

    /// A topic does not use a schema any more.
    pub(crate) async fn unbind_schema(
        &self,
        topic: &TopicName,
        config: &SchemaConfig,
    ) -> Result<(), TopicsError> {
        if config.subject.is_empty() {
            return Ok(());
        }
        let subject = Subject::new(config.subject.as_str());
        let subject = subject.map_err(|error| TopicsError::Corrupt(error.to_string()))?;
        match self.schemas.registry.unbind(&subject, &topic.to_string()).await {
            Ok(()) | Err(SchemaError::NoSubject(_)) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Changes the schema of a topic and waits until the view shows it.
    pub(crate) async fn set_schema(
        &self,
        topic: &TopicName,
        change: impl Fn(Option<&SchemaConfig>) -> SchemaConfig + Send,
    ) -> Result<(), TopicsError> {
        let (key, record) = (topic.schema_key(), topic.record_key());
        let store = self.store();
        let what = format!("schema of topic {topic}");
        let read = || async { Ok::<_, TopicsError>((store.read(&record).await?, store.read(&key).await?)) };
        settle(store, &what, read, |(topic_record, seen), _| {
            let Some(topic_record) = topic_record else {
                return Err(TopicsError::NoSuchTopic(topic.to_string()));
            };
            let next = change(seen.as_ref().map(|seen| &seen.record));
            if seen.as_ref().is_some_and(|seen| seen.record == next) {
                return Ok(Next::Done(()));
            }
            let txn = Txn::new().when(record.same_life(topic_record)).when(key.as_seen(seen.as_ref()));
            Ok(Next::Commit(txn.then(key.put(&next))))
        })
        .await?;
        self.caught_up().await
    }

    /// Checks messages against the schema of their topic, as its policy says.
    pub(crate) async fn check_schema(
        &self,
        topic: &TopicName,
        records: &[Record],
    ) -> Result<(), TopicsError> {
        let Some(config) = self.schema_of(topic)?.filter(|config| !config.subject.is_empty()) else {
            return Ok(());
        };
        if config.validation_policy == ValidationPolicy::None {
            return Ok(());
        }
        for record in records {
            let Err(problem) = self.check_record(&config, record).await else { continue };
            match config.validation_policy {
                ValidationPolicy::Enforce => return Err(problem),
                ValidationPolicy::Warn | ValidationPolicy::None => {
                    tracing::debug!(%topic, error = %problem, "message does not fit its topic's schema");
                }
            }
        }
        Ok(())
    }

    async fn check_record(&self, config: &SchemaConfig, record: &Record) -> Result<(), TopicsError> {
        match record.schema_id {
            Some(id) if id == config.schema_id => {}
            Some(id) => {
                let why = format!(
                    "a message has schema {id}, and the topic has {} ({})",
                    config.schema_id, config.subject
                );
                return Err(TopicsError::Schema(why));
            }
            None => {
                let why = format!("a message names no schema, and the topic has {}", config.subject);
                return Err(TopicsError::Schema(why));
            }
        }
        if !config.enable_payload_validation {
            return Ok(());
        }
        let validator = self.schemas.validator(config.schema_id, record.schema_version).await?;
        let payload = record.value.as_deref().unwrap_or_default();
        validator.check(payload).map_err(|error| TopicsError::Schema(error.to_string()))
    }
}
