//! What a request asks for: its filter, its options, its body.

use std::time::Duration;

use axum::body::Body;
use bson::{Bson, Document};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::{Call, MAX_BODY};
use crate::api::documents::FindOptions;
use crate::error::DocsError;
use crate::language::from_json;
use crate::language::json::object_from_json;
use crate::language::query_string::decode;
use crate::router::Concern;

/// How long a client may send nothing in the middle of a body.
const IDLE: Duration = Duration::from_secs(10);
/// How long a body may take, whatever its length, ...
const GRACE: Duration = Duration::from_secs(30);
/// ... and the bytes per second that it must come with beyond that.
const SLOWEST: usize = 8 * 1024;

impl Call<'_> {
    /// A filter: an object in brackets, or JSON text.
    pub(super) fn filter(&self, name: &str) -> Result<Document, DocsError> {
        match self.query.get(name) {
            None => Ok(Document::new()),
            Some(Bson::Document(filter)) => Ok(filter.clone()),
            Some(Bson::Symbol(text)) if text.is_empty() => Ok(Document::new()),
            Some(Bson::Symbol(text)) => {
                let value = serde_json::from_str(text)
                    .map_err(|error| DocsError::refused(format!("{name} is not valid JSON: {error}")))?;
                Ok(object_from_json(value, name)?)
            }
            Some(_) => Err(DocsError::refused(format!("{name} is not an object"))),
        }
    }

    pub(super) fn options(&self) -> Result<FindOptions, DocsError> {
        let given = match self.query.get("options") {
            None => Document::new(),
            Some(Bson::Document(options)) => options.clone(),
            Some(Bson::Symbol(text)) if text.is_empty() => Document::new(),
            Some(Bson::Symbol(_)) => self.filter("options")?,
            Some(_) => return Err(DocsError::refused("options is not an object")),
        };
        let number = |name: &str| match given.get(name) {
            None => Ok(None),
            Some(value) => {
                let parsed = text_of(Some(value)).and_then(|text| text.parse::<usize>().ok());
                parsed.map(Some).ok_or_else(|| DocsError::refused(format!("option {name} is a whole number")))
            }
        };
        let flag = |name: &str| text_of(given.get(name)).is_some_and(|text| text == "true" || text == "1");
        let sort = match given.get("sort") {
            None => None,
            Some(Bson::Document(sort)) => Some(sort.clone()),
            Some(Bson::Symbol(text) | Bson::String(text)) => {
                let value = serde_json::from_str(text)
                    .map_err(|error| DocsError::refused(format!("sort is not valid JSON: {error}")))?;
                Some(object_from_json(value, "sort")?)
            }
            Some(_) => return Err(DocsError::refused("sort is not an object")),
        };
        let after = text_of(given.get("cursor")).filter(|text| !text.is_empty()).map(|text| {
            serde_json::from_str(&text)
                .ok()
                .and_then(|value| from_json(value).ok())
                .unwrap_or(Bson::String(text))
        });
        Ok(FindOptions {
            limit: number("limit")?,
            skip: number("skip")?.unwrap_or(0),
            one: flag("one"),
            ids_only: flag("idsOnly"),
            sort: sort.filter(|sort| !sort.is_empty()),
            projection: self.query.get("projection").cloned(),
            after,
            available: text_of(given.get("readConcern")).as_deref() == Some("available"),
        })
    }

    pub(super) fn concern(&self) -> Concern {
        match self.options() {
            Ok(options) if options.available => Concern::Available,
            Ok(_) | Err(_) => Concern::Linearizable,
        }
    }
}

pub(super) fn decode_segment(part: &str) -> Result<String, DocsError> {
    // A plus sign is a blank in a query only.
    Ok(decode(&part.replace('+', "%2B"))?)
}

pub(super) fn text_of(value: Option<&Bson>) -> Option<String> {
    match value? {
        Bson::Symbol(text) | Bson::String(text) => Some(text.clone()),
        Bson::Boolean(flag) => Some(flag.to_string()),
        Bson::Int32(number) => Some(number.to_string()),
        Bson::Int64(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The longest time in which this part of a body must have arrived.
fn allowed(received: usize) -> Duration {
    GRACE + Duration::from_secs((received / SLOWEST) as u64)
}

/// Reads a body of up to `limit` bytes. Fails if the client stops sending or sends too slowly.
pub(super) async fn read_body(body: Body, limit: usize) -> Result<Bytes, DocsError> {
    let too_large = || DocsError::TooLarge(format!("the body was cut off or has more than {limit} bytes"));
    let stalled = |_| DocsError::Stalled(format!("nothing of the body came for {} seconds", IDLE.as_secs()));
    let slow = || DocsError::Stalled(format!("the body came with less than {SLOWEST} bytes per second"));
    let (mut chunks, mut read, begun) = (body.into_data_stream(), BytesMut::new(), Instant::now());
    while let Some(chunk) = tokio::time::timeout(IDLE, chunks.next()).await.map_err(stalled)? {
        if begun.elapsed() > allowed(read.len()) {
            return Err(slow());
        }
        let chunk = chunk.map_err(|_| too_large())?;
        if read.len() + chunk.len() > limit {
            return Err(too_large());
        }
        read.extend_from_slice(&chunk);
    }
    Ok(read.freeze())
}

pub(super) async fn read_json(body: Body) -> Result<Value, DocsError> {
    parse_json(&read_body(body, MAX_BODY).await?)
}

pub(super) fn parse_json(body: &[u8]) -> Result<Value, DocsError> {
    serde_json::from_slice(body)
        .map_err(|error| DocsError::refused(format!("the body is not valid JSON: {error}")))
}

pub(super) fn primary_key(options: Option<&Value>) -> Result<Vec<String>, DocsError> {
    let refuse = || DocsError::refused("primaryKey is a list of field names");
    let key = match options.and_then(|options| options.get("primaryKey")) {
        None | Some(Value::Null) => return Ok(vec!["_id".to_owned()]),
        Some(Value::String(field)) => vec![field.clone()],
        Some(Value::Array(fields)) => fields
            .iter()
            .map(|field| field.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(refuse)?,
        Some(_) => return Err(refuse()),
    };
    let is_alone = |field: &String| key.len() == 1 || field != "_id";
    let is_once = |field: &String| key.iter().filter(|other| *other == field).count() == 1;
    if !key.iter().all(|field| is_alone(field) && is_once(field)) {
        return Err(DocsError::refused("primaryKey names each field once, and _id only alone"));
    }
    Ok(if key.is_empty() { vec!["_id".to_owned()] } else { key })
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    /// Reads a body whose pieces arrive `seconds` apart.
    async fn read_slowly(pieces: usize, bytes: usize, seconds: u64) -> (Result<usize, String>, u64) {
        let begun = Instant::now();
        let body = stream::unfold(0, move |at| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            (at < pieces).then(|| (Ok::<_, std::io::Error>(vec![b'x'; bytes]), at + 1))
        });
        let read = read_body(Body::from_stream(body), MAX_BODY).await;
        let read = read.map(|read| read.len()).map_err(|error| error.to_string());
        (read, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_waited_for_as_long_as_it_comes_on() {
        // As slow as it may be, for as long as it takes.
        assert_eq!(read_slowly(100, 8 * SLOWEST, 8).await, (Ok(800 * SLOWEST), 808));
        assert_eq!(read_slowly(3, 1, 9).await.0, Ok(3));
        let (read, took) = read_slowly(100, 1, 9).await;
        assert!(read.unwrap_err().contains("bytes per second"));
        assert_eq!(took, 36, "the first piece after the grace time");
        let (read, took) = read_slowly(100, 1 << 20, 11).await;
        assert!(read.unwrap_err().contains("nothing of the body"));
        assert_eq!(took, 10);
    }
}
