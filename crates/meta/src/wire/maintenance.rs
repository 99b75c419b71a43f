//! The Maintenance service: status, hashes, alarms, defragmentation. Snapshots are in `snapshot.rs`.

use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use tonic::{Code, Request, Response, Status};

use super::kv::Answers;
use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::maintenance_server::Maintenance;
use super::service::Wire;
use super::snapshot;
use super::status::{refuse, status};
use crate::kv::{KeyRange, KeyValue, Revision};
use crate::request::Range;

/// Keys hashed before others get their turn.
const HASH_CHUNK: usize = 4096;

#[tonic::async_trait]
impl Maintenance for Wire {
    async fn status(
        self: Arc<Self>,
        _: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let told = self.backend.status().await.map_err(status)?;
        let alarm = self.backend.has_no_space_alarm().await.map_err(status)?;
        let errors =
            alarm.then(|| format!("memberID:{} alarm:NOSPACE ", told.member_id)).into_iter().collect();
        // There is no replicated log; its index is the revision, which grows in the same way.
        let index = u64::try_from(told.revision.0).unwrap_or(0);
        let minor: Vec<_> = told.version.split('.').take(2).collect();
        let storage_version = format!("{}.0", minor.join("."));
        Ok(Response::new(pb::StatusResponse {
            header: self.header(told.revision),
            version: told.version,
            db_size: i64::try_from(told.db_size).unwrap_or(i64::MAX),
            leader: told.member_id,
            raft_index: index,
            raft_term: told.term,
            raft_applied_index: index,
            errors,
            db_size_in_use: i64::try_from(told.db_size_in_use).unwrap_or(i64::MAX),
            is_learner: false,
            storage_version,
            db_size_quota: i64::try_from(told.db_size_quota).unwrap_or(i64::MAX),
        }))
    }

    async fn alarm(
        self: Arc<Self>,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        use pb::alarm_request::AlarmAction;
        {
            let permit = self.permit(request.metadata()).await?;
            permit.user()?;
            if request.get_ref().action != i32::from(AlarmAction::Get) {
                permit.root()?;
            }
        }
        let request = request.into_inner();
        let raised = self.backend.has_no_space_alarm().await.map_err(status)?;
        // `NONE` asks for every alarm. The only one here is `NOSPACE`: damage is reported by not opening the store.
        let meant = matches!(
            pb::AlarmType::try_from(request.alarm),
            Ok(pb::AlarmType::None | pb::AlarmType::Nospace)
        );
        let shown = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => raised && meant,
            Ok(AlarmAction::Deactivate) if raised && meant => {
                self.backend.set_no_space_alarm(false).await.map_err(status)?;
                true
            }
            Ok(AlarmAction::Deactivate) => false,
            Ok(AlarmAction::Activate) if request.alarm == i32::from(pb::AlarmType::Nospace) => {
                self.backend.set_no_space_alarm(true).await.map_err(status)?;
                true
            }
            Ok(AlarmAction::Activate) => {
                return Err(refuse(Code::Unimplemented, "the embedded store has no alarm but NOSPACE"));
            }
            Err(_) => return Err(refuse(Code::InvalidArgument, "unknown alarm action")),
        };
        let alarm =
            pb::AlarmMember { member_id: self.identity.member_id, alarm: pb::AlarmType::Nospace.into() };
        let alarms = if shown { vec![alarm] } else { Vec::new() };
        Ok(Response::new(pb::AlarmResponse { header: self.header_now().await?, alarms }))
    }

    async fn defragment(
        self: Arc<Self>,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        self.backend.defragment().await.map_err(status)?;
        Ok(Response::new(pb::DefragmentResponse { header: self.header_now().await? }))
    }

    async fn hash(
        self: Arc<Self>,
        request: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        let (hash, revision) = self.hash_at(Revision::ZERO).await?;
        Ok(Response::new(pb::HashResponse { header: self.header(revision), hash }))
    }

    async fn hash_kv(
        self: Arc<Self>,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        let asked = Revision(request.into_inner().revision);
        let compacted = self.backend.status().await.map_err(status)?.compacted;
        let (hash, now) = self.hash_at(asked).await?;
        let hashed = if asked.0 > 0 { asked } else { now };
        Ok(Response::new(pb::HashKvResponse {
            header: self.header(now),
            hash,
            compact_revision: compacted.0,
            hash_revision: hashed.0,
        }))
    }

    type SnapshotStream = Answers<pb::SnapshotResponse>;

    async fn snapshot(
        self: Arc<Self>,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.permit(request.metadata()).await?.root()?;
        Ok(Response::new(snapshot::stream(&self).await?))
    }

    async fn move_leader(
        self: Arc<Self>,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        if request.into_inner().target_id != self.identity.member_id {
            return Err(refuse(Code::FailedPrecondition, "bad leader transferee"));
        }
        Ok(Response::new(pb::MoveLeaderResponse { header: self.header_now().await? }))
    }

    async fn downgrade(
        self: Arc<Self>,
        _: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        Err(refuse(Code::Unimplemented, "the embedded store has no older version to go back to"))
    }
}

impl Wire {
    /// A checksum of all keys as they were at a revision (zero: now), and the revision that it is now.
    async fn hash_at(&self, revision: Revision) -> Result<(u32, Revision), Status> {
        let all = self.backend.range(Range::of(KeyRange::all()).at(revision)).await.map_err(status)?;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        for chunk in all.kvs.chunks(HASH_CHUNK) {
            chunk.iter().for_each(|kv| add(&mut digest, kv));
            tokio::task::yield_now().await;
        }
        // A CRC-32 in the low half of a wider number.
        Ok((digest.finalize() as u32, all.revision))
    }
}

fn add(digest: &mut Digest, kv: &KeyValue) {
    let numbers = [
        kv.key.len() as i64,
        kv.value.len() as i64,
        kv.create_revision.0,
        kv.mod_revision.0,
        kv.version,
        kv.lease.0,
    ];
    numbers.iter().for_each(|number| digest.update(&number.to_le_bytes()));
    digest.update(&kv.key);
    digest.update(&kv.value);
}
