//! The HTTP shape of the Confluent schema registry, so that existing serialisers work unchanged.
//!
//! Ids here name single versions: see [`VersionId`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use capstan_meta::Store;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::api::{NewVersion, Registry, VersionId, VersionInfo, Which};
use crate::compat::Mode;
use crate::error::SchemaError;
use crate::format::{Definition, MAX_SCHEMA_BYTES, SchemaType};
use crate::keys::Subject;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/vnd.schemaregistry.v1+json");
/// A request is a schema as a JSON string, in which every byte may be escaped.
const MAX_BODY_BYTES: usize = 2 * MAX_SCHEMA_BYTES;
/// Who registered a version that came over this interface.
const REGISTRANT: &str = "schema-registry-http";

/// The routes, to be served as they are or below a prefix. The registry is opened by the first request: a process that
/// serves none of them keeps no view of all schemas.
pub fn router(store: Store) -> Router {
    let served = Served { store, registry: Arc::default() };
    Router::new()
        .route("/", get(async || Answer(json!({}))))
        .route("/subjects", get(subjects))
        .route("/subjects/{subject}", post(lookup).delete(delete_subject))
        .route("/subjects/{subject}/versions", get(versions).post(register))
        .route("/subjects/{subject}/versions/{version}", get(version).delete(delete_version))
        .route("/subjects/{subject}/versions/{version}/schema", get(version_text))
        // tidy: allow, because it is a URL
        .route("/schemas/types", get(async || Answer(json!(["JSON", "PROTOBUF", "AVRO"]))))
        // tidy: allow, because it is a URL
        .route("/schemas/ids/{id}", get(by_id))
        // tidy: allow, because it is a URL
        .route("/schemas/ids/{id}/schema", get(text_by_id))
        // tidy: allow, because it is a URL
        .route("/schemas/ids/{id}/versions", get(versions_by_id))
        .route("/compatibility/subjects/{subject}/versions", post(check_latest))
        .route("/compatibility/subjects/{subject}/versions/{version}", post(check))
        .route("/config", get(default_mode).put(set_default_mode))
        .route("/config/{subject}", get(mode).put(set_mode))
        .route("/mode", get(async || Answer(json!({"mode": "READWRITE"}))))
        .route("/mode/{subject}", delete(async || Answer(json!({"mode": "READWRITE"}))))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(served)
}

/// What the routes share.
#[derive(Clone, Debug)]
struct Served {
    store: Store,
    registry: Arc<OnceCell<Registry>>,
}

/// The registry, opened if it is not.
struct Open(Registry);

impl FromRequestParts<Served> for Open {
    type Rejection = Failure;

    async fn from_request_parts(_: &mut Parts, served: &Served) -> Result<Open, Failure> {
        let open = || Registry::open(served.store.clone());
        Ok(Open(served.registry.get_or_try_init(open).await?.clone()))
    }
}

/// A schema in a request.
#[derive(Debug, Deserialize)]
struct SchemaBody {
    schema: String,
    #[serde(rename = "schemaType", default)]
    schema_type: Option<String>,
    #[serde(default)]
    references: Vec<Value>,
}

#[derive(Debug, Deserialize)]
struct ModeBody {
    compatibility: String,
}

struct Answer<T>(T);

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], axum::Json(self.0)).into_response().with_type()
    }
}

/// Keeps the content type that clients of this interface expect.
trait WithType {
    fn with_type(self) -> Response;
}

impl WithType for Response {
    fn with_type(mut self) -> Response {
        self.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        self
    }
}

/// An error with the number that clients of this interface look at.
struct Failure {
    status: StatusCode,
    code: u32,
    message: String,
}

impl Failure {
    fn unprocessable(code: u32, message: impl Into<String>) -> Failure {
        Failure { status: StatusCode::UNPROCESSABLE_ENTITY, code, message: message.into() }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({"error_code": self.code, "message": self.message});
        (self.status, axum::Json(body)).into_response().with_type()
    }
}

impl From<SchemaError> for Failure {
    fn from(error: SchemaError) -> Failure {
        let (status, code) = match &error {
            SchemaError::NoSubject(_) => (StatusCode::NOT_FOUND, 40401),
            SchemaError::NoVersion(..) => (StatusCode::NOT_FOUND, 40402),
            SchemaError::NoId(_) => (StatusCode::NOT_FOUND, 40403),
            SchemaError::Incompatible { .. } => (StatusCode::CONFLICT, 409),
            SchemaError::Invalid { .. } | SchemaError::UnknownType(_) => {
                (StatusCode::UNPROCESSABLE_ENTITY, 42201)
            }
            SchemaError::UnknownMode(_) => (StatusCode::UNPROCESSABLE_ENTITY, 42203),
            SchemaError::Name(_) => (StatusCode::UNPROCESSABLE_ENTITY, 42208),
            SchemaError::InUse { .. } => (StatusCode::UNPROCESSABLE_ENTITY, 42206),
            SchemaError::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, 50701),
            SchemaError::Contended(_) => (StatusCode::SERVICE_UNAVAILABLE, 50301),
            SchemaError::Store(_) => (StatusCode::INTERNAL_SERVER_ERROR, 50001),
        };
        Failure { status, code, message: error.to_string() }
    }
}

type Reply = Result<Answer<Value>, Failure>;

/// The body of a request, with this interface's error where it is not JSON of the expected form.
struct Body<T>(T);

impl<T, S> axum::extract::FromRequest<S> for Body<T>
where
    T: serde::de::DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = Failure;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Body<T>, Failure> {
        let bytes = bytes::Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| Failure::unprocessable(42201, error.body_text()))?;
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Body).map_err(|error| Failure::unprocessable(42201, error.to_string()))
    }
}

impl SchemaBody {
    fn definition(&self) -> Result<Definition, Failure> {
        if !self.references.is_empty() {
            return Err(Failure::unprocessable(42201, "references between schemas are not supported"));
        }
        let schema_type: SchemaType = self.schema_type.as_deref().unwrap_or("AVRO").parse()?;
        // Primitive Avro schemas arrive as JSON strings ("\"string\""), so the language is always taken as named.
        Ok(Definition::parse(schema_type, &self.schema)?)
    }
}

fn subject_of(text: &str) -> Result<Subject, Failure> {
    Ok(Subject::new(text).map_err(SchemaError::from)?)
}

fn which(text: &str) -> Result<Which, Failure> {
    match text {
        "latest" | "-1" => Ok(Which::Latest),
        number => {
            let version = number.parse().ok().filter(|version| *version > 0);
            version.map(Which::Version).ok_or_else(|| {
                Failure::unprocessable(42202, format!("{number:?} is not a version: use a number or latest"))
            })
        }
    }
}

/// The language as this interface writes it; Avro is the default and stays unwritten.
fn type_word(schema_type: SchemaType) -> Option<&'static str> {
    match schema_type {
        SchemaType::Avro => None,
        SchemaType::JsonSchema => Some("JSON"),
        SchemaType::Protobuf => Some("PROTOBUF"),
        SchemaType::Bytes => Some("BYTES"),
        SchemaType::String => Some("STRING"),
        SchemaType::Number => Some("NUMBER"),
    }
}

fn schema_fields(found: &VersionInfo) -> Value {
    let mut fields = json!({"schema": found.version.schema_def.text()});
    if let (Some(word), Some(fields)) =
        (type_word(found.version.schema_def.schema_type()), fields.as_object_mut())
    {
        fields.insert("schemaType".to_owned(), json!(word));
    }
    fields
}

fn version_fields(found: &VersionInfo) -> Result<Value, Failure> {
    let id = VersionId::new(found.schema_id, found.version.version)?;
    let mut fields = json!({"subject": found.subject.as_str(), "id": id.0, "version": found.version.version});
    if let (Some(fields), Value::Object(schema)) = (fields.as_object_mut(), schema_fields(found)) {
        fields.extend(schema);
    }
    Ok(fields)
}

async fn subjects(Open(registry): Open) -> Answer<Value> {
    Answer(registry.subjects().iter().map(|subject| subject.subject.as_str()).collect())
}

async fn versions(Open(registry): Open, Path(subject): Path<String>) -> Reply {
    let record = registry.subject(&subject_of(&subject)?).await?;
    Ok(Answer(record.versions.iter().map(|version| version.version).collect()))
}

async fn register(Open(registry): Open, Path(subject): Path<String>, Body(body): Body<SchemaBody>) -> Reply {
    let new = NewVersion::new(body.definition()?, REGISTRANT);
    let registered = registry.register(&subject_of(&subject)?, &new).await?;
    Ok(Answer(json!({"id": VersionId::new(registered.schema_id, registered.version)?.0})))
}

/// Finds the version of a subject that has exactly this schema.
async fn lookup(Open(registry): Open, Path(subject): Path<String>, Body(body): Body<SchemaBody>) -> Reply {
    let subject = subject_of(&subject)?;
    let wanted = body.definition()?.fingerprint();
    let record = registry.subject(&subject).await?;
    let found = record.versions.iter().find(|version| version.fingerprint == wanted);
    let message = "Schema not found".to_owned();
    let found = found.ok_or(Failure { status: StatusCode::NOT_FOUND, code: 40403, message })?;
    let found = registry.version(&subject, Which::Version(found.version)).await?;
    Ok(Answer(version_fields(&found)?))
}

async fn find_version(registry: &Registry, subject: &str, version: &str) -> Result<VersionInfo, Failure> {
    Ok(registry.version(&subject_of(subject)?, which(version)?).await?)
}

async fn version(
    Open(registry): Open,
    Path((subject, version)): Path<(String, String)>,
    Query(form): Query<Form>,
) -> Reply {
    let found = find_version(&registry, &subject, &version).await?;
    Ok(Answer(form.apply(&found, version_fields(&found)?)?))
}

async fn version_text(
    Open(registry): Open,
    Path((subject, version)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let found = find_version(&registry, &subject, &version).await?;
    Ok(found.version.schema_def.text().to_owned().into_response().with_type())
}

async fn delete_version(Open(registry): Open, Path((subject, version)): Path<(String, String)>) -> Reply {
    let found = find_version(&registry, &subject, &version).await?;
    registry.delete_version(&found.subject, found.version.version).await?;
    Ok(Answer(json!(found.version.version)))
}

#[derive(Debug, Deserialize)]
struct Deletion {
    /// Asked for once more after the deletion, by clients that know of two kinds. Here there is one: nothing is left.
    #[serde(default)]
    permanent: bool,
}

async fn delete_subject(
    Open(registry): Open,
    Path(subject): Path<String>,
    Query(deletion): Query<Deletion>,
) -> Reply {
    match registry.delete_subject(&subject_of(&subject)?).await {
        Err(SchemaError::NoSubject(_)) if deletion.permanent => Ok(Answer(json!([]))),
        deleted => Ok(Answer(json!(deleted?))),
    }
}

async fn find_id(registry: &Registry, id: u64) -> Result<VersionInfo, Failure> {
    let id = VersionId(id);
    let version = id.version().ok_or(SchemaError::NoId(id.0))?;
    match registry.by_id(id.schema_id(), Which::Version(version)).await {
        Err(SchemaError::NoVersion(..)) => Err(SchemaError::NoId(id.0).into()),
        found => Ok(found?),
    }
}

/// The form in which a schema is wanted: `serialized` is the compiled form of Protobuf.
#[derive(Debug, Default, Deserialize)]
struct Form {
    #[serde(default)]
    format: String,
}

impl Form {
    fn apply(&self, found: &VersionInfo, mut fields: Value) -> Result<Value, Failure> {
        if self.format == "serialized"
            && let Some(compiled) = Definition::of_stored(&found.version.schema_def)?.compiled()
        {
            fields["schema"] = json!(compiled);
        }
        Ok(fields)
    }
}

async fn by_id(Open(registry): Open, Path(id): Path<u64>, Query(form): Query<Form>) -> Reply {
    let found = find_id(&registry, id).await?;
    Ok(Answer(form.apply(&found, schema_fields(&found))?))
}

async fn text_by_id(Open(registry): Open, Path(id): Path<u64>) -> Result<Response, Failure> {
    let found = find_id(&registry, id).await?;
    Ok(found.version.schema_def.text().to_owned().into_response().with_type())
}

async fn versions_by_id(Open(registry): Open, Path(id): Path<u64>) -> Reply {
    let found = find_id(&registry, id).await?;
    Ok(Answer(json!([{"subject": found.subject.as_str(), "version": found.version.version}])))
}

async fn check_latest(open: Open, Path(subject): Path<String>, body: Body<SchemaBody>) -> Reply {
    check(open, Path((subject, "latest".to_owned())), body).await
}

/// Compares with one version, by the mode of the subject.
async fn check(
    Open(registry): Open,
    Path((subject, version)): Path<(String, String)>,
    Body(body): Body<SchemaBody>,
) -> Reply {
    let new = body.definition()?;
    let found = find_version(&registry, &subject, &version).await?;
    let old = Definition::of_stored(&found.version.schema_def)?;
    let problems = crate::compat::problems(found.mode, &new, &[(found.version.version, old)]);
    let messages = problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    Ok(Answer(json!({"is_compatible": messages.is_empty(), "messages": messages})))
}

fn mode_word(mode: Mode) -> String {
    mode.name().to_ascii_uppercase()
}

async fn default_mode(Open(registry): Open) -> Reply {
    Ok(Answer(json!({"compatibilityLevel": mode_word(registry.default_mode()?)})))
}

async fn set_default_mode(Open(registry): Open, Body(body): Body<ModeBody>) -> Reply {
    let mode: Mode = body.compatibility.parse()?;
    registry.set_default_mode(mode).await?;
    Ok(Answer(json!({"compatibility": mode_word(mode)})))
}

async fn mode(Open(registry): Open, Path(subject): Path<String>) -> Reply {
    let record = registry.subject(&subject_of(&subject)?).await?;
    Ok(Answer(json!({"compatibilityLevel": mode_word(record.compatibility_mode)})))
}

async fn set_mode(Open(registry): Open, Path(subject): Path<String>, Body(body): Body<ModeBody>) -> Reply {
    let mode: Mode = body.compatibility.parse()?;
    registry.set_mode(&subject_of(&subject)?, mode).await?;
    Ok(Answer(json!({"compatibility": mode_word(mode)})))
}
