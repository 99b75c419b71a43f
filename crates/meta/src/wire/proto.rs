//! Which messages and services does the wire have? What `build.rs` makes of `proto/`: public for tools and tests that
//! speak the wire themselves; everybody else uses [`crate::Store`].

/// Keys, watches, leases, members, maintenance, users.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// Pairs and events.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod mvccpb {
    pub use crate::wire::codec::WireKv as KeyValue;

    tonic::include_proto!("mvccpb");
}

/// Permissions.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod authpb {
    tonic::include_proto!("authpb");
}

/// Locks.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}

/// Elections.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}
