//! The Watch service: one stream, many watchers.
//!
//! A stream is not a task with a queue but a value that is asked for its next answer when the client has room for one
//! ([`Session`]). So a slow client slows only itself, and what waits for it is kept where it costs nothing: as a
//! position in the store's history, not as events.
//!
//! - `session.rs`: which answer comes next on this stream?
//! - `watcher.rs`: how is one watcher waited for, poked and cancelled while hundreds of others are?
//! - `barrier.rs`: when have all watchers of the stream seen everything up to a revision?
//! - `fragment.rs`: how is an answer cut that is too large for one message?

mod barrier;
mod fragment;
mod session;
mod watcher;

use std::sync::Arc;

use futures_util::stream;
use tonic::{Request, Response, Status, Streaming};

use self::session::Session;
use super::kv::Answers;
use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::watch_server::Watch;
use super::service::Wire;

#[tonic::async_trait]
impl Watch for Wire {
    type WatchStream = Answers<pb::WatchResponse>;

    async fn watch(
        self: Arc<Self>,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (metadata, _, requests) = request.into_parts();
        let session = Session::new(self, requests, metadata);
        let answers = stream::try_unfold(session, |mut session| async {
            Ok(session.next().await?.map(|answer| (answer, session)))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}
