//! Is health ever wrong for longer than documented? A model of proxies, grants, controllers and their probes, with faults from
//! a seed; what is shown comes from the functions that `capstan status` asks.

use std::sync::Arc;

use capstan_control::findings::{Finding, Health, Severity};
use capstan_control::report::LiveReport;
use capstan_meta::record::Stored;
use capstan_meta::{LeaseId, Revision};
use capstan_redis::broker;
use capstan_redis::facts::{self, Tree};
use capstan_redis::health::{PROXY_DOWN, findings};
use capstan_redis::keys::CoordinatorKey;
use capstan_redis::spec::ClusterSpec;
use capstan_testkit::seed::{rng, seeds, soak};
use rand::RngExt;
use rand::rngs::StdRng;

use super::world::{block_on, cluster, complete, embedded_store, pool, proxy, tree};

const PROXIES: usize = 3;
const CONTROLLERS: usize = 2;
/// All in milliseconds: how often the model looks, and the times of the real parts.
const TICK: u64 = 200;
const PROBE_EVERY: u64 = 1_000;
const PROBE_TIMEOUT: u64 = 2_000;
const GRANT: u64 = 1_500;
const LEASE: u64 = 10_000;
/// How long it may show green while a client is not served: a report counts for 4 s, or a probe begins and times out.
const RED_WITHIN: u64 = 4_000 + 2 * TICK;
/// How long it may show red when all is well: reports of processes that are gone count for 4 s.
const GREEN_WITHIN: u64 = 5_000 + 2 * TICK;
const FAULTS_END: u64 = 30_000;
const END: u64 = 45_000;

#[derive(Default)]
struct Controller {
    dead: bool,
    lease_until: u64,
    probe_begun: Option<u64>,
    next_probe: u64,
    report: Option<LiveReport>,
}

struct Model {
    tree: Tree,
    now: u64,
    hung: [bool; PROXIES],
    granted_until: u64,
    controllers: Vec<Controller>,
}

impl Model {
    fn serves(&self) -> bool {
        self.now < self.granted_until && !self.hung.contains(&true)
    }

    fn is_well(&self) -> bool {
        !self.hung.contains(&true) && self.controllers.iter().all(|controller| !controller.dead)
    }

    fn step(&mut self) {
        self.now += TICK;
        let (now, hung) = (self.now, self.hung);
        if self.controllers.iter().any(|controller| !controller.dead) {
            self.granted_until = now + GRANT;
        }
        let serves = now < self.granted_until;
        for controller in &mut self.controllers {
            if controller.lease_until <= now && controller.dead {
                controller.report = None;
            }
            if controller.dead {
                continue;
            }
            controller.lease_until = now + LEASE;
            if controller.probe_begun.is_none() && now >= controller.next_probe {
                (controller.probe_begun, controller.next_probe) = (Some(now), now + PROBE_EVERY);
            }
            let takes = if hung.contains(&true) { PROBE_TIMEOUT } else { TICK };
            if controller.probe_begun.is_some_and(|begun| now >= begun + takes) {
                controller.probe_begun = None;
                let down = (0..PROXIES).filter(|at| hung[*at] || !serves).map(finding);
                let report =
                    LiveReport { at_ms: now, probed: 3, findings: down.collect(), ..LiveReport::default() };
                controller.report = Some(report);
            }
        }
    }

    fn fault(&mut self, rng: &mut StdRng) {
        match rng.random_range(0..4) {
            0 | 1 => self.hung[rng.random_range(0..PROXIES)] ^= true,
            2 => self.controllers[rng.random_range(0..CONTROLLERS)].dead = true,
            _ => self.start(rng.random_range(0..CONTROLLERS)),
        }
    }

    /// A new process: the report of the former one stays until its lease is over, or is too old.
    fn start(&mut self, at: usize) {
        let now = self.now;
        let controller = &mut self.controllers[at];
        if std::mem::take(&mut controller.dead) {
            let report = controller.report.take();
            *controller = Controller { report, next_probe: now, ..Controller::default() };
        }
    }

    fn repair(&mut self) {
        self.hung = [false; PROXIES];
        (0..CONTROLLERS).for_each(|at| self.start(at));
    }

    fn is_green(&mut self) -> bool {
        let now = self.now;
        let known = self.controllers.iter().enumerate().filter(|(_, one)| !one.dead || one.lease_until > now);
        self.tree.coordinators = known.map(|(at, _)| coordinator(at)).collect();
        let reports: Vec<&LiveReport> =
            self.controllers.iter().filter_map(|one| one.report.as_ref()).collect();
        let mut found = findings(&self.tree, reports.iter().copied(), now);
        let fresh = reports.iter().filter(|report| report.is_fresh(now));
        found.extend(fresh.flat_map(|report| report.findings.clone()));
        Health::of(found).is_green()
    }
}

fn finding(at: usize) -> Finding {
    Finding::new(
        PROXY_DOWN,
        Severity::Critical,
        format!("redis proxy {at}"),
        "it does not answer",
        "start it",
    )
}

fn coordinator(at: usize) -> (CoordinatorKey, facts::Seen<capstan_redis::keys::ReportId>) {
    let id: capstan_redis::keys::ReportId = format!("c{at}").parse().unwrap();
    let stored = Stored {
        record: id.clone(),
        create_revision: Revision(1),
        mod_revision: Revision(1),
        lease: LeaseId::NONE,
    };
    (CoordinatorKey { address: proxy(9), report_id: id }, Arc::new(stored))
}

/// A cluster whose records are sound.
fn sound() -> Tree {
    block_on(async {
        let store = embedded_store();
        pool(&store, PROXIES, 1).await;
        broker::create_cluster(&store, &cluster("shop"), &ClusterSpec::of(3)).await.unwrap();
        complete(&store).await;
        tree(&store).await
    })
}

#[test]
fn health_is_never_wrong_for_longer_than_documented() {
    let tree = sound();
    let (mut reds, mut sequences) = (0_u64, 0);
    seeds(soak(1_000, 20_000), |seed| {
        let mut rng = rng(seed);
        let controllers = (0..CONTROLLERS).map(|_| Controller::default()).collect();
        let mut model =
            Model { tree: tree.clone(), now: 0, hung: [false; PROXIES], granted_until: 0, controllers };
        let (mut unserved_for, mut well_for) = (0, 0);
        while model.now < END {
            if model.now < FAULTS_END && rng.random_bool(0.05) {
                model.fault(&mut rng);
            } else if model.now >= FAULTS_END {
                model.repair();
            }
            model.step();
            unserved_for = if model.serves() { 0 } else { unserved_for + TICK };
            well_for = if model.is_well() { well_for + TICK } else { 0 };
            let green = model.is_green();
            reds += u64::from(!green);
            assert!(
                !green || unserved_for <= RED_WITHIN,
                "seed {seed}, {} ms: green, and no client was served for {unserved_for} ms",
                model.now
            );
            assert!(
                green || well_for <= GREEN_WITHIN,
                "seed {seed}, {} ms: red, and all was well for {well_for} ms",
                model.now
            );
        }
        sequences += 1;
    });
    assert!(reds > 0 || sequences == 0, "no fault was ever seen");
}
