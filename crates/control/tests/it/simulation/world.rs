//! A simulated world: its parts, its faults, and when it must settle.

// tidy: the clock is paused in this file

use std::sync::Arc;
use std::time::Duration;

use capstan_control::drain::{self, Ask};
use capstan_control::keys::{HostId, ServiceName};
use capstan_meta::faults::{Faults, Faulty, Link, Rates};
use capstan_meta::{Backend, OwnedTask, Revision, Store};
use capstan_testkit::seed::rng;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, timeout};

use super::controller::ControllerProcess;
use super::host::{Disk, HostProcess};
use super::judge::{Judge, Story};
use super::truth::{restored, saved, truth};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    None,
    LeaderActsAfterItsDeadline,
    AnswersBeforeItIsEmpty,
    AnswersWithoutGuard,
    ForgetsToReturn,
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    seed: u64,
    hosts: usize,
    controllers: usize,
    events: usize,
    sabotage: Sabotage,
    hazards: Hazards,
}

/// What happens besides crashes and bad connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hazards {
    None,
    /// Controllers are stopped and go on, and the store is restored from an older snapshot.
    StopsAndRestores,
}

impl Plan {
    pub(super) fn small(seed: u64) -> Plan {
        let mut rng = rng(seed);
        let (hosts, controllers) = (rng.random_range(1..=4), rng.random_range(1..=3));
        Plan::calm(seed, hosts, controllers, rng.random_range(5..28))
    }

    pub(super) fn medium(seed: u64) -> Plan {
        Plan::calm(seed, 50, 3, 100)
    }

    pub(super) fn large(seed: u64) -> Plan {
        Plan::calm(seed, 1_000, 3, 300)
    }

    fn calm(seed: u64, hosts: usize, controllers: usize, events: usize) -> Plan {
        Plan { seed, hosts, controllers, events, sabotage: Sabotage::None, hazards: Hazards::None }
    }

    /// The same with leaders that are stopped, and a store that is restored from an older snapshot.
    pub(super) fn with_stops_and_restores(self) -> Plan {
        // A restore costs a large world as much as many events.
        let events = self.events.min(120);
        Plan { hazards: Hazards::StopsAndRestores, events, ..self }
    }

    pub(super) fn sabotaged(self, sabotage: Sabotage) -> Plan {
        Plan { sabotage, ..self }
    }
}

/// How long a world may take to settle after the last fault: a lease, an election, a few longest pauses.
const REST_WITHIN: Duration = Duration::from_secs(180);

/// Runs a world to its end, and returns its story.
pub(super) fn simulate(plan: &Plan) -> Story {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(plan);
        match plan.hazards {
            Hazards::None => world.live(plan.events).await,
            Hazards::StopsAndRestores => world.live_again(plan.events).await,
        }
        world.come_to_rest().await;
        world.judge.story()
    })
}

struct World {
    rng: StdRng,
    sabotage: Sabotage,
    judge: Arc<Judge>,
    disks: Vec<Arc<Disk>>,
    hosts: Vec<Option<HostProcess>>,
    controllers: Vec<Option<ControllerProcess>>,
    /// The operator's connection to the store, which has faults like the others.
    operator: Store,
    operator_faults: Faults,
    _following: OwnedTask,
}

impl World {
    fn new(plan: &Plan) -> World {
        let mut rng = rng(plan.seed);
        let truth = truth(plan.seed);
        let disks: Vec<Arc<Disk>> = (0..plan.hosts).map(|at| Arc::new(some_disk(at, &mut rng))).collect();
        let judge = Judge::new(truth.clone(), &disks);
        let operator_faults = Faults::seeded(plan.seed);
        let operator = Store::new(Faulty::new(truth, operator_faults.clone()));
        let mut world = World {
            _following: OwnedTask::spawn(judge.clone().follow()),
            sabotage: plan.sabotage,
            hosts: disks.iter().map(|_| None).collect(),
            controllers: (0..plan.controllers).map(|_| None).collect(),
            rng,
            judge,
            disks,
            operator,
            operator_faults,
        };
        world.boot_all();
        world
    }

    /// Runs random events.
    async fn live(&mut self, events: usize) {
        for _ in 0..events {
            self.something_happens().await;
            let pause = self.rng.random_range(0..2_500) / (1 + self.hosts.len() as u64 / 50);
            sleep(Duration::from_millis(pause)).await;
            self.judge.check_now();
        }
    }

    /// Lives with leaders that are stopped; what happens after a snapshot is lost, twice.
    async fn live_again(&mut self, events: usize) {
        self.live_with_stops(events / 3).await;
        let saved = saved(&self.judge.truth).await;
        self.live_with_stops(events / 3).await;
        self.restore(&saved).await;
        self.live_with_stops(events / 3).await;
        self.restore(&saved).await;
        self.live_with_stops(events / 3).await;
    }

    async fn live_with_stops(&mut self, events: usize) {
        for _ in 0..events {
            let controller = self.rng.random_range(0..self.controllers.len());
            if let Some(process) = &self.controllers[controller] {
                match self.rng.random_range(0..6) {
                    0 => process.stop(),
                    1 | 2 => process.go_on(),
                    _ => {}
                }
            }
            self.live(1).await;
        }
    }

    async fn restore(&mut self, saved: &[u8]) {
        let (store, found) = restored(saved, self.rng.random()).await;
        let former = self.judge.truth.replace(store);
        self.judge.restored(&found);
        former.close().await.unwrap();
    }

    async fn something_happens(&mut self) {
        let host = self.rng.random_range(0..self.hosts.len());
        let controller = self.rng.random_range(0..self.controllers.len());
        match self.rng.random_range(0..20) {
            0..6 => self.wish(host, true).await,
            6..8 => self.wish(host, false).await,
            8..10 => self.hosts[host] = None,
            10..12 => self.boot_host(host),
            12 => self.controllers[controller] = None,
            13 => self.boot_controller(controller),
            14..17 => {
                let link = [Link::Up, Link::Refused, Link::Silent, Link::Silent][self.rng.random_range(0..4)];
                self.some_faults(host, controller).set_link(link);
            }
            17..19 => {
                let rates = some_rates(&mut self.rng);
                self.some_faults(host, controller).set_rates(rates);
            }
            _ => self.forget_history_or_a_lease().await,
        }
    }

    /// The operator drains or returns a host, with a bounded wait.
    async fn wish(&self, host: usize, empty: bool) {
        let ask = Ask {
            asked_by: "operator".into(),
            reason: "simulation".into(),
            asked_at: 0,
            services: Vec::new(),
        };
        let host = &self.disks[host].host;
        let asked = async {
            match empty {
                true => drain::ask(&self.operator, host, &ask).await,
                false => drain::undrain(&self.operator, host, &ask).await,
            }
        };
        timeout(Duration::from_secs(2), asked).await.ok();
    }

    /// Compacts up to where the judge has read, or revokes a lease.
    async fn forget_history_or_a_lease(&mut self) {
        if self.rng.random_bool(0.5) {
            let seen = self.judge.seen();
            self.judge.truth.compact(Revision(self.rng.random_range(0..=seen.0))).await.ok();
        } else {
            let leases = self.judge.truth.leases().await.unwrap();
            if leases.is_empty() {
                return;
            }
            let unlucky = leases[self.rng.random_range(0..leases.len())];
            // Revoking a leader's lease by hand lifts its fence early, as documented.
            let info = self.judge.truth.lease_info(unlucky).await.unwrap().unwrap();
            if !info.keys.iter().any(|key| key.starts_with(b"/capstan/leader/")) {
                self.judge.truth.lease_revoke(unlucky).await.unwrap();
            }
        }
    }

    /// The faults of some process.
    fn some_faults(&mut self, host: usize, controller: usize) -> Faults {
        let of_host = self.hosts[host].as_ref().map(|process| process.faults.clone());
        let of_controller = self.controllers[controller].as_ref().map(|process| process.faults.clone());
        match self.rng.random_range(0..5) {
            0 => self.operator_faults.clone(),
            1 | 2 => of_host.unwrap_or_else(|| self.operator_faults.clone()),
            _ => of_controller.unwrap_or_else(|| self.operator_faults.clone()),
        }
    }

    fn boot_host(&mut self, at: usize) {
        let seed = self.rng.random();
        self.hosts[at] = Some(HostProcess::boot(&self.disks[at], &self.judge, seed, self.sabotage));
    }

    fn boot_controller(&mut self, at: usize) {
        let seed = self.rng.random();
        self.controllers[at] = Some(ControllerProcess::boot(&self.judge, seed, self.sabotage));
    }

    fn boot_all(&mut self) {
        (0..self.hosts.len()).for_each(|at| self.boot_host(at));
        (0..self.controllers.len()).for_each(|at| self.boot_controller(at));
    }

    /// Stops all faults and returns every host: nothing may remain.
    async fn come_to_rest(&mut self) {
        self.controllers.iter().flatten().for_each(ControllerProcess::go_on);
        let hosts = self.hosts.iter().flatten().map(|process| &process.faults);
        let controllers = self.controllers.iter().flatten().map(|process| &process.faults);
        for faults in hosts.chain(controllers).chain([&self.operator_faults]) {
            faults.set_rates(Rates::default());
            faults.set_link(Link::Up);
        }
        let dead_hosts: Vec<usize> = (0..self.hosts.len()).filter(|at| self.hosts[*at].is_none()).collect();
        dead_hosts.into_iter().for_each(|at| self.boot_host(at));
        let dead: Vec<usize> =
            (0..self.controllers.len()).filter(|at| self.controllers[*at].is_none()).collect();
        dead.into_iter().for_each(|at| self.boot_controller(at));
        for at in 0..self.disks.len() {
            self.wish(at, false).await;
        }
        let begun = Instant::now();
        while !self.is_at_rest() {
            assert!(begun.elapsed() < REST_WITHIN, "the world did not come to rest: {}", self.unrest());
            sleep(Duration::from_millis(500)).await;
            self.judge.check_now();
        }
        assert!(self.judge.deeds("registration") as usize >= self.hosts.len());
        assert!(self.judge.deeds("act of a leader") > 0);
    }

    fn unrest(&self) -> String {
        let drains = self.judge.left_under("/capstan/drains/");
        let hosts = self.judge.left_under("/capstan/hosts/").len();
        let candidates = self.judge.left_under("/capstan/leader/");
        format!("drains {drains:?}, {hosts} of {} hosts, candidates {candidates:?}", self.hosts.len())
    }

    fn is_at_rest(&self) -> bool {
        let full = |disk: &Arc<Disk>| disk.services().iter().all(|service| disk.work_of(service) > 0);
        self.judge.left_under("/capstan/drains/").is_empty()
            && self.judge.left_under("/capstan/hosts/").len() == self.hosts.len()
            && self.judge.left_under("/capstan/leader/").len() >= self.controllers.len()
            && self.disks.iter().all(full)
            && self.judge.deeds("act of a leader") > 0
    }
}

fn some_disk(at: usize, rng: &mut StdRng) -> Disk {
    let host: HostId = format!("h{at}").parse().unwrap();
    let all = ["redis", "topics", "docs"];
    let count = rng.random_range(1..=all.len());
    let services: Vec<ServiceName> = all.iter().take(count).map(|name| name.parse().unwrap()).collect();
    Disk::new(host, &services)
}

fn some_rates(rng: &mut StdRng) -> Rates {
    let mut rate = |most: f64| if rng.random_bool(0.5) { rng.random_range(0.0..most) } else { 0.0 };
    Rates {
        unavailable: rate(0.4),
        lost_request: rate(0.3),
        lost_answer: rate(0.3),
        cut_watch: rate(0.4),
        repeat_message: rate(0.3),
        compact_before_watch: 0.0,
        delay: Duration::from_millis(rng.random_range(0..1500)),
    }
}
