//! The rest of a request that was refused before it was read. A connection that is closed while the client still sends
//! shows the client a broken pipe, and not why it was refused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{StreamExt, stream};
use tokio::time::timeout;

/// Bytes that are read and dropped; a client that sends more loses its connection.
const MAX_UNREAD: usize = 64 * 1024 * 1024;
/// How long a refused client may take to send them.
const PATIENCE: Duration = Duration::from_secs(10);

type Shared = Arc<Mutex<BodyDataStream>>;

/// Runs the request; what a refused one has not read is read and dropped.
pub(super) async fn drop_unread(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let unread: Shared = Arc::new(Mutex::new(body.into_data_stream()));
    let answer = next.run(Request::from_parts(parts, Body::from_stream(stream_of(&unread)))).await;
    let is_refused = answer.status().is_client_error() || answer.status().is_server_error();
    // A client that has stalled would not send the rest either.
    if is_refused && answer.status() != StatusCode::REQUEST_TIMEOUT {
        // Past the time limit the answer goes out anyway, and the connection is closed.
        timeout(PATIENCE, drop_all(stream_of(&unread))).await.ok();
    }
    answer
}

fn stream_of(body: &Shared) -> impl stream::Stream<Item = Result<axum::body::Bytes, axum::Error>> + use<> {
    let body = body.clone();
    stream::poll_fn(move |context| {
        body.lock().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(context)
    })
}

async fn drop_all(mut body: impl stream::Stream<Item = Result<axum::body::Bytes, axum::Error>> + Unpin) {
    let mut dropped = 0;
    while let Some(Ok(bytes)) = body.next().await {
        dropped += bytes.len();
        if dropped > MAX_UNREAD {
            return;
        }
    }
}
