//! A simulated host: a daemon that registers, and services that drain and fill it. Its disk survives crashes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::Epoch;
use capstan_control::drain::{Answer, Intent, own_question, own_ranges};
use capstan_control::epoch::Acceptance;
use capstan_control::hosts::{self, HostRecord};
use capstan_control::keys::{AnswerKey, HostId, ServiceName};
use capstan_control::reconcile::{Authority, Controller, Pace, Plan, Reconciler, Situation, Step, Told};
use capstan_meta::faults::{Faults, Faulty};
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{OwnedTask, Store, Txn};
use tokio_util::sync::CancellationToken;

use super::judge::Judge;
use super::world::Sabotage;

/// Units of work that a service has on a host when it is not drained.
const FULL: u32 = 3;

/// What a host keeps across restarts.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) host: HostId,
    pub(super) work: Mutex<BTreeMap<ServiceName, u32>>,
    told: Mutex<Epoch>,
}

impl Disk {
    pub(super) fn new(host: HostId, services: &[ServiceName]) -> Disk {
        let work = services.iter().map(|service| (service.clone(), FULL)).collect();
        Disk { host, work: Mutex::new(work), told: Mutex::default() }
    }

    pub(super) fn work_of(&self, service: &ServiceName) -> u32 {
        self.work.lock().unwrap().get(service).copied().unwrap_or(0)
    }

    pub(super) fn services(&self) -> Vec<ServiceName> {
        self.work.lock().unwrap().keys().cloned().collect()
    }

    /// Handles a message of a leader.
    pub(super) fn hear(&self, term: Epoch) -> Acceptance {
        let mut told = self.told.lock().unwrap();
        let acceptance = told.accept(term);
        if acceptance == Acceptance::Newer {
            *told = term;
        }
        acceptance
    }
}

/// A running host.
#[derive(Debug)]
pub(super) struct HostProcess {
    pub(super) faults: Faults,
    _daemon: OwnedTask,
}

impl HostProcess {
    pub(super) fn boot(disk: &Arc<Disk>, judge: &Arc<Judge>, seed: u64, sabotage: Sabotage) -> HostProcess {
        let faults = Faults::seeded(seed);
        let store = Store::new(Faulty::new(judge.truth.clone(), faults.clone()));
        let agent = Agent { disk: disk.clone(), judge: judge.clone(), sabotage };
        HostProcess { faults, _daemon: OwnedTask::spawn(daemon(store, agent, seed)) }
    }
}

async fn daemon(store: Store, agent: Agent, seed: u64) {
    let record =
        HostRecord { boot: seed.to_string(), services: agent.disk.services(), ..HostRecord::default() };
    let host = agent.disk.host.clone();
    // Kept for as long as the daemon lives.
    let _session = registered(&store, &host, &record, seed).await;
    let options = ViewOptions { seed, ..ViewOptions::default() };
    let view = View::open(store.clone(), own_ranges(&host), options).await.unwrap();
    let reconciler = Reconciler::new(agent, store, Arc::new(view), Pace { seed, ..Pace::default() });
    reconciler.run(&Authority::Anyone, &CancellationToken::new()).await;
}

/// Registers a host, as often as a service manager starts it: it is refused while the run before it looks alive, and a
/// restored store gives the lease of that run its full time again.
async fn registered(store: &Store, host: &HostId, record: &HostRecord, seed: u64) -> Session {
    loop {
        let session = Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() });
        match hosts::register(&session, host, record).await {
            Ok(()) => return session,
            Err(_) => session.close().await.ok(),
        };
    }
}

/// The services of a host as one controller: it moves work away or takes it up, and reports progress.
struct Agent {
    disk: Arc<Disk>,
    judge: Arc<Judge>,
    sabotage: Sabotage,
}

/// An action of the agent on its own host.
#[derive(Debug)]
enum Deed {
    MoveAway(ServiceName),
    TakeUp(ServiceName),
}

impl Agent {
    /// The answer of one service and its action, if any.
    fn decide(&self, service: &ServiceName, intent: Option<Intent>) -> (Option<Answer>, Option<Deed>) {
        let work = self.disk.work_of(service);
        let hasty = self.sabotage == Sabotage::AnswersBeforeItIsEmpty && work == 1;
        match (intent, work) {
            (None, FULL..) => (None, None),
            (None, _) => (None, Some(Deed::TakeUp(service.clone()))),
            (Some(Intent::Drain), 0) => (Some(Answer::Drained), None),
            (Some(Intent::Drain), _) if hasty => (Some(Answer::Drained), None),
            (Some(Intent::Drain), left) => {
                let reason = format!("{left} units left");
                (Some(Answer::Pending { reason }), Some(Deed::MoveAway(service.clone())))
            }
            (Some(Intent::Return), _) if self.sabotage == Sabotage::ForgetsToReturn => (None, None),
            (Some(Intent::Return), FULL..) => (Some(Answer::Healthy), None),
            (Some(Intent::Return), back) => {
                let reason = format!("{back} units back");
                (Some(Answer::Pending { reason }), Some(Deed::TakeUp(service.clone())))
            }
        }
    }
}

impl Controller for Agent {
    type Message = Deed;

    fn name(&self) -> &str {
        "agent"
    }

    fn plan(&self, situation: &Situation) -> Plan<Deed> {
        let mut plan = Plan::idle("services of this host");
        for service in self.disk.services() {
            let question = own_question(&situation.snapshot, &self.disk.host, &service);
            let (answer, deed) = self.decide(&service, question.as_ref().map(|question| question.intent()));
            if let (Some(question), Some(answer)) = (&question, answer)
                && let Some(mut txn) = question.answer(answer.clone(), situation.unix_now)
            {
                if self.sabotage == Sabotage::AnswersWithoutGuard {
                    txn = Txn { compares: Vec::new(), ..txn };
                }
                plan.steps.push(Step::Commit { what: format!("answer for {service}"), txn });
            }
            if let Some(deed) = deed {
                plan.steps.push(Step::Tell { what: format!("{deed:?}"), message: deed });
                plan.wake_at = Some(situation.now + Duration::from_secs(1));
            }
        }
        plan
    }

    async fn tell(&self, deed: Deed) -> Told {
        match deed {
            Deed::MoveAway(service) => {
                let mut work = self.disk.work.lock().unwrap();
                work.entry(service).and_modify(|left| *left = left.saturating_sub(1));
            }
            Deed::TakeUp(service) => {
                let key = AnswerKey { host: self.disk.host.clone(), service: service.clone() };
                self.judge.takes_up_work(&key);
                let mut work = self.disk.work.lock().unwrap();
                work.entry(service).and_modify(|back| *back += 1);
            }
        }
        Told::Done
    }
}
