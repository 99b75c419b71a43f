//! The way of the command line to a node: found in the metadata, with the secret of the cluster.

use std::net::SocketAddr;
use std::time::Duration;

use capstan_access::tls::LiveTls;
use capstan_control::keys::HostId;
use capstan_meta::Store;
use serde_json::Value;
use tokio::time::Instant;

use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{Alive, AliveKey, SecretKey};
use crate::router::SECRET_HEADER;
use crate::way::Way;

/// How long a request of an operator may take.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a stream may take.
const STREAM_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause before a node is asked again.
const PAUSE: Duration = Duration::from_millis(250);
/// The header with the position of a token's log.
pub(super) const POSITION_HEADER: &str = "x-capstan-docs-position";

/// A client of any node of the cluster.
#[derive(Debug)]
pub struct Client {
    nodes: Vec<SocketAddr>,
    secret: String,
    way: Way,
}

impl Client {
    /// Finds the nodes that run. With certificates they are reached over TLS only.
    pub async fn connect(store: &Store, tls: Option<&LiveTls>) -> Result<Client, DocsError> {
        let alive = store.list(&Alive {}).await?;
        let nodes: Vec<SocketAddr> = alive.iter().map(|(_, found)| found.record.http).collect();
        let none = || DocsError::NotFound("no node of the document store is up".to_owned());
        let secret = store.read(&SecretKey {}).await?.ok_or_else(none)?.record;
        if nodes.is_empty() {
            return Err(none());
        }
        let way = Way::new(reqwest::Client::builder().timeout(WITHIN), tls)?;
        Ok(Client { nodes, secret, way })
    }

    /// A client of one node.
    pub(super) async fn connect_to(
        store: &Store,
        tls: Option<&LiveTls>,
        node: &HostId,
    ) -> Result<Client, DocsError> {
        let found = store.read(&AliveKey { node: node.clone() }).await?;
        let down = || DocsError::Busy(format!("node {node} is down"));
        let nodes = vec![found.ok_or_else(down)?.record.http];
        Ok(Client { nodes, ..Client::connect(store, tls).await? })
    }

    /// Sends a request to the first node that can be reached. An answer that is not a success is an error.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Value, DocsError> {
        let method: reqwest::Method =
            method.parse().map_err(|_| DocsError::refused(format!("{method} is not a method")))?;
        let mut why = String::new();
        for node in &self.nodes {
            let url = self.way.url(*node, &format!("db{path}{}", encode(query)));
            let mut request = self.way.http.request(method.clone(), url).header(SECRET_HEADER, &self.secret);
            if let Some(body) = body {
                request = request.json(body);
            }
            match request.send().await {
                Ok(answer) => return read(answer).await,
                Err(error) if error.is_connect() => why = error.to_string(),
                Err(error) => return Err(DocsError::Unknown(error.to_string())),
            }
        }
        Err(DocsError::Busy(format!("no node can be reached: {why}")))
    }
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened: `insert`, `update`, `delete`, `drop`, `begin`, `error`.
    pub kind: String,
    /// What it is about, as JSON.
    pub data: String,
}

impl Client {
    /// Reads a stream of events until `each` wants no more. A stream that is cut off is taken up again on another node,
    /// behind the last event. Returns the position behind the last event.
    pub async fn events<E: From<DocsError>>(
        &self,
        path: &str,
        from: Option<&str>,
        mut each: impl FnMut(Event) -> Result<bool, E>,
    ) -> Result<String, E> {
        let mut position = from.unwrap_or_default().to_owned();
        let mut failing = Instant::now();
        for node in self.nodes.iter().cycle() {
            let query = if position.is_empty() { Vec::new() } else { vec![("from", position.clone())] };
            let url = self.way.url(*node, &format!("db{path}{}", encode(&query)));
            let request = self.way.http.get(url).header(SECRET_HEADER, &self.secret).timeout(STREAM_WITHIN);
            let mut answer = match request.send().await {
                Ok(answer) if answer.status().is_success() => answer,
                Ok(answer) if answer.status().is_client_error() => {
                    read(answer).await?;
                    return Ok(position);
                }
                Ok(_) | Err(_) if failing.elapsed() < WITHIN => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Ok(_) | Err(_) => return Err(DocsError::Busy("no node can be reached".to_owned()).into()),
            };
            let mut text = String::new();
            while let Ok(Some(chunk)) = answer.chunk().await {
                failing = Instant::now();
                text.push_str(&String::from_utf8_lossy(&chunk));
                while let Some((event, rest)) = text.split_once("\n\n") {
                    let (event, rest) = (event.to_owned(), rest.to_owned());
                    text = rest;
                    let field = |name: &str| {
                        event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                    };
                    position = field("id: ").unwrap_or(position);
                    let (Some(kind), Some(data)) = (field("event: "), field("data: ")) else { continue };
                    if !each(Event { kind, data })? {
                        return Ok(position);
                    }
                }
            }
        }
        Ok(position)
    }

    /// Streams everything that a token has, from the node that leads it. Returns the position of its log.
    pub(super) async fn dump(
        &self,
        token: Token,
        mut take: impl FnMut(&[u8]) -> Result<(), DocsError>,
    ) -> Result<u64, DocsError> {
        let until = Instant::now() + WITHIN;
        loop {
            for node in &self.nodes {
                let url = self.way.url(*node, &format!("db/cluster/dump/{token}"));
                let request =
                    self.way.http.get(url).header(SECRET_HEADER, &self.secret).timeout(STREAM_WITHIN);
                let mut answer = match request.send().await {
                    Ok(answer) if answer.status().is_success() => answer,
                    Ok(_) | Err(_) => continue,
                };
                let position = answer.headers().get(POSITION_HEADER).and_then(|text| text.to_str().ok());
                let position = position.and_then(|text| text.parse().ok());
                let cut_off = |error: reqwest::Error| DocsError::Busy(format!("token {token}: {error}"));
                while let Some(chunk) = answer.chunk().await.map_err(cut_off)? {
                    take(&chunk)?;
                }
                return position.ok_or_else(|| DocsError::Broken("a dump has no position".to_owned()));
            }
            if Instant::now() > until {
                return Err(DocsError::Busy(format!("no node leads token {token}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a binary body to the first node that can be reached.
    pub(super) async fn post_bytes(&self, path: &str, body: Vec<u8>) -> Result<(), DocsError> {
        let mut why = String::new();
        for node in &self.nodes {
            let url = self.way.url(*node, &format!("db{path}"));
            let request = self.way.http.post(url).header(SECRET_HEADER, &self.secret).body(body.clone());
            match request.send().await {
                Ok(answer) => return read(answer).await.map(drop),
                Err(error) if error.is_connect() => why = error.to_string(),
                Err(error) => return Err(DocsError::Unknown(error.to_string())),
            }
        }
        Err(DocsError::Busy(format!("no node can be reached: {why}")))
    }
}

fn encode(query: &[(&str, String)]) -> String {
    let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", percent(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

async fn read(answer: reqwest::Response) -> Result<Value, DocsError> {
    let status = answer.status();
    let bytes = answer.bytes().await.map_err(|error| DocsError::Unknown(error.to_string()))?;
    let value: Value = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    let text = value.get("_error").and_then(Value::as_str).map(str::to_owned);
    match (status.as_u16(), text) {
        (200..300, None) => Ok(value),
        (200..300 | 404, Some(text)) => Err(DocsError::NotFound(text)),
        (409, Some(text)) => Err(DocsError::Duplicate(text)),
        (410, Some(text)) => Err(DocsError::Gone(text)),
        (503, Some(text)) => Err(DocsError::Busy(text)),
        (500.., Some(text)) => Err(DocsError::Broken(text)),
        (_, Some(text)) => Err(DocsError::Refused(text)),
        // Not an answer of the API: of a port that wants TLS, say.
        (_, None) => {
            let text = value.as_str().map(str::trim).filter(|text| !text.is_empty());
            Err(DocsError::Refused(text.map_or_else(|| status.to_string(), str::to_owned)))
        }
    }
}
