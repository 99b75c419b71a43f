//! The etcd v3 gRPC wire over any [`Backend`](crate::Backend), so that etcdctl, every etcd client and several processes
//! of one machine can share an embedded store.
//!
//! May not know how a store keeps its data: everything here goes through the contract.
//!
//! Reading order: `serve.rs` (connections), `dispatch.rs` (which service gets a call), `service.rs` (what services
//! share), then one file a service: `kv.rs` with `txn.rs`, `watch/`, `lease.rs`, `maintenance.rs` with `snapshot.rs`, `cluster.rs`,
//! `lock.rs` and `election.rs` with `queue.rs`, `auth/`. Errors become gRPC statuses in `status.rs` and nowhere else.
//!
//! What is different from etcd, on purpose: snapshots are in the store's own format; there is one member;
//! compares with unknown enum values are refused instead of silently passing.

mod auth;
mod authority;
mod cluster;
pub mod codec;
mod dispatch;
mod election;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod options;
pub mod proto;
mod queue;
mod serve;
mod service;
mod snapshot;
mod status;
mod txn;
mod watch;

pub use auth::{JwtError, JwtKeys, TokenKind};
pub use options::{Limits, Options, Tls};
pub use serve::{ServeError, serve, serve_incoming};
