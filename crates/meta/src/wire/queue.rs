//! How do callers stand in line? Each puts a key under a common prefix, named after its lease; who has the oldest key
//! is first, and everybody else waits for the keys before its own to go. Locks and elections are both this line.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::auth::KeyAccess;
use super::service::Wire;
use super::status::{status, stopped};
use crate::error::MetaError;
use crate::kv::{KeyRange, KeyValue, LeaseId, Revision};
use crate::request::*;

/// A caller without a lease gets one of this length, which nobody renews: it stands for at most this long.
const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// A place in a line.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: Bytes,
    pub(super) lease: LeaseId,
    /// The revision at which the key was created: the place's number.
    pub(super) revision: Revision,
    /// What the key holds.
    pub(super) value: Bytes,
    /// The store's revision when the place was taken or found.
    pub(super) seen: Revision,
}

/// The keys of a line.
pub(super) fn line(name: &[u8]) -> Bytes {
    let mut prefix = BytesMut::with_capacity(name.len() + 1);
    prefix.put_slice(name);
    prefix.put_u8(b'/');
    prefix.freeze()
}

/// The key of one caller: its lease in hex, with a sign if it has one.
fn place(line: &[u8], lease: LeaseId) -> Bytes {
    let sign = if lease.0 < 0 { "-" } else { "" };
    let mut key = line.to_vec();
    key.extend_from_slice(format!("{sign}{:x}", lease.0.unsigned_abs()).as_bytes());
    key.into()
}

/// Deletes the key of a caller that goes away (or fails) before its turn.
struct Waiting<'a> {
    wire: &'a Arc<Wire>,
    key: Option<Bytes>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.wire.abandon(key);
        }
    }
}

impl Wire {
    /// Whether a call may stand in a line: it reads all of it and writes a key of it, perhaps with a lease. Asked once; a
    /// caller may wait for hours, and users and roles can change meanwhile.
    pub(super) async fn permit_line(
        &self,
        metadata: &MetadataMap,
        line: &Bytes,
        lease: i64,
    ) -> Result<(), Status> {
        let permit = self.permit(metadata).await?;
        let keys = KeyRange::prefix(line.clone());
        permit.read(&keys)?;
        permit.write(&keys)?;
        match LeaseId(lease) {
            LeaseId::NONE => Ok(()),
            lease => permit.lease(lease, KeyAccess::Write, &*self.backend).await,
        }
    }

    /// Takes a place in a line, or finds the one that this lease already has there.
    pub(super) async fn line_up(&self, line: &[u8], lease: i64, value: Bytes) -> Result<Place, Status> {
        let lease = match LeaseId(lease) {
            LeaseId::NONE => self.backend.lease_grant(DEFAULT_TTL, LeaseId::NONE).await.map_err(status)?.id,
            given => given,
        };
        let key = place(line, lease);
        let txn = Txn::new()
            .when(Compare::absent(key.clone()))
            .then(Put::new(key.clone(), value.clone()).lease(lease))
            .otherwise(Range::one(key.clone()));
        let result = self.backend.commit(txn).await.map_err(status)?;
        let seen = result.revision;
        let old = match result.responses.into_iter().next() {
            Some(OpResult::Range(found)) => found.kvs.into_iter().next(),
            _ => None,
        };
        Ok(match old {
            Some(old) => Place { key, lease, revision: old.create_revision, value: old.value.clone(), seen },
            None => Place { key, lease, revision: seen, value, seen },
        })
    }

    /// Waits until this place is the first of its line. A caller that goes away meanwhile gives it up.
    pub(super) async fn wait_first(self: &Arc<Self>, line: &Bytes, place: &Place) -> Result<(), Status> {
        let mut waiting = Waiting { wire: self, key: Some(place.key.clone()) };
        while let Some((before, seen)) = self.just_before(line, place.revision).await? {
            self.wait_gone(before, seen).await?;
        }
        waiting.key = None;
        Ok(())
    }

    /// The youngest key that is older than this one.
    async fn just_before(
        &self,
        line: &Bytes,
        revision: Revision,
    ) -> Result<Option<(Arc<KeyValue>, Revision)>, Status> {
        let mut older = Range::prefix(line.clone())
            .sorted(SortTarget::CreateRevision, SortOrder::Descend)
            .limit(1)
            .detail(Detail::KeysOnly);
        older.max_create_revision = Revision(revision.0 - 1);
        let mut found = self.backend.range(older).await.map_err(status)?;
        Ok(found.kvs.pop().map(|kv| (kv, found.revision)))
    }

    /// Waits until a key is (or may have been) deleted, having seen it at a revision.
    async fn wait_gone(&self, kv: Arc<KeyValue>, seen: Revision) -> Result<(), Status> {
        let watch = Watch { no_put: true, ..Watch::from(KeyRange::one(kv.key.clone()), seen.next()) };
        let gone = async {
            let mut deletions = self.backend.watch(watch).await?;
            while let WatchMessage::Progress(_) = deletions.next().await? {}
            Ok(())
        };
        tokio::select! {
            gone = gone => match gone {
                // History was dropped meanwhile, and the deletion perhaps with it: whoever asked looks again.
                Ok(()) | Err(MetaError::Compacted { .. }) => Ok(()),
                Err(error) => Err(status(error)),
            },
            () = self.stopping.cancelled() => Err(stopped()),
        }
    }

    /// Who is first in a line, and the revision at which that was so.
    pub(super) async fn first(&self, line: &Bytes) -> Result<(Option<Arc<KeyValue>>, Revision), Status> {
        let oldest =
            Range::prefix(line.clone()).sorted(SortTarget::CreateRevision, SortOrder::Ascend).limit(1);
        let mut found = self.backend.range(oldest).await.map_err(status)?;
        Ok((found.kvs.pop(), found.revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_after_its_lease_in_hex() {
        assert_eq!(place(&line(b"lock"), LeaseId(0x1f)), "lock/1f".as_bytes());
        assert_eq!(place(&line(b"lock"), LeaseId(-0x1f)), "lock/-1f".as_bytes());
    }
}
