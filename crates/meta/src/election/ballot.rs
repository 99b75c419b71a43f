//! Under which keys is a leader elected, and what do they say? Pure transactions and their reading; and watching it.

use bytes::Bytes;

use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, KeyValue, LeaseId, Revision};
use crate::record::{Key, LeaseHex, Prefix};
use crate::request::{
    Compare, CompareTarget, Delete, OpResult, Put, Range, RangeResult, Relation, SortOrder, SortTarget, Txn,
    TxnResult,
};
use crate::store::Store;
use crate::view::{Changes, Ranges, Snapshot, View, ViewOptions};

/// Where a leader is elected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// Etcd's recipe: a key per candidate under this text (which ends in a slash), named by its lease in hex.
    Queue {
        /// What the keys begin with.
        prefix: String,
    },
    /// One key; who creates it leads until it is gone.
    Seat {
        /// The key.
        key: String,
    },
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// What the leader calls itself.
    pub id: String,
    /// Its term.
    pub term: Revision,
}

/// Where a candidate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It leads, with this key since this revision.
    Leads { key: Bytes, term: Revision },
    /// This key must be deleted first; it existed at this revision.
    Behind { key: Bytes, at: Revision },
}

impl Ballot {
    /// Candidates queue under this prefix.
    pub fn queue<P: Prefix>(prefix: &P) -> Ballot {
        Ballot::Queue { prefix: prefix.path() }
    }

    /// Candidates compete for this key.
    pub fn seat<K: Key>(key: &K) -> Ballot {
        Ballot::Seat { key: key.path() }
    }

    /// Everything that says who leads.
    #[must_use]
    pub fn keys(&self) -> KeyRange {
        match self {
            Ballot::Queue { prefix } => KeyRange::prefix(prefix.clone()),
            Ballot::Seat { key } => KeyRange::one(key.clone()),
        }
    }

    fn key(&self, lease: LeaseId) -> Bytes {
        match self {
            Ballot::Queue { prefix } => format!("{prefix}{}", LeaseHex(lease)).into(),
            Ballot::Seat { key } => key.clone().into(),
        }
    }

    /// Becomes a candidate, or finds that it is one, and reads in the same revision who comes first. Can be repeated.
    pub(super) fn enter(&self, lease: LeaseId, id: &str) -> Txn {
        let key = self.key(lease);
        // All of them in one answer: there are a handful of controllers.
        let candidates = Range::of(self.keys()).sorted(SortTarget::CreateRevision, SortOrder::Ascend);
        Txn::new()
            .when(Compare::absent(key.clone()))
            .then(Put::new(key, id.to_owned()).lease(lease))
            .then(candidates.clone())
            .otherwise(candidates)
    }

    /// Is a candidate no more. The key of another candidate stays, also if it is on the same lease.
    pub(super) fn leave(&self, lease: LeaseId, id: &str) -> Txn {
        let key = self.key(lease);
        let is = |target| Compare { keys: KeyRange::one(key.clone()), target, relation: Relation::Equal };
        let id = Bytes::copy_from_slice(id.as_bytes());
        Txn::new()
            .when(is(CompareTarget::Lease(lease)))
            .when(is(CompareTarget::Value(id)))
            .then(Delete::one(key.clone()))
    }

    /// What the answer to [`Ballot::enter`] means. Candidates of one process may share a lease: a key is its candidate's
    /// only with both the lease and the id.
    pub(super) fn standing(&self, lease: LeaseId, id: &str, entered: &TxnResult) -> Result<Standing> {
        let unreadable = || MetaError::Rejected("the store answered another question".to_owned());
        let candidates = entered.responses.iter().find_map(listed).ok_or_else(unreadable)?;
        let ours =
            |kv: &KeyValue| kv.lease == lease && kv.key == self.key(lease) && kv.value == id.as_bytes();
        let before = candidates.kvs.iter().take_while(|kv| !ours(kv)).last();
        match before {
            Some(kv) => Ok(Standing::Behind { key: kv.key.clone(), at: entered.revision }),
            None => {
                let own = candidates.kvs.first().ok_or_else(unreadable)?;
                Ok(Standing::Leads { key: own.key.clone(), term: own.create_revision })
            }
        }
    }

    /// Who leads, in a snapshot of [`Ballot::keys`].
    #[must_use]
    pub fn leader_in(&self, snapshot: &Snapshot) -> Option<Leader> {
        let keys = self.keys();
        let candidates = snapshot.iter_raw().filter(|kv| keys.contains(&kv.key));
        candidates.min_by_key(|kv| kv.create_revision).map(|kv| leader(kv))
    }

    /// Who leads now.
    pub async fn leader(&self, store: &Store) -> Result<Option<Leader>> {
        let first = Range::of(self.keys()).sorted(SortTarget::CreateRevision, SortOrder::Ascend).limit(1);
        Ok(store.range(first).await?.kvs.first().map(|kv| leader(kv)))
    }

    /// Follows who leads.
    pub async fn observe(&self, store: Store, options: ViewOptions) -> Result<Observer> {
        let view = View::open(store, Ranges::new().with_range(self.keys()), options).await?;
        let changes = view.changes();
        Ok(Observer { ballot: self.clone(), view, changes })
    }
}

fn listed(response: &OpResult) -> Option<&RangeResult> {
    match response {
        OpResult::Range(result) => Some(result),
        OpResult::Put(_) | OpResult::Delete(_) | OpResult::Txn(_) => None,
    }
}

fn leader(kv: &KeyValue) -> Leader {
    Leader { id: String::from_utf8_lossy(&kv.value).into_owned(), term: kv.create_revision }
}

/// Follows who leads.
#[derive(Debug)]
pub struct Observer {
    ballot: Ballot,
    view: View,
    changes: Changes,
}

impl Observer {
    /// Who leads, as far as is known.
    #[must_use]
    pub fn current(&self) -> Option<Leader> {
        self.ballot.leader_in(&self.view.snapshot())
    }

    /// Waits for something to change, and says who leads then.
    pub async fn next(&mut self) -> Option<Leader> {
        self.changes.next().await;
        self.current()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn candidate(lease: i64, created: i64) -> Arc<KeyValue> {
        let create_revision = Revision(created);
        let (key, value) = (format!("/leader/{lease:x}").into(), "one".into());
        let lease = LeaseId(lease);
        Arc::new(KeyValue { key, value, create_revision, lease, version: 1, ..KeyValue::default() })
    }

    fn entered(kvs: Vec<Arc<KeyValue>>) -> TxnResult {
        let found = RangeResult { kvs, ..RangeResult::default() };
        TxnResult { revision: Revision(9), succeeded: true, responses: vec![OpResult::Range(found)] }
    }

    #[test]
    fn the_oldest_candidate_leads_and_the_others_wait_for_the_one_before_them() {
        let ballot = Ballot::Queue { prefix: "/leader/".to_owned() };
        let answer = entered(vec![candidate(0xb, 3), candidate(0xa, 5), candidate(0xc, 8)]);
        let standing = |lease| ballot.standing(LeaseId(lease), "one", &answer).unwrap();
        assert_eq!(standing(0xb), Standing::Leads { key: "/leader/b".into(), term: Revision(3) });
        assert_eq!(standing(0xa), Standing::Behind { key: "/leader/b".into(), at: Revision(9) });
        assert_eq!(standing(0xc), Standing::Behind { key: "/leader/a".into(), at: Revision(9) });
    }

    #[test]
    fn a_seat_belongs_to_the_lease_and_the_candidate_that_hold_it() {
        let ballot = Ballot::Seat { key: "/leader/b".to_owned() };
        let answer = entered(vec![candidate(0xb, 3)]);
        let leads = Standing::Leads { key: "/leader/b".into(), term: Revision(3) };
        assert_eq!(ballot.standing(LeaseId(0xb), "one", &answer).unwrap(), leads);
        let behind = Standing::Behind { key: "/leader/b".into(), at: Revision(9) };
        assert_eq!(ballot.standing(LeaseId(0xa), "one", &answer).unwrap(), behind);
        assert_eq!(ballot.standing(LeaseId(0xb), "two", &answer).unwrap(), behind, "another candidate");
    }

    #[test]
    fn an_answer_without_candidates_is_an_error() {
        let ballot = Ballot::Seat { key: "/leader".to_owned() };
        assert!(ballot.standing(LeaseId(1), "one", &entered(vec![])).is_err());
        assert!(ballot.standing(LeaseId(1), "one", &TxnResult::default()).is_err());
    }
}
