//! Every key of the Redis service and its record. The only place of this crate with key text.
//!
//! The specification's keys and values are kept unchanged. Additions have keys of their own, or JSON fields
//! that an older reader ignores.
//!
//! The source of truth for slots and roles is `/clusters/nodes/...`; `/hosts/<proxy>/nodes/...` is a copy,
//! always written in the same transaction.

use capstan_control::epoch::Epoch;
use capstan_control::failure::ReportKey;
use capstan_control::keys::HostId;
use capstan_meta::{keys, names};

pub use capstan_redis_protocol::ClusterName;

use crate::address::Address;
use crate::shard::ShardRecord;
use crate::spec::ClusterConfig;
use crate::status::{MoveId, MoveProgress, MoveRecord, NodeRecord, Owner, Quarantine, Rebalance};

names! {
    /// Names a coordinator, for as long as it runs.
    pub struct ReportId;
}

capstan_meta::text_records!(ReportId);

keys! {
    /// Every key of the Redis service, in the order of the path.
    pub const CATALOGUE;

    /// How a cluster is served: mode, users, persistence; and the incarnation of its name.
    pub struct ConfigKey { cluster: ClusterName } at "/clusters/config/{cluster}" => ClusterConfig {
        writer: "the broker",
        lifetime: Durable,
        secrecy: Secret,
        prefixes: [
            /// The configuration of every cluster.
            pub struct Configs {} at "/clusters/config/",
        ],
    }

    /// The epoch of a cluster. The cluster exists as long as this key does.
    pub struct ClusterEpochKey { cluster: ClusterName } at "/clusters/epoch/{cluster}" => Epoch {
        writer: "the broker, with every change of the cluster",
        lifetime: Durable,
        prefixes: [
            /// The epoch of every cluster.
            pub struct ClusterEpochs {} at "/clusters/epoch/",
        ],
    }

    /// The highest epoch of a deleted cluster: a new one of that name begins above it.
    pub struct LastClusterEpochKey { cluster: ClusterName } at "/clusters/last_epoch/{cluster}" => Epoch {
        writer: "the broker, when it deletes a cluster",
        lifetime: Durable,
        prefixes: [
            /// The last epoch of every deleted name.
            pub struct LastClusterEpochs {} at "/clusters/last_epoch/",
        ],
    }

    /// A node of a cluster, with its slots: the source of truth for both. Without an epoch of the cluster,
    /// the cluster is being deleted.
    pub struct ClusterNodeKey { cluster: ClusterName, node: Address }
        at "/clusters/nodes/{cluster}/{node}" => NodeRecord {
        writer: "the broker",
        lifetime: Durable,
        prefixes: [
            /// Every node of every cluster.
            pub struct ClusterNodes {} at "/clusters/nodes/",
            /// Every node of one cluster.
            pub struct NodesOf { cluster: ClusterName } at "/clusters/nodes/{cluster}/",
        ],
    }

    /// A shard, by its primary: its lineage, the nodes that may be promoted, and what it waits for.
    pub struct ShardKey { cluster: ClusterName, primary: Address }
        at "/clusters/shards/{cluster}/{primary}" => ShardRecord {
        writer: "coordinators, while the primary is healthy; the broker, with every change of the primary",
        lifetime: Durable,
        prefixes: [
            /// Every shard of every cluster.
            pub struct Shards {} at "/clusters/shards/",
            /// Every shard of one cluster.
            pub struct ShardsOf { cluster: ClusterName } at "/clusters/shards/{cluster}/",
        ],
    }

    /// Bytes of data that a node of the cluster may hold; zero: no limit.
    pub struct MaxMemoryKey { cluster: ClusterName } at "/clusters/spec/node_max_memory/{cluster}" => u64 {
        writer: "the broker",
        lifetime: Durable,
        prefixes: [
            /// The memory of every cluster's nodes.
            pub struct MaxMemories {} at "/clusters/spec/node_max_memory/",
        ],
    }

    /// The desired number of nodes with slots (primaries).
    pub struct NodeNumberKey { cluster: ClusterName } at "/clusters/spec/node_number/{cluster}" => u32 {
        writer: "the broker",
        lifetime: Durable,
        prefixes: [
            /// The size of every cluster.
            pub struct NodeNumbers {} at "/clusters/spec/node_number/",
        ],
    }

    /// The desired number of replicas of each primary.
    pub struct ReplicasKey { cluster: ClusterName } at "/clusters/spec/replicas/{cluster}" => u32 {
        writer: "the broker",
        lifetime: Durable,
        prefixes: [
            /// The replicas of every cluster.
            pub struct ReplicaNumbers {} at "/clusters/spec/replicas/",
        ],
    }

    /// A live coordinator. The value is its report id.
    pub struct CoordinatorKey { address: Address, report_id: ReportId }
        at "/coordinators/{address}/report_id/{report_id}" => ReportId {
        writer: "each coordinator",
        lifetime: Leased,
        prefixes: [
            /// Every live coordinator.
            pub struct Coordinators {} at "/coordinators/",
        ],
    }

    /// A cluster is being deleted: its name is in use until its last node is released. Seconds since 1970.
    pub struct DeletingKey { cluster: ClusterName } at "/deleting/clusters/nodes/{cluster}" => i64 {
        writer: "the broker; removed with the last node of the cluster",
        lifetime: Durable,
        prefixes: [
            /// Every cluster that is being deleted.
            pub struct DeletingClusters {} at "/deleting/clusters/nodes/",
        ],
    }

    /// One coordinator cannot reach a proxy. Seconds since 1970, for operators only.
    pub struct FailureKey { address: Address, report_id: ReportId } at "/failures/{address}/{report_id}" => i64 {
        writer: "each coordinator, for as long as it cannot reach the proxy",
        lifetime: Leased,
        prefixes: [
            /// Every report.
            pub struct Failures {} at "/failures/",
        ],
    }

    /// A coordinator that may grant proxies the right to serve without the store. The value is the report id of its
    /// present life.
    pub struct GranterKey { controller: HostId } at "/capstan/redis/granters/{controller}" => ReportId {
        writer: "each coordinator; removed when it stops, or has been gone for longer than it may grant",
        lifetime: Durable,
        prefixes: [
            /// Every such coordinator.
            pub struct Granters {} at "/capstan/redis/granters/",
        ],
    }

    /// A report of a coordinator from which the proxy has received a grant that named it. Seconds since 1970, for people.
    pub struct AcknowledgedKey { address: Address, report_id: ReportId }
        at "/capstan/redis/acknowledged/{address}/{report_id}" => i64 {
        writer: "each coordinator, in the transaction of its report",
        lifetime: Leased,
        prefixes: [
            /// Every such report.
            pub struct Acknowledgments {} at "/capstan/redis/acknowledged/",
        ],
    }

    /// The cluster that uses a node; the empty string if it is free.
    pub struct OwnerKey { proxy: Address, node: Address } at "/hosts/all_nodes/{proxy}/{node}" => Owner {
        writer: "the broker",
        lifetime: Durable,
        prefixes: [
            /// Every node of every host.
            pub struct Owners {} at "/hosts/all_nodes/",
            /// Every node of one host.
            pub struct OwnersOf { proxy: Address } at "/hosts/all_nodes/{proxy}/",
        ],
    }

    /// The epoch of the messages to a proxy, bumped with every change of their content. The host exists as
    /// long as this key does.
    pub struct HostEpochKey { proxy: Address } at "/hosts/epoch/{proxy}" => Epoch {
        writer: "the broker; coordinators when they complete `bump_epoch_for_cluster_hosts`",
        lifetime: Durable,
        prefixes: [
            /// The epoch of every host.
            pub struct HostEpochs {} at "/hosts/epoch/",
        ],
    }

    /// The highest epoch of a removed host: its proxy remembers it, so a new registration begins above it.
    pub struct LastHostEpochKey { proxy: Address } at "/hosts/last_epoch/{proxy}" => Epoch {
        writer: "the broker, when it removes a host",
        lifetime: Durable,
        prefixes: [
            /// The last epoch of every removed host.
            pub struct LastHostEpochs {} at "/hosts/last_epoch/",
        ],
    }

    /// A node that was in use and has not been emptied since. It has no owner and cannot be assigned.
    pub struct QuarantineKey { proxy: Address, node: Address } at "/hosts/quarantine/{proxy}/{node}" => Quarantine {
        writer: "the broker, with the release of a node; removed when its host reports that it is empty",
        lifetime: Durable,
        prefixes: [
            /// Every node in quarantine.
            pub struct Quarantines {} at "/hosts/quarantine/",
            /// Every node of one host in quarantine.
            pub struct QuarantinesOf { proxy: Address } at "/hosts/quarantine/{proxy}/",
        ],
    }

    /// A node in use, by its host: a copy of the cluster's record.
    pub struct HostNodeKey { proxy: Address, node: Address } at "/hosts/{proxy}/nodes/{node}" => NodeRecord {
        writer: "the broker, with the cluster's record in one transaction",
        lifetime: Durable,
        prefixes: [
            /// Every node in use, on every host.
            pub struct HostNodes {} at "/hosts/",
            /// Every node in use on one host.
            pub struct HostNodesOf { proxy: Address } at "/hosts/{proxy}/nodes/",
        ],
    }

    /// The last move id that was issued.
    pub struct TaskEpochKey {} at "/tasks/epoch" => Epoch {
        writer: "the broker, with every move that it records",
        lifetime: Durable,
        prefixes: [
            /// Everything about tasks.
            pub struct TaskEpochs {} at "/tasks/",
        ],
    }

    /// A move of slots to another node.
    pub struct MoveKey { cluster: ClusterName, id: MoveId } at "/tasks/moves/{cluster}/{id}" => MoveRecord {
        writer: "the broker; removed by the transaction that commits or cancels the move",
        lifetime: Durable,
        prefixes: [
            /// Every move.
            pub struct Moves {} at "/tasks/moves/",
            /// Every move of one cluster.
            pub struct MovesOf { cluster: ClusterName } at "/tasks/moves/{cluster}/",
        ],
    }

    /// A change of this cluster has to be pushed to its hosts. Seconds since 1970.
    pub struct BumpTaskKey { cluster: ClusterName }
        at "/tasks/operation/bump_epoch_for_cluster_hosts/{cluster}" => i64 {
        writer: "the broker, in the transaction of the change; removed with the bump",
        lifetime: Durable,
        prefixes: [
            /// Every such task.
            pub struct BumpTasks {} at "/tasks/operation/bump_epoch_for_cluster_hosts/",
        ],
    }

    /// The cluster has fewer nodes than its specification requires. Seconds since 1970.
    pub struct CreateNodesTaskKey { cluster: ClusterName } at "/tasks/operation/create_nodes/{cluster}" => i64 {
        writer: "the broker, when it creates or grows a cluster; removed with the last missing node",
        lifetime: Durable,
        prefixes: [
            /// Every such task.
            pub struct CreateNodesTasks {} at "/tasks/operation/create_nodes/",
        ],
    }

    /// Slots are to be spread evenly over the cluster's nodes, and away from retiring ones.
    pub struct RebalanceTaskKey { cluster: ClusterName } at "/tasks/operation/rebalance/{cluster}" => Rebalance {
        writer: "the broker; removed when nothing is left to move or to retire",
        lifetime: Durable,
        prefixes: [
            /// Every such task.
            pub struct RebalanceTasks {} at "/tasks/operation/rebalance/",
        ],
    }

    /// Nodes of a deleted cluster are to be released. The value is the cluster's name.
    pub struct RemoveNodesTaskKey { cluster: ClusterName }
        at "/tasks/operation/remove_nodes/{cluster}" => ClusterName {
        writer: "the broker, in the transaction of the deletion; removed with the last node",
        lifetime: Durable,
        prefixes: [
            /// Every such task.
            pub struct RemoveNodesTasks {} at "/tasks/operation/remove_nodes/",
        ],
    }

    /// The progress of a move, as last reported by its source. For operators; no decision depends on it.
    pub struct ProgressKey { cluster: ClusterName, id: MoveId } at "/tasks/progress/{cluster}/{id}" => MoveProgress {
        writer: "coordinators; removed with the move",
        lifetime: Durable,
        prefixes: [
            /// The progress of every move.
            pub struct Progresses {} at "/tasks/progress/",
            /// The progress of every move of one cluster.
            pub struct ProgressesOf { cluster: ClusterName } at "/tasks/progress/{cluster}/",
        ],
    }
}

impl ReportKey for FailureKey {
    type Suspect = Address;
    type Reporter = ReportId;

    fn suspect(&self) -> Address {
        self.address.clone()
    }

    fn reporter(&self) -> ReportId {
        self.report_id.clone()
    }
}

#[cfg(test)]
mod tests {
    use capstan_meta::record::{Key, Record};

    use super::*;
    use crate::status::SlotEntry;

    #[test]
    fn keys_and_values_are_those_of_the_document() {
        let (cluster, proxy): (ClusterName, Address) =
            ("c".parse().unwrap(), "10.0.0.1:5299".parse().unwrap());
        let node: Address = "10.0.0.1:7001".parse().unwrap();
        let paths = [
            HostNodeKey { proxy: proxy.clone(), node: node.clone() }.path(),
            HostEpochKey { proxy: proxy.clone() }.path(),
            ClusterNodeKey { cluster: cluster.clone(), node: node.clone() }.path(),
            ClusterEpochKey { cluster: cluster.clone() }.path(),
            CoordinatorKey { address: proxy.clone(), report_id: "r1".parse().unwrap() }.path(),
            FailureKey { address: proxy.clone(), report_id: "r1".parse().unwrap() }.path(),
            OwnerKey { proxy: proxy.clone(), node: node.clone() }.path(),
            TaskEpochKey {}.path(),
            BumpTaskKey { cluster: cluster.clone() }.path(),
            RemoveNodesTaskKey { cluster: cluster.clone() }.path(),
            DeletingKey { cluster: cluster.clone() }.path(),
            NodeNumberKey { cluster: cluster.clone() }.path(),
            MaxMemoryKey { cluster: cluster.clone() }.path(),
        ];
        assert_eq!(
            paths,
            [
                "/hosts/10.0.0.1:5299/nodes/10.0.0.1:7001",
                "/hosts/epoch/10.0.0.1:5299",
                "/clusters/nodes/c/10.0.0.1:7001",
                "/clusters/epoch/c",
                "/coordinators/10.0.0.1:5299/report_id/r1",
                "/failures/10.0.0.1:5299/r1",
                "/hosts/all_nodes/10.0.0.1:5299/10.0.0.1:7001",
                "/tasks/epoch",
                "/tasks/operation/bump_epoch_for_cluster_hosts/c",
                "/tasks/operation/remove_nodes/c",
                "/deleting/clusters/nodes/c",
                "/clusters/spec/node_number/c",
                "/clusters/spec/node_max_memory/c",
            ]
        );
        let record = NodeRecord::primary(
            node,
            proxy,
            cluster,
            1,
            vec![SlotEntry::stable(crate::SlotRange::new(0, 16383).unwrap())],
        );
        let text = String::from_utf8(record.encode().unwrap().to_vec()).unwrap();
        assert_eq!(
            text,
            r#"{"address":"10.0.0.1:7001","proxy_address":"10.0.0.1:5299","cluster_name":"c","slots":[{"start":0,"end":16383,"tag":""}],"role":"primary","incarnation":1}"#
        );
        assert_eq!(Owner::default().encode().unwrap(), "");
        assert_eq!(Epoch(7).encode().unwrap(), "7");
    }

    #[test]
    fn a_node_written_by_the_documents_program_is_read() {
        let text = br#"{"address":"h:7001","proxy_address":"h:5299","cluster_name":"c","slots":[{"start":0,"end":5,"tag":""}]}"#;
        let record = NodeRecord::decode(text).unwrap();
        assert!(record.is_primary());
        assert_eq!(record.slots.len(), 1);
    }

    #[test]
    fn hosts_named_like_a_keyword_are_no_hosts() {
        assert_eq!(HostNodeKey::parse("/hosts/epoch/nodes/h:1"), None);
        assert!(HostNodeKey::parse("/hosts/h:2/nodes/h:1").is_some());
    }
}
