//! The schema registry's wire, and what topics do with schemas.

use std::str::FromStr as _;
use std::sync::Arc;

use capstan_access::Verb;
use capstan_schemas::api::{NewVersion, Which};
use capstan_schemas::{Definition, Mode, Rules, SchemaError, SchemaType, Subject, VersionInfo};
use tonic::{Request, Response, Status};

use crate::agent::{Broker, Inner};
use crate::error::TopicsError;
use crate::spec::{SchemaConfig, TopicName, ValidationPolicy};
use crate::wire::danube_schema::schema_registry_server::SchemaRegistry;
use crate::wire::danube_schema::*;

type Reply<T> = Result<Response<T>, Status>;

#[derive(Clone)]
pub(super) struct Schemas {
    broker: Broker,
}

impl Schemas {
    pub(super) fn new(broker: Broker) -> Schemas {
        Schemas { broker }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.broker.inner
    }
}

/// What a failure of the registry is on the wire. Clients know one status for what cannot be registered.
fn refused(error: SchemaError) -> Status {
    let message = error.to_string();
    match error {
        SchemaError::NoSubject(_) | SchemaError::NoVersion(..) | SchemaError::NoId(_) => {
            Status::not_found(message)
        }
        SchemaError::Name(_) | SchemaError::UnknownMode(_) => Status::invalid_argument(message),
        SchemaError::InUse { .. } => Status::failed_precondition(message),
        SchemaError::Contended(_) => Status::unavailable(message),
        SchemaError::Store(error) => TopicsError::from(error).into(),
        SchemaError::Invalid { .. }
        | SchemaError::UnknownType(_)
        | SchemaError::Incompatible { .. }
        | SchemaError::Full(_) => Status::internal(message),
    }
}

fn subject(text: &str) -> Result<Subject, Status> {
    Subject::new(text).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn definition(schema_type: &str, text: &[u8]) -> Result<Definition, SchemaError> {
    let schema_type = SchemaType::from_str(schema_type)?;
    let text = std::str::from_utf8(text)
        .map_err(|error| SchemaError::Invalid { schema_type, reason: error.to_string() })?;
    Definition::parse(schema_type, text)
}

fn found(info: VersionInfo) -> GetSchemaResponse {
    let version = info.version;
    GetSchemaResponse {
        schema_id: info.schema_id,
        version: version.version,
        subject: info.subject.to_string(),
        schema_type: version.schema_def.schema_type().name().to_owned(),
        // The schema itself, which is what consumers of the field expect.
        schema_definition: version.schema_def.text().to_owned().into(),
        description: version.description,
        created_at: version.created_at,
        created_by: version.created_by,
        tags: version.tags,
        fingerprint: version.fingerprint,
        compatibility_mode: info.mode.name().to_owned(),
    }
}

fn done() -> (bool, String) {
    (true, String::new())
}

#[tonic::async_trait]
impl SchemaRegistry for Schemas {
    async fn register_schema(
        &self,
        request: Request<RegisterSchemaRequest>,
    ) -> Reply<RegisterSchemaResponse> {
        let request = request.into_inner();
        let subject = subject(&request.subject)?;
        let definition = definition(&request.schema_type, &request.schema_definition).map_err(refused)?;
        let (description, created_by, tags) = (request.description, request.created_by, request.tags);
        let new = NewVersion { definition, description, created_by, tags, rules: Rules::Danube };
        let made = self.inner().schemas().register(&subject, &new).await.map_err(refused)?;
        Ok(Response::new(RegisterSchemaResponse {
            schema_id: made.schema_id,
            version: made.version,
            is_new_version: made.is_new_version,
            fingerprint: made.fingerprint,
        }))
    }

    async fn get_schema(&self, request: Request<GetSchemaRequest>) -> Reply<GetSchemaResponse> {
        let request = request.into_inner();
        let which = request.version.map_or(Which::Latest, Which::Version);
        let info = self.inner().schemas().by_id(request.schema_id, which).await.map_err(refused)?;
        Ok(Response::new(found(info)))
    }

    async fn get_latest_schema(&self, request: Request<GetLatestSchemaRequest>) -> Reply<GetSchemaResponse> {
        let subject = subject(&request.into_inner().subject)?;
        let info = self.inner().schemas().version(&subject, Which::Latest).await.map_err(refused)?;
        Ok(Response::new(found(info)))
    }

    async fn list_versions(&self, request: Request<ListVersionsRequest>) -> Reply<ListVersionsResponse> {
        let subject = subject(&request.into_inner().subject)?;
        let record = self.inner().schemas().subject(&subject).await.map_err(refused)?;
        let schema_id = record.id;
        let versions = record.versions.into_iter().map(|version| SchemaVersionInfo {
            version: version.version,
            created_at: version.created_at,
            created_by: version.created_by,
            description: version.description,
            fingerprint: version.fingerprint,
            schema_id,
        });
        Ok(Response::new(ListVersionsResponse { versions: versions.collect() }))
    }

    async fn check_compatibility(
        &self,
        request: Request<CheckCompatibilityRequest>,
    ) -> Reply<CheckCompatibilityResponse> {
        let request = request.into_inner();
        let subject = subject(&request.subject)?;
        let mode = request.compatibility_mode.as_deref().filter(|mode| !mode.is_empty());
        let mode = mode.map(Mode::from_str).transpose().map_err(refused)?;
        let new = definition(&request.schema_type, &request.new_schema_definition).map_err(refused)?;
        let checked = self.inner().schemas().check_by(Rules::Danube, &subject, &new, mode).await;
        let problems = checked.map_err(refused)?;
        let errors: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Ok(Response::new(CheckCompatibilityResponse { is_compatible: errors.is_empty(), errors }))
    }

    async fn delete_schema_version(
        &self,
        request: Request<DeleteSchemaVersionRequest>,
    ) -> Reply<DeleteSchemaVersionResponse> {
        let request = request.into_inner();
        let subject = subject(&request.subject)?;
        self.inner().schemas().delete_version(&subject, request.version).await.map_err(refused)?;
        let (success, message) = done();
        Ok(Response::new(DeleteSchemaVersionResponse { success, message }))
    }

    async fn set_compatibility_mode(
        &self,
        request: Request<SetCompatibilityModeRequest>,
    ) -> Reply<SetCompatibilityModeResponse> {
        let request = request.into_inner();
        let mode = Mode::from_str(&request.compatibility_mode).map_err(refused)?;
        self.inner().schemas().set_mode(&subject(&request.subject)?, mode).await.map_err(refused)?;
        let (success, message) = done();
        Ok(Response::new(SetCompatibilityModeResponse { success, message }))
    }

    async fn configure_topic_schema(
        &self,
        request: Request<ConfigureTopicSchemaRequest>,
    ) -> Reply<ConfigureTopicSchemaResponse> {
        let topic: TopicName = request.get_ref().topic_name.parse()?;
        self.inner().may(&request, Verb::Operate, &topic)?;
        let request = request.into_inner();
        let info = self.inner().schemas().version(&subject(&request.schema_subject)?, Which::Latest).await;
        let config = SchemaConfig {
            subject: request.schema_subject,
            schema_id: info.map_err(refused)?.schema_id,
            validation_policy: policy(&request.validation_policy)?,
            enable_payload_validation: request.enable_payload_validation,
        };
        self.inner().rebind_schema(&topic, &config).await?;
        let (success, message) = done();
        Ok(Response::new(ConfigureTopicSchemaResponse { success, message }))
    }

    async fn update_topic_validation_policy(
        &self,
        request: Request<UpdateTopicValidationPolicyRequest>,
    ) -> Reply<UpdateTopicValidationPolicyResponse> {
        let topic: TopicName = request.get_ref().topic_name.parse()?;
        self.inner().may(&request, Verb::Operate, &topic)?;
        let request = request.into_inner();
        let policy = policy(&request.validation_policy)?;
        let checked = request.enable_payload_validation;
        self.inner()
            .set_schema(&topic, |known| SchemaConfig {
                validation_policy: policy,
                enable_payload_validation: checked,
                ..known.cloned().unwrap_or_default()
            })
            .await?;
        let (success, message) = done();
        Ok(Response::new(UpdateTopicValidationPolicyResponse { success, message }))
    }

    async fn get_topic_schema_config(
        &self,
        request: Request<GetTopicSchemaConfigRequest>,
    ) -> Reply<GetTopicSchemaConfigResponse> {
        let topic: TopicName = request.get_ref().topic_name.parse()?;
        self.inner().may_see(&request, &topic)?;
        if self.inner().record(&topic)?.is_none() {
            return Err(TopicsError::NoSuchTopic(topic.to_string()).into());
        }
        let config = self.inner().schema_of(&topic)?.unwrap_or_default();
        Ok(Response::new(GetTopicSchemaConfigResponse {
            schema_subject: config.subject,
            validation_policy: config.validation_policy.to_string(),
            enable_payload_validation: config.enable_payload_validation,
            schema_id: config.schema_id,
        }))
    }

    async fn list_subjects(&self, _: Request<ListSubjectsRequest>) -> Reply<ListSubjectsResponse> {
        let subjects = self.inner().schemas().subjects().into_iter().map(|known| SubjectInfo {
            subject: known.subject.to_string(),
            schema_type: known.schema_type.name().to_owned(),
            latest_version: known.latest_version,
            compatibility_mode: known.mode.name().to_owned(),
            schema_id: known.schema_id,
            tags: known.tags,
        });
        Ok(Response::new(ListSubjectsResponse { subjects: subjects.collect() }))
    }
}

fn policy(text: &str) -> Result<ValidationPolicy, Status> {
    text.parse().map_err(Status::invalid_argument)
}
