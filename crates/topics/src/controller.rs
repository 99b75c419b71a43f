//! The load manager: view, facts, decide, commit. Runs on the broker that leads.

use std::sync::Arc;

use capstan_control::keys::ServiceName;
use capstan_control::reconcile::{
    Controller, Elected, Pace, Plan, Reconciler, Situation, Step as Next, Told, run_elected,
};
use capstan_log::{HolderId, LogName};
use capstan_meta::election::{Ballot, Election};
use capstan_meta::record::{Key, Null};
use capstan_meta::session::Session;
use capstan_meta::view::View;
use capstan_meta::{Store, Txn};
use capstan_steward::{Logs, WantedLog};
use tokio_util::sync::CancellationToken;

use crate::decide::{Step, assign};
use crate::facts::Facts;
use crate::keys::{AssignmentKey, LeaderKey, TermKey, TombstoneKey};
use crate::spec::TopicName;
use crate::status::Unassigned;

/// The name of the service: of its holders, its drains and its role.
pub const SERVICE: &str = "topics";

/// Gives topics logs and notes who serves them.
pub struct LoadManager {
    logs: Logs,
    service: ServiceName,
}

/// What is not one transaction of ours.
#[derive(Debug)]
pub enum Message {
    /// Creates the log of a topic.
    CreateLog {
        /// The log.
        log: LogName,
        /// How many copies.
        copies: usize,
        /// The holder that is to lead.
        leader: Option<HolderId>,
    },
    /// Deletes the log of a topic that was deleted.
    DeleteLog {
        /// The log.
        log: LogName,
    },
}

impl Controller for LoadManager {
    type Message = Message;

    fn name(&self) -> &str {
        "topics load manager"
    }

    fn plan(&self, situation: &Situation) -> Plan<Message> {
        let facts = Facts::of(&situation.snapshot);
        let steps: Vec<_> = assign(&facts).into_iter().flat_map(|step| carry_out(&facts, step)).collect();
        let waiting = facts.topics.values().filter(|topic| facts.owner(&topic.record).is_none()).count();
        let why = match (facts.unreadable.first(), steps.len(), waiting) {
            (Some(key), ..) => format!("{key} cannot be read; no logs are created until it is repaired"),
            (None, 0, 0) => format!("{} topics, all served", facts.topics.len()),
            (None, 0, waiting) => format!("{waiting} topics wait for a broker that has their messages"),
            (None, steps, _) => format!("{steps} topics are being assigned"),
        };
        Plan { steps, wake_at: None, why }
    }

    async fn tell(&self, message: Message) -> Told {
        let done = match message {
            Message::CreateLog { log, copies, leader } => {
                let wanted = WantedLog::new(self.service.clone(), copies);
                let wanted = leader.into_iter().fold(wanted, WantedLog::led_by);
                self.logs.create(&log, &wanted).await.map(drop)
            }
            Message::DeleteLog { log } => self.logs.delete(&log).await,
        };
        done.map_or_else(|error| Told::Failed(error.to_string()), |()| Told::Done)
    }
}

/// A step as a transaction or a message.
fn carry_out(facts: &Facts, step: Step) -> Vec<Next<Message>> {
    match step {
        Step::CreateLog { topic, log, copies, leader } => {
            let what = format!("create the log of topic {topic}");
            vec![Next::Tell { what, message: Message::CreateLog { log, copies, leader } }]
        }
        Step::Assign { topic, broker } => {
            let txn = guarded(facts, &topic).then(assignment(&topic, broker).put(&Null));
            let txn = if facts.unassigned.contains_key(&topic) {
                txn.then(topic.unassigned_key().delete())
            } else {
                txn
            };
            let others = facts.assigned.get(&topic).into_iter().flatten().filter(|other| **other != broker);
            let txn = others.fold(txn, |txn, other| txn.then(assignment(&topic, *other).delete()));
            vec![Next::Commit { what: format!("assign topic {topic} to broker {broker}"), txn }]
        }
        Step::Unassign { topic, reason } => {
            let what = format!("topic {topic} waits for broker {}", reason.from_broker);
            let txn = guarded(facts, &topic).then(topic.unassigned_key().put(&Unassigned(Some(reason))));
            let known = facts.assigned.get(&topic).into_iter().flatten();
            let txn = known.fold(txn, |txn, broker| txn.then(assignment(&topic, *broker).delete()));
            vec![Next::Commit { what, txn }]
        }
        Step::DeleteLog { id, log } => {
            if facts.logs.contains_key(&log) {
                let what = format!("delete log {log}");
                return vec![Next::Tell { what, message: Message::DeleteLog { log } }];
            }
            let txn = Txn::new().then(TombstoneKey { id }.delete());
            vec![Next::Commit { what: format!("forget the deleted topic {id}"), txn }]
        }
    }
}

/// A transaction that takes place only if the topic and its log are as they were seen.
fn guarded(facts: &Facts, topic: &TopicName) -> Txn {
    let Some(stored) = facts.topics.get(topic) else { return Txn::new() };
    let txn = Txn::new().when(topic.record_key().unchanged(stored));
    let log = &stored.record.log;
    match facts.logs.get(log) {
        Some(config) => txn.when(capstan_log::keys::LogKey { log: log.clone() }.unchanged(config)),
        None => txn,
    }
}

fn assignment(topic: &TopicName, broker: u64) -> AssignmentKey {
    AssignmentKey { broker, namespace: topic.namespace.clone(), topic: topic.local.clone() }
}

/// Stands for `/cluster/leader` and assigns topics when elected, until it is stopped.
pub(crate) async fn run(
    store: Store,
    session: Session,
    view: Arc<View>,
    logs: Logs,
    service: ServiceName,
    broker: u64,
    stop: CancellationToken,
) {
    let election =
        Election::new(store.clone(), session, Ballot::seat(&LeaderKey {}), broker.to_string(), broker);
    let reconciler = Reconciler::new(LoadManager { logs, service }, store, view, Pace::default());
    run_elected(&reconciler, &mut Elected { election, term_key: TermKey {} }, &stop).await;
}
