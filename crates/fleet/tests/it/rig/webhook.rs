//! A webhook, a proxy or a Vault server for tests: a real HTTP server that remembers what it was sent.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use capstan_meta::OwnedTask;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) method: String,
    /// The whole address for a proxy, the path otherwise.
    pub(crate) target: String,
    pub(crate) body: serde_json::Value,
}

/// What the server answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Json(serde_json::Value),
    Status(u16),
    /// Nothing, ever.
    Silence,
}

#[derive(Debug)]
struct Shared {
    heard: Vec<Heard>,
    answer: Answer,
}

/// A server on a port of its own.
pub(crate) struct Webhook {
    pub(crate) url: String,
    shared: Arc<Mutex<Shared>>,
    _task: OwnedTask,
}

impl Webhook {
    pub(crate) async fn start(answer: Answer) -> Webhook {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Mutex::new(Shared { heard: Vec::new(), answer }));
        let state = shared.clone();
        let app = Router::new().fallback(move |request: Request| serve(state.clone(), request));
        let task = OwnedTask::spawn(async move {
            axum::serve(listener, app).await.unwrap();
        });
        Webhook { url, shared, _task: task }
    }

    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.shared.lock().unwrap().heard.clone()
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.shared.lock().unwrap().answer = answer;
    }

    /// The colours of the messages, in order.
    pub(crate) fn colors(&self) -> Vec<String> {
        let color =
            |heard: &Heard| heard.body["attachments"][0]["color"].as_str().unwrap_or("none").to_owned();
        self.heard().iter().map(color).collect()
    }
}

async fn serve(shared: Arc<Mutex<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let heard = Heard {
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    let answer = {
        let mut shared = shared.lock().unwrap();
        shared.heard.push(heard);
        shared.answer.clone()
    };
    match answer {
        Answer::Json(value) => axum::Json(value).into_response(),
        Answer::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Answer::Silence => std::future::pending().await,
    }
}
