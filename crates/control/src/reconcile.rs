//! How are decisions made and performed? A controller is a pure function from a snapshot to the next steps; this loop
//! does the rest.
//!
//! The loop plans on a snapshot of its view, performs the steps, and plans again: at once after a change, otherwise
//! when the view changes or the plan's wake-up time arrives. A wake-up carries no data, so a missed or duplicate one is
//! harmless.
//!
//! A step is one guarded transaction or one idempotent message with an epoch. A transaction whose guards fail, or whose
//! outcome is unknown, is never repeated: the view catches up and the controller plans again. A leader guards every
//! transaction with its leadership and stops by its own clock.

mod elected;
mod pass;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use capstan_meta::backoff::Backoff;
use capstan_meta::election::Leadership;
use capstan_meta::view::{Snapshot, View};
use capstan_meta::{Store, Txn};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

pub use elected::{Elected, run_elected};
use pass::Outcome;

use crate::epoch::Epoch;

/// The input of a plan, besides the controller itself.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The snapshot of the view.
    pub snapshot: Arc<Snapshot>,
    /// The monotonic time for decisions.
    pub now: Instant,
    /// The time in seconds since 1970, for records.
    pub unix_now: u64,
    /// The term of the planning leader; zero where every process may act.
    pub term: Epoch,
}

/// Decides the next steps in one area.
pub trait Controller: Send + Sync + 'static {
    /// The messages that it sends, if any.
    type Message: fmt::Debug + Send + 'static;

    /// Its name in logs and `status`.
    fn name(&self) -> &str;

    /// The next steps. Pure: the same situation gives the same plan.
    fn plan(&self, situation: &Situation) -> Plan<Self::Message>;

    /// Sends a message. Idempotent: a message may be sent again after a lost answer.
    fn tell(&self, message: Self::Message) -> impl Future<Output = Told> + Send;
}

/// The message type of a controller without messages.
#[derive(Debug)]
pub enum NoMessage {}

/// The outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was applied, now or before.
    Done,
    /// The receiver has a newer epoch: the plan is stale.
    Outdated,
    /// It did not arrive, or the outcome is unknown.
    Failed(String),
}

/// What to do now, when to plan again, and why.
#[derive(Debug)]
pub struct Plan<M> {
    /// The steps, in order. Consecutive messages are sent concurrently.
    pub steps: Vec<Step<M>>,
    /// When to plan again even if nothing changes.
    pub wake_at: Option<Instant>,
    /// What was decided and what is pending, for an operator.
    pub why: String,
}

impl<M> Plan<M> {
    /// A plan without steps, and the reason.
    pub fn idle(why: impl Into<String>) -> Plan<M> {
        Plan { steps: Vec::new(), wake_at: None, why: why.into() }
    }
}

/// One action of a plan.
#[derive(Debug)]
pub enum Step<M> {
    /// A transaction whose guards compare what the plan was based on.
    Commit {
        /// A description for operators.
        what: String,
        /// The transaction.
        txn: Txn,
    },
    /// A message that a receiver applies only if its epoch is not stale.
    Tell {
        /// A description for operators.
        what: String,
        /// The message; it carries its epoch.
        message: M,
    },
}

impl<M> Step<M> {
    /// The description for operators.
    #[must_use]
    pub fn what(&self) -> &str {
        match self {
            Step::Commit { what, .. } | Step::Tell { what, .. } => what,
        }
    }
}

/// On whose authority a controller acts.
#[derive(Clone, Debug)]
pub enum Authority {
    /// Any number of processes act at the same time; guards and epochs suffice.
    Anyone,
    /// Only the leader acts.
    Leader {
        /// Its leadership, which guards every transaction.
        leadership: Leadership,
        /// Its term, for messages.
        term: Epoch,
    },
}

impl Authority {
    /// Whether a step may begin now.
    #[must_use]
    pub fn may_act(&self) -> bool {
        match self {
            Authority::Anyone => true,
            Authority::Leader { leadership, .. } => leadership.is_valid(),
        }
    }

    fn term(&self) -> Epoch {
        match self {
            Authority::Anyone => Epoch::NEVER_TOLD,
            Authority::Leader { term, .. } => *term,
        }
    }

    async fn ended(&self) {
        match self {
            Authority::Anyone => std::future::pending().await,
            Authority::Leader { leadership, .. } => leadership.ended().await,
        }
    }
}

/// The timing of the loop.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Pauses after a failure: the first, and the longest.
    pub retry: (Duration, Duration),
    /// The time after which a transaction without an answer has an unknown outcome.
    pub commit_within: Duration,
    /// The time after which a message without an answer has failed. A pass takes at least as long as its slowest
    /// message, so this is short, and controllers do not send to receivers known to be down.
    pub tell_within: Duration,
    /// The seed for the jitter of the pauses.
    pub seed: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            retry: (Duration::from_millis(50), Duration::from_secs(10)),
            commit_within: Duration::from_secs(5),
            tell_within: Duration::from_secs(1),
            seed: rand::random(),
        }
    }
}

/// Consecutive passes without a pause, each of which changed something. After them a controller that always finds
/// something to write is slowed down, so that it cannot overload the store.
const CHANGES_IN_A_ROW: u32 = 64;
const PAUSE_WHEN_BUSY: Duration = Duration::from_millis(50);

/// Consecutive passes after which a receiver with newer state is assumed to have a later term.
const OUTDATED_IN_A_ROW: u32 = 3;

/// The last decision of the loop, for `status` and "why is this waiting".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The number of plans so far.
    pub passes: u64,
    /// The revision of the view that the plan was based on.
    pub revision: i64,
    /// What was decided and what is pending.
    pub why: String,
    /// The steps of the plan.
    pub steps: Vec<String>,
    /// The steps that the store rejects permanently: the plan or the data is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// The outcome of the steps.
    pub outcome: String,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEnd {
    /// It was asked to.
    Stopped,
    /// It may not act any more: another process leads, or may lead.
    Fenced,
    /// Its view has ended.
    Blind,
    /// A receiver has a later term: this leader must begin another one.
    Outdated,
}

/// The loop around one controller.
#[derive(Debug)]
pub struct Reconciler<C> {
    controller: Arc<C>,
    store: Store,
    view: Arc<View>,
    pace: Pace,
    decisions: Arc<watch::Sender<Decision>>,
}

impl<C: Controller> Reconciler<C> {
    /// A loop that plans on this view, which must cover everything that the controller reads.
    pub fn new(controller: C, store: Store, view: Arc<View>, pace: Pace) -> Reconciler<C> {
        let decisions = Arc::new(watch::Sender::new(Decision::default()));
        Reconciler { controller: Arc::new(controller), store, view, pace, decisions }
    }

    /// The last decision; updated by the loop.
    #[must_use]
    pub fn decisions(&self) -> watch::Receiver<Decision> {
        self.decisions.subscribe()
    }

    /// Plans and acts until it is stopped or fenced.
    pub async fn run(&self, authority: &Authority, stop: &CancellationToken) -> LoopEnd {
        tokio::select! {
            biased;
            () = stop.cancelled() => LoopEnd::Stopped,
            () = authority.ended() => LoopEnd::Fenced,
            end = self.reconcile(authority) => end,
        }
    }

    async fn reconcile(&self, authority: &Authority) -> LoopEnd {
        let mut changes = self.view.changes();
        let mut pauses = Backoff::new(self.pace.retry.0, self.pace.retry.1, self.pace.seed);
        let (mut in_a_row, mut outdated) = (0u32, 0u32);
        loop {
            let snapshot = changes.mark_seen();
            let outcome = self.pass(authority, snapshot).await;
            if outcome.is_good() {
                pauses.reset();
            }
            in_a_row =
                if matches!(outcome, Outcome::Changed { .. }) { in_a_row.saturating_add(1) } else { 0 };
            outdated = if outcome == Outcome::Outdated { outdated.saturating_add(1) } else { 0 };
            let wake_at = match outcome {
                Outcome::Fenced => return LoopEnd::Fenced,
                Outcome::Outdated if outdated >= OUTDATED_IN_A_ROW && authority.term().is_told() => {
                    return LoopEnd::Outdated;
                }
                // The plan may have been based on an old view.
                Outcome::Outdated => {
                    self.view.catch_up(self.pace.commit_within).await.ok();
                    Some(Instant::now() + pauses.next_wait())
                }
                Outcome::Settled { wake_at } => wake_at,
                Outcome::Changed { revision } => {
                    self.reach(revision).await;
                    if in_a_row > CHANGES_IN_A_ROW {
                        sleep(PAUSE_WHEN_BUSY).await;
                    }
                    continue;
                }
                Outcome::Conflict { revision } => {
                    self.reach(revision).await;
                    Some(Instant::now() + pauses.next_wait())
                }
                Outcome::Unclear => {
                    self.view.catch_up(self.pace.commit_within).await.ok();
                    Some(Instant::now() + pauses.next_wait())
                }
                Outcome::Failed | Outcome::Refused => Some(Instant::now() + pauses.next_wait()),
                Outcome::Untold { wake_at } => {
                    let again = Instant::now() + pauses.next_wait();
                    Some(wake_at.map_or(again, |planned| planned.min(again)))
                }
            };
            tokio::select! {
                biased;
                () = until(wake_at) => {}
                changed = changes.next(), if outcome.heeds_changes() => if changed.is_none() { return LoopEnd::Blind },
            }
        }
    }

    /// Waits until the view has its own writes. A timeout is harmless: the guards catch a stale plan.
    async fn reach(&self, revision: capstan_meta::Revision) {
        if let Err(behind) = self.view.wait_for(revision, self.pace.commit_within).await {
            tracing::debug!(controller = self.controller.name(), %behind, "planning on an old view");
        }
    }
}

async fn until(wake_at: Option<Instant>) {
    match wake_at {
        Some(wake_at) => sleep_until(wake_at).await,
        None => std::future::pending().await,
    }
}
