//! The shell: view, facts, decide, commit. Runs on the elected leader.

use capstan_control::drain::{Question, questions};
use capstan_control::keys::ServiceName;
use capstan_control::reconcile::{Controller, NoMessage, Plan, Situation, Step, Told};

use crate::facts::Facts;
use crate::{commit, decide, drain};

/// The name under which the service answers drains.
pub const SERVICE: &str = "example";

/// Places beacons and answers drains.
#[derive(Clone, Debug)]
pub struct Beacons {
    /// The service's name.
    pub service: ServiceName,
}

impl Controller for Beacons {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "beacons"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let facts = Facts::of(&situation.snapshot);
        let changes = decide::place(&facts);
        let placing = changes.iter().map(|change| Step::Commit {
            what: format!("place beacon {}", change.beacon),
            txn: commit::txn(&facts, change),
        });
        let answers = questions(&situation.snapshot, &self.service);
        let answering = answers.iter().filter_map(|question| answer(&facts, question, situation.unix_now));
        let steps: Vec<Step<NoMessage>> = placing.chain(answering).collect();
        let why = match (facts.unreadable.first(), changes.len()) {
            (Some(key), _) => format!("waiting until {key} is repaired"),
            (None, 0) => "every beacon is placed".to_owned(),
            (None, open) => format!("placing {open} beacons"),
        };
        Plan { steps, wake_at: None, why }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

fn answer(facts: &Facts, question: &Question, unix_now: u64) -> Option<Step<NoMessage>> {
    let txn = question.answer(drain::answer(facts, question), unix_now)?;
    Some(Step::Commit { what: format!("answer the drain of host {}", question.host), txn })
}
