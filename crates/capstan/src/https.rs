//! Requests to the HTTP API of another process, over TLS.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use capstan_access::tls::ClientConfig;
use serde_json::Value;

/// A process that has not answered by then is not asked further.
const WITHIN: Duration = Duration::from_secs(15);
/// Answers are certificates and settings.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Sends JSON and returns the JSON of the answer; an answer that is not a success is an error with its text.
pub(crate) async fn post(tls: ClientConfig, to: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(WITHIN)
        .build()?;
    let sent = client.post(format!("https://{to}{path}")).json(body).send().await;
    let mut response = sent.with_context(|| format!("cannot reach {to}"))?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.with_context(|| format!("{to} broke off its answer"))? {
        ensure!(bytes.len() + chunk.len() <= MAX_ANSWER_BYTES, "the answer of {to} is too large");
        bytes.extend_from_slice(&chunk);
    }
    let answer: Value =
        serde_json::from_slice(&bytes).with_context(|| format!("{to} did not answer with JSON"))?;
    if !response.status().is_success() {
        bail!("{to} refused it: {}", answer["error"].as_str().unwrap_or("no reason was given"));
    }
    Ok(answer)
}
