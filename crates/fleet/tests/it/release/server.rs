//! A web server with the faults that real ones have.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use axum::http::{Response, StatusCode};
use capstan_meta::OwnedTask;

/// How the server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It ignores wishes for a part of a file.
    NoRanges,
    /// The first so many answers break off after half of what they promised.
    BreaksOff(usize),
    /// The first so many answers are 503.
    Busy(usize),
}

pub struct Server {
    pub address: String,
    requests: Arc<Requests>,
    _task: OwnedTask,
}

struct Requests {
    dir: PathBuf,
    fault: Fault,
    count: AtomicUsize,
    ranges: AtomicUsize,
}

impl Server {
    /// Serves a directory.
    pub async fn start(dir: impl Into<PathBuf>, fault: Fault) -> Server {
        let (count, ranges) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let requests = Arc::new(Requests { dir: dir.into(), fault, count, ranges });
        let router = Router::new().fallback(answer).with_state(requests.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let task = OwnedTask::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Server { address, requests, _task: task }
    }

    /// How many requests there were, and how many of them for a part of a file.
    pub fn requests(&self) -> (usize, usize) {
        (self.requests.count.load(Ordering::SeqCst), self.requests.ranges.load(Ordering::SeqCst))
    }
}

fn status(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

async fn answer(State(requests): State<Arc<Requests>>, request: Request) -> Response<Body> {
    let count = requests.count.fetch_add(1, Ordering::SeqCst);
    // What follows a query is part of the file's name here: enough for pages of an API.
    let path = request.uri().path_and_query().unwrap().as_str().trim_start_matches('/').replace('?', "%");
    let Ok(bytes) = std::fs::read(requests.dir.join(&path)) else { return status(StatusCode::NOT_FOUND) };
    let wanted = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
    let from = wanted.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match (requests.fault, from) {
        (Fault::Busy(times), _) if count < times => status(StatusCode::SERVICE_UNAVAILABLE),
        (Fault::NoRanges, _) | (_, None) => reply(requests.fault, count, StatusCode::OK, &bytes, 0),
        (_, Some(from)) => {
            requests.ranges.fetch_add(1, Ordering::SeqCst);
            reply(requests.fault, count, StatusCode::PARTIAL_CONTENT, &bytes, from)
        }
    }
}

fn reply(fault: Fault, count: usize, status: StatusCode, bytes: &[u8], from: usize) -> Response<Body> {
    let part = bytes[from.min(bytes.len())..].to_vec();
    let mut response = Response::builder().status(status).header(CONTENT_LENGTH, part.len());
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{}", bytes.len().saturating_sub(1), bytes.len());
        response = response.header(CONTENT_RANGE, range);
    }
    let body = match fault {
        Fault::BreaksOff(times) if count < times => {
            let half: Result<Vec<u8>, std::io::Error> = Ok(part[..part.len() / 2].to_vec());
            let broken = Err(std::io::Error::other("broken off"));
            Body::from_stream(futures_util::stream::iter([half, broken]))
        }
        _ => Body::from(part),
    };
    response.body(body).unwrap()
}
