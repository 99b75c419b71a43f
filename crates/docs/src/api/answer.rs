//! What an answer looks like. Shapes are those that clients of the HTTP API expect.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use crate::error::DocsError;

pub(super) type Answer = Response<Body>;

/// A JSON answer.
pub(super) fn json_answer(status: u16, value: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}

/// A text.
pub(super) fn text_answer(status: u16, text: &str) -> Answer {
    let mut answer = Response::new(Body::from(text.to_owned()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// An error: the same text under both names that clients look for.
pub(super) fn error_answer(error: &DocsError) -> Answer {
    let text = error.to_string();
    json_answer(error.status(), &json!({ "_ok": false, "error": text, "_error": text }))
}

/// Something that was looked for by its key is not there. Clients tell it by the text, not by the status.
pub(super) fn not_found() -> Answer {
    let none: [u8; 0] = [];
    json_answer(
        200,
        &json!({ "_ok": false, "_okCnt": 0, "_nokCnt": 0, "_error": "Not found", "docIds": none, "data": none,
                 "dataLength": 0 }),
    )
}
