//! Runs a script on a store and writes down what it says, in words that do not depend on where its revisions begin.

use std::fmt::Write as _;
use std::time::Duration;

use capstan_meta::{
    Compare, CompareTarget, Delete, Detail, Event, EventKind, KeyRange, KeyValue, LeaseId, MetaError, Op,
    OpResult, Put, Range, RangeResult, Result, Revision, SortTarget, Store, Txn, TxnResult, Watch,
    WatchMessage, WatchStream,
};

use super::script::*;
use crate::subjects::EVENT_DEADLINE;

/// Not one of the keys of a script: it makes the first revision.
const FIRST: &str = "~first";
const LONG: Duration = Duration::from_secs(3_600);

/// A store, and what a script's numbers mean to it.
pub struct Stage {
    pub store: Store,
    base: i64,
    lease: i64,
    /// The revision of the last compaction, from the base.
    compacted: i64,
}

/// Runs the script; a line for each answer.
pub async fn perform(store: &Store, script: &Script, lease: i64) -> Vec<String> {
    let mut stage = Stage::begin(store, lease).await;
    let (mut lines, mut live) = (Vec::new(), Vec::new());
    for (n, step) in script.steps.iter().enumerate() {
        for (_, spec) in script.live.iter().filter(|(at, _)| *at == n) {
            live.push((spec, store.watch(stage.watch(spec, Revision::ZERO)).await.unwrap()));
        }
        lines.push(stage.step(step).await);
    }
    lines.extend(stage.ending(script, live).await);
    for slot in 0..LEASES {
        // What was not granted cannot be revoked.
        let _ = store.lease_revoke(stage.lease_id(Some(slot))).await;
    }
    lines
}

impl Stage {
    /// Both begin with the same state: one key, and no history before it.
    pub async fn begin(store: &Store, lease: i64) -> Stage {
        let base = store.put(Put::new(FIRST, "")).await.unwrap().revision;
        store.compact(base).await.unwrap();
        Stage { store: store.clone(), base: base.0, lease, compacted: 0 }
    }

    /// Ends the script, and says what its watches brought.
    pub async fn ending(
        &self,
        script: &Script,
        live: Vec<(&WatchSpec, Box<dyn WatchStream>)>,
    ) -> Vec<String> {
        let (stage, store, mut lines) = (self, &self.store, Vec::new());
        let end = stage.end().await;
        let mut past = Vec::new();
        for (from, spec) in &script.past {
            // Not behind the end, which every watch must see.
            let from = stage.revision(*from).min(Revision(end.0 - 1));
            past.push((spec, store.watch(stage.watch(spec, from)).await));
        }
        for (spec, mut watch) in live {
            lines.push(stage.events(spec, &mut *watch, end).await);
        }
        for (spec, watch) in past {
            lines.push(match watch {
                Ok(mut watch) => stage.events(spec, &mut *watch, end).await,
                Err(error) => format!("watch: {}", stage.error(error)),
            });
        }
        lines
    }

    fn revision(&self, n: i64) -> Revision {
        Revision(self.base + n)
    }

    /// A revision in an answer: as it is if it means "never".
    fn relative(&self, revision: Revision) -> String {
        if revision == Revision::ZERO { "never".to_owned() } else { (revision.0 - self.base).to_string() }
    }

    pub fn lease_id(&self, slot: Option<usize>) -> LeaseId {
        slot.map_or(LeaseId::NONE, |slot| LeaseId(self.lease + slot as i64))
    }

    pub async fn step(&mut self, step: &Step) -> String {
        let said = match step {
            Step::Do(act) => self.act(act).await,
            Step::Grant(slot) => {
                let granted = self.store.lease_grant(LONG, self.lease_id(Some(*slot))).await;
                granted.map(|lease| format!("{:?}", lease.ttl))
            }
            Step::Revoke(slot) => self
                .store
                .lease_revoke(self.lease_id(Some(*slot)))
                .await
                .map(|revision| self.relative(revision)),
            Step::Info(slot) => {
                let info = self.store.lease_info(self.lease_id(Some(*slot))).await;
                info.map(|info| format!("{:?}", info.map(|info| (info.granted_ttl, info.keys))))
            }
            Step::KeepAlive(slot) => {
                self.store.lease_keep_alive(self.lease_id(Some(*slot))).await.map(|ttl| format!("{ttl:?}"))
            }
            Step::Compact(n) => {
                let compacted = self.store.compact(self.revision(*n)).await;
                if compacted.is_ok() {
                    self.compacted = *n;
                }
                compacted.map(|revision| self.relative(revision))
            }
        };
        let refused = |error| match step {
            // Which one of several reasons is given is not promised.
            Step::Do(act) if may_fail(act) > 1 => "refused".to_owned(),
            _ => self.error(error),
        };
        format!("{step:?}: {}", said.unwrap_or_else(refused))
    }

    async fn act(&self, act: &Act) -> Result<String> {
        match self.op(act) {
            Op::Put(put) => Ok(self.answer(act, &OpResult::Put(self.store.put(put).await?))),
            Op::Delete(delete) => Ok(self.answer(act, &OpResult::Delete(self.store.delete(delete).await?))),
            Op::Range(range) => Ok(self.answer(act, &OpResult::Range(self.store.range(range).await?))),
            Op::Txn(txn) => {
                let done = self.store.commit(txn).await?;
                let revision = self.relative(done.revision);
                Ok(format!("@{revision} {}", self.answer(act, &OpResult::Txn(done))))
            }
        }
    }

    fn error(&self, error: MetaError) -> String {
        match error {
            MetaError::Compacted { oldest } => format!("compacted, begins at {}", self.relative(oldest)),
            error => format!("{error:?}"),
        }
    }

    fn op(&self, act: &Act) -> Op {
        match act {
            Act::Put { key, value, lease, prev_kv, ignore_value, ignore_lease } => Op::Put(Put {
                lease: self.lease_id(*lease),
                prev_kv: *prev_kv,
                ignore_value: *ignore_value,
                ignore_lease: *ignore_lease,
                ..Put::new(KEYS[*key], text(*value))
            }),
            Act::Delete { keys, prev_kv } => Op::Delete(Delete { keys: key_range(keys), prev_kv: *prev_kv }),
            Act::Range(spec) => Op::Range(self.range(spec)),
            Act::Txn { compares, success, failure } => Op::Txn(Txn {
                compares: compares.iter().map(|compare| self.compare(compare)).collect(),
                success: success.iter().map(|act| self.op(act)).collect(),
                failure: failure.iter().map(|act| self.op(act)).collect(),
            }),
        }
    }

    fn range(&self, spec: &RangeSpec) -> Range {
        let [min_mod, max_mod, min_create, max_create] =
            spec.filters.map(|filter| filter.map_or(Revision::ZERO, |n| self.revision(n)));
        Range {
            revision: spec.at.map_or(Revision::ZERO, |n| self.revision(n)),
            limit: spec.limit,
            min_mod_revision: min_mod,
            max_mod_revision: max_mod,
            min_create_revision: min_create,
            max_create_revision: max_create,
            ..Range::of(key_range(&spec.keys)).detail(spec.detail).sorted(spec.sort_by, spec.order)
        }
    }

    fn compare(&self, spec: &CompareSpec) -> Compare {
        let never_or = |n: Option<i64>| n.map_or(Revision::ZERO, |n| self.revision(n));
        let target = match spec.target {
            Target::Version(version) => CompareTarget::Version(version),
            Target::Create(n) => CompareTarget::CreateRevision(never_or(n)),
            Target::Mod(n) => CompareTarget::ModRevision(never_or(n)),
            Target::Value(value) => CompareTarget::Value(text(value).into()),
            Target::Lease(slot) => CompareTarget::Lease(self.lease_id(slot)),
        };
        Compare { keys: key_range(&spec.keys), target, relation: spec.relation }
    }

    fn answer(&self, act: &Act, result: &OpResult) -> String {
        match (act, result) {
            (_, OpResult::Put(put)) => {
                let prev = put.prev.iter().map(|kv| self.version(kv, Detail::Whole)).collect::<Vec<_>>();
                format!("put @{} over {prev:?}", self.relative(put.revision))
            }
            (_, OpResult::Delete(delete)) => {
                let prev =
                    delete.prev_kvs.iter().map(|kv| self.version(kv, Detail::Whole)).collect::<Vec<_>>();
                format!("deleted {} @{} {prev:?}", delete.deleted, self.relative(delete.revision))
            }
            (Act::Range(spec), OpResult::Range(range)) => self.found(spec, range),
            (Act::Txn { success, failure, .. }, OpResult::Txn(txn)) => self.txn(success, failure, txn),
            (act, result) => format!("{act:?} was answered with {result:?}"),
        }
    }

    /// Without its revision: etcd leaves out that of a nested one.
    fn txn(&self, success: &[Act], failure: &[Act], txn: &TxnResult) -> String {
        let acts = if txn.succeeded { success } else { failure };
        let answers: Vec<_> =
            acts.iter().zip(&txn.responses).map(|(act, said)| self.answer(act, said)).collect();
        format!("txn {} {} {answers:?}", txn.succeeded, txn.responses.len())
    }

    fn found(&self, spec: &RangeSpec, range: &RangeResult) -> String {
        let mut kvs: Vec<_> = range.kvs.iter().map(|kv| self.version(kv, spec.detail)).collect();
        if spec.sort_by != SortTarget::Key {
            // Among equal ones any order is right.
            kvs.sort_unstable();
        }
        let (revision, more, count) = (self.relative(range.revision), range.more, range.count);
        format!("found {count} @{revision}{} {kvs:?}", if more { " and more" } else { "" })
    }

    pub fn version(&self, kv: &KeyValue, detail: Detail) -> String {
        // Newer servers leave the lease out where only keys are asked for.
        let lease =
            if detail == Detail::Whole && kv.lease != LeaseId::NONE { kv.lease.0 - self.lease } else { -1 };
        let value = String::from_utf8_lossy(&kv.value);
        let (created, modified) = (self.relative(kv.create_revision), self.relative(kv.mod_revision));
        format!("{}={value} v{} {created}..{modified} lease {lease}", kv.key_text(), kv.version)
    }

    fn watch(&self, spec: &WatchSpec, from: Revision) -> Watch {
        let WatchSpec { prev_kv, no_put, no_delete, .. } = *spec;
        Watch { prev_kv, no_put, no_delete, ..Watch::from(key_range(&spec.keys), from) }
    }

    /// Puts every key and deletes them all, so that every watch has something to end with.
    async fn end(&self) -> Revision {
        let puts = KEYS.iter().map(|key| Op::Put(Put::new(*key, "end"))).collect();
        self.store.commit(Txn { success: puts, ..Txn::new() }).await.unwrap();
        self.store.delete(Delete { keys: KeyRange::span("a", "e"), prev_kv: false }).await.unwrap().revision
    }

    /// Everything that a watch brings up to its end.
    async fn events(&self, spec: &WatchSpec, watch: &mut dyn WatchStream, end: Revision) -> String {
        let last = if spec.no_delete { Revision(end.0 - 1) } else { end };
        let mut said = "watch:".to_owned();
        loop {
            match tokio::time::timeout(EVENT_DEADLINE, watch.next()).await {
                Ok(Ok(WatchMessage::Progress(_))) => {}
                Ok(Ok(WatchMessage::Events { revision, events })) => {
                    for event in events.iter() {
                        self.event(&mut said, event);
                    }
                    if revision >= last {
                        return said;
                    }
                }
                Ok(Err(error)) => return format!("{said} {}", self.error(error)),
                Err(_) => return format!("{said} and then nothing"),
            }
        }
    }

    fn event(&self, said: &mut String, event: &Event) {
        let at = event.kv.mod_revision.0 - self.base;
        // Etcd 3.4.23 forgets deletions at the compacted revision.
        if event.kind() == EventKind::Delete && at == self.compacted {
            return;
        }
        let _ = write!(said, " {:?} {}", event.kind(), self.version(&event.kv, Detail::Whole));
        // Whether a compaction comes before the look for the previous version is a matter of luck.
        if self.compacted == 0
            && let Some(prev) = &event.prev
        {
            let _ = write!(said, " over {}", self.version(prev, Detail::Whole));
        }
    }
}

/// How many parts of an act can be refused for reasons of their own.
fn may_fail(act: &Act) -> usize {
    match act {
        Act::Put { lease, ignore_value, ignore_lease, .. } => {
            [lease.is_some(), *ignore_value, *ignore_lease].into_iter().filter(|one| *one).count()
        }
        Act::Delete { .. } => 0,
        Act::Range(spec) => usize::from(spec.at.is_some()),
        Act::Txn { success, failure, .. } => success.iter().chain(failure).map(may_fail).sum(),
    }
}

fn text(value: u8) -> String {
    if value == 0 { String::new() } else { value.to_string() }
}

fn key_range(keys: &Keys) -> KeyRange {
    match *keys {
        Keys::One(key) => KeyRange::one(KEYS[key]),
        Keys::Prefix(key) => KeyRange::prefix(KEYS[key]),
        Keys::From(key) => KeyRange::from_key(KEYS[key]),
        Keys::Span(from, to) => KeyRange::span(KEYS[from], KEYS[to]),
        Keys::All => KeyRange::all(),
    }
}
