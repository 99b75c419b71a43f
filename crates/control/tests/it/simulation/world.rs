//! A simulated world: what it consists of, what happens to it, and when it must come to rest.

// tidy: the clock is paused in this file

use std::sync::Arc;
use std::time::Duration;

use capstan_control::drain::{self, Ask};
use capstan_control::keys::{HostId, ServiceName};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::faults::{Faults, Faulty, Link, Rates};
use capstan_meta::{Backend, OwnedTask, Revision, Store};
use capstan_testkit::seed::rng;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, timeout};

use super::controller::ControllerProcess;
use super::host::{Disk, HostProcess};
use super::judge::{Judge, Story};

/// A bug to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    None,
    LeaderActsAfterItsDeadline,
    AnswersBeforeItIsEmpty,
    AnswersWithoutGuard,
    ForgetsToReturn,
}

/// What a world is like.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    seed: u64,
    hosts: usize,
    controllers: usize,
    events: usize,
    sabotage: Sabotage,
}

impl Plan {
    pub(super) fn small(seed: u64) -> Plan {
        let mut rng = rng(seed);
        let (hosts, controllers) = (rng.random_range(1..=4), rng.random_range(1..=3));
        Plan { seed, hosts, controllers, events: rng.random_range(5..28), sabotage: Sabotage::None }
    }

    pub(super) fn medium(seed: u64) -> Plan {
        Plan { seed, hosts: 50, controllers: 3, events: 100, sabotage: Sabotage::None }
    }

    pub(super) fn large(seed: u64) -> Plan {
        Plan { seed, hosts: 1_000, controllers: 3, events: 300, sabotage: Sabotage::None }
    }

    pub(super) fn sabotaged(self, sabotage: Sabotage) -> Plan {
        Plan { sabotage, ..self }
    }
}

/// How long a world may take to come to rest after the last fault: a lease, an election, a few longest pauses.
const REST_WITHIN: Duration = Duration::from_secs(180);

/// Runs a world to its end, and says what happened in it.
pub(super) fn simulate(plan: &Plan) -> Story {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(plan);
        world.live(plan.events).await;
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
    /// The operator's way to the store, which is no better than others'.
    operator: Store,
    operator_faults: Faults,
    _following: OwnedTask,
}

impl World {
    fn new(plan: &Plan) -> World {
        let mut rng = rng(plan.seed);
        let truth = Embedded::in_memory(Options { seed: Some(plan.seed), ..Options::default() });
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

    /// Things happen.
    async fn live(&mut self, events: usize) {
        for _ in 0..events {
            self.something_happens().await;
            let pause = self.rng.random_range(0..2_500) / (1 + self.hosts.len() as u64 / 50);
            sleep(Duration::from_millis(pause)).await;
            self.judge.check_now();
        }
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

    /// The operator wants a host empty, or back; and does not wait for ever.
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

    /// History may go as far as the judge has read it.
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
            // Whoever revokes a leader's lease by hand lifts the fence in time; that much is documented.
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

    /// Everything works again and every host is wanted back: nothing may remain.
    async fn come_to_rest(&mut self) {
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
            let drains = self.judge.left_under("/capstan/drains/");
            assert!(begun.elapsed() < REST_WITHIN, "the world did not come to rest: {drains:?}");
            sleep(Duration::from_millis(500)).await;
            self.judge.check_now();
        }
        assert!(self.judge.deeds("registration") as usize >= self.hosts.len());
        assert!(self.judge.deeds("act of a leader") > 0);
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
