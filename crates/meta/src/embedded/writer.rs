//! The one writer: takes what is waiting, evaluates it in order, makes it durable in one go, then tells everyone.
//!
//! Evaluation runs ahead of durability (an operation meets the state that the one before it in the same group leaves),
//! but nobody is told and nothing is visible before the group is on disk. If the disk is full the group is taken back
//! as if it had never been; after any other failure of the disk nothing is believed any more.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Shared;
use super::codec;
use super::compaction::{Compaction, Progress};
use super::durable::{BaseJob, Written};
use super::engine::{Base, Beside, Engine, EngineError, Entry, Need};
use super::eval::{self, Context, Outcome};
use super::history::Change;
use super::lessor::{LeaseEntry, Lessor, MAX_TTL_SECONDS};
use crate::error::{MetaError, Result};
use crate::kv::{LeaseId, Revision};
use crate::request::*;

/// Operations made durable together.
const GROUP_MAX: usize = 256;

/// Bytes of changes in the log after which a group is closed.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// Leases ended in one tick; with two ticks a second, etcd's own rate.
const EXPIRED_PER_TICK: usize = 500;

/// How long no base is tried after one for which there was no room.
const BASE_RETRY: Duration = Duration::from_secs(10);

/// How an answer travels back.
pub type Reply<T> = oneshot::Sender<Result<T>>;

/// What the writer can be asked.
pub enum Command {
    /// An operation that may change something.
    Write(Op, Reply<OpResult>),
    /// Begin a lease.
    LeaseGrant(LeaseId, Duration, Reply<Lease>),
    /// End a lease and delete its keys.
    LeaseRevoke(LeaseId, Reply<Revision>),
    /// Give a lease its full time again.
    LeaseKeepAlive(LeaseId, Reply<Duration>),
    /// What is known about a lease.
    LeaseInfo(LeaseId, Reply<Option<LeaseInfo>>),
    /// All leases by expiry.
    Leases(Reply<Vec<LeaseId>>),
    /// Drop history before a revision.
    Compact(Revision, Reply<Revision>),
    /// Replace the record of users and roles.
    SetUsers(Bytes, Reply<()>),
    /// Raise or disarm the alarm `NOSPACE`.
    SetAlarm(bool, Reply<()>),
    /// Something that no group can hold.
    Alone(Alone),
}

/// What is done by itself, after the group before it.
pub enum Alone {
    /// What a snapshot begins with.
    Present(Reply<Present>),
    /// Give space on disk back.
    Defragment(Reply<()>),
    /// How much space is taken.
    Size(Reply<super::engine::DiskSize>),
    /// Stop; answered when everything is closed.
    Close(Reply<()>),
}

/// What is not a key, as it is at the newest durable revision.
pub struct Present {
    /// That revision.
    pub revision: Revision,
    /// The leases that live.
    pub leases: Vec<(LeaseId, Duration)>,
    /// The record of users and roles.
    pub users: Bytes,
}

/// What the writer owns.
pub struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Option<Box<dyn Engine>>,
    pub(super) lessor: Lessor,
    pub(super) compaction: Compaction,
    pub(super) head: Revision,
    /// The record of users and roles.
    pub(super) users: Bytes,
    pub(super) min_lease_ttl: Duration,
    /// Bytes of keys and values after which puts are refused; zero: any number.
    pub(super) quota_bytes: u64,
    /// Bytes that one change may have in the log.
    pub(super) change_bytes: u64,
    /// No base is tried before this: the disk was full the last time.
    pub(super) base_after: Option<Instant>,
    pub(super) ids: StdRng,
}

/// A group on its way to disk.
#[derive(Default)]
struct Group {
    entries: Vec<Entry>,
    changes: Vec<Arc<Change>>,
    undo: Vec<Undo>,
    answers: Vec<Answer>,
    bytes: usize,
}

/// Tells a waiting caller what became of the group.
type Answer = Box<dyn FnOnce(Result<()>) + Send>;

/// How to take something back that did not become durable.
enum Undo {
    Change(Arc<Change>),
    LeaseGranted(LeaseId),
    LeaseEnded(LeaseId, Box<LeaseEntry>),
    Compacted { before: Revision },
    Users { before: Bytes },
    Alarm { before: bool },
}

impl Writer {
    /// Takes what is waiting as one group.
    pub fn serve(&mut self, first: Command, commands: &mut mpsc::Receiver<Command>) -> Served {
        let mut group = Group::default();
        self.compact_by_bytes(&mut group);
        let mut next = Some(first);
        let mut after = None;
        while let Some(command) = next {
            if let Some(aside) = self.take(command, &mut group) {
                after = Some(aside);
                break;
            }
            let full = group.answers.len() >= GROUP_MAX || group.bytes >= GROUP_BYTES;
            next = if full { None } else { commands.try_recv().ok() };
        }
        let served = Served::Group { commands: group.answers.len() };
        self.commit(group);
        self.compaction.trim(&self.shared);
        after.map_or(served, |command| self.alone(command))
    }

    /// Adds a command to the group; hands back one that must run alone.
    fn take(&mut self, command: Command, group: &mut Group) -> Option<Alone> {
        match command {
            Command::Write(op, reply) => {
                let result = self.write(op, group);
                group.answer(reply, result);
            }
            Command::LeaseGrant(id, ttl, reply) => {
                let result = self.grant(id, ttl, group);
                group.answer(reply, result);
            }
            Command::LeaseRevoke(id, reply) => {
                let result = self.revoke(id, group);
                group.answer(reply, result);
            }
            Command::LeaseKeepAlive(id, reply) => {
                let result = self.lessor.renew(id, Instant::now());
                group.answer(reply, result);
            }
            Command::LeaseInfo(id, reply) => group.answer(reply, Ok(self.lessor.info(id, Instant::now()))),
            Command::Leases(reply) => {
                let ids = self.lessor.granted().into_iter().map(|(id, _)| id).collect();
                group.answer(reply, Ok(ids));
            }
            Command::Compact(revision, reply) => {
                let result = self.compact(revision, group);
                group.answer(reply, result);
            }
            Command::SetUsers(record, reply) => {
                self.set_users(record, group);
                group.answer(reply, Ok(()));
            }
            Command::SetAlarm(raised, reply) => {
                self.set_alarm(raised, group);
                group.answer(reply, Ok(()));
            }
            Command::Alone(command) => return Some(command),
        }
        None
    }

    fn write(&mut self, op: Op, group: &mut Group) -> Result<OpResult> {
        self.check_quota(&op, group)?;
        self.evaluate(op, group)
    }

    /// Refuses what would take the store over its quota, and raises etcd's alarm. Deleting goes on.
    fn check_quota(&self, op: &Op, group: &mut Group) -> Result<()> {
        let cost = super::check::cost(op);
        if cost == 0 {
            return Ok(());
        }
        if self.quota_bytes > 0 && self.shared.state()?.tree.bytes() + cost > self.quota_bytes {
            self.set_alarm(true, group);
        }
        if self.shared.has_alarm() { Err(MetaError::NoSpace) } else { Ok(()) }
    }

    fn set_users(&mut self, record: Bytes, group: &mut Group) {
        let before = std::mem::replace(&mut self.users, record.clone());
        group.bytes += record.len();
        group.entries.push(Entry::Users(record));
        group.undo.push(Undo::Users { before });
    }

    fn set_alarm(&self, raised: bool, group: &mut Group) {
        let before = self.shared.set_alarm(raised);
        if before != raised {
            group.entries.push(Entry::Alarm(raised));
            group.undo.push(Undo::Alarm { before });
        }
    }

    fn evaluate(&mut self, op: Op, group: &mut Group) -> Result<OpResult> {
        let context = Context {
            head: self.head,
            compacted: self.compaction.compacted(),
            lease_exists: &|id| self.lessor.contains(id),
        };
        let outcome = eval::evaluate(&mut self.shared.state_mut()?.tree, op, &context)?;
        let Outcome { result, events } = outcome;
        self.check_change(&events)?;
        self.record(events, group);
        Ok(result)
    }

    /// Refuses a change that could not be read back: one deletion may have any number of keys. It leaves no trace.
    fn check_change(&self, events: &[Event]) -> Result<()> {
        if codec::change_bytes(events) as u64 <= self.change_bytes {
            return Ok(());
        }
        let mut state = self.shared.state_mut()?;
        events.iter().rev().for_each(|event| state.tree.pop(&event.kv.key));
        Err(MetaError::TooLarge)
    }

    /// Makes a new revision of some events.
    fn record(&mut self, events: Vec<Event>, group: &mut Group) {
        if events.is_empty() {
            return;
        }
        events.iter().for_each(|event| self.lessor.follow(event));
        group.bytes += codec::change_bytes(&events);
        self.head = self.head.next();
        let change = Arc::new(Change { revision: self.head, events: events.into() });
        group.entries.push(Entry::Change(change.clone()));
        group.undo.push(Undo::Change(change.clone()));
        group.changes.push(change);
    }

    fn grant(&mut self, id: LeaseId, ttl: Duration, group: &mut Group) -> Result<Lease> {
        if ttl.as_secs() > MAX_TTL_SECONDS {
            return Err(MetaError::LeaseTtlTooLarge);
        }
        if self.shared.has_alarm() {
            return Err(MetaError::NoSpace);
        }
        let ttl = Duration::from_secs(ttl.as_secs()).max(self.min_lease_ttl);
        let id = if id == LeaseId::NONE { self.free_lease_id() } else { id };
        self.lessor.grant(id, ttl, Instant::now())?;
        group.entries.push(Entry::LeaseGranted(id, ttl));
        group.undo.push(Undo::LeaseGranted(id));
        Ok(Lease { id, ttl })
    }

    fn free_lease_id(&mut self) -> LeaseId {
        loop {
            let id = LeaseId(self.ids.random_range(1..i64::MAX));
            if !self.lessor.contains(id) {
                return id;
            }
        }
    }

    fn revoke(&mut self, id: LeaseId, group: &mut Group) -> Result<Revision> {
        let keys: Vec<_> = self.lessor.keys(id).ok_or(MetaError::LeaseNotFound)?.cloned().collect();
        let deletions = keys.into_iter().map(|key| Op::Delete(Delete::one(key))).collect();
        let op = Op::Txn(Txn { compares: Vec::new(), success: deletions, failure: Vec::new() });
        self.evaluate(op, group)?;
        let Some(entry) = self.lessor.remove(id) else { return Err(MetaError::LeaseNotFound) };
        group.entries.push(Entry::LeaseEnded(id));
        group.undo.push(Undo::LeaseEnded(id, Box::new(entry)));
        Ok(self.head)
    }

    /// Time has passed: ends leases and forbids old history.
    pub fn tick(&mut self) {
        if self.shared.failure().is_some() {
            return;
        }
        let mut group = Group::default();
        for id in self.lessor.expired(Instant::now(), EXPIRED_PER_TICK) {
            if let Err(error) = self.revoke(id, &mut group) {
                tracing::error!(lease = %id, %error, "cannot end expired lease");
            }
        }
        let due =
            self.shared.state().ok().and_then(|state| self.compaction.due(state.visible, &state.history));
        self.compact_at(due, &mut group);
        self.commit(group);
    }

    fn compact_by_bytes(&mut self, group: &mut Group) {
        let due = self.shared.state().ok().and_then(|state| self.compaction.due_by_bytes(&state.history));
        self.compact_at(due, group);
    }

    fn compact_at(&mut self, due: Option<Revision>, group: &mut Group) {
        let Some(revision) = due else { return };
        if let Err(error) = self.compact(revision, group) {
            tracing::error!(%revision, %error, "cannot compact");
        }
    }

    fn compact(&mut self, revision: Revision, group: &mut Group) -> Result<Revision> {
        let before = self.compaction.begin(revision, self.shared.visible())?;
        group.entries.push(Entry::Compacted(revision));
        group.undo.push(Undo::Compacted { before });
        Ok(self.head)
    }

    /// Makes the group durable, then visible, then answers.
    fn commit(&mut self, group: Group) {
        let verdict = self.persist(&group);
        match &verdict {
            Ok(()) => self.publish(&group.changes),
            Err(error) => {
                self.take_back(group.undo);
                if *error != MetaError::NoSpace {
                    self.fail(error.clone());
                }
            }
        }
        for answer in group.answers {
            answer(verdict.clone());
        }
    }

    fn persist(&mut self, group: &Group) -> Result<()> {
        self.shared.failure().map_or(Ok(()), Err)?;
        if group.entries.is_empty() {
            return Ok(());
        }
        let engine = self.engine.as_mut().ok_or(MetaError::Stopped)?;
        Ok(engine.append(&group.entries)?)
    }

    fn publish(&mut self, changes: &[Arc<Change>]) {
        if let Ok(mut state) = self.shared.state_mut() {
            changes.iter().for_each(|change| state.history.push(change.clone()));
            state.visible = changes.last().map_or(state.visible, |last| last.revision);
            state.compacted = self.compaction.compacted();
        }
        if !changes.is_empty() {
            self.shared.hub().publish(changes);
        }
    }

    fn take_back(&mut self, undo: Vec<Undo>) {
        for step in undo.into_iter().rev() {
            match step {
                Undo::Change(change) => {
                    let Ok(mut state) = self.shared.state_mut() else { return };
                    for event in change.events.iter().rev() {
                        state.tree.pop(&event.kv.key);
                        self.lessor.unfollow(event);
                    }
                    self.head = Revision(change.revision.0 - 1);
                }
                Undo::LeaseGranted(id) => drop(self.lessor.remove(id)),
                Undo::LeaseEnded(id, entry) => self.lessor.restore(id, *entry),
                Undo::Compacted { before } => self.compaction.take_back(before),
                Undo::Users { before } => self.users = before,
                Undo::Alarm { before } => drop(self.shared.set_alarm(before)),
            }
        }
    }

    /// A little of the work that can wait.
    pub fn tidy(&mut self) -> Progress {
        if self.shared.failure().is_some() {
            return Progress::Done;
        }
        if self.compaction.trim(&self.shared) == Progress::More {
            return Progress::More;
        }
        match self.engine.as_mut().map_or(Ok(()), |engine| engine.settle()) {
            // Proof is a luxury.
            Ok(()) | Err(EngineError::Full) => {}
            Err(error) => self.fail(error.into()),
        }
        Progress::Done
    }

    /// A base to be written, if it is time for one. It is handed back to [`Writer::finish_base`].
    pub fn begin_base(&mut self, need: Need) -> Option<BaseJob> {
        if self.base_after.is_some_and(|after| Instant::now() < after) && need == Need::WhenWorthIt {
            return None;
        }
        let engine = self.engine.as_mut()?;
        let mut state = self.shared.state_mut().ok()?;
        let compacted = state.compacted;
        // The tree can be read at the compacted revision, and a watch may begin there: the base is what was before it.
        let undone = state.history.from(compacted, 1).next().filter(|change| change.revision == compacted)?;
        let revision = Revision(compacted.0 - 1);
        if !engine.base_due(need, revision) {
            return None;
        }
        let undone = undone.clone();
        let leases = self.lessor.granted();
        let beside = Beside { users: self.users.clone(), alarm: self.shared.has_alarm() };
        let job = engine.begin_base(Base { revision, compacted, undone, leases, beside })?;
        state.tree.pin(compacted);
        Some(job)
    }

    /// What became of a base. The next one can be begun when this returns, not before.
    pub fn finish_base(
        &mut self,
        _job: BaseJob,
        outcome: Result<Option<Written>, EngineError>,
    ) -> Result<()> {
        if let Ok(mut state) = self.shared.state_mut() {
            let compacted = state.compacted;
            state.tree.unpin(compacted);
        }
        match (outcome, self.engine.as_mut()) {
            (Ok(Some(written)), Some(engine)) => engine.finish_base(written),
            (Ok(_), _) => {}
            (Err(EngineError::Full), _) => {
                tracing::warn!("no room to write a base; the log stays as it is");
                self.base_after = Some(Instant::now() + BASE_RETRY);
                return Err(MetaError::NoSpace);
            }
            (Err(error), _) => {
                let error = MetaError::from(error);
                self.fail(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// The disk failed: nothing is believed any more.
    fn fail(&self, error: MetaError) {
        // A store that was closed has nothing to report.
        if self.shared.failure().is_none() {
            tracing::error!(%error, "metadata store failed");
        }
        self.shared.fail(error);
    }

    fn alone(&mut self, command: Alone) -> Served {
        match command {
            Alone::Defragment(reply) => match self.begin_base(Need::Now) {
                Some(job) => return Served::Base { job, reply },
                None => drop(reply.send(self.shared.failure().map_or(Ok(()), Err))),
            },
            Alone::Present(reply) => {
                let (revision, leases) = (self.shared.visible(), self.lessor.granted());
                let present = Present { revision, leases, users: self.users.clone() };
                reply.send(self.shared.failure().map_or(Ok(present), Err)).ok();
            }
            Alone::Size(reply) => {
                let size = self.engine.as_ref().map_or_else(Default::default, |engine| engine.size());
                reply.send(Ok(size)).ok();
            }
            Alone::Close(reply) => {
                reply.send(self.close()).ok();
                return Served::Closed;
            }
        }
        Served::Group { commands: 1 }
    }

    fn close(&mut self) -> Result<()> {
        self.shared.fail(MetaError::Stopped);
        self.engine.take().map_or(Ok(()), |engine| Ok(engine.close()?))
    }
}

/// What became of a group.
pub enum Served {
    /// It was carried out.
    Group {
        /// How many commands were in it.
        commands: usize,
    },
    /// It was carried out, and a base is to be written for a caller: it takes long, and needs the writer only at its end.
    Base {
        /// To be run and handed back to [`Writer::finish_base`].
        job: BaseJob,
        /// The caller.
        reply: Reply<()>,
    },
    /// The store was closed.
    Closed,
}

impl Group {
    /// Answers when the group is durable; an error of the request itself does not wait for that.
    fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T>) {
        self.answers.push(Box::new(move |verdict| {
            // A caller that has gone away does not want to know.
            reply.send(result.and_then(|value| verdict.map(|()| value))).ok();
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::engine::Memory;
    use super::super::recovery::Recovered;
    use super::*;
    use crate::kv::KeyRange;

    fn done(writer: &mut Writer, op: Op) -> Result<OpResult> {
        let (reply, mut answer) = oneshot::channel();
        let (_, mut none) = mpsc::channel(1);
        writer.serve(Command::Write(op, reply), &mut none);
        answer.try_recv().unwrap()
    }

    /// What is acknowledged can be read back: a change that no frame can hold is refused, and leaves no trace.
    #[test]
    fn a_change_that_could_not_be_read_back_is_refused() {
        let mut writer = Recovered::empty().writer(Box::new(Memory), &Options::default());
        writer.change_bytes = 500;
        for n in 0..20 {
            done(&mut writer, Op::Put(Put::new(format!("long name {n}"), "1"))).unwrap();
        }
        let before = (writer.head, writer.shared.state().unwrap().tree.bytes());
        let all = || Op::Delete(Delete { keys: KeyRange::all(), prev_kv: false });
        assert_eq!(done(&mut writer, all()), Err(MetaError::TooLarge));
        assert_eq!((writer.head, writer.shared.state().unwrap().tree.bytes()), before);
        done(&mut writer, Op::Delete(Delete::prefix("long name 1"))).unwrap();
        done(&mut writer, all()).unwrap();
        let mut left = 0;
        writer.shared.state().unwrap().tree.visit(&KeyRange::all(), writer.head, |_| left += 1);
        assert_eq!(left, 0);
    }
}
