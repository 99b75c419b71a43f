//! Several writes in one request, each with an outcome of its own.

use bytes::Bytes;
use serde_json::{Value, json};

use super::input::parse_json;
use crate::api::answer::{Answer, json_answer};
use crate::api::documents::{Documents, MAX_INSERT};
use crate::error::DocsError;
use crate::language::json::object_from_json;
use crate::language::to_json;

/// Carries out `{operations: [...], options: {ordered}}`. In order, the first error ends the request; otherwise the other
/// operations go on.
pub(super) async fn bulk(documents: &Documents<'_>, body: &Bytes) -> Result<Answer, DocsError> {
    let mut body = parse_json(body)?;
    let ordered = body.pointer("/options/ordered").is_none_or(|ordered| *ordered != json!(false));
    let Some(Value::Array(operations)) = body.get_mut("operations").map(Value::take) else {
        return Err(DocsError::refused("operations is an array"));
    };
    if operations.len() > MAX_INSERT {
        return Err(DocsError::TooLarge(format!("one request has at most {MAX_INSERT} operations")));
    }
    let (mut results, mut failed, all) = (Vec::new(), 0, operations.len());
    for operation in operations {
        match one(documents, operation).await {
            Ok(result) => {
                let is_done = result["_ok"] == json!(true);
                results.push(result);
                failed += usize::from(!is_done);
                if ordered && !is_done {
                    break;
                }
            }
            Err(DocsError::Stale) if results.is_empty() => return Err(DocsError::Stale),
            Err(error) => {
                failed += 1;
                let (status, text) = (error.status(), error.to_string());
                results.push(json!({ "_ok": false, "_error": text, "status": status }));
                if ordered {
                    break;
                }
            }
        }
    }
    let done = results.len() - failed;
    let answer = json!({ "_ok": failed == 0, "_okCnt": done, "_nokCnt": all - done, "results": results });
    Ok(json_answer(200, &answer))
}

async fn one(documents: &Documents<'_>, operation: Value) -> Result<Value, DocsError> {
    let refuse = || DocsError::refused("an operation is an object with one name, such as {insertOne: {doc}}");
    let Value::Object(fields) = operation else { return Err(refuse()) };
    let mut fields = fields.into_iter();
    let (Some((name, mut about)), None) = (fields.next(), fields.next()) else { return Err(refuse()) };
    let mut object = |field: &str| {
        let value = about.get_mut(field).map(Value::take).unwrap_or_default();
        Ok::<_, DocsError>(object_from_json(value, field)?)
    };
    match name.as_str() {
        "insertOne" => {
            let outcome = documents.insert(vec![object("doc")?]).await.into_iter().next();
            let id = outcome.ok_or_else(refuse)?.map_err(|refused| refused.error)?;
            Ok(json!({ "_ok": true, "_id": to_json(id) }))
        }
        "updateOne" => Ok(counted(documents.update_one(&object("filter")?, &object("update")?).await?)),
        "updateMany" => {
            let changed = documents.update_many(&object("filter")?, &object("update")?).await?;
            let mut result = counted(changed.ids);
            match changed.error {
                Some(error) if result["count"] == json!(0) => return Err(error),
                Some(error) => {
                    result["_ok"] = json!(false);
                    result["_error"] =
                        json!(format!("{} documents were not changed: {error}", changed.refused));
                }
                None => {}
            }
            Ok(result)
        }
        "deleteOne" => Ok(counted(documents.delete_one(&object("filter")?).await?)),
        "deleteMany" => Ok(counted(documents.delete_many(&object("filter")?).await?)),
        "replaceOne" => {
            let document = object("doc")?;
            let id = document.get("_id").cloned().ok_or_else(|| DocsError::refused("doc._id is required"))?;
            documents.replace(&id, document).await?;
            Ok(json!({ "_ok": true, "_id": to_json(id) }))
        }
        other => Err(DocsError::refused(format!("`{other}` is not an operation"))),
    }
}

/// How many documents an operation changed, and which.
fn counted(ids: impl IntoIterator<Item = bson::Bson>) -> Value {
    let ids: Vec<Value> = ids.into_iter().map(to_json).collect();
    json!({ "_ok": true, "count": ids.len(), "ids": ids })
}
