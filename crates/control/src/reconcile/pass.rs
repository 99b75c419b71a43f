//! What happens in one pass: plan once, perform the steps, report the outcome.

use std::sync::Arc;

use capstan_meta::view::Snapshot;
use capstan_meta::{Remedy, Revision, Txn, clock};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Authority, Controller, Decision, Plan, Reconciler, Situation, Step, Told};

/// Messages in flight: many hosts at once, without opening a thousand sockets.
const TELL_AT_ONCE: usize = 64;

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing was left to do; plan again at this time or when something changes.
    Settled { wake_at: Option<Instant> },
    /// Something was changed, last at this revision.
    Changed { revision: Revision },
    /// Another process was faster; its change is visible at this revision.
    Conflict { revision: Revision },
    /// The outcome of a transaction is unknown.
    Unclear,
    /// The store failed temporarily.
    Failed,
    /// Everything was done except messages that did not arrive; plan again at this time or soon.
    Untold { wake_at: Option<Instant> },
    /// Everything was done except steps that the store rejects.
    Refused,
    /// A receiver has a later term than this leader: the store was restored from an older copy.
    Outdated,
    /// This process may not act any more.
    Fenced,
}

impl Outcome {
    /// Whether the pass did everything it planned.
    pub(super) fn is_good(self) -> bool {
        match self {
            Outcome::Settled { .. } | Outcome::Changed { .. } => true,
            Outcome::Conflict { .. }
            | Outcome::Unclear
            | Outcome::Failed
            | Outcome::Refused
            | Outcome::Outdated
            | Outcome::Untold { .. }
            | Outcome::Fenced => false,
        }
    }

    /// Whether a change of the view may cut the pause short: not after store errors.
    pub(super) fn heeds_changes(self) -> bool {
        match self {
            Outcome::Settled { .. } | Outcome::Changed { .. } | Outcome::Untold { .. } | Outcome::Refused => {
                true
            }
            Outcome::Conflict { .. }
            | Outcome::Unclear
            | Outcome::Failed
            | Outcome::Outdated
            | Outcome::Fenced => false,
        }
    }
}

/// The progress of a pass.
#[derive(Debug, Default)]
struct Tally {
    committed: Option<Revision>,
    untold: usize,
    outdated: bool,
    /// Steps that the store rejects permanently.
    refused: Vec<String>,
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
            refused: Vec::new(),
            outcome: "under way".to_owned(),
        };
        self.decisions.send_replace(decision.clone());
        let mut tally = Tally::default();
        let outcome = self.perform(authority, plan, &mut tally).await;
        decision.refused = tally.refused;
        decision.outcome = describe(outcome).to_owned();
        tracing::debug!(controller = self.controller.name(), why = decision.why, ?outcome, "pass");
        self.decisions.send_replace(decision);
        outcome
    }

    async fn perform(&self, authority: &Authority, plan: Plan<C::Message>, tally: &mut Tally) -> Outcome {
        let wake_at = plan.wake_at;
        let mut messages = Vec::new();
        for step in plan.steps {
            match step {
                Step::Tell { what, message } => messages.push((what, message)),
                Step::Commit { what, txn } => {
                    self.tell_all(authority, std::mem::take(&mut messages), tally).await;
                    match self.commit(authority, &what, txn).await {
                        Ok(revision) => tally.committed = Some(revision),
                        // It stays wrong, and the other steps do not wait for it.
                        Err(Outcome::Refused) => tally.refused.push(what),
                        Err(outcome) => return outcome,
                    }
                }
            }
        }
        self.tell_all(authority, messages, tally).await;
        match tally {
            _ if !authority.may_act() => Outcome::Fenced,
            Tally { outdated: true, .. } => Outcome::Outdated,
            Tally { committed: Some(revision), .. } => Outcome::Changed { revision: *revision },
            Tally { refused, .. } if !refused.is_empty() => Outcome::Refused,
            Tally { untold: 1.., .. } => Outcome::Untold { wake_at },
            Tally { committed: None, .. } => Outcome::Settled { wake_at },
        }
    }

    /// Commits one step; the error is the outcome of the pass.
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
                Remedy::Reject => {
                    tracing::error!(controller = name, what, %error, "step rejected by the store");
                    Outcome::Refused
                }
                Remedy::Report => {
                    tracing::error!(controller = name, what, %error, "step failed");
                    Outcome::Failed
                }
            }),
        }
    }

    /// A guard failed: another process wrote, or leads.
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
        Outcome::Refused => "the store refuses some steps; the others are done",
        Outcome::Outdated => "a receiver knows a later term; raising this one",
        Outcome::Fenced => "stopped: another process may lead",
    }
}
