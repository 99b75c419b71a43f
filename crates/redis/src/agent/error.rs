//! Why is a node not in its desired state, and what is its health then?

use std::io;

use capstan_redis_proxy::conversation::TalkError;
use capstan_redis_proxy::nodes::Health;

use super::silence::Silence;
use crate::address::Address;

/// Why a node is not in its desired state.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("{1}")]
    Silent(Silence, TalkError),
    #[error("port {0} is in use by another process; stop it, or configure another port for the node")]
    PortTaken(u16),
    #[error(
        "the server at this port is process {found}, not process {expected} that was started for the node"
    )]
    Stranger { expected: i32, found: i32 },
    #[error("its process {0} does not exit")]
    Immortal(i32),
    #[error("it was emptied for its new owner but still has keys")]
    NotEmpty,
    #[error("its primary {0} is empty and this node is not: replicating from it would erase the data")]
    EmptyPrimary(Address),
    #[error("its primary {0} cannot be followed yet: {1}")]
    Primary(Address, String),
    #[error("it has not taken over from {0} yet: {1}")]
    NotTakenOver(Address, String),
    #[error("its role was not confirmed recently; the metadata store is unreachable")]
    Unconfirmed,
    #[error("functions of its cluster have not been copied yet")]
    NoFunctions,
    #[error("it had keys and restarted empty; its data on this node is lost")]
    Lost,
    #[error("it restarted and may lack its last writes, and another node may have them")]
    Older,
    #[error("it is loading its data from disk")]
    Loading,
    #[error("its append-only file is not complete yet")]
    NotDurable,
}

impl NodeError {
    /// The health of a node with this error.
    pub(super) fn health(&self) -> Health {
        match self {
            NodeError::Lost => Health::Lost,
            NodeError::Older => Health::Older,
            NodeError::Loading
            | NodeError::NoFunctions
            | NodeError::NotDurable
            | NodeError::Silent(Silence::Loading, _) => Health::Loading,
            NodeError::Silent(Silence::Busy, _) => Health::Busy,
            NodeError::Silent(Silence::Frozen, _) => Health::Frozen,
            NodeError::NotTakenOver(..) => Health::TakingOver,
            // It runs and has its data; only its role cannot change.
            NodeError::EmptyPrimary(_) | NodeError::Primary(..) | NodeError::Unconfirmed => Health::Ready,
            NodeError::Silent(Silence::Down, _)
            | NodeError::Io { .. }
            | NodeError::PortTaken(_)
            | NodeError::Stranger { .. }
            | NodeError::Immortal(_)
            | NodeError::NotEmpty => Health::Down,
        }
    }
}

pub(super) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> NodeError {
    move |source| NodeError::Io { what, source }
}

/// Why a node was not settled: for a reason of our own, or because it does not reply.
pub(super) enum Unsettled {
    Node(NodeError),
    Own(TalkError),
}

impl From<NodeError> for Unsettled {
    fn from(why: NodeError) -> Unsettled {
        Unsettled::Node(why)
    }
}

impl From<TalkError> for Unsettled {
    fn from(error: TalkError) -> Unsettled {
        Unsettled::Own(error)
    }
}
