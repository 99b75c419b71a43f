//! A client of the HTTP API that costs as little as possible: one connection, one request at a time, no more of HTTP/1.1
//! than our own server answers with.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A connection that stays open.
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    host: String,
    path: String,
}

impl Http {
    /// Connects to a base URL, `http://host:port/path`.
    pub(super) async fn connect(base: &str) -> Result<Http> {
        let rest = base.strip_prefix("http://").context("not an http URL")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Http { stream: BufReader::new(stream), host: host.to_owned(), path: format!("/{path}") })
    }

    /// Sends a request and returns the body of its answer, which must be a success.
    pub(super) async fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        let mut message = format!(
            "{method} {}{path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.path,
            self.host,
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(body);
        self.stream.write_all(&message).await?;
        let (status, length) = self.head().await?;
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await?;
        ensure!((200..300).contains(&status), "{status}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    /// The same with JSON on both sides.
    pub(super) async fn json(&mut self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        Ok(serde_json::from_slice(&self.request(method, path, &body).await?)?)
    }

    /// The status and the length of the body.
    async fn head(&mut self) -> Result<(u16, usize)> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let status = line.split(' ').nth(1).context("the connection was closed")?.parse()?;
        let mut length = None;
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await? == 0 {
                bail!("the connection was closed");
            }
            if line.trim_end().is_empty() {
                return Ok((status, length.context("an answer without a length")?));
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse()?);
            }
        }
    }
}
