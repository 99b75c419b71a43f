//! Which process completes recorded work, and acts on failures? Every coordinator, independently; guards let
//! one succeed.

use std::sync::Arc;

use capstan_control::reconcile::{Controller, NoMessage, Plan, Situation, Step, Told};

use crate::board::Board;
use crate::decide::{self, Sight, dead_nodes, dead_proxies, in_sync_changes, quarantine};
use crate::drain;
use crate::facts::Tree;
use crate::timing::Timing;

/// The controller of a coordinator. Its view covers [`Tree::ranges`].
#[derive(Debug)]
pub struct Completer {
    pub(super) board: Board,
    pub(super) timing: Timing,
    /// Coordinators begin at different positions, so that they do not all try the same step first.
    pub(super) turn: usize,
}

impl Controller for Completer {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "redis-coordinator"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let tree = Arc::new(Tree::of(&situation.snapshot));
        let facts = self.board.all();
        let now = situation.unix_now;
        let (draining, answers) = drain::answers(&situation.snapshot, &tree, &facts, now);
        let (timing, at) = (&self.timing, situation.now);
        let sight = Sight { tree: &tree, facts: &facts, timing, at, now };
        let urgent = dead_proxies(sight).and(in_sync_changes(sight));
        let others = dead_nodes(sight)
            .and(decide::recorded(&tree, now))
            .and(draining)
            .and(quarantine::emptied(&tree, &facts));
        let waits: Vec<String> = urgent.waits.iter().chain(&others.waits).cloned().collect();
        // One at a time: all are planned from the same tree, and the next plan sees the effect of this one.
        let mut next = urgent.commits.into_iter().next();
        if next.is_none() && !others.commits.is_empty() {
            let at = self.turn % others.commits.len();
            next = others.commits.into_iter().nth(at);
        }
        let mut steps: Vec<Step<NoMessage>> = Vec::new();
        let answers = answers.into_iter().map(|txn| Step::Commit { what: "answer a drain".to_owned(), txn });
        steps.extend(answers.take(1));
        if steps.is_empty() {
            steps.extend(next.map(|draft| Step::Commit { what: draft.what.clone(), txn: draft.into_txn() }));
        }
        let why = if waits.is_empty() { "nothing is pending".to_owned() } else { waits.join("; ") };
        Plan { steps, wake_at: Some(situation.now + self.timing.ping_every), why }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}
