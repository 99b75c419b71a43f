//! How is one node kept as it is wanted? Look, compare, take the next step; again and again.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::{self, Version};
use super::judge::{Handover, RoleStep, Verdict, handover, may_follow, role_step, verdict};
use super::nodes::{Health, NodeAuth, NodeReport, NodeState};
use super::probe::{ANSWER_WITHIN, Seen, look};
use super::process::ServerProcess;
use super::record::{Home, Record};
use super::takeover::{Outcome, take_over};
use super::wanted::{Kind, Persistence, Role, Wanted};
use crate::address::Address;
use crate::data::conversation::{Conversation, Credentials, TalkError};

/// A server that is told to go may have to write its data first; then it is ended.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// A killed process is gone at once; the kernel may need a moment for its memory.
const KILL_WITHIN: Duration = Duration::from_secs(10);
/// A replica that has not got everything by then from a primary that lives leads without it: somebody has to.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of a server's log; one old part of the same size is kept.
const MAX_LOG: u64 = 8 << 20;

/// Why a node is not as it is wanted.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error(transparent)]
    Talk(#[from] TalkError),
    #[error("port {0} is used by another process; end it, or give the node another port")]
    PortTaken(u16),
    #[error("the server at this port is process {found}, not {expected} that was started for the node")]
    Stranger { expected: i32, found: i32 },
    #[error("its process {0} does not end")]
    Immortal(i32),
    #[error("it was emptied for its new owner but still holds keys")]
    NotEmpty,
    #[error("its primary {0} is empty and this node is not: following it would wipe the data")]
    EmptyPrimary(Address),
    #[error("it has not taken over from {0} yet: {1}")]
    NotTakenOver(Address, String),
    #[error("it had keys and came back without; its data is gone from here")]
    Lost,
    #[error("it reads its data from disk")]
    Loading,
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> NodeError {
    move |source| NodeError::Io { what, source }
}

/// The server program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub path: PathBuf,
    pub version: Version,
}

/// One node, and the process that serves it.
pub(super) struct Node {
    address: Address,
    program: Program,
    home: Home,
    record: Record,
    process: Option<ServerProcess>,
    /// What the process was last told; `None`: not known, tell it.
    told: Option<Vec<(&'static str, String)>>,
    /// The password that it was told since.
    unlocked: Option<String>,
    /// Since when it is to take over from a primary that lives.
    taking_over: Option<Instant>,
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
            told: None,
            unlocked: None,
            taking_over: None,
            starts: 0,
        })
    }

    /// Whether the process has ended since the last look.
    pub(super) fn has_died(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| !process.alive())
    }

    /// One turn: the node is brought as near to what is wanted as possible now, and looked at.
    pub(super) async fn turn(&mut self, wanted: &Wanted, role: &Role, accepted: Option<&str>) -> NodeReport {
        let mut seen = Seen::default();
        let outcome = self.converge(wanted, role, accepted, &mut seen).await;
        let health = match &outcome {
            Ok(()) => Health::Ready,
            Err(NodeError::Lost) => Health::Lost,
            Err(NodeError::Loading) => Health::Starting,
            // It runs and serves; what it may not do is follow, or lead.
            Err(NodeError::EmptyPrimary(_) | NodeError::NotTakenOver(..)) => Health::Ready,
            Err(_) => Health::Down,
        };
        let auth = wanted.password.as_deref().map(|password| NodeAuth { password: password.into() });
        let state = match outcome {
            Ok(()) => NodeState::Ready { auth, owner: wanted.owner.clone() },
            Err(why) => NodeState::NotReady { why: Arc::from(why.to_string()) },
        };
        let Seen { run_id, replica_of, linked, offset, keys, used_memory, .. } = seen;
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
        }
    }

    async fn converge(
        &mut self,
        wanted: &Wanted,
        role: &Role,
        accepted: Option<&str>,
        seen: &mut Seen,
    ) -> Result<(), NodeError> {
        self.take_over(wanted).await?;
        self.ensure_process(wanted).await?;
        let mut talk = self.talk(wanted).await?;
        *seen = look(&mut talk).await?;
        self.check_identity(wanted, seen)?;
        match verdict(&self.record, wanted, seen, role, accepted == Some(seen.run_id.as_str())) {
            Verdict::Loading => return Err(NodeError::Loading),
            Verdict::Lost => return Err(NodeError::Lost),
            Verdict::Sound => {}
        }
        match wanted.kind {
            Kind::Supervised => {
                self.tell(&mut talk, wanted, seen).await?;
                // Who is to follow does so before others can talk to it: one that came back empty would wipe a replica
                // that still follows it.
                match role {
                    Role::ReplicaOf(_) => {
                        self.take_role(&mut talk, wanted, role, seen).await?;
                        self.unlock(&mut talk, wanted).await?;
                    }
                    Role::Primary => {
                        self.unlock(&mut talk, wanted).await?;
                        self.take_role(&mut talk, wanted, role, seen).await?;
                    }
                }
                self.home.bound_log(MAX_LOG).map_err(io_error("cannot rotate the log"))?;
            }
            // Its settings are not ours, but whom it follows is, and it needs the password for that.
            Kind::External => {
                if let (RoleStep::Follow, Some(password)) = (role_step(role, seen), &wanted.password) {
                    talk.ask(&["CONFIG", "SET", "masterauth", password]).await?;
                }
                self.take_role(&mut talk, wanted, role, seen).await?;
            }
        }
        self.remember(wanted, seen)
    }

    /// Makes the data the owner's: what belonged to somebody else goes first.
    async fn take_over(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        if self.record.owner == wanted.owner {
            return Ok(());
        }
        let keys = self.keys(wanted).await;
        match (handover(&self.record, wanted, keys), wanted.kind) {
            (Handover::Keep, _) => return Ok(()),
            (Handover::Relabel, _) => {}
            (Handover::Wipe, Kind::Supervised) => self.wipe().await?,
            (Handover::Wipe, Kind::External) => self.flush(wanted).await?,
        }
        info!(node = %self.address, owner = ?wanted.owner, "node has a new owner");
        self.record.owner.clone_from(&wanted.owner);
        self.record.had_keys = false;
        self.save()
    }

    /// How many keys the node's own process holds; `None` if it cannot be asked.
    async fn keys(&self, wanted: &Wanted) -> Option<u64> {
        if self.process.is_none() && wanted.kind == Kind::Supervised {
            return None;
        }
        let seen = look(&mut self.talk(wanted).await.ok()?).await.ok()?;
        self.check_identity(wanted, &seen).ok()?;
        Some(seen.keys)
    }

    async fn wipe(&mut self) -> Result<(), NodeError> {
        self.end().await?;
        self.home.wipe().map_err(io_error("cannot empty the data directory"))?;
        self.record = Record::default();
        self.save()
    }

    async fn flush(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        let mut talk = self.talk(wanted).await?;
        talk.ask(&["FLUSHALL"]).await?;
        let left = look(&mut talk).await?.keys;
        if left == 0 { Ok(()) } else { Err(NodeError::NotEmpty) }
    }

    async fn end(&mut self) -> Result<(), NodeError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let pid = process.mark().pid;
        if !process.kill(KILL_WITHIN).await {
            return Err(NodeError::Immortal(pid));
        }
        (self.process, self.told, self.unlocked) = (None, None, None);
        Ok(())
    }

    async fn ensure_process(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        if wanted.kind == Kind::External || self.process.as_mut().is_some_and(ServerProcess::alive) {
            return Ok(());
        }
        self.process = None;
        let bindable = TcpListener::bind((self.address.host(), self.address.port()));
        match bindable {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                return Err(NodeError::PortTaken(self.address.port()));
            }
            // Whatever else is wrong the server will say in its own words, in its log.
            Ok(_) | Err(_) => {}
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
        info!(node = %self.address, pid = process.mark().pid, "started a node");
        self.record.process = Some(process.mark());
        (self.process, self.told, self.unlocked) = (Some(process), None, None);
        self.starts += 1;
        self.save()
    }

    /// Connects with whichever password the process knows: a crash may have come between two of them.
    async fn talk(&self, wanted: &Wanted) -> Result<Conversation, NodeError> {
        let with = |password: &str| Credentials { user: None, password: password.to_owned() };
        let known =
            [Some(self.record.lock.as_str()), self.record.password.as_deref(), wanted.password.as_deref()];
        for password in known.into_iter().flatten().filter(|password| !password.is_empty()) {
            match Conversation::open(&self.address, Some(&with(password)), ANSWER_WITHIN).await {
                Err(e) if e.has_code("WRONGPASS") || e.has_code("ERR") => {}
                other => return Ok(other?),
            }
        }
        Ok(Conversation::open(&self.address, None, ANSWER_WITHIN).await?)
    }

    fn check_identity(&self, wanted: &Wanted, seen: &Seen) -> Result<(), NodeError> {
        let expected = self.process.as_ref().map_or(0, |process| process.mark().pid);
        if wanted.kind == Kind::External || expected == seen.pid {
            return Ok(());
        }
        Err(NodeError::Stranger { expected, found: seen.pid })
    }

    /// Tells the process its settings.
    async fn tell(&mut self, talk: &mut Conversation, wanted: &Wanted, seen: &Seen) -> Result<(), NodeError> {
        let settings = config::changeable(wanted);
        if self.told.as_ref() == Some(&settings) {
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
        self.told = Some(settings);
        self.unlocked = None;
        Ok(())
    }

    /// Tells the process its password: from then on others can talk to it.
    async fn unlock(&mut self, talk: &mut Conversation, wanted: &Wanted) -> Result<(), NodeError> {
        let password = wanted.password.clone().unwrap_or_default();
        if self.unlocked.as_ref() != Some(&password) {
            talk.ask(&["CONFIG", "SET", "requirepass", &password]).await?;
            self.unlocked = Some(password);
            // Not before: until now the process knows the one that is written down.
            self.record.password.clone_from(&wanted.password);
            self.save()?;
        }
        Ok(())
    }

    /// Takes the next step to its role; `seen` is what it is afterwards.
    async fn take_role(
        &mut self,
        talk: &mut Conversation,
        wanted: &Wanted,
        role: &Role,
        seen: &mut Seen,
    ) -> Result<(), NodeError> {
        let credentials = wanted.password.clone().map(|password| Credentials { user: None, password });
        match (role_step(role, seen), role) {
            (RoleStep::Done, _) => {}
            (RoleStep::Promote, _) | (RoleStep::Follow, Role::Primary) => {
                self.lead(talk, credentials.as_ref(), seen).await?;
                info!(node = %self.address, offset = seen.offset, "node becomes a primary");
                (seen.replica_of, seen.linked) = (None, true);
            }
            (RoleStep::Follow, Role::ReplicaOf(primary)) => {
                let mut source = Conversation::open(primary, credentials.as_ref(), ANSWER_WITHIN).await?;
                let leads = look(&mut source).await?;
                let follows_this = leads.replica_of.as_ref() == Some(&self.address);
                // Looked at last, because it may be written to: who is ahead must not seem to be behind.
                if follows_this && look(talk).await?.offset >= leads.offset {
                    // It takes over from this one, and makes it follow when it has everything. One that has less than
                    // its replica lost its data since: there is nothing to take over.
                    return Ok(());
                }
                if !may_follow(seen, &leads) {
                    return Err(NodeError::EmptyPrimary(primary.clone()));
                }
                info!(node = %self.address, %primary, "node becomes a replica");
                talk.ask(&["REPLICAOF", primary.host(), &primary.port().to_string()]).await?;
                (seen.replica_of, seen.linked) = (Some(primary.clone()), false);
            }
        }
        self.taking_over = None;
        Ok(())
    }

    /// Becomes a primary: by agreement with the one that it follows, if that one lives and for a while.
    async fn lead(
        &mut self,
        talk: &mut Conversation,
        credentials: Option<&Credentials>,
        seen: &Seen,
    ) -> Result<(), NodeError> {
        let since = *self.taking_over.get_or_insert_with(Instant::now);
        if let Some(old) = &seen.replica_of {
            match take_over(talk, &self.address, old, credentials).await? {
                Outcome::Taken => return Ok(()),
                Outcome::Alone => {}
                Outcome::NotYet(why) if since.elapsed() < TAKE_OVER_WITHIN => {
                    return Err(NodeError::NotTakenOver(old.clone(), why));
                }
                Outcome::NotYet(why) => {
                    warn!(node = %self.address, %old, why, "taking over without the old primary");
                }
            }
        }
        talk.ask(&["REPLICAOF", "NO", "ONE"]).await?;
        Ok(())
    }

    /// Writes down what the next life of the node will be compared with.
    fn remember(&mut self, wanted: &Wanted, seen: &Seen) -> Result<(), NodeError> {
        let (had_keys, run_id) = (seen.keys > 0, &seen.run_id);
        if self.record.had_keys == had_keys && self.record.run_id == *run_id {
            return Ok(());
        }
        self.record.had_keys = had_keys;
        self.record.run_id.clone_from(run_id);
        self.record.password.clone_from(&wanted.password);
        self.save()
    }

    /// An orderly end: the data goes to disk, whatever the persistence, so that the next start has all of it.
    pub(super) async fn stop(&mut self, wanted: &Wanted) {
        if wanted.kind == Kind::External || !self.process.as_mut().is_some_and(ServerProcess::alive) {
            return;
        }
        if let Err(error) = self.shut_down(wanted).await {
            warn!(node = %self.address, %error, "node did not stop in order");
        }
        if let Err(error) = self.end().await {
            warn!(node = %self.address, %error, "node does not end");
        }
    }

    /// That a snapshot may be loaded is written down before it is made: the server replaces the file in one step, and
    /// there is none before, so one that is there is complete even if we do not live to see it.
    async fn shut_down(&mut self, wanted: &Wanted) -> Result<(), NodeError> {
        let mut talk = self.talk(wanted).await?;
        let seen = look(&mut talk).await?;
        self.check_identity(wanted, &seen)?;
        // A life that was never found sound has nothing that anybody should see again.
        let sound = seen.run_id == self.record.run_id && !seen.loading;
        if wanted.persistence == Persistence::None {
            self.home.drop_snapshot().map_err(io_error("cannot remove an old snapshot"))?;
        }
        self.record.saved = sound;
        self.save()?;
        talk.push(&["SHUTDOWN", if sound { "SAVE" } else { "NOSAVE" }]);
        talk.flush().await?;
        if let Some(process) = &mut self.process {
            process.ended(STOP_WITHIN).await;
        }
        Ok(())
    }

    fn save(&self) -> Result<(), NodeError> {
        self.home.save(&self.record).map_err(io_error("cannot write the node's record"))
    }
}
