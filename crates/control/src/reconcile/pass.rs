//! What happens in one pass: plan once, perform the steps, say what became of them.

use std::sync::Arc;

use capstan_meta::view::Snapshot;
use capstan_meta::{Remedy, Revision, Txn, clock};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Authority, Controller, Decision, Plan, Reconciler, Situation, Step, Told};

/// Messages under way at the same time: many hosts are told at once, but a thousand sockets are not opened at once.
const TELL_AT_ONCE: usize = 64;

/// What became of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing was left to do; look again at this time or when something changes.
    Settled { wake_at: Option<Instant> },
    /// Something was changed, last at this revision.
    Changed { revision: Revision },
    /// Somebody else was faster; what they did is visible at this revision.
    Conflict { revision: Revision },
    /// Nobody knows whether a transaction happened.
    Unclear,
    /// The store failed in a way that may pass.
    Failed,
    /// Everything was done but for messages that did not arrive; look again at this time or soon.
    Untold { wake_at: Option<Instant> },
    /// This process may not act any more.
    Fenced,
}

impl Outcome {
    /// Whether the pass did what it wanted.
    pub(super) fn is_good(self) -> bool {
        match self {
            Outcome::Settled { .. } | Outcome::Changed { .. } => true,
            Outcome::Conflict { .. }
            | Outcome::Unclear
            | Outcome::Failed
            | Outcome::Untold { .. }
            | Outcome::Fenced => false,
        }
    }

    /// Whether a change of the view is worth planning for before the pause is over: not after trouble with the store.
    pub(super) fn heeds_changes(self) -> bool {
        match self {
            Outcome::Settled { .. } | Outcome::Changed { .. } | Outcome::Untold { .. } => true,
            Outcome::Conflict { .. } | Outcome::Unclear | Outcome::Failed | Outcome::Fenced => false,
        }
    }
}

/// What has happened so far in a pass.
#[derive(Debug, Default)]
struct Tally {
    committed: Option<Revision>,
    untold: usize,
    outdated: bool,
}

impl<C: Controller> Reconciler<C> {
    pub(super) async fn pass(&self, authority: &Authority, snapshot: Arc<Snapshot>) -> Outcome {
        let situation = Situation {
            snapshot,
            now: Instant::now(),
            unix_now: clock::since_epoch().as_secs(),
            term: authority.term(),
        };
        let plan = self.controller.plan(&situation);
        let mut decision = Decision {
            passes: self.decisions.borrow().passes + 1,
            revision: situation.snapshot.revision().0,
            why: plan.why.clone(),
            steps: plan.steps.iter().map(|step| step.what().to_owned()).collect(),
            outcome: "under way".to_owned(),
        };
        self.decisions.send_replace(decision.clone());
        let outcome = self.perform(authority, plan).await;
        decision.outcome = describe(outcome).to_owned();
        tracing::debug!(controller = self.controller.name(), why = decision.why, ?outcome, "pass");
        self.decisions.send_replace(decision);
        outcome
    }

    async fn perform(&self, authority: &Authority, plan: Plan<C::Message>) -> Outcome {
        let wake_at = plan.wake_at;
        let mut tally = Tally::default();
        let mut messages = Vec::new();
        for step in plan.steps {
            match step {
                Step::Tell { what, message } => messages.push((what, message)),
                Step::Commit { what, txn } => {
                    self.tell_all(authority, std::mem::take(&mut messages), &mut tally).await;
                    match self.commit(authority, &what, txn).await {
                        Ok(revision) => tally.committed = Some(revision),
                        Err(outcome) => return outcome,
                    }
                }
            }
        }
        self.tell_all(authority, messages, &mut tally).await;
        match tally {
            _ if !authority.may_act() => Outcome::Fenced,
            Tally { outdated: true, .. } => Outcome::Unclear,
            Tally { committed: Some(revision), .. } => Outcome::Changed { revision },
            Tally { untold: 1.., .. } => Outcome::Untold { wake_at },
            Tally { committed: None, .. } => Outcome::Settled { wake_at },
        }
    }

    /// Commits one step; the error is what the pass ends with.
    async fn commit(&self, authority: &Authority, what: &str, txn: Txn) -> Result<Revision, Outcome> {
        if !authority.may_act() {
            return Err(Outcome::Fenced);
        }
        let guarded = match authority {
            Authority::Anyone => txn,
            Authority::Leader { leadership, .. } => txn.when(leadership.guard()),
        };
        let name = self.controller.name();
        match timeout(self.pace.commit_within, self.store.commit(guarded)).await {
            Ok(Ok(result)) if result.succeeded => {
                tracing::info!(controller = name, what, revision = %result.revision, "committed");
                Ok(result.revision)
            }
            Ok(Ok(result)) => Err(self.lost_race(authority, result.revision).await),
            Err(_) => Err(Outcome::Unclear),
            Ok(Err(error)) => Err(match error.remedy() {
                Remedy::Refresh => Outcome::Unclear,
                Remedy::Fenced => Outcome::Fenced,
                Remedy::Retry => Outcome::Failed,
                Remedy::Reject | Remedy::Report => {
                    tracing::error!(controller = name, what, %error, "step refused");
                    Outcome::Failed
                }
            }),
        }
    }

    /// A guard did not hold: another's write, or another's leadership.
    async fn lost_race(&self, authority: &Authority, revision: Revision) -> Outcome {
        if let Authority::Leader { leadership, .. } = authority
            && let Ok(Ok(false)) = timeout(self.pace.commit_within, leadership.confirm()).await
        {
            return Outcome::Fenced;
        }
        Outcome::Conflict { revision }
    }

    async fn tell_all(&self, authority: &Authority, messages: Vec<(String, C::Message)>, tally: &mut Tally) {
        let mut under_way = JoinSet::new();
        for (what, message) in messages {
            if under_way.len() >= TELL_AT_ONCE {
                count(under_way.join_next().await, tally);
            }
            if !authority.may_act() {
                break;
            }
            let (controller, within) = (self.controller.clone(), self.pace.tell_within);
            under_way.spawn(async move {
                let told = timeout(within, controller.tell(message)).await;
                let told = told.unwrap_or_else(|_| Told::Failed("no answer in time".to_owned()));
                if let Told::Failed(why) = &told {
                    tracing::debug!(controller = controller.name(), what, why, "message failed");
                }
                told
            });
        }
        while let Some(told) = under_way.join_next().await {
            count(Some(told), tally);
        }
    }
}

fn count(told: Option<Result<Told, tokio::task::JoinError>>, tally: &mut Tally) {
    match told {
        None | Some(Ok(Told::Done)) => {}
        Some(Ok(Told::Outdated)) => tally.outdated = true,
        Some(Ok(Told::Failed(_)) | Err(_)) => tally.untold += 1,
    }
}

fn describe(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Settled { .. } => "nothing left to do",
        Outcome::Changed { .. } => "done; planning again",
        Outcome::Conflict { .. } => "others changed the same records; planning again",
        Outcome::Unclear => "outcome unknown; reading again",
        Outcome::Failed => "failed; trying again",
        Outcome::Untold { .. } => "some messages did not arrive; trying again",
        Outcome::Fenced => "stopped: somebody else may lead",
    }
}
