//! How does a range of slots move to another host while clients write? The source copies and releases, the target imports.
//!
//! The owner of the proxy's state calls [`Moves::prepare`] with every `SETDB` that it has accepted and persisted, builds
//! its routing table with the returned gates, swaps the table in, and calls [`Prepared::routed`]. It passes
//! `NMCTL RELEASING` to [`Moves::releasing`] and connections with `NMCTL IMPORT` to [`Moves::take_import`], and shows
//! [`Moves::lines`] for `NMCTL MOVES`.
//!
//! ```text
//! source                                          target
//! SETDB migrating to target: gate records         SETDB importing from source
//! NMCTL IMPORT epoch db source range        --->  range emptied, session begins
//! SCAN over the node, DUMP                  --->  RESTORE            (all keys)
//! keys written meanwhile, DUMP              --->  RESTORE or DEL     (pass after pass, until few are left)
//! RELEASING: gate holds, the rest           --->  RESTORE or DEL
//! release persisted, +OK
//! SETDB without the range: gate gone, held commands go to the target; leftovers are removed
//! ```
//!
//! Read first: `source` (the copy), `import` (the other side), [`Moves`].

mod decide;
mod import;
mod lane;
mod ledger;
mod names;
mod pace;
mod progress;
mod source;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use capstan_control::epoch::Epoch;
use capstan_control::tasks::{Kind, OnFailure, Stage as StopStage, Supervisor};
use capstan_meta::backoff::Backoff;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use import::ImportError;
use import::{Ended, Imports, open_node};
use ledger::Ledger;
use names::Claims;
pub use names::{Held, ImportId};
use pace::Pace;
pub use progress::{Progress, Snapshot, Stage};
use source::{Job, RELEASE_WITHIN};

use crate::conversation::Credentials;
use crate::gate::{Gate, Phase};
use crate::nodes::Nodes;
use crate::state::Move;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{Announcement, Entry, Import, OldEpoch};

const COPY: Kind = Kind { name: "redis-move", on_failure: OnFailure::Log, stage: StopStage::Working };
const IMPORT: Kind = Kind { name: "redis-import", on_failure: OnFailure::Log, stage: StopStage::Working };
const SWEEP: Kind = Kind { name: "redis-sweep", on_failure: OnFailure::Log, stage: StopStage::Working };

/// Backoff of a sweep whose node does not reply.
const SWEEP_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Pause between two pages of a sweep: clients come first.
const SWEEP_REST: Duration = Duration::from_millis(1);

/// The configuration of moves.
#[derive(Clone, Debug)]
pub struct MovesConfig {
    /// This proxy's address, as other proxies have it.
    pub proxy: Address,
    /// Credentials for `NMCTL` at other proxies.
    pub admin: Option<Credentials>,
    /// The path of the ledger.
    pub ledger: PathBuf,
}

/// All moves from and to this host. Clones share the state.
#[derive(Clone, Debug)]
pub struct Moves {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: MovesConfig,
    runtime: Handle,
    supervisor: Supervisor,
    nodes: Nodes,
    pace: Arc<Pace>,
    ledger: Arc<Mutex<Ledger>>,
    imports: Imports,
    current: Mutex<Current>,
}

/// The state derived from the newest `SETDB`.
#[derive(Debug, Default)]
struct Current {
    epoch: Epoch,
    claims: Claims,
    running: BTreeMap<Move, Running>,
    /// Leftovers being removed.
    sweeps: BTreeSet<Held>,
}

#[derive(Clone, Debug)]
struct Running {
    gate: Arc<Gate>,
    progress: Arc<Progress>,
    asked: watch::Sender<Option<Instant>>,
    stop: CancellationToken,
}

/// Why a range is not released. The text is the reply to `RELEASING`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReleased {
    /// The coordinator's epoch is older than this proxy's.
    #[error("{}", OldEpoch { known: *known })]
    OldEpoch {
        /// This proxy's epoch.
        known: Epoch,
    },
    /// The coordinator's epoch is newer: it has to push `SETDB` first.
    #[error("TRYAGAIN known {known}")]
    NotPushed {
        /// This proxy's epoch.
        known: Epoch,
    },
    /// There is no such move.
    #[error("ERR {what} is not migrating from this proxy")]
    NoSuchMove {
        /// Which range of which database and node.
        what: String,
    },
    /// The copy is not far enough.
    #[error("MIGRATING {progress}")]
    Migrating {
        /// The progress of the move.
        progress: String,
    },
}

/// A `SETDB` whose moves are ready to begin. Call [`routed`](Prepared::routed) when the routing table is in
/// place.
#[derive(Debug)]
#[must_use = "moves begin, and gates of old ones open, when the routing table is in place"]
pub struct Prepared {
    moves: Moves,
    gates: BTreeMap<Move, Arc<Gate>>,
    over: Vec<(Arc<Gate>, Phase)>,
    begun: Vec<Job>,
    ended_imports: Vec<Ended>,
}

impl Moves {
    /// Opens the ledger. Moves run on the runtime of the caller, under its supervisor.
    pub fn open(config: MovesConfig, nodes: Nodes, supervisor: &Supervisor) -> io::Result<Moves> {
        let ledger = Arc::new(Mutex::new(Ledger::open(config.ledger.clone())?));
        let shared = Shared {
            config,
            runtime: Handle::current(),
            supervisor: supervisor.clone(),
            nodes,
            pace: Arc::default(),
            ledger,
            imports: Imports::default(),
            current: Mutex::default(),
        };
        Ok(Moves { shared: Arc::new(shared) })
    }

    /// Sets the limit in keys per second over all moves from this host; zero: unlimited.
    pub fn set_rate(&self, keys_per_second: u64) {
        self.shared.pace.set(keys_per_second);
    }

    /// Prepares for a `SETDB` that was accepted and persisted. Moves that it still contains continue;
    /// `workers` have to join the gates of new ones.
    pub fn prepare(&self, epoch: Epoch, entries: &[Entry], workers: usize) -> io::Result<Prepared> {
        let claims = Claims::of(entries);
        let mut current = self.current();
        let mut prepared = Prepared {
            moves: self.clone(),
            gates: BTreeMap::new(),
            over: Vec::new(),
            begun: Vec::new(),
            ended_imports: self.shared.imports.expect(&claims.coming),
        };
        self.end_moves(&mut current, &claims, &mut prepared)?;
        self.note_leftovers(&claims, &prepared.ended_imports)?;
        for id in &claims.leaving {
            let running = match current.running.get(id) {
                Some(running) => running.clone(),
                None => self.begin(id, epoch, workers, &mut prepared),
            };
            prepared.gates.insert(id.clone(), running.gate.clone());
            current.running.insert(id.clone(), running);
        }
        (current.epoch, current.claims) = (epoch, claims);
        Ok(prepared)
    }

    /// Ends moves that the new claims do not contain: cancelled if the range is served here, else gone.
    fn end_moves(&self, current: &mut Current, claims: &Claims, prepared: &mut Prepared) -> io::Result<()> {
        let over: Vec<Move> =
            current.running.keys().filter(|id| !claims.leaving.contains(id)).cloned().collect();
        for id in over {
            let Some(running) = current.running.remove(&id) else { continue };
            // Cancel first, then the ledger: see `Job::last_pass`.
            running.stop.cancel();
            let held = Held { db: id.db.clone(), node: id.node.clone(), range: id.range };
            let mut ledger = self.ledger();
            let (phase, leftover) = match (claims.touches(&held), ledger.is_released(&id)) {
                (true, _) => (Phase::Open, None),
                (false, true) => (Phase::Gone, Some(held)),
                // Taken away without a release: the data here may be the only copy.
                (false, false) => (Phase::Gone, None),
            };
            info!(%id, outcome = ?phase, "move ended");
            ledger.over(&id, leftover)?;
            prepared.over.push((running.gate, phase));
        }
        Ok(())
    }

    fn note_leftovers(&self, claims: &Claims, ended: &[Ended]) -> io::Result<()> {
        let mut ledger = self.ledger();
        ledger.drop_leftovers(|held| claims.touches(held))?;
        for Ended { id, .. } in ended {
            let held = Held { db: id.db.clone(), node: id.node.clone(), range: id.range };
            if !claims.touches(&held) {
                ledger.add_leftover(held)?;
            }
        }
        Ok(())
    }

    fn begin(&self, id: &Move, epoch: Epoch, workers: usize, prepared: &mut Prepared) -> Running {
        let released = self.ledger().is_released(id);
        let gate = match released {
            true => Gate::released(id.range, id.to.clone()),
            false => Gate::new(id.range, id.to.clone(), workers),
        };
        let asked = watch::Sender::new(None);
        let running = Running {
            gate: gate.clone(),
            progress: Arc::default(),
            asked: asked.clone(),
            stop: CancellationToken::new(),
        };
        prepared.begun.push(Job {
            id: id.clone(),
            proxy: self.shared.config.proxy.clone(),
            epoch,
            gate,
            progress: running.progress.clone(),
            pace: self.shared.pace.clone(),
            nodes: self.shared.nodes.clone(),
            credentials: self.shared.config.admin.clone(),
            ledger: self.shared.ledger.clone(),
            asked: asked.subscribe(),
            stop: running.stop.clone(),
        });
        running
    }

    /// `NMCTL RELEASING`: releases ranges whose moves are nearly done. It waits for such a move, for a
    /// bounded time, instead of letting the coordinator retry: clients wait too.
    pub async fn releasing(&self, message: &Announcement) -> Result<(), NotReleased> {
        let moves = self.asked_for(message)?;
        for running in &moves {
            running.asked.send_replace(Some(Instant::now()));
        }
        for running in &moves {
            let near = match running.snapshot().stage {
                Stage::CatchingUp | Stage::Holding | Stage::Released => true,
                Stage::Starting | Stage::Copying | Stage::Failed { .. } => false,
            };
            if near {
                // The phase tells whether it was decided in time.
                timeout(RELEASE_WITHIN, running.gate.decided()).await.ok();
            }
            if running.gate.phase() != Phase::Released {
                return Err(NotReleased::Migrating { progress: running.snapshot().to_string() });
            }
        }
        Ok(())
    }

    fn asked_for(&self, message: &Announcement) -> Result<Vec<Running>, NotReleased> {
        let current = self.current();
        let known = current.epoch;
        if message.epoch < known && !message.flags.force {
            return Err(NotReleased::OldEpoch { known });
        }
        if message.epoch > known && !message.flags.force {
            return Err(NotReleased::NotPushed { known });
        }
        let find = |entry: &Entry| {
            let found = current.running.iter().find(|(id, _)| id.matches_entry(entry));
            let what = || format!("{} {} {}", entry.db, entry.address, entry.claim.range());
            found.map(|(_, running)| running.clone()).ok_or_else(|| NotReleased::NoSuchMove { what: what() })
        };
        message.entries.iter().map(find).collect()
    }

    /// All moves from this host with their progress.
    #[must_use]
    pub fn all(&self) -> Vec<(Move, Snapshot)> {
        self.current().running.iter().map(|(id, running)| (id.clone(), running.snapshot())).collect()
    }

    /// The same as lines of text.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.all().into_iter().map(|(id, snapshot)| format!("{id} {snapshot}")).collect()
    }

    /// Takes over a connection with an import request, and the bytes already read after the request. Sends
    /// the reply.
    pub fn take_import(&self, stream: std::net::TcpStream, early: &[u8], request: Import) {
        let (moves, early) = (self.clone(), BytesMut::from(early));
        let name = format!("{} {}", request.db, request.range);
        let mut taken = Some((stream, early, request));
        self.start(IMPORT, name, move |stop| {
            let (moves, taken) = (moves.clone(), taken.take());
            async move {
                let Some((stream, early, request)) = taken else { return Ok(()) };
                stream.set_nonblocking(true)?;
                let stream = tokio::net::TcpStream::from_std(stream)?;
                let serve = moves.shared.imports.serve(stream, early, request, &moves.shared.nodes);
                if let Some(Err(error)) = stop.run_until_cancelled(serve).await {
                    info!(%error, "import connection closed");
                }
                Ok(())
            }
        });
    }

    /// Removes keys that this host no longer serves.
    fn sweep(&self, held: Held) {
        if !self.current().sweeps.insert(held.clone()) {
            return;
        }
        let moves = self.clone();
        let name = format!("{} {} {}", held.db, held.node, held.range);
        self.start(SWEEP, name, move |stop| {
            let (moves, held) = (moves.clone(), held.clone());
            async move {
                stop.run_until_cancelled(moves.sweep_until_done(&held)).await;
                moves.current().sweeps.remove(&held);
                Ok(())
            }
        });
    }

    async fn sweep_until_done(&self, held: &Held) {
        let mut retry = Backoff::new(SWEEP_RETRY.0, SWEEP_RETRY.1, u64::from(held.range.first()));
        while self.ledger().is_leftover(held) {
            match self.sweep_once(held).await {
                Ok(Some(removed)) => {
                    info!(db = %held.db, node = %held.node, range = %held.range, removed, "removed leftovers");
                    if let Err(error) = self.ledger().drop_leftovers(|it| it == held) {
                        warn!(%error, "cannot record the end of a sweep; it is repeated after a restart");
                    }
                    return;
                }
                Ok(None) => return,
                Err(error) => warn!(node = %held.node, %error, "cannot remove leftovers yet"),
            }
            sleep(retry.next_wait()).await;
        }
    }

    /// One pass over the node. `None`: the range has come back, and its keys are no longer leftovers.
    async fn sweep_once(&self, held: &Held) -> Result<Option<u64>, ImportError> {
        let mut node = open_node(&held.node, &self.shared.nodes).await?;
        let (mut walk, mut removed) = (sweep::Walk::new(), 0);
        while let Some(page) = walk.next(&mut node, held.range).await? {
            if !page.keys.is_empty() {
                let _alone = self.shared.imports.sweeping.lock().await;
                if !self.ledger().is_leftover(held) {
                    return Ok(None);
                }
                removed += sweep::remove(&mut node, &page.keys).await?;
            }
            sleep(SWEEP_REST).await;
        }
        Ok(Some(removed))
    }

    fn start<F>(&self, kind: Kind, name: String, body: impl FnMut(CancellationToken) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), capstan_control::tasks::TaskError>> + Send + 'static,
    {
        let _runtime = self.shared.runtime.enter();
        self.shared.supervisor.start(kind, name, body);
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn snapshot(&self) -> Snapshot {
        self.progress.snapshot(self.gate.dirty_keys())
    }
}

impl Prepared {
    /// The gate of a move, for the routing table.
    #[must_use]
    pub fn gate(&self, of: &Move) -> Option<Arc<Gate>> {
        self.gates.get(of).cloned()
    }

    /// The routing table with these gates is in place: commands held at the gates of old moves are routed
    /// again, new moves begin, leftovers are removed.
    pub fn routed(self) {
        let Prepared { moves, over, begun, ended_imports, .. } = self;
        for (gate, phase) in over {
            gate.become_phase(phase);
        }
        for job in begun {
            let name = job.id.to_string();
            let mut job = Some(job);
            moves.start(COPY, name, move |stop| {
                let job = job.take();
                async move {
                    if let Some(job) = job {
                        stop.run_until_cancelled(job.run()).await;
                    }
                    Ok(())
                }
            });
        }
        moves.clone().seal_then_sweep(ended_imports);
    }
}

impl Moves {
    /// Ends what imports still have in flight at their nodes, then removes leftovers.
    fn seal_then_sweep(self, ended: Vec<Ended>) {
        let leftovers: Vec<Held> = self.ledger().leftovers().cloned().collect();
        if leftovers.is_empty() && ended.is_empty() {
            return;
        }
        let moves = self.clone();
        let mut work = Some((ended, leftovers));
        self.start(SWEEP, "ended imports".to_owned(), move |stop| {
            let (moves, work) = (moves.clone(), work.take());
            async move {
                let Some((ended, leftovers)) = work else { return Ok(()) };
                for import in &ended {
                    if let Some(Err(error)) = stop.run_until_cancelled(import.seal(&moves.shared.nodes)).await
                    {
                        warn!(%error, "cannot close the connections of an ended import at the node");
                    }
                }
                leftovers.into_iter().for_each(|held| moves.sweep(held));
                Ok(())
            }
        });
    }
}
