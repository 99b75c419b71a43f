//! What the original has beside its admin services: the members of a cluster, and the segments in object storage.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::agent::{Broker, Inner};
use crate::error::TopicsError;
use crate::keys::{Registrations, TermKey};
use crate::spec::TopicName;
use crate::tier::place::described;
use crate::wire::danube::storage_service_server::StorageService;
use crate::wire::danube::{
    ListSegmentDescriptorsRequest, ListSegmentDescriptorsResponse, SegmentDescriptorProto,
};
use crate::wire::danube_admin::cluster_admin_server::ClusterAdmin;
use crate::wire::danube_admin::{
    AddNodeRequest, AddNodeResponse, ClusterStatusResponse, Empty, PromoteNodeRequest, PromoteNodeResponse,
    RemoveNodeRequest, RemoveNodeResponse,
};

type Reply<T> = Result<Response<T>, Status>;

#[derive(Clone)]
pub(super) struct Cluster {
    broker: Broker,
}

impl Cluster {
    pub(super) fn new(broker: Broker) -> Cluster {
        Cluster { broker }
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.broker.inner
    }
}

/// Membership is a registration in the metadata store, not a list that an operator keeps.
fn registers_itself() -> Status {
    let why = "brokers register themselves: start or stop a host with the role topics, drain it with \
               `capstan hosts drain`";
    TopicsError::Mismatch(why.to_owned()).into()
}

#[tonic::async_trait]
impl ClusterAdmin for Cluster {
    async fn cluster_status(&self, _: Request<Empty>) -> Reply<ClusterStatusResponse> {
        let inner = self.inner();
        let term = inner.store().read(&TermKey {}).await.map_err(TopicsError::from)?;
        let snapshot = inner.view().snapshot();
        let brokers = snapshot.list(&Registrations {});
        Ok(Response::new(ClusterStatusResponse {
            leader_id: inner.leader().await?.unwrap_or_default(),
            current_term: term.map_or(0, |term| term.record.0),
            last_applied: u64::try_from(snapshot.revision().0).unwrap_or_default(),
            voters: brokers.iter().map(|(key, _)| key.broker).collect(),
            learners: Vec::new(),
            self_node_id: self.broker.id(),
            raft_addr: String::new(),
        }))
    }

    async fn add_node(&self, _: Request<AddNodeRequest>) -> Reply<AddNodeResponse> {
        Err(registers_itself())
    }

    async fn promote_node(&self, _: Request<PromoteNodeRequest>) -> Reply<PromoteNodeResponse> {
        Err(registers_itself())
    }

    async fn remove_node(&self, _: Request<RemoveNodeRequest>) -> Reply<RemoveNodeResponse> {
        Err(registers_itself())
    }
}

#[tonic::async_trait]
impl StorageService for Cluster {
    /// Objects that begin after an offset; 0: all of them, also the one that begins there.
    async fn list_segment_descriptors(
        &self,
        request: Request<ListSegmentDescriptorsRequest>,
    ) -> Reply<ListSegmentDescriptorsResponse> {
        // Its clients leave the first slash out.
        let topic: TopicName = format!("/{}", request.get_ref().topic.trim_start_matches('/')).parse()?;
        self.inner().may_see(&request, &topic)?;
        let request = request.into_inner();
        if self.inner().record(&topic)?.is_none() {
            return Err(TopicsError::NoSuchTopic(topic.to_string()).into());
        }
        let chain = described(self.inner().store(), &topic).await?;
        let after = request.after_offset;
        let objects = chain.objects().filter(|object| after == 0 || object.start_offset > after);
        let segments = objects.map(|object| SegmentDescriptorProto {
            segment_id: object.object_id.clone(),
            start_offset: object.start_offset,
            end_offset: object.end_offset,
            size: object.size,
            etag: object.etag.clone().unwrap_or_default(),
            created_at: object.created_at,
        });
        Ok(Response::new(ListSegmentDescriptorsResponse { segments: segments.collect() }))
    }
}
