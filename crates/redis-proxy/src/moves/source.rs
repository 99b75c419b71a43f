//! How does a range leave this host? Copy all keys, copy those written meanwhile, hold, copy the rest,
//! release.
//!
//! An attempt that fails before the release starts over with a new session at the target, which first empties
//! the range there. After the release nothing is undone automatically.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use capstan_control::epoch::Epoch;
use capstan_meta::backoff::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::decide::{Known, Next, next};
use super::lane::{BATCH_KEYS, Clock, Lane};
use super::ledger::Ledger;
use super::pace::Pace;
use super::progress::{Progress, Stage};
use super::sweep::{Walk, count_keys};
use crate::conversation::{Conversation, Credentials, TalkError};
use crate::gate::{Dirty, Gate, Phase};
use crate::nodes::{NodeState, Nodes};
use crate::state::Move;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{Import, Message};
use capstan_redis_protocol::resp::View;

/// Lanes of one move: enough to keep both servers busy.
const LANES: usize = 3;
/// Batches that wait for a lane.
const QUEUE: usize = 2 * LANES;
/// The reply timeout of a node or the target.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// How long the target may take to empty the range.
const EMPTY_WITHIN: Duration = Duration::from_secs(600);
/// How long commands in flight may take once the gate is closed. If one takes longer, the gate opens again:
/// clients wait.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);
/// How long the whole hold may take.
const HOLD_WITHIN: Duration = Duration::from_secs(3);
/// How long a request for the release waits; see [`super::Moves::releasing`].
pub(super) const RELEASE_WITHIN: Duration = Duration::from_secs(2);
/// Pause between two passes while no release was requested.
const REST: Duration = Duration::from_millis(50);
/// Backoff between attempts.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Why an attempt ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum MoveError {
    #[error(transparent)]
    Talk(#[from] TalkError),
    #[error("node {0} is not ready: {1}")]
    NotReady(Address, Arc<str>),
    #[error("any key may have changed; the copy starts over")]
    StartOver,
    #[error("commands in flight did not finish within {DRAIN_WITHIN:?}")]
    SlowCommands,
    #[error("the last keys did not arrive within {HOLD_WITHIN:?}")]
    SlowTarget,
    #[error("the move has ended")]
    Over,
    #[error("cannot record the release: {0}")]
    Ledger(io::Error),
    #[error("a copy task ended unexpectedly: {0}")]
    Crashed(#[from] JoinError),
}

/// The dependencies of a move.
#[derive(Debug)]
pub(super) struct Job {
    pub id: Move,
    /// This proxy's address, as the target has it.
    pub proxy: Address,
    pub epoch: Epoch,
    pub gate: Arc<Gate>,
    pub progress: Arc<Progress>,
    pub pace: Arc<Pace>,
    pub nodes: Nodes,
    pub credentials: Option<Credentials>,
    pub ledger: Arc<Mutex<Ledger>>,
    /// When the release was last requested.
    pub asked: watch::Receiver<Option<Instant>>,
    /// Cancelled when the move is over: cancelled, or committed.
    pub stop: CancellationToken,
}

/// The open lanes of an attempt, and the name of the target's session.
struct Lanes {
    lanes: Vec<Lane>,
    session: String,
}

impl Job {
    /// Runs until the range is released or the move is over.
    pub(super) async fn run(self) {
        let stop = self.stop.clone();
        stop.run_until_cancelled(self.work()).await;
    }

    async fn work(mut self) {
        if self.gate.phase() == Phase::Released {
            self.progress.enter(Stage::Released);
            return;
        }
        self.gate.joined().await;
        let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(self.id.range.first()));
        loop {
            match self.attempt().await {
                Ok(()) => return,
                Err(MoveError::StartOver) => info!(id = %self.id, "move starts over"),
                Err(error) => {
                    warn!(id = %self.id, %error, "move failed; retrying");
                    self.progress.enter(Stage::Failed { why: error.to_string() });
                    sleep(retry.next_wait()).await;
                }
            }
        }
    }

    async fn attempt(&mut self) -> Result<(), MoveError> {
        let mut node = self.open_node().await?;
        let mut lanes = self.open_lanes(&mut node).await?;
        self.progress.begin(count_keys(&mut node).await?);
        // The scan sees everything written before it begins.
        drop(self.gate.take_dirty());
        self.copy_all(&mut lanes, node).await?;
        self.catch_up(&mut lanes).await
    }

    async fn open_node(&self) -> Result<Conversation, MoveError> {
        match self.nodes.state(&self.id.node) {
            NodeState::Ready { auth, .. } => {
                let credentials =
                    auth.map(|auth| Credentials { user: None, password: auth.password.to_string() });
                Ok(Conversation::open(&self.id.node, credentials.as_ref(), ANSWER_WITHIN).await?)
            }
            NodeState::NotReady { why } => Err(MoveError::NotReady(self.id.node.clone(), why)),
        }
    }

    /// Opens the session at the target, which empties the range there, and all its lanes.
    async fn open_lanes(&self, node: &mut Conversation) -> Result<Lanes, MoveError> {
        let clock = Clock::of(node).await?;
        let Move { db, to, range, pairing, .. } = &self.id;
        let mut request = Import {
            epoch: self.epoch,
            db: db.clone(),
            from: self.proxy.clone(),
            range: *range,
            pairing: *pairing,
            session: None,
        };
        let mut lanes = Vec::new();
        for _ in 0..LANES {
            let mut target = Conversation::open(to, self.credentials.as_ref(), ANSWER_WITHIN).await?;
            let within = if request.session.is_none() { EMPTY_WITHIN } else { ANSWER_WITHIN };
            let reply = target.ask_within(&Message::Import(request.clone()).words(), within).await?;
            let session =
                View::of(&reply).and_then(View::bytes).ok_or_else(|| target.unexpected("NMCTL IMPORT"))?;
            request.session = Some(String::from_utf8_lossy(session).into_owned());
            lanes.push(Lane::new(self.open_node().await?, target, clock));
        }
        Ok(Lanes { lanes, session: request.session.unwrap_or_default() })
    }

    /// The first pass: a scan of the node feeds the lanes.
    async fn copy_all(&self, lanes: &mut Lanes, mut node: Conversation) -> Result<(), MoveError> {
        let (batches, queue) = mpsc::channel(QUEUE);
        let (range, progress) = (self.id.range, self.progress.clone());
        let walk = async move {
            let mut walk = Walk::new();
            while let Some(page) = walk.next(&mut node, range).await? {
                progress.scanned(page.scanned);
                for batch in page.keys.chunks(BATCH_KEYS) {
                    if batches.send(batch.to_vec()).await.is_err() {
                        // A lane failed and returns the error.
                        return Ok(());
                    }
                }
            }
            Ok(())
        };
        let (walked, copied) = tokio::join!(walk, self.copy_batches(lanes, queue));
        copied?;
        walked
    }

    /// Copies batches on all lanes at once. The keys have arrived when this returns.
    async fn copy_batches(
        &self,
        lanes: &mut Lanes,
        queue: mpsc::Receiver<Vec<Bytes>>,
    ) -> Result<(), MoveError> {
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let mut running = JoinSet::new();
        for mut lane in lanes.lanes.drain(..) {
            let (queue, progress, pace) = (queue.clone(), self.progress.clone(), self.pace.clone());
            running.spawn(async move {
                loop {
                    let batch = queue.lock().await.recv().await;
                    let Some(batch) = batch else { return Ok::<Lane, TalkError>(lane) };
                    pace.take(batch.len() as u64).await;
                    let copied = lane.copy(&batch).await?;
                    progress.copied(copied.keys, copied.bytes);
                }
            });
        }
        drop(queue);
        while let Some(ended) = running.join_next().await {
            lanes.lanes.push(ended??);
        }
        Ok(())
    }

    /// Copies these keys. Few keys use one lane: waking the others would take longer.
    async fn copy_keys(&self, lanes: &mut Lanes, keys: Vec<Bytes>) -> Result<(), MoveError> {
        match lanes.lanes.first_mut() {
            Some(lane) if keys.len() <= BATCH_KEYS => {
                let copied = lane.copy(&keys).await?;
                self.progress.copied(copied.keys, copied.bytes);
                Ok(())
            }
            _ => {
                let (batches, queue) = mpsc::channel(QUEUE);
                let feed = async move {
                    for batch in keys.chunks(BATCH_KEYS) {
                        if batches.send(batch.to_vec()).await.is_err() {
                            return;
                        }
                    }
                };
                let ((), copied) = tokio::join!(feed, self.copy_batches(lanes, queue));
                copied
            }
        }
    }

    /// Copies the keys written since the last pass. Nothing of an earlier pass is in flight then, so no older
    /// value can arrive after a newer one.
    async fn pass(&self, lanes: &mut Lanes) -> Result<(), MoveError> {
        match self.gate.take_dirty() {
            Dirty::Everything => Err(MoveError::StartOver),
            Dirty::Keys(keys) => {
                let range = self.id.range;
                let keys = keys.into_iter().filter(|key| super::names::contains(range, key)).collect();
                self.copy_keys(lanes, keys).await?;
                self.progress.passed();
                Ok(())
            }
        }
    }

    async fn catch_up(&mut self, lanes: &mut Lanes) -> Result<(), MoveError> {
        self.progress.enter(Stage::CatchingUp);
        let mut answered = None;
        loop {
            let asked = *self.asked.borrow_and_update();
            let waits = asked > answered && asked.is_some_and(|at| at.elapsed() < RELEASE_WITHIN);
            match next(self.known(waits)) {
                Next::Pass => self.pass(lanes).await?,
                Next::Rest => {
                    // The next decision reads whether a release was requested meanwhile.
                    timeout(REST, self.asked.changed()).await.ok();
                    self.pass(lanes).await?;
                }
                Next::StartOver => return Err(MoveError::StartOver),
                Next::Hold => match self.release(lanes).await {
                    Ok(()) => return Ok(()),
                    Err(MoveError::SlowCommands) => answered = asked,
                    Err(other) => return Err(other),
                },
            }
        }
    }

    fn known(&self, asked: bool) -> Known {
        let (dirty, rate) = (self.gate.dirty_keys(), self.progress.rate());
        Known { dirty, passes: self.progress.snapshot(0).passes, rate, asked }
    }

    /// Closes the gate, copies the rest, releases. If that takes too long, the gate opens again.
    async fn release(&self, lanes: &mut Lanes) -> Result<(), MoveError> {
        let began = Instant::now();
        self.progress.enter(Stage::Holding);
        self.gate.become_phase(Phase::Holding);
        let outcome = match timeout(HOLD_WITHIN, self.last_pass(lanes)).await {
            Ok(outcome) => outcome,
            // The lanes were interrupted within a batch: a new attempt opens new ones.
            Err(_) => Err(MoveError::SlowTarget),
        };
        if let Err(error) = outcome {
            self.gate.become_phase(Phase::Recording);
            self.progress.enter(Stage::CatchingUp);
            return Err(error);
        }
        let held_ms = began.elapsed().as_millis() as u64;
        info!(id = %self.id, held_ms, "range released");
        Ok(())
    }

    async fn last_pass(&self, lanes: &mut Lanes) -> Result<(), MoveError> {
        timeout(DRAIN_WITHIN, self.gate.drained()).await.map_err(|_| MoveError::SlowCommands)?;
        self.pass(lanes).await?;
        for lane in &mut lanes.lanes {
            lane.confirm().await?;
        }
        // No await from here on: a hold that times out has not released.
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        // A move is cancelled before the ledger is locked to end it: a release is never recorded after the
        // end.
        if self.stop.is_cancelled() {
            return Err(MoveError::Over);
        }
        ledger.release(&self.id, &lanes.session).map_err(MoveError::Ledger)?;
        self.gate.become_phase(Phase::Released);
        self.progress.enter(Stage::Released);
        Ok(())
    }
}
