//! What hosts do in a simulated world: they look, work, report, and their services drain and return.

use std::sync::Arc;

use capstan_control::drain::{Answer, FailureUnit, Intent, answer_holding};
use capstan_control::keys::{AnswersOf, DrainKey, ServiceName};
use capstan_meta::Txn;
use capstan_meta::record::{Key, Prefix};
use rand::RngExt;

use super::{Event, NEW, SimWorld, host_id};
use crate::agent::shell::report_txns;
use crate::agent::{self, Effect, Fault, Inputs, SeenRequest};
use crate::facts::Source as _;
use crate::lrn::{Lrn, Lrns};
use crate::release::{Manifest, Step, StepKind};
use crate::run::{Installed, StepWork};
use crate::safety::{Begun, Violation, reported, truthful};
use crate::simulate::Sabotage;
use crate::simulate::host::Job;
use crate::status::Phase;

/// A release with steps of these kinds.
///
/// # Panics
/// Never: its names are digits and letters.
pub(super) fn manifest(version: &str, kinds: &[StepKind]) -> Arc<Manifest> {
    let name = |at: usize| format!("step-{}", at + 1).parse().ok();
    let steps = kinds.iter().enumerate().filter_map(|(at, kind)| {
        Some(Step { name: name(at)?, kind: *kind, actions: Vec::new(), timeout_seconds: 600, health: None })
    });
    let plain = |text: &str| text.parse().unwrap_or_else(|_| unreachable!("a version"));
    Arc::new(Manifest {
        format: 1,
        version: plain(version),
        min_worker_version: plain("0"),
        allowed_from: Vec::new(),
        expires: jiff::Timestamp::MAX,
        packages: Vec::new(),
        images: Vec::new(),
        steps: steps.collect(),
    })
}

impl SimWorld<'_> {
    pub(super) fn boot(&mut self, lrn: Lrn) {
        let own = self.store.records.get(&self.tree.host_status(lrn)).ok().flatten();
        let own = own.map(|seen| seen.record.clone());
        let forgets = self.scenario.sabotage == Sabotage::ForgetsItsStep;
        let own = own.filter(|_| !forgets);
        let leaves_orphans = self.scenario.sabotage == Sabotage::LeavesOrphans;
        let now = self.now;
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        if host.up {
            return;
        }
        host.up = true;
        host.boot += 1;
        host.there_since = now;
        // A worker that starts ends what an earlier one left running.
        if !leaves_orphans {
            host.running = None;
        }
        host.worker = Some(agent::Worker::new(lrn, own));
        if forgets {
            host.begun.clear();
            host.done.clear();
        }
        if host.linked {
            self.register(lrn);
            self.wake(lrn);
        }
    }

    pub(super) fn heal(&mut self, lrn: Lrn) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        if !host.linked {
            host.there_since = now;
        }
        host.linked = true;
        if host.up {
            self.register(lrn);
            self.wake(lrn);
        }
    }

    pub(super) fn look(&mut self, lrn: Lrn) {
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        host.notified = false;
        if host.up {
            self.see(lrn);
        }
    }

    /// A worker is told what the store says, if it reaches it. What it was told the judge remembers.
    fn see(&mut self, lrn: Lrn) {
        let stopped = self.request().filter(|seen| seen.record.stop).map(|seen| seen.record.generation);
        let Some(host) = self.hosts.get_mut(&lrn).filter(|host| host.linked) else { return };
        host.saw_stop = stopped;
        let inputs = self.inputs(lrn);
        self.tell(lrn, agent::Event::Seen(Box::new(inputs)));
    }

    fn inputs(&self, lrn: Lrn) -> Inputs {
        let request = self.store.records.get(&self.tree.current()).ok().flatten();
        let registered = self.store.records.raw(&self.tree.boot_server(lrn).bytes()).is_some();
        let deaf = self.scenario.sabotage == Sabotage::DeafToStop;
        Inputs {
            request: request.map(|seen| SeenRequest {
                request: crate::status::Request { stop: seen.record.stop && !deaf, ..seen.record.clone() },
                create_revision: seen.create_revision,
                mod_revision: seen.mod_revision,
            }),
            released: self
                .store
                .records
                .get(&self.tree.released())
                .ok()
                .flatten()
                .map(|seen| seen.record.clone()),
            desired: self
                .store
                .records
                .get(&self.tree.desired(lrn))
                .ok()
                .flatten()
                .map(|seen| seen.record.clone()),
            left: !registered,
        }
    }

    pub(super) fn doubt(&mut self, lrn: Lrn) {
        let cut_off = self.hosts.get(&lrn).is_some_and(|host| !host.linked);
        if cut_off {
            self.tell(lrn, agent::Event::LeaseLost);
        }
    }

    /// Tells a worker something and begins what it wants.
    pub(super) fn tell(&mut self, lrn: Lrn, event: agent::Event) {
        let Some(worker) = self.hosts.get_mut(&lrn).and_then(|host| host.worker.as_mut()) else { return };
        for effect in worker.step(event) {
            match effect {
                Effect::Cancel => self.cancel(lrn),
                Effect::Load { .. } => self.begin(lrn, Job::Load, 500..3_000),
                Effect::Run(work) => self.begin_step(lrn, work),
                Effect::Finish { work } => self.begin(lrn, Job::Finish(work), 10..200),
                Effect::RollBack { to, work } => {
                    self.begin(lrn, Job::RollBack(to.to_string(), work), 5_000..30_000);
                }
                Effect::Report(report) => self.begin(lrn, Job::Report(report), 5..100),
            }
        }
    }

    fn begin(&mut self, lrn: Lrn, job: Job, lasts: std::ops::Range<u64>) {
        let wait = self.rng.random_range(lasts);
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        host.job = Some(job);
        host.job_number += 1;
        host.cancelled = false;
        let event = Event::JobEnds { lrn, boot: host.boot, number: host.job_number };
        let wait = wait * host.slowness;
        self.after(wait, event);
    }

    fn begin_step(&mut self, lrn: Lrn, work: Box<StepWork>) {
        let generation = work.generation.0;
        let step = work.step.get();
        let run = (generation, work.manifest.version.to_string(), step);
        let kind = work.manifest.step(work.step).map_or(StepKind::Barrier, |step| step.kind);
        let desired = self.store.records.get(&self.tree.desired(lrn)).ok().flatten();
        let alone = desired.is_some_and(|seen| {
            seen.record.generation == generation
                && seen.record.phase == Phase::Run
                && seen.record.through >= step
        });
        let stopped = self.stop_told == Some(generation);
        let saw_stop = self
            .hosts
            .get(&lrn)
            .is_some_and(|host| host.saw_stop == Some(generation) || (stopped && host.linked));
        let resumed = self.hosts.get(&lrn).is_some_and(|host| host.begun.contains(&run));
        let members = self.members();
        let done = self.hosts.get(&lrn).is_some_and(|host| host.done.contains(&run));
        if !done {
            let begun = Begun { lrn, generation, step, kind, resumed, saw_stop, alone };
            let verdict = self.safety.begins(begun, &members, &self.truths, &self.scenario.policy);
            self.judge(verdict);
            self.deed("step");
        }
        if let Some(host) = self.hosts.get_mut(&lrn) {
            host.begun.insert(run);
            host.running = Some((generation, step));
        }
        self.begin(lrn, Job::Run(work), if done { 5..50 } else { 2_000..40_000 });
    }

    /// Brings what the judge knows about these hosts up to date.
    pub(super) fn mark_truths(&mut self, lrns: &Lrns) {
        let Ok(Some(request)) = self.store.records.get(&self.tree.current()) else { return };
        let request = &request.record;
        let orders = self.store.records.get(&self.tree.orders(request.generation)).ok().flatten();
        for lrn in lrns {
            let (Some(truth), Some(host)) = (self.truths.get_mut(lrn), self.hosts.get(lrn)) else { continue };
            let status = self.store.records.get(&self.tree.host_status(*lrn)).ok().flatten();
            let failed = status.is_some_and(|seen| seen.record.error && seen.record.is_about(request));
            let gone = self.store.records.raw(&self.tree.host_lease(*lrn).bytes()).is_none();
            let skipped = orders.as_ref().is_some_and(|seen| seen.record.skip.contains_key(lrn));
            let desired = self.store.records.get(&self.tree.desired(*lrn)).ok().flatten();
            let desired = desired.filter(|seen| seen.record.generation == request.generation);
            let given_up = desired.as_ref().is_some_and(|seen| seen.record.failure.is_some());
            truth.excused = failed || gone || skipped || given_up || self.excused.contains(lrn);
            let (out, worked_on) = match desired.map(|seen| seen.record.phase.clone()) {
                Some(Phase::Run | Phase::Rollback { .. }) => (true, true),
                Some(Phase::Drain) => (true, false),
                Some(Phase::Return | Phase::Settle | Phase::Done | Phase::Gone | Phase::Failed) | None => {
                    (false, false)
                }
            };
            // A host that leaves is out of service until nothing runs there.
            truth.out = out || (host.leaving && host.up && host.linked && host.running.is_some());
            truth.empty = !self.scenario.services || !host.has_work;
            // Without services nothing is held; a drained host keeps its copies until it is worked on.
            truth.shards = if self.scenario.services && (worked_on || (host.leaving && truth.out)) {
                vec![lrn.0 / 3]
            } else {
                Vec::new()
            };
        }
    }

    /// A service has moved its work away, or taken it up.
    fn set_work(&mut self, lrn: Lrn, has_work: bool) {
        if let Some(host) = self.hosts.get_mut(&lrn) {
            host.has_work = has_work;
        }
        if let Some(truth) = self.truths.get_mut(&lrn) {
            truth.empty = !self.scenario.services || !has_work;
        }
    }

    fn cancel(&mut self, lrn: Lrn) {
        let wait = self.rng.random_range(100..2_000);
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        host.cancelled = true;
        host.job_number += 1;
        let event = Event::JobEnds { lrn, boot: host.boot, number: host.job_number };
        self.after(wait, event);
    }

    pub(super) fn job_ends(&mut self, lrn: Lrn, boot: u64, number: u64) {
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        if host.boot != boot || host.job_number != number || !host.up {
            return;
        }
        let Some(job) = host.job.take() else { return };
        if let Job::Run(_) | Job::RollBack(..) = &job {
            host.running = None;
        }
        let stopped = std::mem::take(&mut host.cancelled);
        let event = match job {
            Job::Load if stopped => agent::Event::Loaded(Err(Fault::Stopped)),
            Job::Load => agent::Event::Loaded(Ok(self.manifest_of(lrn))),
            Job::Run(work) => agent::Event::Ran(self.ran(lrn, &work, stopped)),
            Job::Finish(work) => {
                if let Some(host) = self.hosts.get_mut(&lrn) {
                    let result = host.result_of(work.generation.0, &work.manifest);
                    host.adopt(&result);
                }
                agent::Event::Finished(Ok(()))
            }
            Job::RollBack(..) if stopped => agent::Event::RolledBack(Err(Fault::Stopped)),
            Job::RollBack(to, work) => {
                if let Some(host) = self.hosts.get_mut(&lrn) {
                    host.go_back(work.generation.0, &to);
                }
                self.safety.went_back(lrn, work.generation.0);
                agent::Event::RolledBack(Ok(()))
            }
            Job::Report(report) => return self.report_arrives(lrn, report),
        };
        // A worker looks before it hears what has ended, as its shell does.
        self.see(lrn);
        self.tell(lrn, event);
    }

    fn manifest_of(&self, lrn: Lrn) -> Arc<Manifest> {
        let wanted = self.inputs(lrn).request.map(|seen| seen.request.version);
        match wanted.as_deref() {
            Some(version) if version != NEW => self.old_manifest.clone(),
            Some(_) | None => self.manifest.clone(),
        }
    }

    fn ran(&mut self, lrn: Lrn, work: &StepWork, stopped: bool) -> Result<Installed, Fault> {
        let last = work.manifest.last_step() == work.step;
        let version = work.manifest.version.to_string();
        let Some(host) = self.hosts.get_mut(&lrn) else { return Err(Fault::Stopped) };
        if stopped {
            return Err(Fault::Stopped);
        }
        if host.bad && last && version == NEW {
            host.was_broken = true;
            return Err(Fault::Failed("the service does not start".to_owned()));
        }
        host.done.insert((work.generation.0, version, work.step.get()));
        if let Some(truth) = self.truths.get_mut(&lrn) {
            truth.done = (work.generation.0, work.step.get());
        }
        Ok(Installed::default())
    }

    fn report_arrives(&mut self, lrn: Lrn, report: Box<agent::Report>) {
        let linked = self.hosts.get(&lrn).is_some_and(|host| host.linked);
        if !linked {
            // Written again and again until it is answered.
            return self.begin(lrn, Job::Report(report), 1_000..5_000);
        }
        let mut written = true;
        for mut txn in report_txns(&self.tree, lrn, &report, self.moment()) {
            if self.scenario.sabotage == Sabotage::UnguardedReports {
                txn = Txn { compares: Vec::new(), ..txn };
            }
            let current = self.request().map(|seen| seen.record.generation);
            let Some(changed) = self.store.commit(&txn) else {
                written = false;
                break;
            };
            self.commits += 1;
            self.judge(reported(lrn, report.status.generation, current));
            self.judge_confirmation(lrn, &report.status);
            if report.status.finished {
                let has = self.hosts.get(&lrn).map(|host| host.release.clone()).unwrap_or_default();
                self.judge(truthful(lrn, &report.status.version, &has));
            }
            // A step that is passed over counts as done from the moment that its successor is announced.
            if let Some(truth) = self.truths.get_mut(&lrn) {
                let before = report.status.step.saturating_sub(1);
                let known = if truth.done.0 == report.status.generation { truth.done.1 } else { 0 };
                truth.done = (report.status.generation, known.max(before));
            }
            self.changed(&changed);
        }
        self.see(lrn);
        self.tell(lrn, agent::Event::Reported { written });
        let left = self.hosts.get(&lrn).is_some_and(|host| host.leaving);
        if left && written && report.status.stopped {
            self.take_away(lrn);
        }
    }

    /// A host that confirms a stop has nothing running.
    fn judge_confirmation(&mut self, lrn: Lrn, status: &crate::status::HostStatus) {
        let running = self.hosts.get(&lrn).and_then(|host| host.running);
        if status.stopped && running.is_some_and(|(generation, _)| generation == status.generation) {
            self.judge(Err(Violation::StillRuns(lrn)));
        }
    }

    /// So long after a stop nothing of the request runs on hosts that were there all the time.
    pub(super) fn audit(&mut self, generation: u64, told: u64) {
        let still =
            self.request().is_some_and(|seen| seen.record.generation == generation && seen.record.stop);
        let runs = self.hosts.values().find(|host| {
            let there = host.up && host.linked && host.there_since <= told;
            there && host.running.is_some_and(|(of, _)| of == generation)
        });
        if let (true, Some(lrn)) = (still, runs.map(|host| host.lrn)) {
            self.judge(Err(Violation::StillRuns(lrn)));
        }
    }

    /// The service of a host looks at its drain: it moves its work away when no other replica is missing, and takes it
    /// up again when it may.
    pub(super) fn serve(&mut self, lrn: Lrn) {
        if !self.scenario.services {
            return;
        }
        let (Some(id), Ok(service)) = (host_id(lrn), ServiceName::new("svc")) else { return };
        let Some(host) = self.hosts.get(&lrn) else { return };
        if !host.up || !host.linked {
            return;
        }
        let key = DrainKey { host: id.clone() };
        let Some(seen) = self.store.records.get(&key).ok().flatten() else {
            self.set_work(lrn, true);
            return;
        };
        let at = self.moment().as_epoch().as_secs();
        // As a real service does: it hands its work over, keeps its copy, and says of what.
        let units = vec![FailureUnit(format!("svc/{}", lrn.0 / 3))];
        match seen.record.intent {
            Intent::Drain if self.is_last_replica(lrn) => {
                let wait = Answer::Pending { reason: "another replica is missing".to_owned() };
                self.commit_quietly(&answer_holding(&id, &service, &seen, wait, units, at));
                self.after(5_000, Event::Service(lrn));
            }
            Intent::Drain => {
                if self.commit_quietly(&answer_holding(&id, &service, &seen, Answer::Drained, units, at)) {
                    self.set_work(lrn, false);
                }
            }
            Intent::Return => {
                self.set_work(lrn, true);
                // The kernel's controller removes a drain whose services are all back.
                let answers = AnswersOf { host: id };
                self.commit_quietly(
                    &Txn::new().when(key.unchanged(&seen)).then(key.delete()).then(answers.delete_all()),
                );
            }
        }
    }

    fn commit_quietly(&mut self, txn: &Txn) -> bool {
        match self.store.commit(txn) {
            Some(changed) => {
                let own: Vec<_> = changed;
                self.plan_in(50);
                !own.is_empty()
            }
            None => false,
        }
    }

    fn is_last_replica(&self, lrn: Lrn) -> bool {
        let peers = self.hosts.values().filter(|host| host.lrn.0 / 3 == lrn.0 / 3 && host.lrn != lrn);
        peers.into_iter().any(|peer| !peer.up)
    }
}
