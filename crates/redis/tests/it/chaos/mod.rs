//! Does an installation lose what it has acknowledged, or stay down, whatever fails? Real processes, random faults, often
//! two at once, clients that write all the time, and a checker of everything that they saw.

mod clients;
mod faults;
mod history;
mod installation;
mod outage;
mod returns;

use std::ops::Range;
use std::time::{Duration, Instant};

use capstan_redis::slots::Slot;
use capstan_redis::spec::{Acks, ClusterSpec, Persistence, Serving};
use capstan_redis::status::NodeRecord;
use capstan_testkit::eventually;
use capstan_testkit::seed::{self, soak};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use clients::Load;
use faults::Fault;
use history::{History, Rule, Totals, Window};
use installation::{Installation, SOON};

/// The stated window of asynchronous replication before a failure, with what a loaded machine adds to the time until a
/// replica that lost its link leaves the in-sync set.
const BEFORE: Duration = Duration::from_secs(3);
/// The longest time from a fault until the old primary acknowledges nothing any more.
const AFTER: Duration = Duration::from_secs(5);
/// How long one configuration is struck in the long form.
const LONG: Duration = Duration::from_secs(300);
/// Appends before the first fault.
const FIRST_APPENDS: u32 = 300;
const PRIMARIES: u32 = 2;
const HOSTS: usize = 3;
const NODES: usize = 3;

fn spec(replicas: u32, persistence: Persistence, acks: Acks) -> ClusterSpec {
    let serving = Serving { persistence, acks, ..Serving::default() };
    ClusterSpec { replicas, serving, ..ClusterSpec::of(PRIMARIES) }
}

/// An installation under load.
struct Run {
    installation: Installation,
    load: Load,
    spec: ClusterSpec,
    windows: Vec<Window>,
    rng: StdRng,
}

impl Run {
    async fn start(spec: ClusterSpec, seed: u64) -> Run {
        let installation = Installation::start(HOSTS, NODES, &spec).await;
        let load = Load::start(&installation.proxies(), seed);
        eventually("clients write", SOON, async || load.has_sent(FIRST_APPENDS)).await;
        Run { installation, load, spec, windows: Vec::new(), rng: seed::rng(seed) }
    }

    /// The faults of the next round.
    fn choose(&mut self) -> Vec<Fault> {
        let possible = Fault::survivable(&self.spec);
        let first = *possible.choose(&mut self.rng).unwrap();
        let second = *possible.choose(&mut self.rng).unwrap();
        // Two copies that are lost at the same time need a file.
        let durable = self.spec.serving.persistence == Persistence::Aof;
        let both = durable || !(first.ends_processes() && second.ends_processes());
        let both = both && !first.comes_alone() && !second.comes_alone();
        if both && first != second && self.rng.random_bool(0.5) { vec![first, second] } else { vec![first] }
    }

    /// Strikes, waits a moment, and repairs everything. Returns when the cluster is healthy again.
    async fn round(&mut self, faults: &[Fault]) {
        let loads_for = *soak(&[0, 4][..], &[0, 0, 5, 40]).choose(&mut self.rng).unwrap();
        self.installation.pace.set(Duration::from_secs(loads_for) / self.load.appends_of_one(PRIMARIES));
        let nodes = self.installation.nodes().await.unwrap();
        let began = self.load.elapsed();
        // The last writes to a file may be in the memory of its server. With `acks: replica` another one has them, unless
        // both are killed.
        let kills = |fault: &Fault| if fault.ends_copies() { 2 } else { usize::from(fault.ends_processes()) };
        let lone = faults.iter().map(kills).sum::<usize>() <= 1;
        for fault in faults {
            let from = self.load.elapsed().saturating_sub(BEFORE);
            self.installation.strike(*fault, &nodes, &mut self.rng).await;
            let asynchronous = self.spec.serving.acks == Acks::Primary;
            if (fault.may_fail_over() && asynchronous) || (fault.ends_processes() && !lone) {
                self.windows.push(Window { from, to: self.load.elapsed() + AFTER });
            }
            self.pass(0..2000).await;
        }
        self.pass(1000..soak(4000, 12_000)).await;
        self.installation.repair(&nodes, &mut self.rng).await;
        let repaired = self.load.elapsed();
        self.installation.healthy().await;
        let healed = self.load.elapsed().saturating_sub(repaired);
        let lasted = repaired.saturating_sub(began);
        eprintln!(
            "{began:.1?}: {faults:?} for {lasted:.1?}, loading takes {loads_for} s; healthy {healed:.1?} later"
        );
    }

    async fn pass(&mut self, millis: Range<u64>) {
        let time = Duration::from_millis(self.rng.random_range(millis));
        // tidy: allow, because the next fault comes at a random instant
        tokio::time::sleep(time).await;
    }

    /// Removes elements of a list from the node that has it, as no client does.
    async fn forget_most(&self, list: &str) {
        let slot = Slot::of(list.as_bytes()).number();
        let nodes = self.installation.nodes().await.unwrap();
        let has =
            |node: &&NodeRecord| node.owned().any(|range| range.first() <= slot && slot <= range.last());
        let owner = nodes.iter().find(has).unwrap();
        let mut wire =
            self.installation.hosts[self.installation.host_of(owner)].node(&owner.address).unwrap();
        assert_eq!(wire.say(&format!("LTRIM {list} 0 0")).unwrap(), "+OK\r\n");
    }

    /// Ends the load and checks what it saw.
    async fn check(&mut self) -> (History, Totals) {
        let events = self.load.finish().await;
        let finally = eventually("every list is served", SOON, async || self.load.contents(&events)).await;
        let history = History { events, finally, windows: self.windows.clone() };
        match history.check() {
            Ok(totals) => {
                eprintln!("{totals:?}");
                (history, totals)
            }
            Err(violations) => {
                let shown: Vec<String> = violations.iter().take(20).map(ToString::to_string).collect();
                panic!("{} violations, windows {:?}:\n{}", violations.len(), self.windows, shown.join("\n"));
            }
        }
    }
}

/// Starts an installation, strikes, and checks. Returns the run for more.
async fn survives(spec: ClusterSpec, seed: u64, rounds: Rounds) -> (Run, History) {
    eprintln!(
        "seed {seed}: {} replicas, {:?}, {:?}",
        spec.replicas, spec.serving.persistence, spec.serving.acks
    );
    let mut run = Run::start(spec, seed).await;
    match rounds {
        Rounds::Given(rounds) => {
            for faults in rounds {
                run.round(faults).await;
            }
        }
        Rounds::For(time) => {
            let end = Instant::now() + time;
            while Instant::now() < end {
                let faults = run.choose();
                run.round(&faults).await;
            }
        }
    }
    let (history, totals) = run.check().await;
    assert!(totals.acknowledged > 100 && totals.reads > 20, "{totals:?}");
    (run, history)
}

enum Rounds {
    /// These, in this order.
    Given(&'static [&'static [Fault]]),
    /// Random ones, for this long.
    For(Duration),
}

/// The short form has these faults; the long form, random ones with a fresh seed.
fn rounds(short: &'static [&'static [Fault]]) -> (u64, Rounds) {
    let seed = soak(1, rand::random());
    (seed, soak(Rounds::Given(short), Rounds::For(LONG)))
}

/// With `acks: replica` and a file nothing is lost, whatever fails. And the checker would see it: elements that are
/// removed from a node behind its proxy are missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_replicas_acknowledged_is_never_lost() {
    let (seed, rounds) = rounds(&[
        &[Fault::CutControllersFromStore, Fault::KillPrimary],
        &[Fault::FreezePrimary, Fault::KillController],
        &[Fault::PowerCut],
    ]);
    let (run, history) = survives(spec(1, Persistence::Aof, Acks::Replica), seed, rounds).await;
    let list = history.longest_that_counts();
    run.forget_most(&list).await;
    let finally = eventually("every list is read", SOON, async || run.load.contents(&history.events)).await;
    let violations = History { finally, ..history }.check().unwrap_err();
    assert!(violations.iter().all(|violation| violation.rule == Rule::Lost && violation.list == list));
}

/// The rest of the matrix, in the long form only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_other_configuration_keeps_its_promise() {
    let rest = [
        spec(2, Persistence::Aof, Acks::Replica),
        spec(2, Persistence::None, Acks::Replica),
        spec(1, Persistence::Aof, Acks::Primary),
        spec(1, Persistence::Rdb, Acks::Primary),
        spec(1, Persistence::None, Acks::Primary),
        spec(0, Persistence::Aof, Acks::Primary),
        spec(0, Persistence::None, Acks::Primary),
    ];
    for spec in soak(Vec::new(), rest.to_vec()) {
        survives(spec, rand::random(), Rounds::For(LONG)).await;
    }
}
