//! The Election service: the leader is whoever is first in the line under the election's name, and its value is what it
//! proclaims.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use tonic::{Request, Response, Status};

use super::codec::WireKv;
use super::kv::Answers;
use super::proto::v3electionpb as pb;
use super::proto::v3electionpb::election_server::Election;
use super::queue::line;
use super::service::Wire;
use super::status::{status, stopped};
use crate::kv::{KeyRange, KeyValue, LeaseId, Revision};
use crate::request::*;
use crate::store::WatchStream;

const NOT_LEADER: &str = "election: not leader";
const NO_LEADER: &str = "election: no leader";
const LEADER_MISSING: &str = r#""leader" field must be provided"#;

#[tonic::async_trait]
impl Election for Wire {
    async fn campaign(
        self: Arc<Self>,
        request: Request<pb::CampaignRequest>,
    ) -> Result<Response<pb::CampaignResponse>, Status> {
        let (metadata, _, pb::CampaignRequest { name, lease, value }) = request.into_parts();
        let value = Bytes::copy_from_slice(&value);
        let line = line(&name);
        self.permit_line(&metadata, &line, lease).await?;
        let place = self.line_up(&line, lease, value.clone()).await?;
        let leader =
            pb::LeaderKey { name, key: place.key.clone(), rev: place.revision.0, lease: place.lease.0 };
        if place.value != value {
            self.proclaim_as(&leader, value).await?;
        }
        self.wait_first(&line, &place).await?;
        Ok(Response::new(pb::CampaignResponse { header: self.header(place.seen), leader: Some(leader) }))
    }

    async fn proclaim(
        self: Arc<Self>,
        request: Request<pb::ProclaimRequest>,
    ) -> Result<Response<pb::ProclaimResponse>, Status> {
        let (metadata, _, pb::ProclaimRequest { leader, value }) = request.into_parts();
        let leader = leader.ok_or_else(|| Status::invalid_argument(LEADER_MISSING))?;
        let permit = self.permit(&metadata).await?;
        permit.put(&proclamation(&leader, Bytes::new()), &*self.backend).await?;
        permit.read(&KeyRange::one(leader.key.clone()))?;
        let revision = self.proclaim_as(&leader, Bytes::copy_from_slice(&value)).await?;
        Ok(Response::new(pb::ProclaimResponse { header: self.header(revision) }))
    }

    async fn leader(
        self: Arc<Self>,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<pb::LeaderResponse>, Status> {
        let (metadata, _, pb::LeaderRequest { name }) = request.into_parts();
        let line = line(&name);
        let permit = self.permit(&metadata).await?;
        permit.read(&KeyRange::prefix(line.clone()))?;
        let (leader, revision) = self.first(&line).await?;
        let leader = leader.ok_or_else(|| Status::unknown(NO_LEADER))?;
        Ok(Response::new(pb::LeaderResponse { header: self.header(revision), kv: Some(WireKv(leader)) }))
    }

    type ObserveStream = Answers<pb::LeaderResponse>;

    async fn observe(
        self: Arc<Self>,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let (metadata, _, pb::LeaderRequest { name }) = request.into_parts();
        let line = line(&name);
        self.permit(&metadata).await?.read(&KeyRange::prefix(line.clone()))?;
        let observer = Observer { line, wire: self, reign: None };
        let leaders = stream::try_unfold(observer, |mut observer| async {
            let answer = observer.next().await?;
            Ok(Some((answer, observer)))
        });
        Ok(Response::new(Box::pin(leaders)))
    }

    async fn resign(
        self: Arc<Self>,
        request: Request<pb::ResignRequest>,
    ) -> Result<Response<pb::ResignResponse>, Status> {
        let (metadata, _, pb::ResignRequest { leader }) = request.into_parts();
        let leader = leader.ok_or_else(|| Status::invalid_argument(LEADER_MISSING))?;
        let permit = self.permit(&metadata).await?;
        permit.write(&KeyRange::one(leader.key.clone()))?;
        permit.read(&KeyRange::one(leader.key.clone()))?;
        let txn = Txn::new().when(still(&leader)).then(Delete::one(leader.key));
        let result = self.backend.commit(txn).await.map_err(status)?;
        Ok(Response::new(pb::ResignResponse { header: self.header(result.revision) }))
    }
}

/// The key is still the one that this leader was elected with.
fn still(leader: &pb::LeaderKey) -> Compare {
    Compare::create_revision(leader.key.clone(), Revision(leader.rev))
}

/// What a leader puts to proclaim a value.
fn proclamation(leader: &pb::LeaderKey, value: Bytes) -> Put {
    Put::new(Bytes::copy_from_slice(&leader.key), value).lease(LeaseId(leader.lease))
}

impl Wire {
    async fn proclaim_as(&self, leader: &pb::LeaderKey, value: Bytes) -> Result<Revision, Status> {
        let txn = Txn::new().when(still(leader)).then(proclamation(leader, value));
        let result = self.backend.commit(txn).await.map_err(status)?;
        if result.succeeded { Ok(result.revision) } else { Err(Status::unknown(NOT_LEADER)) }
    }
}

/// Follows the leaders of an election and what each of them proclaims.
struct Observer {
    wire: Arc<Wire>,
    line: Bytes,
    reign: Option<Reign>,
}

/// The time of one leader.
struct Reign {
    changes: Box<dyn WatchStream>,
    /// Changes that arrived together and are not told yet; bounded by what one message of the store holds.
    untold: std::vec::IntoIter<Arc<KeyValue>>,
}

impl Observer {
    /// The next leader, or the next word of the present one.
    async fn next(&mut self) -> Result<pb::LeaderResponse, Status> {
        loop {
            let Some(reign) = &mut self.reign else {
                let (leader, revision) = self.next_leader().await?;
                return Ok(self.tell(leader, revision));
            };
            match reign.untold.next() {
                Some(kv) if kv.is_tombstone() => self.reign = None,
                Some(kv) => {
                    let revision = kv.mod_revision;
                    return Ok(self.tell(kv, revision));
                }
                None => {
                    let message = next_message(&self.wire, &mut reign.changes).await?;
                    if let WatchMessage::Events { events, .. } = message {
                        let kvs: Vec<_> = events.iter().map(|event| event.kv.clone()).collect();
                        reign.untold = kvs.into_iter();
                    }
                }
            }
        }
    }

    /// Who leads; waits if nobody does. From then on every change of the leader's key is followed.
    async fn next_leader(&mut self) -> Result<(Arc<KeyValue>, Revision), Status> {
        loop {
            let (leader, revision) = self.wire.first(&self.line).await?;
            if let Some(leader) = leader {
                let watch = Watch::from(KeyRange::one(leader.key.clone()), revision.next());
                let changes = self.wire.backend.watch(watch).await.map_err(status)?;
                self.reign = Some(Reign { changes, untold: Vec::new().into_iter() });
                return Ok((leader, revision));
            }
            let candidates = KeyRange::prefix(self.line.clone());
            let watch = Watch { no_delete: true, ..Watch::from(candidates, revision.next()) };
            let mut arrivals = self.wire.backend.watch(watch).await.map_err(status)?;
            while let WatchMessage::Progress(_) = next_message(&self.wire, &mut arrivals).await? {}
        }
    }

    fn tell(&self, kv: Arc<KeyValue>, revision: Revision) -> pb::LeaderResponse {
        pb::LeaderResponse { header: self.wire.header(revision), kv: Some(WireKv(kv)) }
    }
}

async fn next_message(wire: &Wire, stream: &mut Box<dyn WatchStream>) -> Result<WatchMessage, Status> {
    tokio::select! {
        message = stream.next() => message.map_err(status),
        () = wire.stopping.cancelled() => Err(stopped()),
    }
}
