//! The simulated world: a clock, a queue of events, hosts, updaters, operators and faults.

mod acts;
mod faults;

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use capstan_control::hosts::HostRecord;
use capstan_control::keys::{HostId, HostKey, ServiceName};
use capstan_meta::record::{Empty, Key, LeaseHex, Prefix};
use capstan_meta::{Compare, LeaseId, Revision, Txn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::host::SimHost;
use super::store::SimStore;
use super::{Report, Sabotage, Scenario};
use crate::commit::txn;
use crate::decide::{Decision, Move, decide};
use crate::encoding::{Moment, Span};
use crate::facts::{Facts, Seen, Source as _};
use crate::keys::{CandidateKey, ReleaseName, Tree, default_group};
use crate::lrn::{Lrn, Lrns};
use crate::release::Manifest;
use crate::safety::{Safety, Truth, Violation, granted, led};
use crate::spec::{ReleaseRecord, Target};
use crate::status::{HostInfo, HostLease, Phase, Request};

/// When simulated worlds begin, in seconds since 1970.
const EPOCH: u64 = 1_600_000_000;
/// What the fleet has before, and what it is to have.
const OLD: &str = "1.0.0";
pub(super) const NEW: &str = "2.0.0";
/// Milliseconds after which a host that is not heard of has no lease any more.
const LEASE_MS: u64 = 10_000;

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A host looks at the metadata.
    Look(Lrn),
    /// What a host was doing is over.
    JobEnds { lrn: Lrn, boot: u64, number: u64 },
    /// A service looks at its drain.
    Service(Lrn),
    /// The leader of this term decides.
    Plan { term: Revision },
    /// A decision of the leader of this term arrives at the store.
    Decided { term: Revision, txn: Box<Txn>, excused: Lrns },
    /// An updater is elected.
    Elect,
    /// A lease ends.
    Expire(LeaseId),
    /// A host that is cut off knows by its own clock that its lease is about to end.
    Doubt(Lrn),
    /// The next fault of this kind.
    Fault(faults::Fault),
    /// A host starts.
    Boot(Lrn),
    /// A host reaches the store again.
    Heal(Lrn),
    /// Operators put right what went wrong.
    Tend,
    /// An operator stops the rollout.
    Stop,
    /// So long after a stop nothing may run any more.
    Audit { generation: u64, told: u64 },
}

pub(super) struct SimWorld<'s> {
    pub(super) scenario: &'s Scenario,
    pub(super) tree: Tree,
    pub(super) store: SimStore,
    pub(super) rng: StdRng,
    pub(super) now: u64,
    /// The request whose stop was recorded.
    pub(super) stop_told: Option<u64>,
    sequence: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    pub(super) hosts: BTreeMap<Lrn, SimHost>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) old_manifest: Arc<Manifest>,
    /// The leader's key and its term; `None` without a leader.
    pub(super) leader: Option<(CandidateKey, Revision)>,
    pub(super) next_lease: i64,
    plan_due: Option<u64>,
    pub(super) safety: Safety,
    members: (u64, Arc<Lrns>),
    /// What the judge knows about every host.
    pub(super) truths: BTreeMap<Lrn, Truth>,
    /// The hosts that need not be waited for, as the decision saw it that released the present step.
    pub(super) excused: Lrns,
    excused_for: (u64, u32),
    pub(super) deeds: BTreeMap<&'static str, u64>,
    decisions: u64,
    pub(super) commits: u64,
    fingerprint: DefaultHasher,
    pub(super) broken: Option<Violation>,
}

impl<'s> SimWorld<'s> {
    pub(super) fn new(scenario: &'s Scenario) -> SimWorld<'s> {
        let mut world = SimWorld {
            scenario,
            tree: Tree::default(),
            store: SimStore::default(),
            rng: StdRng::seed_from_u64(scenario.seed),
            now: 0,
            stop_told: None,
            sequence: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            hosts: BTreeMap::new(),
            manifest: acts::manifest(NEW, &scenario.kinds),
            old_manifest: acts::manifest(OLD, &scenario.kinds),
            leader: None,
            next_lease: 1,
            plan_due: None,
            safety: Safety::default(),
            members: (0, Arc::default()),
            truths: BTreeMap::new(),
            excused: Lrns::new(),
            excused_for: (0, 0),
            deeds: BTreeMap::new(),
            decisions: 0,
            commits: 0,
            fingerprint: DefaultHasher::new(),
            broken: None,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let now = self.moment();
        let releases = [(OLD, self.old_manifest.clone()), (NEW, self.manifest.clone())];
        for (version, manifest) in releases {
            if let Ok(name) = ReleaseName::new(version) {
                let key = self.tree.release(name);
                self.store.set(&key, &ReleaseRecord::of(&manifest, now));
            }
        }
        self.store.set(&self.tree.policy(default_group()), &self.scenario.policy);
        let before = crate::history::HistoryRecord {
            version: OLD.to_owned(),
            outcome: Some(crate::history::Outcome::Succeeded),
            ..crate::history::HistoryRecord::default()
        };
        self.store.set(&self.tree.history(1), &before);
        for lrn in 0..self.scenario.hosts {
            self.join(Lrn(lrn));
        }
        let target = Target { version: NEW.to_owned(), by: "simulation".to_owned(), ..Target::default() };
        self.store.set(&self.tree.target(), &target);
        self.after(0, Event::Elect);
        self.after(self.quiet_ms(), Event::Tend);
        if let Some(at) = self.scenario.stop_at {
            self.after(u64::try_from(at.0.as_millis()).unwrap_or(u64::MAX), Event::Stop);
        }
        self.plant_faults();
    }

    /// A host joins and starts.
    pub(super) fn join(&mut self, lrn: Lrn) {
        let mut host = SimHost::new(lrn, OLD);
        // What an earlier host of this number was doing ends in nothing.
        host.boot = self.sequence;
        host.slowness = if self.chance(self.scenario.faults.slow_permille) { 10 } else { 1 };
        host.bad = self.chance(self.scenario.faults.bad_permille);
        let labels = BTreeMap::from([("zone".to_owned(), host.zone.to_owned())]);
        let info =
            HostInfo { host: host_id(lrn).filter(|_| self.scenario.services), labels, ..HostInfo::default() };
        let truth = Truth { domain: host.zone.to_owned(), ..Truth::default() };
        self.truths.insert(lrn, truth);
        self.hosts.insert(lrn, host);
        self.store.set(&self.tree.boot_server(lrn), &Empty);
        self.store.set(&self.tree.host_info(lrn), &info);
        // What was released before it came was decided without it.
        self.excused.insert(lrn);
        self.mark_truths(&Lrns::from([lrn]));
        let wait = self.rng.random_range(0..2_000);
        self.after(wait, Event::Boot(lrn));
    }

    /// Whether something happens that happens so often in a thousand.
    pub(super) fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.rng.random_range(0..1_000) < permille
    }

    pub(super) fn moment(&self) -> Moment {
        Moment::since_epoch(std::time::Duration::from_millis(EPOCH * 1_000 + self.now))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.now >= self.quiet_ms()
    }

    fn quiet_ms(&self) -> u64 {
        u64::try_from(self.scenario.quiet_after.0.as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn after(&mut self, wait: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((self.now + wait, self.sequence)));
        self.events.insert(self.sequence, event);
    }

    pub(super) fn deed(&mut self, kind: &'static str) {
        *self.deeds.entry(kind).or_default() += 1;
    }

    pub(super) fn judge(&mut self, verdict: Result<(), Violation>) {
        if let Err(violation) = verdict {
            self.broken.get_or_insert(violation);
        }
    }

    pub(super) fn run(mut self) -> Result<Report, Violation> {
        let end = u64::try_from(self.scenario.give_up_after.0.as_millis()).unwrap_or(u64::MAX);
        let mut events = 0;
        while let Some(Reverse((at, sequence))) = self.queue.pop() {
            if at > end {
                break;
            }
            self.now = at;
            let Some(event) = self.events.remove(&sequence) else { continue };
            events += 1;
            (at, std::mem::discriminant(&event)).hash(&mut self.fingerprint);
            // Only what the leader and the operators do brings a rollout to its end.
            let may_end = matches!(event, Event::Decided { .. } | Event::Tend);
            self.happen(event);
            if let Some(violation) = self.broken.take() {
                return Err(violation);
            }
            if may_end && (self.is_quiet() || self.is_faultless()) && self.is_settled() {
                break;
            }
        }
        Ok(self.report(events))
    }

    fn is_faultless(&self) -> bool {
        self.scenario.faults
            == super::Faults {
                bad_permille: self.scenario.faults.bad_permille,
                slow_permille: self.scenario.faults.slow_permille,
                ..super::Faults::NONE
            }
    }

    /// Whether the last request is over and nothing more is to be done.
    fn is_settled(&self) -> bool {
        let Some(request) = self.request() else { return false };
        let everybody = self.hosts.values().all(|host| host.release == NEW);
        let history = self.store.records.get(&self.tree.history(request.record.generation)).ok().flatten();
        let ended = history.is_some_and(|seen| seen.record.outcome.is_some());
        // Recovery from a stop begins another request, unless no operator acts any more.
        ended && if request.record.stop { self.is_faultless() } else { everybody }
    }

    pub(super) fn request(&self) -> Option<Seen<Request>> {
        self.store.records.get(&self.tree.current()).ok().flatten()
    }

    /// The members of the present request. With thousands of hosts making this set is what costs.
    pub(super) fn members(&mut self) -> Arc<Lrns> {
        let Some(request) = self.request() else { return Arc::default() };
        if self.members.0 != request.record.generation {
            self.members = (request.record.generation, Arc::new(request.record.members()));
        }
        self.members.1.clone()
    }

    fn report(&self, events: u64) -> Report {
        let generation = self.request().map_or(0, |seen| seen.record.generation);
        let history = self.store.records.get(&self.tree.history(generation)).ok().flatten();
        Report {
            outcome: history.and_then(|seen| seen.record.outcome),
            took: Span(std::time::Duration::from_millis(self.now)),
            updated: self.hosts.values().filter(|host| host.release == NEW).count(),
            broken: self.hosts.values().filter(|host| host.was_broken).count(),
            events,
            decisions: self.decisions,
            commits: self.commits,
            requests: generation.saturating_sub(1),
            at_the_end: self.at_the_end(),
            fingerprint: self.fingerprint.finish(),
            deeds: self.deeds.clone(),
        }
    }

    fn at_the_end(&self) -> String {
        let known = Facts::read(&self.store.records, &self.tree, self.moment());
        let hosts = self.hosts.values().map(|host| {
            let wanted = known.desired.get(&host.lrn).map(|seen| (&seen.record.phase, seen.record.through));
            let work = if host.has_work { "" } else { " drained" };
            let why = crate::decide::why::why(&known, host.lrn);
            format!("host {}{work}: {} {:?}, wanted {wanted:?}", host.lrn, why.state, why.reasons)
        });
        format!("{}; {}", decide(&known).why, hosts.collect::<Vec<_>>().join("; "))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Look(lrn) => self.look(lrn),
            Event::JobEnds { lrn, boot, number } => self.job_ends(lrn, boot, number),
            Event::Service(lrn) => self.serve(lrn),
            Event::Plan { term } => self.plan(term),
            Event::Decided { term, txn, excused } => self.decided(term, &txn, excused),
            Event::Elect => self.elect(),
            Event::Expire(lease) => {
                let gone = self.store.expire(lease);
                self.changed(&gone);
                let left = self.hosts.values().find(|host| host.leaving && host.lease == lease);
                if let Some(lrn) = left.map(|host| host.lrn) {
                    self.take_away(lrn);
                }
            }
            Event::Doubt(lrn) => self.doubt(lrn),
            Event::Fault(fault) => self.strike(fault),
            Event::Boot(lrn) => self.boot(lrn),
            Event::Heal(lrn) => self.heal(lrn),
            Event::Tend => self.tend(),
            Event::Stop => self.give_stop(),
            Event::Audit { generation, told } => self.audit(generation, told),
        }
    }

    /// No updater is elected while the key of another leader is there, as in any store.
    fn elect(&mut self) {
        if self.leader.is_some() {
            return;
        }
        self.next_lease += 1;
        let lease = LeaseId(self.next_lease);
        let prefix = self.tree.candidates();
        let key = CandidateKey { root: prefix.root, lease: LeaseHex(lease) };
        self.store.set_leased(&key, &"updater".to_owned(), lease);
        let term = self.store.records.raw(&key.bytes()).map_or(Revision::ZERO, |kv| kv.create_revision);
        self.leader = Some((key, term));
        self.deed("election");
        self.plan_due = None;
        self.plan_in(50);
    }

    fn plan(&mut self, term: Revision) {
        let leads = self.leader.as_ref().is_some_and(|(_, leads)| *leads == term);
        // One that was put forward is not made a second time at its old hour.
        if !leads || self.plan_due != Some(self.now) {
            return;
        }
        self.plan_due = None;
        let mut known = Facts::read(&self.store.records, &self.tree, self.moment());
        let honest = (self.scenario.sabotage != Sabotage::None).then(|| known.clone());
        self.sabotage(&mut known);
        let Decision { next, wake_at, .. } = decide(&known);
        self.decisions += 1;
        match next {
            Some(next) => {
                self.note(&next);
                if let Move::Hosts(moves) = &next {
                    let verdict = granted(honest.as_ref().unwrap_or(&known), moves);
                    self.judge(verdict);
                }
                let excused = match next {
                    Move::Release(_) => excused(honest.as_ref().unwrap_or(&known)),
                    Move::Start(_) | Move::Stop { .. } | Move::End { .. } => Lrns::new(),
                    Move::Hosts(_) | Move::TakeBack(_) => Lrns::new(),
                };
                let mut made = txn(&self.tree, &known, &next);
                if self.scenario.sabotage != Sabotage::UnguardedLeader
                    && let Some((key, term)) = &self.leader
                {
                    made = made.when(Compare::create_revision(key.bytes(), *term));
                }
                let slow = self.chance(if self.is_quiet() { 0 } else { 50 });
                let wait = if slow { self.rng.random_range(0..20_000) } else { self.rng.random_range(2..40) };
                self.after(wait, Event::Decided { term, txn: Box::new(made), excused });
            }
            None => {
                if let Some(wake) = wake_at {
                    let wait = wake.as_epoch().saturating_sub(self.moment().as_epoch());
                    self.plan_in(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1));
                }
            }
        }
    }

    /// The planted bugs of the updater.
    fn sabotage(&mut self, known: &mut Facts) {
        match self.scenario.sabotage {
            Sabotage::ForgetsAHost => {
                if let Some(plan) = &known.plan {
                    let mut forgetful = (**plan).clone();
                    let last = forgetful.record.groups.last_mut().and_then(|group| group.waves.last_mut());
                    last.map(Vec::pop);
                    known.plan = Some(Arc::new(forgetful));
                }
            }
            Sabotage::IgnoresLimits => {
                for policy in known.policies.values_mut() {
                    policy.parallelism = crate::spec::Amount::ALL;
                    policy.max_unavailable = crate::spec::Amount::ALL;
                }
            }
            Sabotage::SkipsDrain => {
                known.infos.clear();
            }
            Sabotage::FinishedIsForever => {
                let finished = known.statuses.iter().filter(|(_, seen)| seen.record.finished);
                let finished: Vec<Lrn> = finished.map(|(lrn, _)| *lrn).collect();
                let Some(lease) = known.leases.values().next().cloned() else { return };
                for lrn in finished {
                    known.leases.entry(lrn).or_insert_with(|| lease.clone());
                }
            }
            Sabotage::SkipHoldsItsSlot => {
                let skipped = known.orders.as_ref().map(|seen| seen.record.skip.clone()).unwrap_or_default();
                known.statuses.retain(|lrn, seen| !(seen.record.error && skipped.contains_key(lrn)));
            }
            Sabotage::IgnoresUnits => known.drains.values_mut().for_each(|drain| drain.units.clear()),
            Sabotage::StopNeedsALeader | Sabotage::LeavesOrphans | Sabotage::ForgetsWhoLeaves => {}
            Sabotage::None
            | Sabotage::UnguardedReports
            | Sabotage::UnguardedLeader
            | Sabotage::DeafToStop
            | Sabotage::ForgetsItsStep => {}
        }
    }

    fn note(&mut self, next: &Move) {
        match next {
            Move::Start(_) => self.deed("start"),
            Move::Stop { .. } => self.deed("stop"),
            Move::End { .. } => self.deed("end"),
            Move::Release(_) => self.deed("release"),
            Move::TakeBack(_) => self.deed("take back"),
            Move::Hosts(moves) => {
                for host in moves {
                    self.deed(match &host.desired.phase {
                        Phase::Drain => "drain",
                        Phase::Run => "run",
                        Phase::Rollback { .. } => "rollback",
                        Phase::Return => "return",
                        Phase::Settle => "settle",
                        Phase::Done => "done",
                        Phase::Gone => "gone",
                        Phase::Failed => "failed",
                    });
                }
            }
        }
    }

    fn decided(&mut self, term: Revision, txn: &Txn, excused: Lrns) {
        let released = self.tree.released().bytes();
        if let Some(changed) = self.store.commit(txn) {
            self.commits += 1;
            let leads = self.leader.as_ref().map_or(0, |(_, term)| term.0);
            self.judge(led(term.0, leads));
            if changed.contains(&released) {
                self.excuse(excused);
            }
            self.changed(&changed);
        } else {
            self.deed("lost race");
        }
        self.plan_in(20);
    }

    /// A host that was away when a step was released is excused for the whole step, also if it runs it later.
    fn excuse(&mut self, away: Lrns) {
        let released = self.store.records.get(&self.tree.released()).ok().flatten();
        let step = released.map_or((0, 0), |seen| (seen.record.generation, seen.record.step));
        if self.excused_for != step {
            self.excused.clear();
            self.excused_for = step;
        }
        self.excused.extend(away);
    }

    /// The leader decides again soon; several reasons are one.
    pub(super) fn plan_in(&mut self, wait: u64) {
        let due = self.now + wait;
        if self.plan_due.is_some_and(|planned| planned <= due) {
            return;
        }
        if let Some((_, term)) = self.leader {
            self.plan_due = Some(due);
            self.after(wait, Event::Plan { term });
        }
    }

    /// Wakes the watchers of these keys.
    pub(super) fn changed(&mut self, keys: &[Bytes]) {
        let shared = [self.tree.current().bytes(), self.tree.released().bytes()];
        let everybody = keys.iter().any(|key| shared.contains(key));
        let prefix = self.tree.desireds().path();
        let reports = self.tree.host_statuses().path();
        let orders = self.tree.all_orders().path();
        let mut woken: Lrns = if everybody { self.hosts.keys().copied().collect() } else { Lrns::new() };
        let mut marked = woken.clone();
        for key in keys {
            let path = String::from_utf8_lossy(key);
            let of_host = path.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'));
            woken.extend(of_host.and_then(|(lrn, _)| lrn.parse::<Lrn>().ok()));
            marked.extend(path.strip_prefix(&reports).and_then(|lrn| lrn.parse::<Lrn>().ok()));
            if path.starts_with(&orders) {
                marked.extend(self.hosts.keys());
            }
            if let Some(lrn) = drained_host(&path) {
                let wait = self.rng.random_range(100..3_000);
                self.after(wait, Event::Service(lrn));
            }
        }
        marked.extend(&woken);
        self.mark_truths(&marked);
        for lrn in woken {
            self.wake(lrn);
        }
        let pace = 400 + u64::from(self.scenario.hosts) / 10;
        self.plan_in(pace);
    }

    pub(super) fn wake(&mut self, lrn: Lrn) {
        let wait = self.rng.random_range(1..150);
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        if host.up && host.linked && !host.notified {
            host.notified = true;
            self.after(wait, Event::Look(lrn));
        }
    }

    /// What a host says about itself in the store while it is up.
    pub(super) fn register(&mut self, lrn: Lrn) {
        self.next_lease += 1;
        let lease = LeaseId(self.next_lease);
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        host.lease = lease;
        let ttl_seconds = LEASE_MS / 1_000;
        let about = HostLease { release: host.release.clone(), ttl_seconds, ..HostLease::default() };
        let mut changed = vec![self.store.set_leased(&self.tree.host_lease(lrn), &about, lease)];
        if let (true, Some(host)) = (self.scenario.services, host_id(lrn)) {
            let services = ServiceName::new("svc").into_iter().collect();
            let record = HostRecord { services, ..HostRecord::default() };
            changed.push(self.store.set_leased(&HostKey { host }, &record, lease));
        }
        self.changed(&changed);
        self.tell(lrn, crate::agent::Event::LeaseHeld);
        self.after(1_000, Event::Service(lrn));
    }
}

/// What a host is called in the kernel.
pub(super) fn host_id(lrn: Lrn) -> Option<HostId> {
    HostId::new(format!("host-{lrn}")).ok()
}

/// The host that a key of the kernel's drains is about.
fn drained_host(path: &str) -> Option<Lrn> {
    let drain = capstan_control::keys::DrainKey::parse(path)?;
    drain.host.as_str().strip_prefix("host-")?.parse().ok()
}

/// The hosts that need not be waited for, as a decision sees it.
fn excused(known: &Facts) -> Lrns {
    use crate::decide::Standing;
    let standings = crate::decide::standings(known).unwrap_or_default();
    let away = standings.into_iter().filter(|(_, standing)| {
        matches!(
            standing,
            Standing::Left | Standing::Absent | Standing::Gone | Standing::Failed(_) | Standing::Skipped
        )
    });
    away.map(|(lrn, _)| lrn).collect()
}
