//! Why did an operation fail, and what may the caller do about it?

use capstan_meta::record::{BadValue, RecordError};
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};

use crate::address::Address;
use crate::keys::ClusterName;
use crate::slots::SlotRange;
use crate::status::MoveId;

/// An error of an operation. Texts say what happened, to which object, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// No such cluster.
    #[error("there is no cluster {0}; `capstan redis list` shows those that exist")]
    NoCluster(ClusterName),
    /// The name is taken.
    #[error("cluster {0} exists already; choose another name, or delete it first")]
    ClusterExists(ClusterName),
    /// The name's last cluster still has nodes.
    #[error("cluster {0} is being deleted; its name is free as soon as its last node is released")]
    StillDeleting(ClusterName),
    /// The cluster's nodes are still being created.
    #[error("cluster {0} is still being created; try again when it has all its nodes")]
    StillCreating(ClusterName),
    /// Slots of the cluster are moving.
    #[error("cluster {0} has moves in progress; wait for them, or cancel them first")]
    Moving(ClusterName),
    /// No such host.
    #[error("there is no host with proxy {0}; `capstan redis hosts list` shows those that are registered")]
    NoHost(Address),
    /// The host is registered with other nodes.
    #[error("host {0} is registered with other nodes; remove it first: the nodes of a host do not change")]
    HostDiffers(Address),
    /// The host's nodes are in use.
    #[error("host {proxy} is in use by {users}; drain it or delete those clusters first")]
    HostInUse {
        /// The host.
        proxy: Address,
        /// The clusters that use it.
        users: String,
    },
    /// A node can be on one host only.
    #[error("node {node} is registered on host {proxy} already")]
    NodeElsewhere {
        /// The node.
        node: Address,
        /// Its host.
        proxy: Address,
    },
    /// No such node in this cluster.
    #[error("cluster {cluster} has no node {node}; `capstan redis show {cluster}` lists its nodes")]
    NoNode {
        /// The cluster.
        cluster: ClusterName,
        /// The node.
        node: Address,
    },
    /// The node is not free.
    #[error("node {node} cannot be used: {why}")]
    NodeNotFree {
        /// The node.
        node: Address,
        /// Why not.
        why: String,
    },
    /// A node with slots cannot be deleted.
    #[error(
        "node {node} of cluster {cluster} still has {slots} slots; move them away first (`capstan redis scale` does)"
    )]
    NodeHasSlots {
        /// The cluster.
        cluster: ClusterName,
        /// The node.
        node: Address,
        /// How many.
        slots: u32,
    },
    /// The node's role does not allow the operation.
    #[error("node {node} of cluster {cluster}: {why}")]
    WrongRole {
        /// The cluster.
        cluster: ClusterName,
        /// The node.
        node: Address,
        /// What is wrong.
        why: String,
    },
    /// Not enough nodes are free.
    #[error(
        "{wanted} nodes are needed and {free} are available ({why}); add hosts with `capstan redis hosts add`"
    )]
    TooFewNodes {
        /// How many are needed.
        wanted: usize,
        /// How many there are.
        free: usize,
        /// Which nodes are available.
        why: String,
    },
    /// Slots without an owner, or that are moving already.
    #[error("slots {range} of cluster {cluster} cannot be moved: {why}")]
    NotMovable {
        /// The cluster.
        cluster: ClusterName,
        /// The slots.
        range: SlotRange,
        /// Why not.
        why: String,
    },
    /// No such move.
    #[error("cluster {cluster} has no move {id}; it is committed or was cancelled")]
    NoMove {
        /// The cluster.
        cluster: ClusterName,
        /// The move.
        id: MoveId,
    },
    /// No such user.
    #[error(
        "cluster {cluster} has no user {user}; `capstan redis user list {cluster}` shows those that exist"
    )]
    NoUser {
        /// The cluster.
        cluster: ClusterName,
        /// The user.
        user: String,
    },
    /// An invalid request.
    #[error("{0}")]
    Invalid(String),
    /// Concurrent changes to the same records.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// The store contains an unreadable value.
    #[error(transparent)]
    BadValue(#[from] BadValue),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] MetaError),
}

impl BrokerError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        use BrokerError::*;
        match self {
            NoCluster(_)
            | ClusterExists(_)
            | NoHost(_)
            | HostDiffers(_)
            | HostInUse { .. }
            | NodeElsewhere { .. }
            | NoNode { .. }
            | NodeNotFree { .. }
            | NodeHasSlots { .. }
            | WrongRole { .. }
            | TooFewNodes { .. }
            | NotMovable { .. }
            | NoMove { .. }
            | NoUser { .. }
            | Invalid(_) => Remedy::Reject,
            StillDeleting(_) | StillCreating(_) | Moving(_) | Contended(_) => Remedy::Retry,
            BadValue(_) => Remedy::Report,
            Store(error) => error.remedy(),
        }
    }
}

impl From<RecordError> for BrokerError {
    fn from(error: RecordError) -> BrokerError {
        match error {
            RecordError::Store(error) => BrokerError::Store(error),
            RecordError::BadValue(bad) => BrokerError::BadValue(bad),
        }
    }
}
