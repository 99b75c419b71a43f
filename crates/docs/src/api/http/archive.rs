//! Requests about backups and their schedules.

use axum::body::Body;
use axum::http::Method;
use capstan_meta::record::Extra;
use serde_json::{Value, json};

use super::Call;
use super::input::{parse_json, read_body, text_of};
use crate::api::access::Access;
use crate::api::answer::{Answer, json_answer, text_answer};
use crate::api::archive::{Archive, FILE, Wish};
use crate::api::backup::Indexes;
use crate::error::DocsError;
use crate::spec::{BackupSchedule, BackupScope, Retention};

impl Call<'_> {
    /// Lists backups, or begins one.
    pub(super) async fn backups(&self, access: &Access, body: Body) -> Result<Answer, DocsError> {
        access.administers()?;
        let archive = Archive(self.node);
        match self.method {
            Method::GET => {
                let listed = archive.list().await?;
                let shown: Vec<Value> = listed
                    .iter()
                    .map(|(id, record)| {
                        json!({ "id": id.as_str(), "date": record.date, "node": record.node.as_str(),
                                "location": record.location, "dbName": record.scope.database,
                                "collName": record.scope.collection, "size": record.size,
                                "status": record.status, "error": record.error, "retention": record.retention,
                                "restore": record.restore })
                    })
                    .collect();
                Ok(json_answer(200, &json!(shown)))
            }
            Method::POST => {
                let body = optional_json(body).await?;
                check_destination(&body)?;
                self.begin_backup(&scope_of(&body)?, retention_of(&body)?).await
            }
            _ => Err(self.no_method()),
        }
    }

    /// Begins a backup.
    pub(super) async fn begin_backup(
        &self,
        scope: &BackupScope,
        retention: Option<Retention>,
    ) -> Result<Answer, DocsError> {
        let (id, record) = Archive(self.node).begin(scope, retention).await?;
        let (database, collection) = (&scope.database, &scope.collection);
        let text = format!("Started backup {id} of {database}/{collection} on node {}", record.node);
        Ok(text_answer(200, &text))
    }

    /// Restores collections of a backup under new names.
    pub(super) async fn restore_backup(&self, access: &Access, body: Body) -> Result<Answer, DocsError> {
        access.administers()?;
        if self.method != Method::POST {
            return Err(self.no_method());
        }
        let body = optional_json(body).await?;
        let scope = scope_of(&body)?;
        let name = |field: &str| {
            Ok::<_, DocsError>(text(&body, field)?.filter(|text| !text.is_empty()).map(str::to_owned))
        };
        let (restored, plain) =
            (flag(&body, "restoreIndex")?.unwrap_or(true), flag(&body, "deactivateExpire")?);
        let indexes = match (restored, plain.unwrap_or(false)) {
            (false, _) => Indexes::None,
            (true, true) => Indexes::WithoutExpiry,
            (true, false) => Indexes::All,
        };
        let wish =
            Wish { id: name("id")?, date: name("backupDate")?, source: name("source")?, scope, indexes };
        Ok(text_answer(200, &Archive(self.node).restore(&wish, &body).await?))
    }

    /// Lists, adds and deletes schedules.
    pub(super) async fn schedules(&self, access: &Access, body: Body) -> Result<Answer, DocsError> {
        access.administers()?;
        let archive = Archive(self.node);
        match self.method {
            Method::GET => {
                let listed = archive.schedules().await?;
                let shown: Vec<Value> = listed
                    .iter()
                    .map(|(id, schedule)| {
                        json!({ "id": id.as_str(), "dbName": schedule.scope.database,
                                "collName": schedule.scope.collection, "dest": FILE,
                                "schedule": schedule.schedule, "retention": schedule.retention })
                    })
                    .collect();
                Ok(json_answer(200, &json!(shown)))
            }
            Method::POST => {
                let body = optional_json(body).await?;
                check_destination(&body)?;
                let line = text(&body, "schedule")?.unwrap_or_default();
                let schedule = BackupSchedule {
                    scope: scope_of(&body)?,
                    schedule: line.parse().map_err(|error| DocsError::refused(format!("{error}")))?,
                    retention: retention_of(&body)?,
                    last_run: 0,
                    extra: Extra::default(),
                };
                let id = archive.schedule(&schedule).await?;
                Ok(text_answer(200, &format!("Added backup schedule {id}")))
            }
            Method::DELETE => {
                let id = text_of(self.query.get("id")).unwrap_or_default();
                archive.unschedule(&id).await?;
                Ok(text_answer(200, "Deleted"))
            }
            _ => Err(self.no_method()),
        }
    }
}

/// A body that may be left out.
async fn optional_json(body: Body) -> Result<Value, DocsError> {
    let body = read_body(body, super::MAX_BODY).await?;
    if body.is_empty() { Ok(json!({})) } else { parse_json(&body) }
}

fn text<'b>(body: &'b Value, field: &str) -> Result<Option<&'b str>, DocsError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(DocsError::refused(format!("{field} is a text"))),
    }
}

fn flag(body: &Value, field: &str) -> Result<Option<bool>, DocsError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(Value::String(text)) if text == "true" || text == "false" => Ok(Some(text == "true")),
        Some(_) => Err(DocsError::refused(format!("{field} is true or false"))),
    }
}

/// The database must be named; all of its collections are meant if none is.
fn scope_of(body: &Value) -> Result<BackupScope, DocsError> {
    let missing = || DocsError::refused("dbName is the name of a database, or *");
    let database = text(body, "dbName")?.filter(|name| !name.is_empty()).ok_or_else(missing)?;
    let collection = text(body, "collName")?.filter(|name| !name.is_empty()).unwrap_or("*");
    Ok(BackupScope { database: database.to_owned(), collection: collection.to_owned() })
}

fn retention_of(body: &Value) -> Result<Option<Retention>, DocsError> {
    match text(body, "retention")? {
        None | Some("") => Ok(None),
        Some(text) => serde_json::from_value(json!(text))
            .map(Some)
            .map_err(|_| DocsError::refused("retention is 1w, 1m, 3m or 1y")),
    }
}

fn check_destination(body: &Value) -> Result<(), DocsError> {
    match text(body, "dest")? {
        None | Some("" | FILE) => Ok(()),
        Some(_) => Err(DocsError::refused("dest is File: nothing else is supported")),
    }
}
