//! A watch that outlives its connection: it notices a break or a silence, opens a new stream with back-off and goes on
//! behind the last revision that was delivered.
//!
//! A task of the watch's own does all that, and hands whole messages over; so dropping a call of `next` loses nothing,
//! and a connection is looked after while nobody asks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, WatchRequestSender, WatchResponseStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::assemble::{Assembler, Step};
use super::call::pause;
use super::errors::Failure;
use super::progress::Proof;
use super::{Link, connection, request};
use crate::OwnedTask;
use crate::error::{MetaError, Result};
use crate::request::{Watch, WatchMessage};
use crate::store::WatchStream;

/// Messages that wait for the consumer. Beyond them the stream is not read, and etcd keeps our place.
const WAITING_MESSAGES: usize = 64;
/// First pause before a new stream; it doubles up to the longest, with jitter, until a stream has brought something.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The consumer's end of a watch.
pub(super) struct EtcdWatch {
    messages: mpsc::Receiver<Result<WatchMessage>>,
    asks: Arc<Notify>,
    /// Why it ended; said again to whoever asks again.
    ended: Option<MetaError>,
    _task: OwnedTask,
}

impl EtcdWatch {
    /// Opens the first stream; when this returns, nothing that happens from now on can be missed.
    pub(super) async fn open(link: Arc<Link>, watch: Watch) -> Result<EtcdWatch> {
        let mut assembler = Assembler::new(link.prefix.clone(), watch.from);
        let wire = Wire::open_within(&link, &watch, &mut assembler).await?;
        let (out, messages) = mpsc::channel(WAITING_MESSAGES);
        let asks = Arc::new(Notify::new());
        let keeper = Keeper {
            link,
            watch,
            assembler,
            proof: Proof::default(),
            out,
            asks: Arc::clone(&asks),
            attempt: 0,
        };
        Ok(EtcdWatch { messages, asks, ended: None, _task: OwnedTask::spawn(keeper.run(wire)) })
    }
}

#[async_trait]
impl WatchStream for EtcdWatch {
    async fn next(&mut self) -> Result<WatchMessage> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let gone = || Err(MetaError::Unavailable("the watch has stopped".to_owned()));
        let message = self.messages.recv().await.unwrap_or_else(gone);
        self.ended = message.as_ref().err().cloned();
        message
    }

    async fn request_progress(&mut self) -> Result<()> {
        self.asks.notify_one();
        Ok(())
    }
}

/// One stream of a watch.
struct Wire {
    client: Arc<Client>,
    requests: WatchRequestSender,
    responses: WatchResponseStream,
}

impl Wire {
    /// Opens a stream where the watch stands and waits until the server has taken it.
    async fn open(link: &Link, watch: &Watch, assembler: &mut Assembler) -> Result<Wire, Failure> {
        let client = link.watches.client();
        let (key, options) = request::watch(&link.prefix, watch, assembler.resume());
        let opening = connection::watch(&client).watch(key, Some(options)).await;
        let (requests, responses) = opening.map_err(Failure::of)?.split();
        let mut wire = Wire { client, requests, responses };
        let response = wire.response().await?;
        match assembler.accept(response, false) {
            Step::End(failure) => Err(failure),
            Step::Quiet | Step::Deliver(_) => Ok(wire),
        }
    }

    /// The same, bounded by the request's time. A connection on which that passes is given up.
    async fn open_bounded(link: &Link, watch: &Watch, assembler: &mut Assembler) -> Result<Wire, Failure> {
        let client = link.watches.client();
        let patience = link.options.request_timeout;
        match tokio::time::timeout(patience, Wire::open(link, watch, assembler)).await {
            Ok(opened) => opened,
            Err(_) => {
                link.watches.abandon(&client, &link.options()).await;
                Err(Failure::Broken(format!("no watch within {patience:?}")))
            }
        }
    }

    /// The same, tried again within the request's time.
    async fn open_within(link: &Link, watch: &Watch, assembler: &mut Assembler) -> Result<Wire> {
        let deadline = Instant::now() + link.options.request_timeout;
        let mut attempt = 0;
        loop {
            let failure = match Wire::open_bounded(link, watch, assembler).await {
                Ok(wire) => return Ok(wire),
                Err(failure) => failure,
            };
            let pause = pause(attempt, FIRST_PAUSE, LONGEST_PAUSE);
            attempt += 1;
            let again = matches!(failure, Failure::Unsent(_) | Failure::Broken(_));
            if !again || Instant::now() + pause >= deadline {
                return Err(failure.of_read());
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn response(&mut self) -> Result<etcd_client::proto::PbWatchResponse, Failure> {
        match self.responses.message().await {
            Ok(Some(response)) => Ok(response.0),
            Ok(None) => Err(Failure::Broken("the server closed the watch".to_owned())),
            Err(error) => Err(Failure::of(error)),
        }
    }
}

/// Keeps a watch going until its consumer leaves or the server says that it cannot go on.
struct Keeper {
    link: Arc<Link>,
    watch: Watch,
    assembler: Assembler,
    proof: Proof,
    out: mpsc::Sender<Result<WatchMessage>>,
    asks: Arc<Notify>,
    /// How many streams in a row brought nothing.
    attempt: u32,
}

/// Why a stream is left.
enum Left {
    /// Nobody is listening any more.
    Unwanted,
    /// The stream failed.
    Failed(Failure),
    /// Nothing came although it was asked for.
    Silent,
}

impl Keeper {
    async fn run(mut self, mut wire: Wire) {
        loop {
            let text = match self.pump(&mut wire).await {
                Left::Unwanted => return,
                Left::Failed(Failure::Unsent(text) | Failure::Broken(text)) => text,
                Left::Failed(failure) => return self.end(failure).await,
                Left::Silent => {
                    self.link.watches.abandon(&wire.client, &self.link.options()).await;
                    "silence".to_owned()
                }
            };
            tracing::info!(reason = text, resume_from = self.assembler.next(), "metadata watch broke");
            wire = match self.reopen().await {
                Ok(wire) => wire,
                Err(failure) => return self.end(failure).await,
            };
        }
    }

    async fn end(self, failure: Failure) {
        // An error to send to nobody is no error.
        let _ = self.out.send(Err(failure.of_read())).await;
    }

    /// A new stream, however long it takes; an error is the server's word that there will be none.
    async fn reopen(&mut self) -> Result<Wire, Failure> {
        loop {
            tokio::time::sleep(pause(self.attempt, FIRST_PAUSE, LONGEST_PAUSE)).await;
            self.attempt = self.attempt.saturating_add(1);
            match Wire::open_bounded(&self.link, &self.watch, &mut self.assembler).await {
                // The member behind the new stream may be an older one.
                Ok(wire) => {
                    let _ = self.link.learn_version().await;
                    return Ok(wire);
                }
                Err(Failure::Unsent(text) | Failure::Broken(text)) => {
                    tracing::debug!(reason = text, "metadata watch not resumed yet");
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Moves messages until the stream is to be left.
    async fn pump(&mut self, wire: &mut Wire) -> Left {
        let heartbeat = self.link.options.heartbeat;
        let mut asked = false;
        let mut patience = Instant::now() + heartbeat.interval;
        loop {
            let step = tokio::select! {
                response = wire.response() => match response {
                    Ok(response) => {
                        self.attempt = 0;
                        asked = false;
                        patience = Instant::now() + heartbeat.interval;
                        self.assembler.accept(response, self.link.version.orders_progress())
                    }
                    Err(failure @ Failure::Oversized(_)) => return Left::Failed(failure),
                    // Whatever a server says while a stream runs (a token that expired, say): it is asked again.
                    Err(failure) => return Left::Failed(Failure::Broken(failure.of_read().to_string())),
                },
                found = self.proof.found() => match found {
                    Some(revision) => self.assembler.progress(revision),
                    None => Step::Quiet,
                },
                () = self.asks.notified() => {
                    self.ask(wire).await;
                    Step::Quiet
                }
                () = tokio::time::sleep_until(patience) => {
                    if asked {
                        return Left::Silent;
                    }
                    asked = true;
                    self.ask(wire).await;
                    patience = Instant::now() + heartbeat.timeout;
                    Step::Quiet
                }
                () = self.out.closed() => return Left::Unwanted,
            };
            match step {
                Step::Quiet => {}
                Step::End(failure) => return Left::Failed(failure),
                Step::Deliver(message) => {
                    if matches!(message, WatchMessage::Events { .. }) {
                        self.proof.invalidate(&self.link, &self.watch.keys, self.assembler.next());
                    }
                    if self.out.send(Ok(message)).await.is_err() {
                        return Left::Unwanted;
                    }
                    // The time that the consumer took is not the server's silence.
                    patience = Instant::now() + heartbeat.interval;
                }
            }
        }
    }

    /// Asks for progress. Where the answer proves nothing, it still shows that somebody is there.
    async fn ask(&mut self, wire: &mut Wire) {
        let filtered = self.watch.no_put || self.watch.no_delete;
        if !self.link.version.orders_progress() && !filtered {
            self.proof.want(&self.link, &self.watch.keys, self.assembler.next());
        }
        // A stream that takes no request is a stream that brings no response: the silence will be noticed.
        let asking = wire.requests.request_progress();
        let _ = tokio::time::timeout(self.link.options.heartbeat.timeout, asking).await;
    }
}
