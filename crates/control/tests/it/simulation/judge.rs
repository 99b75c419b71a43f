//! The judge sees everything at once: every revision of the store, every action of a leader, every host's disk.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::Epoch;
use capstan_control::drain::{Answer, DrainAnswer, DrainPhase, DrainStatus, Intent, status};
use capstan_control::keys::{AnswerKey, DrainKey, HostId, HostKey, ServiceName, TermKey};
use capstan_meta::record::{Key, Stored};
use capstan_meta::session::SessionOptions;
use capstan_meta::{
    Backend, Event, EventKind, KeyRange, KeyValue, OwnedTask, RangeResult, Revision, Watch, WatchMessage,
};
use tokio::time::Instant;

use super::host::Disk;
use super::truth::Truth;

/// After a restore the records are those of another time until every host has looked at them.
const HOSTS_LOOK_WITHIN: Duration = Duration::from_secs(60);

/// Checks the invariants.
pub(super) struct Judge {
    pub(super) truth: Truth,
    disks: BTreeMap<HostId, Arc<Disk>>,
    book: Mutex<Book>,
}

/// What happened in a world.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Story {
    /// The store's history in one hash: keys, revisions, and whether they were put or deleted.
    pub(super) history: u64,
    /// How often each kind of event happened.
    pub(super) deeds: BTreeMap<&'static str, u64>,
}

/// What the judge has recorded.
#[derive(Default)]
struct Book {
    violations: Vec<String>,
    state: BTreeMap<String, Arc<KeyValue>>,
    seen: Revision,
    history: DefaultHasher,
    acted: BTreeMap<Epoch, u64>,
    deeds: BTreeMap<&'static str, u64>,
    left_behind: Vec<OwnedTask>,
    /// How often the store was restored, and when last.
    restores: u64,
    restored_at: Option<Instant>,
}

impl Judge {
    pub(super) fn new(truth: Truth, disks: &[Arc<Disk>]) -> Arc<Judge> {
        let disks = disks.iter().map(|disk| (disk.host.clone(), disk.clone())).collect();
        Arc::new(Judge { truth, disks, book: Mutex::default() })
    }

    pub(super) fn disk(&self, host: &HostId) -> &Disk {
        &self.disks[host]
    }

    /// Follows the store, revision by revision.
    pub(super) async fn follow(self: Arc<Self>) {
        loop {
            let (from, restores) = {
                let book = self.book.lock().unwrap();
                (book.seen.next(), book.restores)
            };
            let watch = self.truth.watch(Watch::from(KeyRange::prefix("/capstan/"), from)).await;
            let Ok(mut watch) = watch else { continue };
            // A watch ends when its store is replaced.
            while let Ok(message) = watch.next().await {
                let mut book = self.book.lock().unwrap();
                if book.restores != restores {
                    break;
                }
                if let WatchMessage::Events { events, .. } = message {
                    for revision in events.chunk_by(|one, two| one.kv.mod_revision == two.kv.mod_revision) {
                        self.judge_revision(&mut book, revision);
                    }
                }
            }
        }
    }

    /// The store was restored, and this is what it has.
    pub(super) fn restored(&self, found: &RangeResult) {
        let mut book = self.book.lock().unwrap();
        book.note("restore");
        book.state = found.kvs.iter().map(|kv| (kv.key_text().into_owned(), kv.clone())).collect();
        book.seen = found.revision;
        book.restores += 1;
        book.restored_at = Some(Instant::now());
    }

    /// The newest revision that was checked.
    pub(super) fn seen(&self) -> Revision {
        self.book.lock().unwrap().seen
    }

    /// What happened so far.
    pub(super) fn story(&self) -> Story {
        let book = self.book.lock().unwrap();
        Story { history: book.history.finish(), deeds: book.deeds.clone() }
    }

    pub(super) fn deeds(&self, kind: &str) -> u64 {
        self.book.lock().unwrap().deeds.get(kind).copied().unwrap_or(0)
    }

    pub(super) fn leave_behind(&self, task: OwnedTask) {
        self.book.lock().unwrap().left_behind.push(task);
    }

    /// Checks an action of a leader: no later term may have acted, and no other process in this term.
    pub(super) fn leader_acts(&self, process: u64, term: Epoch) {
        let mut book = self.book.lock().unwrap();
        book.note("act of a leader");
        let newest = book.acted.last_key_value().map(|(term, _)| *term);
        if newest.is_some_and(|newest| newest < term) {
            book.note("change of leaders");
        }
        // One that led before a restore may not have noticed yet, for as long as its lease was to last. Receivers refuse it.
        let unaware = book.was_restored_within(SessionOptions::default().ttl);
        if newest.is_some_and(|newest| newest > term) && !unaware {
            book.violations.push(format!("leader of term {term} acted after {newest:?}"));
        }
        let actor = *book.acted.entry(term).or_insert(process);
        if actor != process {
            book.violations.push(format!("{actor} and {process} both acted in term {term}"));
        }
    }

    /// Checks that a service takes up work only while it does not count as drained.
    pub(super) fn takes_up_work(&self, key: &AnswerKey) {
        let mut book = self.book.lock().unwrap();
        let drain = book.read(&DrainKey { host: key.host.clone() });
        let answer = book.read(key);
        if let (Some(drain), Some(answer)) = (drain, answer) {
            let believed = drain.record.intent == Intent::Drain
                && answer.record.epoch == drain.record.epoch
                && answer.record.answer == Answer::Drained;
            if believed && !book.was_restored_within(HOSTS_LOOK_WITHIN) {
                book.violations.push(format!("{key} takes up work although it is drained"));
            }
        }
    }

    /// Checks every drain now: a host that counts as drained is empty.
    pub(super) fn check_now(&self) {
        let book = self.book.lock().unwrap();
        assert!(book.violations.is_empty(), "{}", book.violations.join("\n"));
        if book.was_restored_within(HOSTS_LOOK_WITHIN) {
            return;
        }
        for status in book.statuses() {
            let disk = self.disk(&status.host);
            let empty = disk.services().iter().all(|service| disk.work_of(service) == 0);
            assert!(status.phase != DrainPhase::Drained || empty, "{} still has work: {disk:?}", status.host);
        }
    }

    /// What is left under a prefix.
    pub(super) fn left_under(&self, prefix: &str) -> Vec<String> {
        let book = self.book.lock().unwrap();
        book.state
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, kv)| format!("{key} = {}", String::from_utf8_lossy(&kv.value)))
            .collect()
    }

    fn judge_revision(&self, book: &mut Book, events: &[Event]) {
        for event in events {
            let path = event.kv.key_text().into_owned();
            (event.kv.mod_revision.0, &path, event.kind() == EventKind::Put).hash(&mut book.history);
            self.judge_event(book, &path, event);
        }
        for event in events {
            let path = event.kv.key_text().into_owned();
            match event.kind() {
                EventKind::Put => book.state.insert(path, event.kv.clone()),
                EventKind::Delete => book.state.remove(&path),
            };
            book.seen = event.kv.mod_revision;
        }
    }

    /// Checks one event against the state before its revision.
    fn judge_event(&self, book: &mut Book, path: &str, event: &Event) {
        if let Some(key) = TermKey::parse(path) {
            self.judge_term(book, &key, event);
        } else if let Some(key) = DrainKey::parse(path) {
            self.judge_drain(book, &key, event);
        } else if let Some(key) = AnswerKey::parse(path) {
            self.judge_answer(book, &key, event);
        } else if HostKey::parse(path).is_some() {
            book.note(match event.kind() {
                EventKind::Put => "registration",
                EventKind::Delete => "host lost",
            });
        }
    }

    fn judge_term(&self, book: &mut Book, key: &TermKey, event: &Event) {
        let before = book.read(key).map_or(Epoch::NEVER_TOLD, |stored| stored.record);
        let after = Stored::decode::<TermKey>(&event.kv).map_or(Epoch::NEVER_TOLD, |stored| stored.record);
        book.note("term");
        if after <= before {
            book.violations.push(format!("term went from {before} to {after}"));
        }
    }

    fn judge_drain(&self, book: &mut Book, key: &DrainKey, event: &Event) {
        let before = book.read(key);
        match event.kind() {
            EventKind::Put => {
                book.note("wish");
                let after = Stored::decode::<DrainKey>(&event.kv).unwrap().record;
                let expected = before.map_or(Epoch::NEVER_TOLD, |drain| drain.record.epoch).next();
                if after.epoch != expected {
                    book.violations.push(format!("{key} has epoch {} instead of {expected}", after.epoch));
                }
            }
            EventKind::Delete => {
                book.note("end of a drain");
                let status = book.statuses().into_iter().find(|status| status.host == key.host).unwrap();
                if status.phase != DrainPhase::Returned {
                    book.violations.push(format!("{key} ended in phase {:?}", status.phase));
                }
            }
        }
    }

    fn judge_answer(&self, book: &mut Book, key: &AnswerKey, event: &Event) {
        if event.kind() == EventKind::Delete {
            return;
        }
        book.note("answer");
        let answer = Stored::decode::<AnswerKey>(&event.kv).unwrap().record;
        let asked = book.read(&DrainKey { host: key.host.clone() }).map(|drain| drain.record.epoch);
        if asked != Some(answer.epoch) {
            book.violations.push(format!("{key} answers epoch {} of {asked:?}", answer.epoch));
        }
        let work = self.disk(&key.host).work_of(&key.service);
        if answer.answer == Answer::Drained && work > 0 {
            book.violations.push(format!("{key} says drained and still has work: {work}"));
        }
        if answer.answer == Answer::Healthy && work == 0 {
            book.violations.push(format!("{key} says healthy and has no work"));
        }
    }
}

impl Book {
    fn note(&mut self, kind: &'static str) {
        *self.deeds.entry(kind).or_default() += 1;
    }

    fn was_restored_within(&self, time: Duration) -> bool {
        self.restored_at.is_some_and(|restored| restored.elapsed() < time)
    }

    fn read<K: Key>(&self, key: &K) -> Option<Stored<K::Record>> {
        self.state.get(&key.path()).map(|kv| Stored::decode::<K>(kv).unwrap())
    }

    fn statuses(&self) -> Vec<DrainStatus> {
        let drains = self.state.keys().filter_map(|path| DrainKey::parse(path));
        drains.filter_map(|key| self.status_of(&key)).collect()
    }

    fn status_of(&self, key: &DrainKey) -> Option<DrainStatus> {
        let drain = self.read(key)?;
        let host = self.read(&HostKey { host: key.host.clone() });
        let answers: Vec<(ServiceName, Stored<DrainAnswer>)> = self
            .state
            .keys()
            .filter_map(|path| AnswerKey::parse(path))
            .filter(|answer| answer.host == key.host)
            .filter_map(|answer| self.read(&answer).map(|stored| (answer.service, stored)))
            .collect();
        let answers: Vec<_> = answers.iter().map(|(service, stored)| (service.clone(), stored)).collect();
        Some(status(&key.host, &drain, host.as_ref().map(|host| &host.record), &answers))
    }
}
