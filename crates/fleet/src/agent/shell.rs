//! How are the effects of the state machine performed? By this loop, on one host: it watches its keys, runs steps through the
//! host's [`Runner`] and writes guarded reports.

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::backoff::Backoff;
use capstan_meta::record::{Key, RecordError};
use capstan_meta::session::{Session, SessionOptions, SessionState};
use capstan_meta::view::{Ranges, Snapshot, View, ViewOptions};
use capstan_meta::{Compare, LeaseId, MetaError, Store, Txn};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Effect, Event, Fault, Inputs, Report, SeenRequest, Worker};
use crate::encoding::Moment;
use crate::keys::{ContainerName, PackageName, Tree};
use crate::lrn::Lrn;
use crate::release::{Manifest, StepKind, Version};
use crate::run::{Permission, Runner, StepError, StepWork};
use crate::status::{HostLease, HostStatus};

/// How often a release that cannot be fetched is tried before the update fails on this host.
const LOAD_ATTEMPTS: u32 = 10;
/// Pauses between those attempts: the first, and the longest.
const LOAD_PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// At a barrier all hosts have something to report at the same moment. They take turns, so that a store gets no more than
/// five thousand reports a second, and no report waits for long.
const REPORT_TURN: Duration = Duration::from_micros(200);
const LAST_TURN: Duration = Duration::from_secs(5);
/// Pauses before a report is written again, for a store that is asked too much and says so.
const REPORT_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// A report without an answer for so long is written again; writing it twice is writing it once.
const REPORT_WITHIN: Duration = Duration::from_secs(10);
/// Records of installed artifacts in one transaction, which holds 128 operations.
const PUTS_PER_TXN: usize = 100;
/// How long a worker that is asked to end waits for its step to reach a safe point.
const END_WITHIN: Duration = Duration::from_secs(30);

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Its host.
    pub lrn: Lrn,
    /// What it says about itself while it is up.
    pub lease: HostLease,
    /// How its lease is kept.
    pub session: SessionOptions,
    /// How its view keeps in touch with the store.
    pub view: ViewOptions,
    /// Where the jitter of its pauses comes from.
    pub seed: u64,
}

impl WorkerOptions {
    /// The worker of this host, with the usual times.
    #[must_use]
    pub fn of(lrn: Lrn) -> WorkerOptions {
        WorkerOptions {
            lrn,
            lease: HostLease::default(),
            session: SessionOptions::default(),
            view: ViewOptions::default(),
            seed: rand::random(),
        }
    }
}

/// The keys that a worker watches: the request, the released step, what is wanted of its own host, and its own entry in
/// the registry.
#[must_use]
pub fn ranges(tree: &Tree, lrn: Lrn) -> Ranges {
    Ranges::new()
        .with_range(Key::range(&tree.current()).keys)
        .with_range(Key::range(&tree.released()).keys)
        .with_range(Key::range(&tree.desired(lrn)).keys)
        .with_range(Key::range(&tree.boot_server(lrn)).keys)
}

/// What a worker sees in a snapshot that covers [`ranges`]. What cannot be read counts as absent: a worker that does
/// not understand its orders does nothing.
#[must_use]
pub fn inputs(snapshot: &Snapshot, tree: &Tree, lrn: Lrn) -> Box<Inputs> {
    fn readable<T>(found: Result<Option<T>, capstan_meta::record::BadValue>) -> Option<T> {
        found.unwrap_or_else(|bad| {
            tracing::warn!(%bad, "an order cannot be read");
            None
        })
    }
    let request = readable(snapshot.get(&tree.current())).map(|seen| SeenRequest {
        request: seen.record.clone(),
        create_revision: seen.create_revision,
        mod_revision: seen.mod_revision,
    });
    Box::new(Inputs {
        request,
        released: readable(snapshot.get(&tree.released())).map(|seen| seen.record.clone()),
        desired: readable(snapshot.get(&tree.desired(lrn))).map(|seen| seen.record.clone()),
        left: snapshot.get(&tree.boot_server(lrn)).is_ok_and(|seen| seen.is_none()),
    })
}

/// Why a worker cannot work.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The store could not be asked, or holds something unreadable.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// Something of an earlier life of this worker still runs and cannot be ended.
    #[error(transparent)]
    Host(#[from] StepError),
}

/// Runs the worker of a host until it is stopped. A worker that ends leaves its host as it is; the next one goes on.
///
/// Before anything else it ends what an earlier life of it left running: a host that says that nothing of a request
/// runs there has looked.
pub async fn run(
    store: &Store,
    tree: &Tree,
    runner: Arc<dyn Runner>,
    options: WorkerOptions,
    stop: &CancellationToken,
) -> Result<(), WorkerError> {
    let lrn = options.lrn;
    let lease = HostLease { ttl_seconds: options.session.ttl.as_secs(), ..options.lease };
    let session = Session::start(store.clone(), options.session);
    session.declare(&tree.host_lease(lrn), &announced(&lease, &*runner));
    runner.end_orphans().await?;
    let view = Arc::new(View::open(store.clone(), ranges(tree, lrn), options.view).await?);
    let own = store.read(&tree.host_status(lrn)).await?.map(|seen| seen.record);
    let hands = Hands {
        store: store.clone(),
        tree: tree.clone(),
        lrn,
        runner,
        view,
        session: Some(session.clone()),
        lease,
        seed: options.seed,
    };
    match hands.work(own, stop).await {
        // Often the step itself has the daemon started again: the lease covers the gap, or else runs out.
        Ended::AtWork => {}
        Ended::Idle => session.close().await?,
    }
    Ok(())
}

/// What a worker says about itself, with the highest request that its host has worked for.
fn announced(lease: &HostLease, runner: &dyn Runner) -> HostLease {
    HostLease { generation: runner.newest().0, ..lease.clone() }
}

/// What a worker was doing when it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing: it is gone, and others need not wait for it.
    Idle,
    /// Something that the next worker of this host goes on with.
    AtWork,
}

/// What a worker's effects are performed with.
#[derive(Clone)]
pub struct Hands {
    /// Where reports are written.
    pub store: Store,
    /// The keys of the fleet.
    pub tree: Tree,
    /// The host.
    pub lrn: Lrn,
    /// Runs the steps.
    pub runner: Arc<dyn Runner>,
    /// Where orders are seen; it covers [`ranges`].
    pub view: Arc<View>,
    /// Says whether others can see that this worker is up; without one, its lease is kept elsewhere.
    pub session: Option<Session>,
    /// What it says about itself while it is up.
    pub lease: HostLease,
    /// Where the jitter of pauses comes from.
    pub seed: u64,
}

impl Hands {
    /// Obeys until it is stopped.
    pub async fn work(&self, own: Option<HostStatus>, stop: &CancellationToken) -> Ended {
        let mut worker = Worker::new(self.lrn, own);
        let mut changes = self.view.changes();
        let mut jobs = JoinSet::new();
        let mut cancel = stop.child_token();
        let mut lease = self.session.as_ref().map(Session::state);
        let mut held = self.session.as_ref().and_then(Session::lease);
        let mut event = Event::Seen(inputs(&changes.mark_seen(), &self.tree, self.lrn));
        loop {
            worker.step(self.lease());
            for effect in worker.step(event) {
                match effect {
                    Effect::Cancel => cancel.cancel(),
                    Effect::Report(report) => self.begin(&mut jobs, &mut cancel, stop, Job::Report(report)),
                    Effect::Load { version, permission } => {
                        self.begin(&mut jobs, &mut cancel, stop, Job::Load(version, permission));
                    }
                    Effect::Run(work) => self.begin(&mut jobs, &mut cancel, stop, Job::Run(work)),
                    Effect::Finish { work } => self.begin(&mut jobs, &mut cancel, stop, Job::Finish(work)),
                    Effect::RollBack { to, work } => {
                        self.begin(&mut jobs, &mut cancel, stop, Job::RollBack(to, work));
                    }
                }
            }
            event = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = jobs.join_next() => {
                    // What is seen by now comes before what has ended: it may not count any more.
                    let seen = Event::Seen(inputs(&changes.mark_seen(), &self.tree, self.lrn));
                    let cancels = worker.step(seen);
                    debug_assert!(cancels.iter().all(|effect| matches!(effect, Effect::Cancel)));
                    ended.unwrap_or_else(|panic| Event::Crashed(format!("the worker failed: {panic}")))
                }
                changed = changes.next() => match changed {
                    Some(delta) => Event::Seen(inputs(&delta.after, &self.tree, self.lrn)),
                    None => break,
                },
                () = renewed(&mut lease) => {
                    self.announce_again(&mut held);
                    Event::Seen(inputs(&changes.mark_seen(), &self.tree, self.lrn))
                }
            };
        }
        cancel.cancel();
        let doing = if jobs.is_empty() { Ended::Idle } else { Ended::AtWork };
        let ended = async { while jobs.join_next().await.is_some() {} };
        if timeout(END_WITHIN, ended).await.is_err() {
            tracing::warn!(lrn = %self.lrn, "a step did not stop in time");
        }
        doing
    }

    /// Under a new lease the host says again how far it has come: the store may have lost its data meanwhile.
    fn announce_again(&self, held: &mut Option<LeaseId>) {
        let Some(session) = &self.session else { return };
        let lease = session.lease();
        if lease.is_some() && lease != *held {
            if held.is_some() {
                session.declare(&self.tree.host_lease(self.lrn), &announced(&self.lease, &*self.runner));
            }
            *held = lease;
        }
    }

    /// Whether others can see that this worker is up, by the clock of this host.
    fn lease(&self) -> Event {
        match &self.session {
            Some(session) if session.lease().is_none() => Event::LeaseLost,
            Some(_) | None => Event::LeaseHeld,
        }
    }

    fn begin(
        &self,
        jobs: &mut JoinSet<Event>,
        cancel: &mut CancellationToken,
        stop: &CancellationToken,
        job: Job,
    ) {
        *cancel = stop.child_token();
        let (hands, cancelled) = (self.clone(), cancel.clone());
        jobs.spawn(async move { hands.perform(job, &cancelled).await });
    }

    async fn perform(&self, job: Job, stop: &CancellationToken) -> Event {
        match job {
            Job::Load(version, permission) => Event::Loaded(self.load(&version, permission, stop).await),
            Job::Run(work) => {
                let ran = self.runner.run(&work, stop).await;
                Event::Ran(ran.map(|outcome| outcome.installed).map_err(fault))
            }
            Job::Finish(work) => {
                let finished = self.runner.finish(work.generation, &work.manifest).await;
                Event::Finished(finished.map_err(fault))
            }
            Job::RollBack(to, work) => Event::RolledBack(self.roll_back(&to, &work, stop).await),
            Job::Report(report) => Event::Reported { written: self.report(&report).await },
        }
    }

    async fn load(
        &self,
        version: &Version,
        permission: Permission,
        stop: &CancellationToken,
    ) -> Result<Arc<Manifest>, Fault> {
        let mut pauses = Backoff::new(LOAD_PAUSES.0, LOAD_PAUSES.1, self.seed);
        loop {
            match self.fetch(version, permission, stop).await {
                Err(StepError::Unavailable(why)) if pauses.failures() + 1 < LOAD_ATTEMPTS => {
                    tracing::warn!(%version, why, "a release cannot be fetched yet");
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Err(Fault::Stopped),
                        () = sleep(pauses.next_wait()) => {}
                    }
                }
                fetched => return fetched.map_err(fault),
            }
        }
    }

    async fn fetch(
        &self,
        version: &Version,
        permission: Permission,
        stop: &CancellationToken,
    ) -> Result<Arc<Manifest>, StepError> {
        let manifest = self.runner.release(version, permission).await?;
        self.runner.stage(&manifest, stop).await?;
        Ok(manifest)
    }

    /// All steps of the version that the host kept, but those that one host does for all.
    async fn roll_back(&self, to: &Version, work: &StepWork, stop: &CancellationToken) -> Result<(), Fault> {
        let manifest = self.load(to, Permission::RollBack, stop).await?;
        for (step, described) in manifest.numbered_steps() {
            if described.kind == StepKind::Once {
                continue;
            }
            let back = StepWork {
                generation: work.generation,
                manifest: manifest.clone(),
                step,
                permission: Permission::RollBack,
            };
            self.runner.run(&back, stop).await.map_err(fault)?;
        }
        self.runner.finish(work.generation, &manifest).await.map_err(fault)
    }

    /// Writes a report; `false` if the request is not the one that it is about.
    async fn report(&self, report: &Report) -> bool {
        sleep(self.turn()).await;
        for txn in report_txns(&self.tree, self.lrn, report, Moment::now()) {
            if !self.commit(txn).await {
                return false;
            }
        }
        true
    }

    /// How long others report before this host does.
    fn turn(&self) -> Duration {
        let snapshot = self.view.snapshot();
        let request = snapshot.get(&self.tree.current()).ok().flatten();
        let before = request.and_then(|seen| seen.record.servers.iter().position(|lrn| *lrn == self.lrn));
        let before = before.and_then(|hosts| u32::try_from(hosts).ok()).unwrap_or_default();
        LAST_TURN.min(REPORT_TURN * before)
    }

    /// Commits until there is an answer; `false` if the request has changed.
    async fn commit(&self, txn: Txn) -> bool {
        let mut pauses = Backoff::new(REPORT_PAUSES.0, REPORT_PAUSES.1, self.seed ^ u64::from(self.lrn.0));
        loop {
            let given_up = |_| MetaError::Unknown("no answer in time".to_owned());
            match timeout(REPORT_WITHIN, self.store.commit(txn.clone())).await.map_err(given_up).flatten() {
                Ok(result) if result.succeeded => return true,
                Ok(result) => {
                    self.view.wait_for(result.revision, REPORT_WITHIN).await.ok();
                    return false;
                }
                Err(error) => {
                    tracing::debug!(lrn = %self.lrn, %error, "a report is written again");
                    sleep(pauses.next_wait()).await;
                }
            }
        }
    }
}

/// Returns when the lease has changed; never if it is kept elsewhere.
async fn renewed(lease: &mut Option<watch::Receiver<SessionState>>) {
    let Some(state) = lease else { return std::future::pending().await };
    if state.changed().await.is_err() {
        std::future::pending().await
    }
}

/// What takes time.
enum Job {
    Load(Version, Permission),
    Run(Box<StepWork>),
    Finish(Box<StepWork>),
    RollBack(Version, Box<StepWork>),
    Report(Box<Report>),
}

/// The transactions of a report: what was installed and the status, each only if the request is still the one that was
/// joined. It is one transaction unless more was installed than one holds; the status is always in the last.
#[must_use]
pub fn report_txns(tree: &Tree, lrn: Lrn, report: &Report, now: Moment) -> Vec<Txn> {
    let status = HostStatus { updated_at: Some(now), ..report.status.clone() };
    let packages = report.installed.packages.iter().filter_map(|(name, version)| {
        let package = PackageName::new(name.as_str()).ok()?;
        Some(tree.installed_deb(lrn, package).put(&version.to_string()))
    });
    let images = report.installed.images.iter().filter_map(|(name, tag)| {
        let container = ContainerName::new(name.as_str()).ok()?;
        Some(tree.installed_container(lrn, container).put(&tag.to_string()))
    });
    let guard = || Txn::new().when(Compare::mod_revision(tree.current().bytes(), report.guard));
    let mut puts: Vec<_> = packages.chain(images).collect();
    let last = puts.split_off(puts.len() - puts.len() % PUTS_PER_TXN);
    let full = puts.chunks(PUTS_PER_TXN).map(|chunk| chunk.iter().cloned().fold(guard(), Txn::then));
    let status = last.into_iter().fold(guard(), Txn::then).then(tree.host_status(lrn).put(&status));
    full.chain([status]).collect()
}

fn fault(error: StepError) -> Fault {
    match error {
        StepError::Stopped { .. } | StepError::StagingStopped => Fault::Stopped,
        StepError::Refused(_)
        | StepError::Unavailable(_)
        | StepError::Failed { .. }
        | StepError::TimedOut { .. }
        | StepError::Unhealthy { .. }
        | StepError::Host(_) => Fault::Failed(error.to_string()),
    }
}
