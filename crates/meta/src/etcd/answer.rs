//! Etcd's answers in our words, with the prefix taken off.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client as etcd;
use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader};

use super::prefix::Prefix;
use crate::kv::{KeyValue, LeaseId, Revision};
use crate::request::*;

/// The revision in a header; an answer without one is at "never".
pub(super) fn revision(header: Option<&PbResponseHeader>) -> Revision {
    Revision(header.map_or(0, |header| header.revision))
}

/// One version of a key. A key outside the prefix cannot be in an answer to a request inside it; should a server send
/// one all the same, it keeps its full name.
pub(super) fn key_value(prefix: &Prefix, kv: PbKeyValue) -> Arc<KeyValue> {
    Arc::new(KeyValue {
        key: key(prefix, kv.key),
        value: Bytes::from(kv.value),
        create_revision: Revision(kv.create_revision),
        mod_revision: Revision(kv.mod_revision),
        version: kv.version,
        lease: LeaseId(kv.lease),
    })
}

fn key(prefix: &Prefix, key: Vec<u8>) -> Bytes {
    prefix.strip(key.clone()).unwrap_or_else(|| Bytes::from(key))
}

fn key_values(prefix: &Prefix, kvs: Vec<PbKeyValue>) -> Vec<Arc<KeyValue>> {
    kvs.into_iter().map(|kv| key_value(prefix, kv)).collect()
}

/// A count on the wire is never negative; one that is counts nothing.
fn count(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

pub(super) fn range(prefix: &Prefix, etcd::GetResponse(answer): etcd::GetResponse) -> RangeResult {
    RangeResult {
        revision: revision(answer.header.as_ref()),
        kvs: key_values(prefix, answer.kvs),
        more: answer.more,
        count: count(answer.count),
    }
}

pub(super) fn put(prefix: &Prefix, etcd::PutResponse(answer): etcd::PutResponse) -> PutResult {
    PutResult {
        revision: revision(answer.header.as_ref()),
        prev: answer.prev_kv.map(|kv| key_value(prefix, kv)),
    }
}

pub(super) fn delete(prefix: &Prefix, etcd::DeleteResponse(answer): etcd::DeleteResponse) -> DeleteResult {
    DeleteResult {
        revision: revision(answer.header.as_ref()),
        deleted: count(answer.deleted),
        prev_kvs: key_values(prefix, answer.prev_kvs),
    }
}

/// A transaction's answer. Inside it, where etcd leaves headers out, the revision is that of the whole.
pub(super) fn txn(prefix: &Prefix, answer: etcd::TxnResponse) -> TxnResult {
    let outer = revision(answer.0.header.as_ref());
    txn_at(prefix, answer, outer)
}

fn txn_at(prefix: &Prefix, mut answer: etcd::TxnResponse, outer: Revision) -> TxnResult {
    // The client takes for granted that each response has content.
    answer.0.responses.retain(|response| response.response.is_some());
    let own = |revision: Revision| if revision == Revision::ZERO { outer } else { revision };
    let response = |response| match response {
        etcd::TxnOpResponse::Get(one) => {
            let one = range(prefix, one);
            OpResult::Range(RangeResult { revision: own(one.revision), ..one })
        }
        etcd::TxnOpResponse::Put(one) => {
            let one = put(prefix, one);
            OpResult::Put(PutResult { revision: own(one.revision), ..one })
        }
        etcd::TxnOpResponse::Delete(one) => {
            let one = delete(prefix, one);
            OpResult::Delete(DeleteResult { revision: own(one.revision), ..one })
        }
        etcd::TxnOpResponse::Txn(one) => OpResult::Txn(txn_at(prefix, one, outer)),
    };
    TxnResult {
        revision: own(revision(answer.0.header.as_ref())),
        succeeded: answer.succeeded(),
        responses: answer.op_responses().into_iter().map(response).collect(),
    }
}

/// One change; `None` if the server sent a change of nothing.
pub(super) fn event(prefix: &Prefix, event: PbEvent) -> Option<Event> {
    Some(Event { kv: key_value(prefix, event.kv?), prev: event.prev_kv.map(|kv| key_value(prefix, kv)) })
}

/// A lease, if there is one: etcd says -1 about one that is not.
pub(super) fn lease_info(
    prefix: &Prefix,
    etcd::LeaseTimeToLiveResponse(answer): etcd::LeaseTimeToLiveResponse,
) -> Option<LeaseInfo> {
    let remaining = u64::try_from(answer.ttl).ok()?;
    // A lease may hold keys of other installations too.
    let mut keys: Vec<Bytes> = answer.keys.into_iter().filter_map(|key| prefix.strip(key)).collect();
    keys.sort_unstable();
    Some(LeaseInfo {
        granted_ttl: seconds(answer.granted_ttl),
        remaining: Duration::from_secs(remaining),
        keys,
    })
}

/// A time to live on the wire.
pub(super) fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::{PbLeaseTimeToLiveResponse, PbTxnResponse};

    fn wire(key: &str) -> PbKeyValue {
        PbKeyValue {
            key: key.into(),
            value: b"v".to_vec(),
            create_revision: 2,
            mod_revision: 3,
            version: 2,
            lease: 7,
        }
    }

    #[test]
    fn a_version_keeps_all_its_numbers_and_loses_the_prefix() {
        let kv = key_value(&Prefix::new("/a/"), wire("/a/k"));
        let expected = KeyValue {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"v"),
            create_revision: Revision(2),
            mod_revision: Revision(3),
            version: 2,
            lease: LeaseId(7),
        };
        assert_eq!(*kv, expected);
    }

    #[test]
    fn a_deletion_is_told_by_its_version() {
        let gone = PbKeyValue { version: 0, create_revision: 0, value: Vec::new(), lease: 0, ..wire("k") };
        let event = event(&Prefix::new(""), PbEvent { r#type: 1, kv: Some(gone), prev_kv: Some(wire("k")) });
        let event = event.unwrap();
        assert_eq!(event.kind(), EventKind::Delete);
        assert_eq!(event.prev.unwrap().version, 2);
        assert_eq!(super::event(&Prefix::new(""), PbEvent::default()), None);
    }

    #[test]
    fn a_lease_that_is_gone_is_none_and_foreign_keys_are_left_out() {
        let gone = PbLeaseTimeToLiveResponse { ttl: -1, ..Default::default() };
        assert_eq!(lease_info(&Prefix::new(""), etcd::LeaseTimeToLiveResponse(gone)), None);
        let keys = ["/a/y", "/b/q", "/a/x"].map(|key| key.as_bytes().to_vec()).to_vec();
        let live = PbLeaseTimeToLiveResponse { ttl: 9, granted_ttl: 10, keys, ..Default::default() };
        let info = lease_info(&Prefix::new("/a/"), etcd::LeaseTimeToLiveResponse(live)).unwrap();
        assert_eq!(info.keys, ["x", "y"]);
        assert_eq!((info.remaining.as_secs(), info.granted_ttl.as_secs()), (9, 10));
    }

    #[test]
    fn a_transaction_without_header_is_at_never() {
        let answer = etcd::TxnResponse(PbTxnResponse { succeeded: true, ..Default::default() });
        let expected = TxnResult { succeeded: true, ..TxnResult::default() };
        assert_eq!(txn(&Prefix::new(""), answer), expected);
    }
}
