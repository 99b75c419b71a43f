//! A simulated controller process: it campaigns, ends drains, and sends its term to every host.

// tidy: the clock is paused in this file

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::Epoch;
use capstan_control::drain::DrainKeeper;
use capstan_control::epoch::Acceptance;
use capstan_control::hosts;
use capstan_control::keys::{Candidates, HostId, TermKey};
use capstan_control::reconcile::{
    Controller, Elected, Pace, Plan, Reconciler, Situation, Step, Told, run_elected,
};
use capstan_meta::election::{Ballot, Election};
use capstan_meta::faults::{Faults, Faulty, Link};
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{OwnedTask, Store};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::judge::Judge;
use super::world::Sabotage;

/// How often the term is sent to hosts.
const TELL_EVERY: Duration = Duration::from_secs(7);

/// A running controller process.
#[derive(Debug)]
pub(super) struct ControllerProcess {
    pub(super) faults: Faults,
    stopped: watch::Sender<bool>,
    _main: OwnedTask,
}

impl ControllerProcess {
    pub(super) fn boot(judge: &Arc<Judge>, seed: u64, sabotage: Sabotage) -> ControllerProcess {
        let faults = Faults::seeded(seed);
        let store = Store::new(Faulty::new(judge.truth.clone(), faults.clone()));
        let kernel = Kernel {
            judge: judge.clone(),
            process: seed,
            sabotage,
            next_tell: Mutex::new(Instant::now()),
            dice: Mutex::new(capstan_testkit::seed::rng(seed)),
        };
        let stopped = watch::Sender::new(false);
        let main = OwnedTask::spawn(stoppable(stopped.subscribe(), run(store, kernel, seed)));
        ControllerProcess { faults, stopped, _main: main }
    }

    /// Like SIGSTOP: it does nothing, and its lease is not renewed.
    pub(super) fn stop(&self) {
        self.faults.set_link(Link::Silent);
        self.stopped.send_replace(true);
    }

    /// Like SIGCONT: it goes on where it was.
    pub(super) fn go_on(&self) {
        self.stopped.send_replace(false);
        self.faults.set_link(Link::Up);
    }
}

/// Works whenever it is not stopped.
async fn stoppable(mut stopped: watch::Receiver<bool>, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    loop {
        if stopped.wait_for(|stopped| !stopped).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = &mut work => return,
        }
    }
}

async fn run(store: Store, kernel: Kernel, seed: u64) {
    let session = Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() });
    let options = ViewOptions { seed, ..ViewOptions::default() };
    let view = View::open(store.clone(), DrainKeeper::ranges(), options).await.unwrap();
    let election =
        Election::new(store.clone(), session, Ballot::queue(&Candidates {}), seed.to_string(), seed);
    let reconciler = Reconciler::new(kernel, store, Arc::new(view), Pace { seed, ..Pace::default() });
    let mut elected = Elected { election, term_key: TermKey {} };
    run_elected(&reconciler, &mut elected, &CancellationToken::new()).await;
}

/// The kernel's controller, and one that sends messages to hosts.
struct Kernel {
    judge: Arc<Judge>,
    process: u64,
    sabotage: Sabotage,
    next_tell: Mutex<Instant>,
    dice: Mutex<StdRng>,
}

/// A leader's term.
#[derive(Debug)]
struct Announcement {
    host: HostId,
    term: Epoch,
}

impl Controller for Kernel {
    type Message = Announcement;

    fn name(&self) -> &str {
        "kernel"
    }

    fn plan(&self, situation: &Situation) -> Plan<Announcement> {
        let drains = DrainKeeper.plan(situation);
        let mut steps: Vec<Step<Announcement>> = Vec::new();
        for step in drains.steps {
            match step {
                Step::Commit { what, txn } => steps.push(Step::Commit { what, txn }),
                Step::Tell { message, .. } => match message {},
            }
        }
        let mut next_tell = self.next_tell.lock().unwrap();
        if *next_tell <= situation.now {
            *next_tell = situation.now + TELL_EVERY;
            for (key, _) in hosts::up(&situation.snapshot).iter() {
                let message = Announcement { host: key.host.clone(), term: situation.term };
                steps.push(Step::Tell { what: format!("tell {}", key.host), message });
            }
        }
        Plan { steps, wake_at: Some(*next_tell), why: drains.why }
    }

    async fn tell(&self, message: Announcement) -> Told {
        let (judge, process, term) = (self.judge.clone(), self.process, message.term);
        if self.sabotage == Sabotage::LeaderActsAfterItsDeadline {
            let late = {
                let judge = judge.clone();
                async move {
                    sleep(Duration::from_secs(20)).await;
                    judge.leader_acts(process, term);
                }
            };
            self.judge.leave_behind(OwnedTask::spawn(late));
        }
        judge.leader_acts(process, term);
        let on_its_way = self.dice.lock().unwrap().random_range(0..900);
        sleep(Duration::from_millis(on_its_way)).await;
        match judge.disk(&message.host).hear(term) {
            Acceptance::Newer | Acceptance::Known => Told::Done,
            Acceptance::Refused { .. } => Told::Outdated,
        }
    }
}
