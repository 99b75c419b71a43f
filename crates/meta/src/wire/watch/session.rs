//! Which answer comes next on this stream? Requests of the client and news of the watchers meet here, in one place, so
//! that answers are in one order: created before events, events before the progress that covers them.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::RngExt;
use tokio::time::{Instant, Interval};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::barrier::{Barrier, Passed, Report};
use super::fragment::fragments;
use super::watcher::{Handle, Serial, Turn, Watcher};
use crate::error::MetaError;
use crate::kv::{KeyRange, Revision};
use crate::request::{Event, EventKind, Watch, WatchMessage};
use crate::wire::codec::WireKv;
use crate::wire::proto::etcdserverpb as pb;
use crate::wire::proto::etcdserverpb::watch_request::RequestUnion;
use crate::wire::proto::mvccpb;
use crate::wire::service::Wire;
use crate::wire::status::{status, stopped};

/// Stands for "no watcher" and for "all watchers".
const NO_WATCH: i64 = -1;
/// Progress is not announced more often than this, whatever the options say.
const MIN_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// One stream of a client with all its watchers.
pub(super) struct Session {
    wire: Arc<Wire>,
    /// What the stream was opened with: the client's token is in it.
    metadata: MetadataMap,
    /// What the client asks; `None` after it has said its last word.
    requests: Option<Streaming<pb::WatchRequest>>,
    /// Everybody who is waited for: each watcher, and the end of the server.
    turns: FuturesUnordered<Pin<Box<dyn Future<Output = Turn> + Send>>>,
    watchers: HashMap<i64, Entry>,
    next_id: i64,
    next_serial: Serial,
    barrier: Option<Barrier>,
    ticker: Option<Interval>,
    /// What belongs together with an answer just given: the parts of one message, a created that is followed by its
    /// cancellation. Filled only when empty, by one request or one message of the store, and so bounded by its size.
    outbox: VecDeque<pb::WatchResponse>,
}

/// What the session knows of a watcher.
struct Entry {
    serial: Serial,
    handle: Handle,
    fragment: bool,
    /// Whether it wants to hear how far it is when nothing happens.
    notify: bool,
    /// Nothing was sent since the last tick.
    quiet: bool,
    /// Its next progress is to be sent.
    notify_due: bool,
}

impl Session {
    pub(super) fn new(
        wire: Arc<Wire>,
        requests: Streaming<pb::WatchRequest>,
        metadata: MetadataMap,
    ) -> Session {
        let turns = FuturesUnordered::new();
        let stopping = wire.stopping.clone().cancelled_owned();
        let end: Pin<Box<dyn Future<Output = Turn> + Send>> = Box::pin(async move {
            stopping.await;
            Turn::Stopping
        });
        turns.push(end);
        Session {
            wire,
            metadata,
            requests: Some(requests),
            turns,
            watchers: HashMap::new(),
            next_id: 0,
            next_serial: 0,
            barrier: None,
            ticker: None,
            outbox: VecDeque::new(),
        }
    }

    /// The next answer; `None` when there will be no more.
    pub(super) async fn next(&mut self) -> Result<Option<pb::WatchResponse>, Status> {
        loop {
            if let Some(answer) = self.outbox.pop_front() {
                return Ok(Some(answer));
            }
            if self.requests.is_none() && self.watchers.is_empty() {
                return Ok(None);
            }
            tokio::select! {
                request = request(&mut self.requests) => match request? {
                    Some(request) => self.obey(request).await?,
                    None => self.requests = None,
                },
                Some(turn) = self.turns.next() => self.hear(turn).await?,
                () = tick(&mut self.ticker) => self.ask_the_quiet(),
            }
        }
    }

    async fn obey(&mut self, request: pb::WatchRequest) -> Result<(), Status> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => self.ask_all().await,
            // Of a newer version of the format, perhaps; not worth the stream.
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: pb::WatchCreateRequest) -> Result<(), Status> {
        let now = self.wire.revision().await?;
        let mut created = self.answer(now, NO_WATCH);
        created.created = true;
        let range = watched(&request);
        if let Err(refused) = self.permitted(&range).await {
            created.canceled = true;
            // As etcd's clients expect to read it.
            created.cancel_reason =
                format!("rpc error: code = {:?} desc = {}", refused.code(), refused.message());
            self.outbox.push_back(created);
            return Ok(());
        }
        let id = match self.admit(&request, &range) {
            Ok(id) => id,
            Err(reason) => {
                created.canceled = true;
                created.cancel_reason = reason;
                self.outbox.push_back(created);
                return Ok(());
            }
        };
        created.watch_id = id;
        let from = if request.start_revision == 0 { now.next() } else { Revision(request.start_revision) };
        let watch = Watch {
            keys: range,
            from,
            prev_kv: request.prev_kv,
            no_put: request.filters.contains(&(pb::watch_create_request::FilterType::Noput as i32)),
            no_delete: request.filters.contains(&(pb::watch_create_request::FilterType::Nodelete as i32)),
        };
        match self.wire.backend.watch(watch).await {
            Ok(stream) => {
                self.outbox.push_back(created);
                self.begin(id, stream, &request);
            }
            Err(MetaError::Compacted { oldest }) => {
                self.outbox.push_back(created);
                self.outbox.push_back(self.compacted(id, oldest));
            }
            Err(error @ (MetaError::EmptyWatchRange | MetaError::TooManyRequests)) => {
                created.watch_id = NO_WATCH;
                created.canceled = true;
                created.cancel_reason = status(error).message().to_owned();
                self.outbox.push_back(created);
            }
            Err(error) => return Err(status(error)),
        }
        Ok(())
    }

    /// Whether the client may read these keys, asked when a watch begins. As with etcd, a watch that has begun goes on.
    async fn permitted(&mut self, keys: &KeyRange) -> Result<(), Status> {
        self.wire.permit(&self.metadata).await?.read(keys)
    }

    /// The id that the new watcher gets, or why there will be none.
    fn admit(&mut self, request: &pb::WatchCreateRequest, range: &KeyRange) -> Result<i64, String> {
        if request.start_revision < 0 {
            let compacted = MetaError::Compacted { oldest: Revision::ZERO };
            return Err(status(compacted).message().to_owned());
        }
        if range.is_empty() {
            return Err(MetaError::EmptyWatchRange.to_string());
        }
        if request.watch_id != 0 && self.watchers.contains_key(&request.watch_id) {
            return Err(DUPLICATE_ID.to_owned());
        }
        if self.watchers.len() >= self.wire.options.limits.watchers_per_stream {
            return Err(status(MetaError::TooManyRequests).message().to_owned());
        }
        if request.watch_id != 0 {
            return Ok(request.watch_id);
        }
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    fn begin(&mut self, id: i64, stream: Box<dyn crate::WatchStream>, request: &pb::WatchCreateRequest) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let (watcher, handle) = Watcher::new(serial, id, stream);
        if let Some(barrier) = &mut self.barrier {
            barrier.join(serial);
            handle.ask_progress();
        }
        if request.progress_notify && self.ticker.is_none() {
            self.ticker = Some(self.new_ticker());
        }
        let entry = Entry {
            serial,
            handle,
            fragment: request.fragment,
            notify: request.progress_notify,
            quiet: true,
            notify_due: false,
        };
        self.watchers.insert(id, entry);
        self.turns.push(Box::pin(watcher.turn()));
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Status> {
        if let Some(entry) = self.watchers.remove(&id) {
            let now = self.wire.revision().await?;
            let mut canceled = self.answer(now, id);
            canceled.canceled = true;
            self.outbox.push_back(canceled);
            self.forget(entry.serial).await?;
        }
        Ok(())
    }

    /// A watcher is gone; perhaps it was the last that was waited for.
    async fn forget(&mut self, serial: Serial) -> Result<(), Status> {
        if let Some(barrier) = &mut self.barrier {
            barrier.leave(serial);
        }
        self.answer_barrier().await
    }

    /// The client wants to know up to where everything has been delivered to all its watchers.
    async fn ask_all(&mut self) -> Result<(), Status> {
        if let Some(barrier) = &mut self.barrier {
            barrier.ask_again();
            return Ok(());
        }
        self.raise_barrier().await?;
        self.answer_barrier().await
    }

    async fn raise_barrier(&mut self) -> Result<(), Status> {
        let target = self.wire.revision().await?;
        self.barrier = Some(Barrier::new(target, self.watchers.values().map(|entry| entry.serial)));
        self.watchers.values().for_each(|entry| entry.handle.ask_progress());
        Ok(())
    }

    async fn answer_barrier(&mut self) -> Result<(), Status> {
        let Some(Passed { revision, again }) = self.barrier.as_ref().and_then(Barrier::passed) else {
            return Ok(());
        };
        self.barrier = None;
        self.outbox.push_back(self.answer(revision, NO_WATCH));
        if again {
            self.raise_barrier().await?;
        }
        Ok(())
    }

    async fn hear(&mut self, turn: Turn) -> Result<(), Status> {
        match turn {
            Turn::Stopping => Err(stopped()),
            Turn::Cancelled => Ok(()),
            Turn::Failed { serial, id, error } => self.fail(serial, id, error).await,
            Turn::Message(watcher, message) => {
                let (serial, id) = (watcher.serial, watcher.id);
                let current = self.watchers.get(&id).is_some_and(|entry| entry.serial == serial);
                if !current {
                    return Ok(());
                }
                self.turns.push(Box::pin(watcher.turn()));
                self.tell(serial, id, message).await
            }
        }
    }

    /// The store will say no more to this watcher.
    async fn fail(&mut self, serial: Serial, id: i64, error: MetaError) -> Result<(), Status> {
        if self.watchers.get(&id).is_none_or(|entry| entry.serial != serial) {
            return Ok(());
        }
        let MetaError::Compacted { oldest } = error else { return Err(status(error)) };
        self.watchers.remove(&id);
        self.outbox.push_back(self.compacted(id, oldest));
        self.forget(serial).await
    }

    async fn tell(&mut self, serial: Serial, id: i64, message: WatchMessage) -> Result<(), Status> {
        let Some(entry) = self.watchers.get_mut(&id) else { return Ok(()) };
        let revision = match message {
            WatchMessage::Events { revision, events } => {
                entry.quiet = false;
                let fragment = entry.fragment;
                let mut answer = self.answer(revision, id);
                answer.events = events.iter().map(event).collect();
                if fragment {
                    self.outbox.extend(fragments(answer, self.wire.options.limits.message_bytes()));
                } else {
                    self.outbox.push_back(answer);
                }
                revision
            }
            WatchMessage::Progress(revision) => {
                if std::mem::take(&mut entry.notify_due) {
                    let answer = self.answer(revision, id);
                    self.outbox.push_back(answer);
                }
                revision
            }
        };
        if let Some(barrier) = &mut self.barrier {
            if barrier.report(serial, revision) == Report::TooOld
                && let Some(entry) = self.watchers.get(&id)
            {
                entry.handle.ask_progress();
            }
            self.answer_barrier().await?;
        }
        Ok(())
    }

    /// Whoever asked for it and has heard nothing since the last tick is told how far it is.
    fn ask_the_quiet(&mut self) {
        for entry in self.watchers.values_mut().filter(|entry| entry.notify) {
            if std::mem::replace(&mut entry.quiet, true) {
                entry.notify_due = true;
                entry.handle.ask_progress();
            }
        }
    }

    fn new_ticker(&self) -> Interval {
        let every = self.wire.options.progress_notify_interval.max(MIN_PROGRESS_INTERVAL);
        // Watchers that came together should not be told together.
        let every = every + every.mul_f64(rand::rng().random_range(0.0..0.1));
        let mut ticker = tokio::time::interval_at(Instant::now() + every, every);
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticker
    }

    fn answer(&self, revision: Revision, watch_id: i64) -> pb::WatchResponse {
        pb::WatchResponse { header: self.wire.header(revision), watch_id, ..pb::WatchResponse::default() }
    }

    /// The last answer to a watcher whose history is gone: no revision, no reason, but from where to begin again.
    fn compacted(&self, id: i64, oldest: Revision) -> pb::WatchResponse {
        let mut answer = self.answer(Revision::ZERO, id);
        answer.canceled = true;
        answer.compact_revision = oldest.0;
        answer
    }
}

/// No key is the smallest key.
fn watched(request: &pb::WatchCreateRequest) -> KeyRange {
    let key = if request.key.is_empty() { &b"\0"[..] } else { &request.key };
    // Copied: the store keeps it as long as the watcher lives, and must not keep the connection's buffer with it.
    KeyRange::span(Bytes::copy_from_slice(key), Bytes::copy_from_slice(&request.range_end))
}

fn event(event: &Event) -> mvccpb::Event {
    let kind = match event.kind() {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind as i32,
        kv: Some(WireKv(event.kv.clone())),
        prev_kv: event.prev.clone().map(WireKv),
    }
}

async fn request(
    requests: &mut Option<Streaming<pb::WatchRequest>>,
) -> Result<Option<pb::WatchRequest>, Status> {
    match requests {
        Some(requests) => requests.message().await,
        None => std::future::pending().await,
    }
}

async fn tick(ticker: &mut Option<Interval>) {
    match ticker {
        Some(ticker) => {
            ticker.tick().await;
        }
        None => std::future::pending().await,
    }
}
