//! The shell around the decision: a view, facts, [`decide`], transactions. Only the elected steward acts.

use std::sync::Arc;
use std::time::Duration;

use capstan_control::keys::ServiceName;
use capstan_control::reconcile::{
    Controller, Decision as Decided, Elected, NoMessage, Pace, Plan, Reconciler, Situation, Step, Told,
    run_elected,
};
use capstan_meta::election::{Ballot, Election};
use capstan_meta::session::Session;
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{Result, Store};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::commit::batches;
use crate::decide::{Decision, decide};
use crate::drain;
use crate::facts::{Facts, Records};
use crate::keys::{Candidates, TermKey};
use crate::spec::Policy;

/// The controller of all logs. Runs on the leader; its view covers [`Steward::ranges`].
#[derive(Clone, Debug, Default)]
pub struct Steward {
    policy: Policy,
    /// Services whose drains it answers: those that have only logs on a host.
    services: Vec<ServiceName>,
}

impl Steward {
    /// A steward with these limits.
    #[must_use]
    pub fn new(policy: Policy) -> Steward {
        Steward { policy, services: Vec::new() }
    }

    /// The same steward, which also answers drains for services that have only logs on a host.
    #[must_use]
    pub fn answering_for(self, services: Vec<ServiceName>) -> Steward {
        Steward { services, ..self }
    }

    /// The ranges that its view must cover.
    #[must_use]
    pub fn ranges() -> Ranges {
        Records::ranges()
    }
}

impl Controller for Steward {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "steward"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let facts = Facts::of(&situation.snapshot, situation.unix_now);
        let decision = decide(&facts, &self.policy);
        let mut steps: Vec<Step<NoMessage>> = batches(&decision.actions)
            .into_iter()
            .map(|batch| Step::Commit { what: batch.what, txn: batch.txn })
            .collect();
        for service in &self.services {
            let answers = drain::answers(&situation.snapshot, &facts, service, situation.unix_now);
            let what = || format!("answer a drain for {service}");
            steps.extend(answers.into_iter().map(|txn| Step::Commit { what: what(), txn }));
        }
        let due = decision.wake_at.map(|at| at.saturating_sub(situation.unix_now).max(1));
        let wake_at = due.map(|seconds| situation.now + Duration::from_secs(seconds));
        Plan { steps, wake_at, why: describe(&facts, &decision) }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

fn describe(facts: &Facts, decision: &Decision) -> String {
    let copying = facts.logs.iter().filter(|log| log.learner.is_some()).count();
    let mut why =
        format!("{} logs, {} changes, {copying} copies under way", facts.logs.len(), decision.actions.len());
    if decision.waiting > 0 {
        why += &format!(", {} logs wait for a target holder", decision.waiting);
    }
    if decision.leaderless > 0 {
        why += &format!(", {} logs have no live holder that can lead", decision.leaderless);
    }
    why
}

/// Campaigns among the stewards and decides while elected, until it is stopped.
pub async fn run(
    steward: Steward,
    store: &Store,
    session: &Session,
    name: &str,
    decisions: impl FnOnce(watch::Receiver<Decided>),
    stop: &CancellationToken,
) -> Result<()> {
    // Used for jitter only: different processes should not try at the same moments.
    let seed = u64::from(std::process::id());
    let view = View::open(store.clone(), Steward::ranges(), ViewOptions::default()).await?;
    let ballot = Ballot::queue(&Candidates {});
    let election = Election::new(store.clone(), session.clone(), ballot, name.to_owned(), seed);
    let reconciler = Reconciler::new(steward, store.clone(), Arc::new(view), Pace::default());
    decisions(reconciler.decisions());
    run_elected(&reconciler, &mut Elected { election, term_key: TermKey {} }, stop).await;
    Ok(())
}
