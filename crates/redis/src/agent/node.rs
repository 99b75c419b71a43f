//! How is one node kept in its desired state? Observe, compare, take the next step; repeatedly.

mod role;

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capstan_redis_proxy::conversation::{Conversation, Credentials, TalkError};
use capstan_redis_proxy::nodes::{Data, Health, NodeAuth, NodeReport, NodeState};
use rand::RngExt;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::config::{self, Version};
use super::error::{NodeError, Unsettled, io_error};
use super::judge::{Handover, RoleStep, Verdict, data, handover, role_step, verdict};
use super::probe::{ANSWER_WITHIN, Seen, look};
use super::process::ServerProcess;
use super::record::{Home, Record};
use super::silence::{self, Signs, Silence};
use super::wanted::{Former, Kind, Order, Persistence, Role, Wanted};
use crate::address::Address;

/// A regular stop may have to write the data first; then the process is killed.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// A killed process ends at once; the kernel may need a moment for its memory.
const KILL_WITHIN: Duration = Duration::from_secs(10);
/// How long a replica that was promoted because its primary died waits for the rest from a primary that is
/// alive after all; then it serves without it.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(10);
/// The first rewrite of an empty append-only file, within one turn, and how often it is looked at.
const REWRITE_WITHIN: Duration = Duration::from_secs(1);
const REWRITE_LOOK: Duration = Duration::from_millis(10);
/// Most bytes of a server's log; one old part of the same size is kept.
const MAX_LOG: u64 = 8 << 20;
/// Attempts to copy functions from other primaries before a node serves without them.
const FUNCTION_TRIES: u32 = 8;

/// The request to a node in one turn.
pub(super) struct Asked<'a> {
    pub wanted: &'a Wanted,
    pub order: &'a Order,
    /// The run id of the process whose loss was accepted.
    pub accepted: Option<&'a str>,
    /// Whether the order was confirmed recently.
    pub confirmed: &'a (dyn Fn() -> bool + Sync),
}

/// The server program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub path: PathBuf,
    pub version: Version,
}

/// One node and its process.
pub(super) struct Node {
    address: Address,
    program: Program,
    home: Home,
    record: Record,
    process: Option<ServerProcess>,
    signs: Signs,
    /// The state of its data in the saved record.
    data_saved: Option<Data>,
    /// The settings last applied to the process; `None`: unknown, apply them.
    applied: Option<Vec<(&'static str, String)>>,
    /// The password that was set since.
    unlocked: Option<String>,
    /// Since when it is taking over from a primary that is alive.
    taking_over: Option<Instant>,
    function_tries: u32,
    starts: u64,
}

impl Node {
    pub(super) fn open(address: Address, program: Program, dir: PathBuf) -> Result<Node, NodeError> {
        let home = Home::open(dir).map_err(io_error("cannot make the node's directory"))?;
        let record = home.load().map_err(io_error("cannot read the node's record"))?;
        let process = record.process.and_then(ServerProcess::adopt);
        if let Some(process) = &process {
            info!(node = %address, pid = process.mark().pid, "adopted a running node");
        }
        Ok(Node {
            address,
            program,
            home,
            record,
            process,
            signs: Signs::default(),
            data_saved: None,
            applied: None,
            unlocked: None,
            taking_over: None,
            function_tries: 0,
            starts: 0,
        })
    }

    /// Whether the process has ended since the last check.
    pub(super) fn has_died(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| !process.alive())
    }

    /// One turn: takes the next steps to the desired state, and observes the node.
    pub(super) async fn turn(&mut self, asked: &Asked<'_>) -> NodeReport {
        let looked_at = Some(std::time::Instant::now());
        let mut seen = Seen::default();
        let outcome = self.converge(asked, &mut seen).await;
        let wanted = asked.wanted;
        let syncing = seen.replica_of.is_some() && !seen.linked && seen.syncing;
        let health = match &outcome {
            Ok(()) if syncing => Health::Syncing,
            Ok(()) => Health::Ready,
            Err(why) => why.health(),
        };
        let auth = wanted.password.as_deref().map(|password| NodeAuth { password: password.into() });
        let ready = NodeState::Ready { auth, owner: wanted.owner.clone() };
        let state = match outcome {
            Ok(()) => ready,
            // Its clients wait for it, and `SCRIPT KILL` reaches it.
            Err(NodeError::Silent(Silence::Busy, _)) if self.unlocked.is_some() => ready,
            Err(why) => NodeState::NotReady { why: Arc::from(why.to_string()) },
        };
        let Seen { run_id, replica_of, linked, offset, keys, used_memory, progress, .. } = seen;
        NodeReport {
            state,
            health,
            replica_of,
            linked,
            offset,
            run_id,
            keys,
            used_memory,
            starts: self.starts,
            data: self.record.data,
            progress,
            looked_at,
        }
    }

    async fn converge(&mut self, asked: &Asked<'_>, seen: &mut Seen) -> Result<(), NodeError> {
        let Asked { wanted, order, accepted, .. } = *asked;
        self.take_over(wanted).await?;
        self.ensure_process(wanted).await?;
        let mut talk = match self.talk(wanted).await {
            Ok(talk) => talk,
            Err(error) => return Err(self.silent(error, seen)),
        };
        *seen = match look(&mut talk).await {
            Ok(seen) => seen,
            Err(error) => return Err(self.silent(error, seen)),
        };
        self.check_identity(wanted, seen)?;
        if !seen.loading {
            self.signs.answered = true;
            self.record.data = data(&self.record, wanted, seen);
        }
        let accepted = accepted == Some(seen.run_id.as_str());
        match verdict(&self.record, seen, order, accepted) {
            Verdict::Loading => return Err(NodeError::Loading),
            Verdict::Lost => return Err(NodeError::Lost),
            Verdict::Older => return Err(NodeError::Older),
            Verdict::Sound => {}
        }
        let settled = match wanted.kind {
            Kind::Supervised => self.settle(&mut talk, asked, seen).await,
            // Its settings are not managed, but its role is, and that needs the password.
            Kind::External => self.settle_external(&mut talk, asked, seen).await,
        };
        match settled {
            Ok(()) => self.remember(wanted, order, seen),
            Err(Unsettled::Node(why)) => Err(why),
            Err(Unsettled::Own(error)) => Err(self.silent(error, seen)),
        }
    }

    async fn settle(
        &mut self,
        talk: &mut Conversation,
        asked: &Asked<'_>,
        seen: &mut Seen,
    ) -> Result<(), Unsettled> {
        self.apply_settings(talk, asked.wanted, seen).await?;
        self.await_append_only(talk, asked.wanted, seen).await?;
        // A replica is attached before it is unlocked: one that restarted empty would erase a replica that
        // still follows it.
        match asked.order.role {
            Role::ReplicaOf(_) => {
                self.take_role(talk, asked, seen).await?;
                self.unlock(talk, asked.wanted).await?;
            }
            Role::Primary => {
                self.unlock(talk, asked.wanted).await?;
                self.take_role(talk, asked, seen).await?;
                self.copy_functions(talk, asked.wanted).await?;
            }
        }
        self.home.bound_log(MAX_LOG).map_err(io_error("cannot rotate the log"))?;
        Ok(())
    }

    async fn settle_external(
        &mut self,
        talk: &mut Conversation,
        asked: &Asked<'_>,
        seen: &mut Seen,
    ) -> Result<(), Unsettled> {
        let follows = role_step(&asked.order.role, seen) == RoleStep::Follow;
        if let (true, Some(password)) = (follows, &asked.wanted.password) {
            talk.ask(&["CONFIG", "SET", "masterauth", password]).await?;
        }
        self.take_role(talk, asked, seen).await
    }

    /// The error for a node that does not reply.
    fn silent(&mut self, error: TalkError, seen: &mut Seen) -> NodeError {
        let (silence, worked) = silence::of(&error, self.process.as_mut(), &mut self.signs);
        seen.progress = worked;
        NodeError::Silent(silence, error)
    }

    /// Assigns the data to the owner: data of another owner is removed first.
    async fn take_over(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        if self.record.owner == wanted.owner {
            return Ok(());
        }
        let keys = self.keys(wanted).await;
        match (handover(&self.record, wanted, keys), wanted.kind) {
            (Handover::Keep, _) => return Ok(()),
            (Handover::Relabel, _) => {}
            (Handover::Wipe, Kind::Supervised) => self.wipe(wanted, keys).await?,
            (Handover::Wipe, Kind::External) => self.flush(wanted).await?,
        }
        let owner = wanted
            .owner
            .as_ref()
            .map_or_else(|| "none".to_owned(), |(name, life)| format!("{name}/{}", life.0));
        info!(node = %self.address, owner, "node has a new owner");
        self.record.owner.clone_from(&wanted.owner);
        self.record.had_keys = false;
        // What its shard has, if anything, is not here.
        self.record.fresh = wanted.owner.is_some() && wanted.kind == Kind::Supervised;
        self.record.data = if self.record.fresh { Data::Gone } else { Data::Current };
        self.record.functions = false;
        self.function_tries = 0;
        self.save()?;
        if wanted.former == Former::BroughtBack { self.bring_back(wanted).await } else { Ok(()) }
    }

    /// The number of keys of the node's process; `None` if it cannot be queried.
    async fn keys(&self, wanted: &Wanted) -> Option<u64> {
        if self.process.is_none() && wanted.kind == Kind::Supervised {
            return None;
        }
        let seen = look(&mut self.talk(wanted).await.ok()?).await.ok()?;
        self.check_identity(wanted, &seen).ok()?;
        Some(seen.keys)
    }

    /// Removes the node's data. Data of a cluster that still exists is set aside, including what is only in
    /// memory.
    async fn wipe(&mut self, wanted: &Wanted, keys: Option<u64>) -> Result<(), NodeError> {
        let whose = self.record.owner.as_ref().map(|(name, life)| format!("{name}-{life}"));
        let keep = whose.filter(|_| wanted.former != Former::Erased);
        if keep.is_some() && keys.is_some_and(|keys| keys > 0) {
            self.save_data(wanted).await;
        }
        self.end().await?;
        if let Some(whose) = keep {
            self.home.set_aside(&whose).map_err(io_error("cannot set the data aside"))?;
        }
        self.home.wipe().map_err(io_error("cannot empty the data directory"))?;
        self.record = Record::default();
        self.save()
    }

    /// Makes the process save its data, if it can, to be set aside with the rest.
    async fn save_data(&mut self, wanted: &Wanted) {
        let Ok(mut talk) = self.talk(wanted).await else { return };
        talk.push(&["SHUTDOWN", "SAVE"]);
        if let Err(error) = talk.flush().await {
            warn!(node = %self.address, %error, "cannot save the data in memory");
        }
        if let Some(process) = &mut self.process {
            process.ended(STOP_WITHIN).await;
        }
    }

    /// Restores data of this owner that was set aside. Before that, it is recorded that the node had keys: if
    /// there is nothing to restore, or this process ends in between, the node is lost, and not empty.
    async fn bring_back(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        let Some((name, life)) = &wanted.owner else { return Ok(()) };
        self.end().await?;
        (self.record.had_keys, self.record.saved) = (true, true);
        (self.record.fresh, self.record.data) = (false, Data::Current);
        self.save()?;
        let back = self.home.bring_back(&format!("{name}-{life}"));
        if !back.map_err(io_error("cannot bring back what was set aside"))? {
            warn!(node = %self.address, "no data was set aside to restore");
        }
        Ok(())
    }

    async fn flush(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        let flushed = async {
            let mut talk = self.talk(wanted).await?;
            talk.ask(&["FLUSHALL"]).await?;
            Ok(look(&mut talk).await?.keys)
        };
        match flushed.await {
            Ok(0) => Ok(()),
            Ok(_) => Err(NodeError::NotEmpty),
            Err(error) => Err(NodeError::Silent(Silence::Down, error)),
        }
    }

    async fn end(&mut self) -> Result<(), NodeError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let pid = process.mark().pid;
        if !process.kill(KILL_WITHIN).await {
            return Err(NodeError::Immortal(pid));
        }
        (self.process, self.applied, self.unlocked) = (None, None, None);
        Ok(())
    }

    async fn ensure_process(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        if wanted.kind == Kind::External || self.process.as_mut().is_some_and(ServerProcess::alive) {
            return Ok(());
        }
        self.process = None;
        if taken(&self.address) {
            return Err(NodeError::PortTaken(self.address.port()));
        }
        self.start(wanted)
    }

    fn start(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        if wanted.persistence == Persistence::None && !self.record.saved {
            self.home.wipe().map_err(io_error("cannot empty the data directory"))?;
        }
        self.record.lock = format!("{:032x}", rand::rng().random::<u128>());
        let text = config::text(wanted, self.home.path(), &self.record.lock, self.program.version);
        self.home.write_config(&text).map_err(io_error("cannot write the configuration"))?;
        self.save()?;
        let output = File::options().create(true).append(true).open(self.home.path().join("server.log"));
        let output = output.map_err(io_error("cannot open the log"))?;
        let process = ServerProcess::start(&self.program.path, &self.home.config(), output)
            .map_err(io_error("cannot start the server"))?;
        info!(node = %self.address, pid = process.mark().pid, "started node");
        self.record.process = Some(process.mark());
        (self.process, self.applied, self.unlocked) = (Some(process), None, None);
        self.signs = Signs::default();
        self.starts += 1;
        self.save()
    }

    /// Connects with whichever password the process has: a crash may have happened between two of them.
    async fn talk(&self, wanted: &Wanted) -> Result<Conversation, TalkError> {
        let with = |password: &str| Credentials { user: None, password: password.to_owned() };
        let known =
            [Some(self.record.lock.as_str()), self.record.password.as_deref(), wanted.password.as_deref()];
        for password in known.into_iter().flatten().filter(|password| !password.is_empty()) {
            match Conversation::open(&self.address, Some(&with(password)), ANSWER_WITHIN).await {
                Err(e) if e.has_code("WRONGPASS") || e.has_code("ERR") => {}
                other => return other,
            }
        }
        Conversation::open(&self.address, None, ANSWER_WITHIN).await
    }

    fn check_identity(&self, wanted: &Wanted, seen: &Seen) -> Result<(), NodeError> {
        let expected = self.process.as_ref().map_or(0, |process| process.mark().pid);
        if wanted.kind == Kind::External || expected == seen.pid {
            return Ok(());
        }
        Err(NodeError::Stranger { expected, found: seen.pid })
    }

    /// Applies the settings to the process.
    async fn apply_settings(
        &mut self,
        talk: &mut Conversation,
        wanted: &Wanted,
        seen: &Seen,
    ) -> Result<(), Unsettled> {
        let settings = config::changeable(wanted);
        if self.applied.as_ref() == Some(&settings) {
            return Ok(());
        }
        self.record.run_id.clone_from(&seen.run_id);
        self.record.saved = false;
        self.save()?;
        if wanted.persistence == Persistence::None {
            self.home.drop_snapshot().map_err(io_error("cannot remove a loaded snapshot"))?;
        }
        for (name, value) in &settings {
            talk.ask(&["CONFIG", "SET", name, value]).await?;
        }
        self.applied = Some(settings);
        self.unlocked = None;
        Ok(())
    }

    /// Waits until an empty node would keep what is written to it. A process that turns its append-only file on while it
    /// runs writes to a temporary file until its first rewrite is complete, and a crash before that loses everything. A
    /// node with keys has had them without the file until now; it is not taken from its clients for the rewrite.
    async fn await_append_only(
        &mut self,
        talk: &mut Conversation,
        wanted: &Wanted,
        seen: &mut Seen,
    ) -> Result<(), Unsettled> {
        let begun = Instant::now();
        while wanted.persistence == Persistence::Aof
            && self.unlocked.is_none()
            && seen.keys == 0
            && !seen.appends
        {
            if begun.elapsed() > REWRITE_WITHIN {
                return Err(NodeError::NotDurable.into());
            }
            sleep(REWRITE_LOOK).await;
            *seen = look(talk).await?;
        }
        Ok(())
    }

    /// Sets the real password: from then on others can connect.
    async fn unlock(&mut self, talk: &mut Conversation, wanted: &Wanted) -> Result<(), Unsettled> {
        let password = wanted.password.clone().unwrap_or_default();
        if self.unlocked.as_ref() != Some(&password) {
            talk.ask(&["CONFIG", "SET", "requirepass", &password]).await?;
            self.unlocked = Some(password);
            // Not before: until now the process has the recorded one.
            self.record.password.clone_from(&wanted.password);
            self.save()?;
        }
        Ok(())
    }

    /// Records what the next process of the node will be compared with. A serving primary, and a replica
    /// linked to its primary, have everything.
    fn remember(&mut self, wanted: &Wanted, order: &Order, seen: &Seen) -> Result<(), NodeError> {
        let current = match &order.role {
            Role::Primary => seen.replica_of.is_none(),
            Role::ReplicaOf(primary) => seen.linked && seen.replica_of.as_ref() == Some(primary),
        };
        let data = if current { Data::Current } else { self.record.data };
        // A replica gets functions with the rest.
        let functions = self.record.functions || (current && order.role != Role::Primary);
        let had_keys = seen.keys > 0;
        let followed = seen.replica_of.is_some();
        let fresh = self.record.fresh && !current;
        let record = &self.record;
        let known =
            (record.had_keys, record.run_id.as_str(), self.data_saved, record.functions, record.followed);
        if known == (had_keys, seen.run_id.as_str(), Some(data), functions, followed) && record.fresh == fresh
        {
            return Ok(());
        }
        self.record.fresh = fresh;
        self.record.followed = followed;
        self.record.functions = functions;
        self.record.had_keys = had_keys;
        self.record.data = data;
        self.record.run_id.clone_from(&seen.run_id);
        self.record.password.clone_from(&wanted.password);
        self.save()
    }

    /// Stops the node regularly: the data is saved, whatever the persistence, so that the next start has all
    /// of it.
    pub(super) async fn stop(&mut self, wanted: &Wanted) {
        if wanted.kind == Kind::External || !self.process.as_mut().is_some_and(ServerProcess::alive) {
            return;
        }
        if let Err(error) = self.shut_down(wanted).await {
            warn!(node = %self.address, %error, "node did not stop regularly");
        }
        if let Err(error) = self.end().await {
            warn!(node = %self.address, %error, "node process does not exit");
        }
    }

    /// That a snapshot may be loaded is recorded before it is made: the server replaces the file atomically,
    /// and there was none before, so an existing one is complete even if this process ends before it sees it.
    async fn shut_down(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        let silent = |error| NodeError::Silent(Silence::Down, error);
        let mut talk = self.talk(wanted).await.map_err(silent)?;
        let seen = look(&mut talk).await.map_err(silent)?;
        self.check_identity(wanted, &seen)?;
        // A process that was never found sound has no data worth keeping.
        let sound = seen.run_id == self.record.run_id && !seen.loading;
        if wanted.persistence == Persistence::None {
            self.home.drop_snapshot().map_err(io_error("cannot remove an old snapshot"))?;
        }
        self.record.saved = sound;
        self.save()?;
        talk.push(&["SHUTDOWN", if sound { "SAVE" } else { "NOSAVE" }]);
        talk.flush().await.map_err(silent)?;
        if let Some(process) = &mut self.process {
            process.ended(STOP_WITHIN).await;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), NodeError> {
        self.data_saved = Some(self.record.data);
        self.home.save(&self.record).map_err(io_error("cannot write the node's record"))
    }
}

/// Whether another socket has a node's port. The probe is closed before this returns: a server that starts
/// while it is open fails to bind, depending on which of the two is faster.
fn taken(node: &Address) -> bool {
    let bound = TcpListener::bind((node.host(), node.port())).map(drop);
    // The server reports any other problem with the address in its log.
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn credentials(wanted: &Wanted) -> Option<Credentials> {
    wanted.password.clone().map(|password| Credentials { user: None, password })
}

async fn look_at(node: &Address, credentials: Option<&Credentials>) -> Result<Seen, TalkError> {
    look(&mut Conversation::open(node, credentials, ANSWER_WITHIN).await?).await
}
