//! Requests about the documents of a collection.

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, header};
use bson::Document;
use bytes::Bytes;
use serde_json::{Value, json};

use super::Call;
use super::bulk::bulk;
use super::input::{parse_json, text_of};
use crate::api::answer::{Answer, json_answer, not_found};
use crate::api::attachments::{Upload, check_name, content, listed};
use crate::api::documents::{Documents, Listing, MAX_INSERT, NotInserted, ids_of_text};
use crate::data::command::{Command, Write};
use crate::error::DocsError;
use crate::id::is_hex;
use crate::language::json::{document_to_json, object_from_json};
use crate::language::to_json;
use crate::router::Concern;

impl Call<'_> {
    pub(super) async fn documents(
        &self,
        documents: &Documents<'_>,
        rest: &[&str],
        body: &Bytes,
    ) -> Result<Answer, DocsError> {
        match (&self.method, rest) {
            (&Method::POST, []) => insert(documents, body).await,
            (&Method::POST, ["bulk"]) => bulk(documents, body).await,
            (&Method::GET, []) => self.find(documents).await,
            (&Method::PUT, []) => update(documents, body).await,
            (&Method::DELETE, []) => self.delete(documents).await,
            (&Method::GET, ["count"]) => {
                let count = documents.count(&self.filter("query")?).await?;
                Ok(json_answer(200, &json!({ "_ok": true, "count": count })))
            }
            (&Method::GET, ["explain"]) => {
                let found = documents.find(&self.filter("query")?, &self.options()?).await?;
                let plan = json!({ "_ok": true, "index": found.index, "lookedAt": found.looked_at,
                                   "found": found.documents.len() });
                Ok(json_answer(200, &plan))
            }
            (&Method::GET, ["group", field]) => {
                let groups = documents.group(&self.filter("query")?, field).await?;
                let groups: Vec<Value> = groups
                    .into_iter()
                    .map(|(value, count)| json!({ "value": to_json(value), "count": count }))
                    .collect();
                Ok(json_answer(200, &json!({ "_ok": true, "groups": groups })))
            }
            (method, [id]) => self.document(documents, method, id, body).await,
            (_, [id, "attachment", rest @ ..]) => self.attachment(documents, id, rest, body).await,
            _ => Err(self.no_method()),
        }
    }

    pub(super) async fn document(
        &self,
        documents: &Documents<'_>,
        method: &Method,
        id: &str,
        body: &Bytes,
    ) -> Result<Answer, DocsError> {
        let key = documents.existing(ids_of_text(id)).await?;
        match *method {
            Method::GET => match documents.get(&key, self.concern()).await? {
                Some(document) => Ok(json_answer(200, &Listing::one(id, &document))),
                None => missing(id),
            },
            Method::PUT => {
                let document = object_from_json(parse_json(body)?, "the document")?;
                match documents.replace(&key, document).await {
                    Ok(()) => Ok(json_answer(200, &json!({ "_ok": true, "_id": id }))),
                    Err(DocsError::NotFound(_)) => missing(id),
                    Err(error) => Err(error),
                }
            }
            Method::DELETE => {
                if documents.delete_id(&key, &Document::new()).await? {
                    return Ok(json_answer(200, &json!({ "_ok": true, "_id": id, "results": [id] })));
                }
                Err(DocsError::NotFound("Not found".to_owned()))
            }
            _ => Err(self.no_method()),
        }
    }

    pub(super) async fn find(&self, documents: &Documents<'_>) -> Result<Answer, DocsError> {
        let options = self.options()?;
        let found = documents.find(&self.filter("query")?, &options).await?;
        if options.one && found.by_id && found.documents.is_empty() {
            return Ok(not_found());
        }
        Ok(json_answer(200, &Listing::of(&found)))
    }

    pub(super) async fn delete(&self, documents: &Documents<'_>) -> Result<Answer, DocsError> {
        // Both names are documented. A filter that is not understood must not mean every document.
        let filter = match (self.query.get("filter"), self.query.get("query")) {
            (Some(_), Some(_)) => return Err(DocsError::refused("either filter or query, not both")),
            (None, Some(_)) => self.filter("query")?,
            (_, None) => self.filter("filter")?,
        };
        if self.options()?.one {
            return match documents.delete_one(&filter).await? {
                Some(id) => {
                    let id = to_json(id);
                    Ok(json_answer(
                        200,
                        &json!({ "_ok": true, "_id": id, "results": [id], "deletedCount": 1 }),
                    ))
                }
                None => Ok(not_found()),
            };
        }
        let deleted: Vec<Value> = documents.delete_many(&filter).await?.into_iter().map(to_json).collect();
        let count = deleted.len();
        Ok(json_answer(200, &json!({ "_ok": true, "results": deleted, "deletedCount": count })))
    }

    pub(super) async fn attachment(
        &self,
        documents: &Documents<'_>,
        id: &str,
        rest: &[&str],
        body: &Bytes,
    ) -> Result<Answer, DocsError> {
        let key = documents.existing(ids_of_text(id)).await?;
        let (router, target) = (documents.router, &documents.target);
        let found = documents.get(&key, Concern::Linearizable).await?;
        let document = found.ok_or_else(|| DocsError::NotFound("Not found".to_owned()))?;
        match (&self.method, rest) {
            (&Method::POST, []) => {
                let upload = Upload::new(router, target, key);
                self.upload(upload, body.clone()).await?;
                Ok(json_answer(202, &json!({ "_ok": true })))
            }
            (&Method::GET, []) => {
                let mut answer = serde_json::Map::from_iter([("_ok".to_owned(), Value::Bool(true))]);
                if let Value::Object(files) = document_to_json(listed(&document)) {
                    answer.extend(files);
                }
                Ok(json_answer(200, &Value::Object(answer)))
            }
            (&Method::GET, [file]) => {
                let (kind, bytes) = content(router, target, &document, file).await?;
                let mut answer = Response::new(Body::from(bytes));
                let fallback = HeaderValue::from_static("application/octet-stream");
                let kind = HeaderValue::from_str(&kind).unwrap_or(fallback);
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                let name: String = file.chars().filter(|c| c.is_ascii_graphic() && *c != '"').collect();
                let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
                if let Ok(disposition) = disposition {
                    answer.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
                }
                Ok(answer)
            }
            (&Method::DELETE, [file]) => {
                let write = Write::Detach { id: key.clone(), file: (*file).to_owned() };
                router.ask(router.token_of(&key), Command::Write(target.clone(), write)).await?;
                Ok(json_answer(200, &json!({ "_ok": true })))
            }
            _ => Err(self.no_method()),
        }
    }

    pub(super) async fn upload(&self, mut upload: Upload<'_>, body: Bytes) -> Result<(), DocsError> {
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let bad = |error: multer::Error| DocsError::refused(format!("not a valid multipart body: {error}"));
        let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(bad)?;
        let stream = futures_util::stream::once(async { Ok::<_, std::convert::Infallible>(body) });
        let mut parts = multer::Multipart::new(stream, boundary);
        while let Some(mut field) = parts.next_field().await.map_err(bad)? {
            if field.name() != Some("file") {
                continue;
            }
            let name = field.file_name().unwrap_or_default();
            let name = name.rsplit('/').next().unwrap_or_default().to_owned();
            check_name(&name)?;
            let kind =
                field.content_type().map_or("application/octet-stream".to_owned(), ToString::to_string);
            while let Some(chunk) = field.chunk().await.map_err(bad)? {
                upload.push(&chunk).await?;
            }
            let label = text_of(self.query.get("label")).unwrap_or_default();
            return upload.finish(&name, &label, &kind).await;
        }
        Err(DocsError::refused("File required"))
    }
}

/// An id of the usual form that is not there is an answer; another text is not an id at all.
fn missing(id: &str) -> Result<Answer, DocsError> {
    if is_hex(id) { Ok(not_found()) } else { Err(DocsError::NotFound("Not found".to_owned())) }
}

async fn insert(documents: &Documents<'_>, body: &Bytes) -> Result<Answer, DocsError> {
    let mut body = parse_json(body)?;
    let given = body.get_mut("doc").map(Value::take).unwrap_or_default();
    let list = match given {
        Value::Array(list) => list,
        document @ Value::Object(_) => vec![document],
        _ => return Err(DocsError::refused("doc is an object or an array of objects")),
    };
    if list.len() > MAX_INSERT {
        return Err(DocsError::TooLarge(format!("one request inserts at most {MAX_INSERT} documents")));
    }
    let list = list.into_iter().map(|document| object_from_json(document, "a document"));
    let list = list.collect::<Result<Vec<_>, _>>()?;
    let outcomes = documents.insert(list).await;
    let (all, mut results) = (outcomes.len(), Vec::with_capacity(outcomes.len()));
    let (mut inserted, mut worst) = (0, None);
    for outcome in outcomes {
        match outcome {
            Ok(id) => {
                inserted += 1;
                let id = to_json(id);
                let value = json!({ "_ok": true, "replyMsg": [{ "_ok": true, "_id": id }], "_id": id });
                results.push(json!({ "status": "fulfilled", "value": value }));
            }
            Err(NotInserted { error: DocsError::Stale, .. }) => return Err(DocsError::Stale),
            Err(NotInserted { error, there }) => {
                let id = there.map(to_json);
                let value = json!({ "_ok": false, "replyMsg": [{ "_ok": false, "_id": id }], "_id": id });
                results.push(json!({ "status": "rejected", "reason": error.to_string(), "value": value }));
                worst = Some(error);
            }
        }
    }
    let Some(error) = worst else {
        return Ok(json_answer(202, &json!({ "_ok": true, "result": results })));
    };
    let status = match &error {
        _ if inserted > 0 => 202,
        // The SDK, which always sends options, drops the body of a 4xx: it would not see which document is there.
        DocsError::Duplicate(_) if body.get("options").is_some() => 200,
        error => error.status(),
    };
    let text = match all {
        1 => error.to_string(),
        _ => format!("{} of {all} documents were not inserted: {error}", all - inserted),
    };
    Ok(json_answer(status, &json!({ "_ok": false, "_error": text, "error": text, "result": results })))
}

async fn update(documents: &Documents<'_>, body: &Bytes) -> Result<Answer, DocsError> {
    let mut body = parse_json(body)?;
    let mut object = |name: &str| {
        let value = body.get_mut(name).map(Value::take).unwrap_or_default();
        if value.is_null() {
            Err(DocsError::refused(format!("{name} is missing")))
        } else {
            Ok(object_from_json(value, name)?)
        }
    };
    let (filter, update) = (object("filter")?, object("update")?);
    let one =
        body.get("options").and_then(|options| options.get("one")).is_some_and(|one| *one == json!(true));
    if one {
        return match documents.update_one(&filter, &update).await? {
            Some(id) => Ok(json_answer(200, &json!({ "_ok": true, "_id": to_json(id) }))),
            None => Ok(not_found()),
        };
    }
    let changed = documents.update_many(&filter, &update).await?;
    let ids: Vec<Value> = changed.ids.into_iter().map(to_json).collect();
    let count = ids.len();
    let Some(error) = changed.error else {
        return Ok(json_answer(
            200,
            &json!({ "_ok": true, "_okCnt": count, "_nokCnt": 0, "updatedIds": ids }),
        ));
    };
    if count == 0 {
        return Err(error);
    }
    let text = format!("{} documents were not changed: {error}", changed.refused);
    let answer = json!({ "_ok": false, "_okCnt": count, "_nokCnt": changed.refused, "updatedIds": ids,
                         "_error": text });
    Ok(json_answer(200, &answer))
}
