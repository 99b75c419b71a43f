//! How are other servers reached over HTTP? Bounded in time and in what is read, through a proxy where one is set.

use std::time::Duration;

use serde_json::Value;

/// What is read of an answer: enough for a status or an error.
const MAX_ANSWER: usize = 64 * 1024;

/// Why a request did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// No answer in time.
    #[error("{0}")]
    Unreachable(String),
    /// The server answered with an error.
    #[error("status {0}: {1}")]
    Status(u16, String),
}

/// Puts a JSON document, directly.
pub async fn put_json(url: &str, body: &Value, within: Duration) -> Result<Vec<u8>, HttpError> {
    let client = client(None, within)?;
    answer(client.put(url).json(body)).await
}

/// Posts a JSON document, through a proxy if there is one.
pub async fn post_json(
    url: &str,
    body: &Value,
    proxy: Option<&str>,
    within: Duration,
) -> Result<Vec<u8>, HttpError> {
    let client = client(proxy, within)?;
    answer(client.post(url).json(body)).await
}

fn client(proxy: Option<&str>, within: Duration) -> Result<reqwest::Client, HttpError> {
    // The environment's proxies do not count: what is used is what an operator configured here.
    let builder = reqwest::Client::builder().timeout(within).no_proxy();
    let builder = match proxy {
        Some(proxy) => builder.proxy(reqwest::Proxy::all(proxy).map_err(unreachable)?),
        None => builder,
    };
    builder.build().map_err(unreachable)
}

async fn answer(request: reqwest::RequestBuilder) -> Result<Vec<u8>, HttpError> {
    let mut response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER {
            break;
        }
    }
    match status.is_success() {
        true => Ok(body),
        false => {
            let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            Err(HttpError::Status(status.as_u16(), text))
        }
    }
}

/// Without the address, which may hold a secret (a webhook's does).
fn unreachable(error: reqwest::Error) -> HttpError {
    HttpError::Unreachable(error.without_url().to_string())
}
