//! How are decisions made and carried out? A controller is a pure function from what is known to the next steps; this
//! loop does the rest.
//!
//! The loop plans on a snapshot of its view, performs the steps, and plans again: at once after it changed something,
//! otherwise when the view changes or the plan's time comes. There is one path for all of it: being woken carries no
//! data, so a missed or doubled wake-up cannot hurt.
//!
//! A step is one guarded transaction or one idempotent message with an epoch. A transaction that finds its guards
//! broken, or whose outcome is unknown, is never repeated: the view catches up and the controller plans anew, seeing
//! what happened. Whoever leads carries its leadership into every transaction and stops by its own clock.

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
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use elected::{Elected, run_elected};
use pass::Outcome;

use crate::epoch::Epoch;

/// What a plan is made from, besides the controller itself.
#[derive(Clone, Debug)]
pub struct Situation {
    /// What is known.
    pub snapshot: Arc<Snapshot>,
    /// The moment, on the clock that decisions are made by.
    pub now: Instant,
    /// The moment, in seconds since 1970, for records that people read.
    pub unix_now: u64,
    /// The term of the leader that plans; "never told" where everyone may act.
    pub term: Epoch,
}

/// Decides what comes next in one area.
pub trait Controller: Send + Sync + 'static {
    /// What it tells others, if it does.
    type Message: fmt::Debug + Send + 'static;

    /// What logs and `status` call it.
    fn name(&self) -> &str;

    /// The next steps. Pure: the same situation gives the same plan.
    fn plan(&self, situation: &Situation) -> Plan<Self::Message>;

    /// Delivers a message. Idempotent: a message may be told again after an answer was lost.
    fn tell(&self, message: Self::Message) -> impl Future<Output = Told> + Send;
}

/// A controller's messages where it has none.
#[derive(Debug)]
pub enum NoMessage {}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was obeyed (or had been before).
    Done,
    /// The receiver knows a newer epoch: what the plan was made from is out of date.
    Outdated,
    /// It did not arrive, or nobody knows whether it did.
    Failed(String),
}

/// What to do now, when to look again, and why.
#[derive(Debug)]
pub struct Plan<M> {
    /// The steps, in order. Messages next to each other are told at the same time.
    pub steps: Vec<Step<M>>,
    /// When to plan again even if nothing changes.
    pub wake_at: Option<Instant>,
    /// What was decided and what is waited for, in words for an operator.
    pub why: String,
}

impl<M> Plan<M> {
    /// Nothing to do until something changes, and why.
    pub fn idle(why: impl Into<String>) -> Plan<M> {
        Plan { steps: Vec::new(), wake_at: None, why: why.into() }
    }
}

/// One thing to do.
#[derive(Debug)]
pub enum Step<M> {
    /// A transaction whose guards say what the plan was made from.
    Commit {
        /// What it does, in words.
        what: String,
        /// The transaction.
        txn: Txn,
    },
    /// A message that a receiver obeys only if its epoch is not from the past.
    Tell {
        /// What it does, in words.
        what: String,
        /// The message; it carries its epoch.
        message: M,
    },
}

impl<M> Step<M> {
    /// What it does, in words.
    #[must_use]
    pub fn what(&self) -> &str {
        match self {
            Step::Commit { what, .. } | Step::Tell { what, .. } => what,
        }
    }
}

/// In whose name a controller acts.
#[derive(Clone, Debug)]
pub enum Authority {
    /// Any number of processes act at the same time; guards and epochs are all that is needed.
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
    /// Whether a step may be begun now.
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

/// How the loop paces itself.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Pauses after something failed: the first, and the longest.
    pub retry: (Duration, Duration),
    /// A transaction without an answer for so long has an unknown outcome.
    pub commit_within: Duration,
    /// A message without an answer for so long has failed. A pass takes at least as long as its slowest message, so
    /// this is short, and controllers do not tell those that they know to be down.
    pub tell_within: Duration,
    /// Where the jitter of the pauses comes from.
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

/// What the loop last decided, for `status` and "why is this waiting".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// How many plans were made so far.
    pub passes: u64,
    /// The revision of the view that the plan was made from.
    pub revision: i64,
    /// What was decided and what is waited for.
    pub why: String,
    /// The steps of the plan.
    pub steps: Vec<String>,
    /// What became of them.
    pub outcome: String,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEnd {
    /// It was asked to.
    Stopped,
    /// It may not act any more: somebody else leads, or may lead.
    Fenced,
    /// Its view is gone.
    Blind,
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
    /// A loop that plans on this view, which must cover everything that the controller looks at.
    pub fn new(controller: C, store: Store, view: Arc<View>, pace: Pace) -> Reconciler<C> {
        let decisions = Arc::new(watch::Sender::new(Decision::default()));
        Reconciler { controller: Arc::new(controller), store, view, pace, decisions }
    }

    /// The last decision; follows the loop.
    #[must_use]
    pub fn decisions(&self) -> watch::Receiver<Decision> {
        self.decisions.subscribe()
    }

    /// Plans and acts until it is stopped or may not act any more.
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
        loop {
            let snapshot = changes.mark_seen();
            let outcome = self.pass(authority, snapshot).await;
            if outcome.is_good() {
                pauses.reset();
            }
            let wake_at = match outcome {
                Outcome::Fenced => return LoopEnd::Fenced,
                Outcome::Settled { wake_at } => wake_at,
                Outcome::Changed { revision } => {
                    self.reach(revision).await;
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
                Outcome::Failed => Some(Instant::now() + pauses.next_wait()),
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

    /// Sees its own writes before it plans again. Too late is fine: the guards catch what a stale plan gets wrong.
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
