//! What clients call: the compatible wire, its admin side, and our own additions.

mod admin;
mod client;
mod cluster;
mod gate;
mod incoming;
mod own;
mod schema;

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming, TlsConnectInfo};

use crate::agent::Broker;
use crate::error::TopicsError;
use crate::wire::capstan::topics::v1::topics_server::TopicsServer;
use crate::wire::danube::auth_service_server::AuthServiceServer;
use crate::wire::danube::consumer_service_server::ConsumerServiceServer;
use crate::wire::danube::discovery_server::DiscoveryServer;
use crate::wire::danube::health_check_server::HealthCheckServer;
use crate::wire::danube::producer_service_server::ProducerServiceServer;
use crate::wire::danube::storage_service_server::StorageServiceServer;
use crate::wire::danube_admin::broker_admin_server::BrokerAdminServer;
use crate::wire::danube_admin::cluster_admin_server::ClusterAdminServer;
use crate::wire::danube_admin::namespace_admin_server::NamespaceAdminServer;
use crate::wire::danube_admin::topic_admin_server::TopicAdminServer;
use crate::wire::danube_schema::schema_registry_server::SchemaRegistryServer;

/// The largest request, as on the public broker: nothing larger could be stored.
const MAX_REQUEST_BYTES: usize = 4 << 20;
/// Requests of one connection that are worked on at a time.
const MAX_STREAMS: u32 = 1_024;
/// A connection on which nothing moves is asked whether it is still there ...
const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(20);
/// ... and closed without an answer within this time: its consumers lose their places.
const PING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Requests that are being worked on when the broker stops have so long.
const FINISH_WITHIN: std::time::Duration = std::time::Duration::from_secs(2);

/// Serves clients and operators on a bound socket until it is stopped. Then cursors are written and streams end.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    stop: CancellationToken,
) -> Result<(), TopicsError> {
    match broker.inner.tls()? {
        None => serve_on(broker, TcpIncoming::from(listener).with_nodelay(Some(true)), stop).await,
        Some(tls) => serve_on(broker, incoming::encrypted(listener, tls), stop).await,
    }
}

async fn serve_on<I, C>(broker: Broker, incoming: I, stop: CancellationToken) -> Result<(), TopicsError>
where
    I: Stream<Item = std::io::Result<C>> + Send,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let client = client::Client::new(broker.clone());
    let admin = admin::Admin::new(broker.clone());
    let schemas = schema::Schemas::new(broker.clone());
    let cluster = cluster::Cluster::new(broker.clone());
    let own = own::Own::new(broker.clone());
    let serving = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .layer(gate::Gates(broker.inner.clone()))
        .add_service(ProducerServiceServer::new(client.clone()).max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(ConsumerServiceServer::new(client.clone()))
        .add_service(DiscoveryServer::new(client.clone()))
        .add_service(HealthCheckServer::new(client.clone()))
        .add_service(AuthServiceServer::new(client))
        .add_service(BrokerAdminServer::new(admin.clone()))
        .add_service(NamespaceAdminServer::new(admin.clone()))
        .add_service(TopicAdminServer::new(admin))
        .add_service(ClusterAdminServer::new(cluster.clone()))
        .add_service(StorageServiceServer::new(cluster))
        .add_service(SchemaRegistryServer::new(schemas))
        .add_service(TopicsServer::new(own).max_decoding_message_size(MAX_REQUEST_BYTES))
        .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    tokio::select! {
        served = serving => {
            served.map_err(|error| TopicsError::NotReady(format!("serving clients failed: {error}")))
        }
        ended = end(&broker, &stop) => ended,
    }
}

/// Waits for the stop, ends what would go on for ever, and gives the rest a moment.
async fn end(broker: &Broker, stop: &CancellationToken) -> Result<(), TopicsError> {
    stop.cancelled().await;
    let stopped = broker.stop().await;
    tokio::time::sleep(FINISH_WITHIN).await;
    stopped
}

/// Where a request came from, for logs.
pub(crate) fn peer<T>(request: &tonic::Request<T>) -> Option<SocketAddr> {
    let extensions = request.extensions();
    let encrypted = || extensions.get::<TlsConnectInfo<TcpConnectInfo>>().map(TlsConnectInfo::get_ref);
    extensions.get::<TcpConnectInfo>().or_else(encrypted).and_then(TcpConnectInfo::remote_addr)
}
