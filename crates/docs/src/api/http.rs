//! The routes. They begin with `/db` twice where the path of the API is `/db`, as clients expect.

mod administer;
mod archive;
mod bulk;
mod changes;
mod cluster;
mod collection;
mod input;
mod kind;
mod openapi;
mod unread;

use std::sync::Arc;
use std::time::Instant;

use axum::Router as HttpRouter;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use axum::middleware;
use bson::Document;
use serde_json::{Value, json};

use super::access::{Access, access_of};
use super::admin::Keys;
use super::answer::{Answer, error_answer, json_answer, text_answer};
use super::attachments::MAX_FILE;
use super::catalogue::{Catalogue, Created, collection_name, database_name};
use super::documents::Documents;
use crate::data::command::Command;
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{CollectionName, DatabaseName};
use crate::language::parse_query;
use crate::metrics::RequestKind;
use crate::node::Node;
use crate::router::{COMMANDS, Envelope, Renewals, SECRET_HEADER};
use crate::spec::BackupScope;
use input::{decode_segment, primary_key, read_body, read_json};

/// Bytes of a request's body.
const MAX_BODY: usize = 10 * 1024 * 1024;
/// Bytes of a command between nodes: a document and its command.
const MAX_COMMAND: usize = 16 * 1024 * 1024;

/// Serves a node.
pub(super) fn router(node: Node) -> HttpRouter {
    HttpRouter::new()
        .fallback(serve)
        .layer(middleware::from_fn(unread::drop_unread))
        .with_state(Arc::new(node))
}

async fn serve(State(node): State<Arc<Node>>, request: Request) -> Answer {
    let begun = Instant::now();
    let (kind, answered) = match Call::of(&node, request) {
        Ok((call, body)) => (call.kind(), call.answer(body).await),
        Err(error) => (RequestKind::Other, Err(error)),
    };
    let answer = answered.unwrap_or_else(|error| error_answer(&error));
    node.inner.metrics.answered(kind, answer.status().as_u16(), begun.elapsed());
    answer
}

/// The parts of a path. An empty one is a name that a client has left out: it must not make the path that of the whole
/// collection or database. One slash may end a path, but not that of a delete.
fn segments(method: &Method, path: &str) -> Result<Vec<String>, DocsError> {
    // A base URL that ends with a slash.
    let path = path.strip_prefix("/db//").map_or_else(|| path.to_owned(), |rest| format!("/db/{rest}"));
    let path = path.strip_prefix('/').unwrap_or(&path);
    let is_delete = *method == Method::DELETE;
    let path = if is_delete { path } else { path.strip_suffix('/').unwrap_or(path) };
    if path.is_empty() {
        return Ok(Vec::new());
    }
    if path.split('/').any(str::is_empty) {
        return Err(DocsError::refused("the path has an empty name"));
    }
    path.split('/').map(decode_segment).collect()
}

/// One collection, as backups name it.
fn scope(database: &DatabaseName, collection: &CollectionName) -> BackupScope {
    BackupScope { database: database.to_string(), collection: collection.to_string() }
}

/// One request.
struct Call<'n> {
    node: &'n Node,
    method: Method,
    path: Vec<String>,
    query: Document,
    headers: HeaderMap,
}

impl<'n> Call<'n> {
    fn of(node: &'n Node, request: Request) -> Result<(Call<'n>, Body), DocsError> {
        let (parts, body) = request.into_parts();
        let path = segments(&parts.method, parts.uri.path())?;
        let query = parse_query(parts.uri.query().unwrap_or_default())?;
        Ok((Call { node, method: parts.method, path, query, headers: parts.headers }, body))
    }

    fn kind(&self) -> RequestKind {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        kind::kind_of(&self.method, &path)
    }

    async fn answer(self, body: Body) -> Result<Answer, DocsError> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let rest = path.strip_prefix(&["db"]).unwrap_or(&path);
        match (&self.method, rest) {
            (&Method::GET, ["healthz"]) => return Ok(text_answer(200, "OK")),
            (&Method::GET, ["version"]) => return Ok(self.version()),
            (&Method::GET, ["openapi.json"]) => return Ok(json_answer(200, &openapi::document())),
            (&Method::GET, ["swagger.yml"]) => return Ok(openapi::yaml()),
            (&Method::GET, ["api-docs"]) => return Ok(openapi::page()),
            (&Method::POST, [COMMANDS, token]) => return self.command(token, body).await,
            _ => {}
        }
        let access = self.access()?;
        match rest {
            ["db", ..] => self.data(&access, rest.get(1..).unwrap_or_default(), body).await,
            ["sp"] => self.access_keys(&access, body).await,
            ["admin", "user", ..] => self.users(&access, rest.get(2..).unwrap_or_default(), body).await,
            ["backup"] => self.backups(&access, body).await,
            ["restore"] => self.restore_backup(&access, body).await,
            ["backup-schedule"] => self.schedules(&access, body).await,
            ["admin", "config"] if self.method == Method::GET => self.config(&access),
            ["monitoring"] | ["admin", "monitoring"] if self.method == Method::GET => {
                self.monitoring(&access).await
            }
            ["log"] | ["admin", "log"] if self.method == Method::GET => self.log(&access).await,
            ["metrics", "api"] if self.method == Method::GET => self.request_metrics(&access),
            ["metrics", "db"] if self.method == Method::GET => self.data_metrics(&access).await,
            ["cluster"] if self.method == Method::GET => self.nodes(&access).await,
            ["cluster", "add"] if self.method == Method::GET => self.add_node(&access).await,
            ["cluster", "node"] if self.method == Method::POST => self.add_node(&access).await,
            ["cluster", "digest"] => self.digest(&access).await,
            ["cluster", "dump", token] => self.dump(&access, token).await,
            ["cluster", "restore", database, collection, token] => {
                self.restore(&access, (database, collection), token, body).await
            }
            // A client that leaves the path of the API away.
            _ if path.first() == Some(&"db") => {
                self.data(&access, path.get(1..).unwrap_or_default(), body).await
            }
            _ => Err(DocsError::NotFound("there is no such route".to_owned())),
        }
    }

    fn access(&self) -> Result<Access, DocsError> {
        let router = &self.node.inner.router;
        if let Some(secret) = self.headers.get(SECRET_HEADER) {
            let wrong = || DocsError::Unauthorized("the secret is not valid".to_owned());
            return if router.is_peer(secret.as_bytes()) { Ok(Access::All) } else { Err(wrong()) };
        }
        access_of(&self.headers, &router.view.snapshot())
    }

    fn version(&self) -> Answer {
        let since = self.node.inner.started;
        let about = json!({ "name": "capstan docs", "version": env!("CARGO_PKG_VERSION"), "upSince": since,
                            "node": self.node.id().as_str() });
        json_answer(200, &about)
    }

    /// A command of another node, for a token that this one leads.
    async fn command(&self, token: &str, body: Body) -> Result<Answer, DocsError> {
        let router = &self.node.inner.router;
        let secret = self.headers.get(SECRET_HEADER).map(HeaderValue::as_bytes).unwrap_or_default();
        if !router.is_peer(secret) {
            return Err(DocsError::Unauthorized("only nodes of the cluster may do this".to_owned()));
        }
        let token: Token = token.parse()?;
        let body = read_body(body, MAX_COMMAND).await?;
        let command: Command =
            bson::deserialize_from_slice(&body).map_err(|error| DocsError::refused(error.to_string()))?;
        let copy = router.tokens().get(token);
        let local = matches!(command, Command::Digest);
        let outcome = match copy.filter(|copy| local || copy.is_leading()) {
            Some(copy) => copy.carry_out(command).await,
            None => Err(DocsError::NotPrimary(token.to_string())),
        };
        let bytes = bson::serialize_to_vec(&Envelope { outcome });
        let bytes = bytes.map_err(|error| DocsError::Broken(error.to_string()))?;
        Ok(Response::new(Body::from(bytes)))
    }

    async fn data(&self, access: &Access, path: &[&str], body: Body) -> Result<Answer, DocsError> {
        let catalogue = Catalogue(self.node);
        match (&self.method, path) {
            (&Method::GET, []) => {
                let all = catalogue.databases().await?;
                let names: Vec<&str> =
                    all.iter().filter(|name| access.sees(name)).map(DatabaseName::as_str).collect();
                Ok(json_answer(200, &json!(names)))
            }
            (&Method::POST, []) => {
                let body = read_json(body).await?;
                let name = body.get("name").and_then(Value::as_str);
                let name = name.ok_or_else(|| DocsError::refused("the name of the database is missing"))?;
                let name = database_name(name)?;
                // A key of one database may create it: it may drop it, too.
                access.admits(&name)?;
                match catalogue.create_database(&name).await? {
                    Created::Now => Ok(json_answer(202, &json!({ "_ok": true }))),
                    Created::Before => Ok(json_answer(200, &json!({ "_ok": "DB already exists" }))),
                }
            }
            (_, [database, rest @ ..]) => {
                let database = database_name(database)?;
                access.admits(&database)?;
                match rest {
                    [] => self.database(access, &database, body).await,
                    [collection, rest @ ..] => {
                        let collection = collection_name(collection)?;
                        if let (&Method::POST, ["backup"]) = (&self.method, rest) {
                            access.administers()?;
                            return self.begin_backup(&scope(&database, &collection), None).await;
                        }
                        self.collection(&database, &collection, rest, body).await
                    }
                }
            }
            (_, []) => Err(self.no_method()),
        }
    }

    fn no_method(&self) -> DocsError {
        DocsError::NotFound(format!("there is no {} for this path", self.method))
    }

    async fn database(
        &self,
        access: &Access,
        database: &DatabaseName,
        body: Body,
    ) -> Result<Answer, DocsError> {
        let catalogue = Catalogue(self.node);
        match self.method {
            Method::GET => {
                let names = catalogue.collections(database).await?;
                let names: Vec<&str> = names.iter().map(CollectionName::as_str).collect();
                Ok(json_answer(201, &json!(names)))
            }
            Method::POST => {
                let body = read_json(body).await?;
                let name = body.get("collection").and_then(Value::as_str);
                let name = name.ok_or_else(|| DocsError::refused("the name of the collection is missing"))?;
                let key = primary_key(body.get("options"))?;
                match catalogue.create_collection(database, &collection_name(name)?, key).await? {
                    Created::Now => {
                        Ok(json_answer(202, &json!({ "_ok": true, "replyMsg": [{ "_ok": true }] })))
                    }
                    Created::Before => Ok(json_answer(200, &json!({ "_ok": "Collection already exists" }))),
                }
            }
            Method::DELETE => {
                catalogue.drop_database(database).await?;
                // A key of the database may create it again, and stays.
                if access.administers().is_ok() {
                    Keys::new(self.node.inner.router.store.clone()).delete_of(database).await?;
                    self.see_own_change().await?;
                }
                Ok(json_answer(202, &json!({ "_ok": true })))
            }
            _ => Err(self.no_method()),
        }
    }

    async fn collection(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
        rest: &[&str],
        body: Body,
    ) -> Result<Answer, DocsError> {
        let catalogue = Catalogue(self.node);
        let reply = |text: &str| json!({ "_ok": true, "replyMsg": [{ "_ok": true, "result": text }] });
        match (&self.method, rest) {
            (&Method::DELETE, ["collection"]) => {
                catalogue.drop_collection(database, collection).await?;
                Ok(json_answer(201, &reply("Collection dropped.")))
            }
            (&Method::GET, ["index"]) => self.indexes(database, collection).await,
            (&Method::POST, ["index", field]) => {
                let body = read_json(body).await?;
                let options = body.get("options").unwrap_or(&Value::Null);
                catalogue.create_index(database, collection, field, options).await?;
                Ok(json_answer(201, &reply("Re-indexing started.")))
            }
            (&Method::DELETE, ["index", field]) => {
                catalogue.drop_index(database, collection, field).await?;
                Ok(json_answer(201, &reply("Index dropped.")))
            }
            (&Method::GET, ["changes"]) => self.changes(database, collection).await,
            _ => {
                // Read once: a request is made anew if the collection changes meanwhile.
                let is_upload = matches!(rest, [_, "attachment"]) && self.method == Method::POST;
                let limit = if is_upload { MAX_FILE + MAX_BODY } else { MAX_BODY };
                let body = read_body(body, limit).await?;
                let router = &self.node.inner.router;
                let mut renewals = Renewals::default();
                loop {
                    let target = router.target(database, collection).await?;
                    match self.documents(&Documents { router, target }, rest, &body).await {
                        Err(DocsError::Stale) => renewals.renew(router).await?,
                        done => return done,
                    }
                }
            }
        }
    }

    async fn indexes(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
    ) -> Result<Answer, DocsError> {
        let router = &self.node.inner.router;
        router.refresh().await?;
        let target = router.target(database, collection).await?;
        let mut answer = serde_json::Map::new();
        answer.insert("_PK".to_owned(), json!(target.spec.primary_key));
        for (field, index) in &target.spec.indexes {
            answer.insert(field.clone(), index.options.clone());
        }
        Ok(json_answer(201, &Value::Object(answer)))
    }
}
