//! Releases behind a web server that serves the directory of `capstan fleet release publish` as it is.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Client, Proxy, RequestBuilder, Response, StatusCode, Url};

use super::{Body, BodyBytes, Source, SourceError, SpecError};
use crate::release::Version;
use crate::release::layout::{INDEX, Index, Listed, MAX_INDEX_BYTES, ReleaseFile, release_dir};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that sends nothing for so long is gone. The whole download has no limit: the step has.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 5;

/// A web server.
#[derive(Clone, Debug)]
pub struct Http {
    base: Url,
    client: Client,
}

impl Http {
    /// The releases below this address.
    pub fn new(base: &str, proxy: Option<&str>) -> Result<Http, SpecError> {
        let slashed = if base.ends_with('/') { base.to_owned() } else { format!("{base}/") };
        let base = Url::parse(&slashed).map_err(|e| SpecError::Url(base.to_owned(), e.to_string()))?;
        Ok(Http { base, client: client(proxy)? })
    }

    fn url(&self, path: &str) -> Result<Url, SourceError> {
        self.base.join(path).map_err(|e| SourceError::wrong(&self.base, e))
    }
}

#[async_trait]
impl Source for Http {
    async fn list(&self) -> Result<Vec<Listed>, SourceError> {
        let url = self.url(INDEX)?;
        let body = fetch(self.client.get(url.clone()), &url, 0).await?;
        let bytes = body.read(MAX_INDEX_BYTES).await?;
        Ok(Index::parse(&bytes).map_err(|why| SourceError::wrong(&url, why))?.releases)
    }

    async fn open(&self, version: &Version, file: &ReleaseFile, from: u64) -> Result<Body, SourceError> {
        let path = release_dir(version).join(file.to_string());
        // A version with an epoch has a colon; behind "./" it cannot be taken for the scheme of an address.
        let url = self.url(&format!("./{}", path.display()))?;
        fetch(self.client.get(url.clone()), &url, from).await
    }
}

/// A client that goes through a proxy only when told to: the environment does not decide where releases come from.
pub(super) fn client(proxy: Option<&str>) -> Result<Client, SpecError> {
    let builder = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        .user_agent(concat!("capstan/", env!("CARGO_PKG_VERSION")));
    let builder = match proxy {
        None => builder.no_proxy(),
        Some(proxy) => {
            let wrong = |e: reqwest::Error| SpecError::Proxy(proxy.to_owned(), plain(e));
            builder.proxy(Proxy::all(proxy).map_err(wrong)?)
        }
    };
    builder.build().map_err(|e| SpecError::Client(plain(e)))
}

/// Sends a request for the bytes from an offset on.
pub(super) async fn fetch(request: RequestBuilder, url: &Url, from: u64) -> Result<Body, SourceError> {
    let request = if from > 0 { request.header(RANGE, format!("bytes={from}-")) } else { request };
    let response = request.send().await.map_err(|e| SourceError::unreachable(url, plain(e)))?;
    let start = match response.status() {
        StatusCode::OK => 0,
        StatusCode::PARTIAL_CONTENT => range_start(&response)
            .ok_or_else(|| SourceError::wrong(url, "it sent a part of a file and did not say which"))?,
        // What is there is longer than the file: begin anew.
        StatusCode::RANGE_NOT_SATISFIABLE => return Err(SourceError::wrong(url, "it has no such part")),
        StatusCode::NOT_FOUND | StatusCode::GONE => return Err(SourceError::not_found(url, "such file")),
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            return Err(SourceError::unreachable(url, format!("it answered {status}")));
        }
        status => return Err(SourceError::wrong(url, format!("it answered {status}"))),
    };
    Ok(Body { start, source: url.to_string(), bytes: BodyBytes::Response(response) })
}

/// `bytes 100-199/200` begins at 100.
fn range_start(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// The whole chain of causes: the outermost says only that a request failed.
pub(super) fn plain(error: reqwest::Error) -> String {
    // The caller reports the address itself.
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
