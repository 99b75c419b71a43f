//! Findings about Redis: from the metadata, and from probes. The only part of this service that `capstan
//! status`, `/readyz`, alerts and pages read.
//!
//! A probe takes the path of a client: it connects to a proxy, selects a database and writes through it to
//! every primary behind it. The write is `LPUSHX` to a key that does not exist: it passes all checks of a
//! write (ownership of the slot, lease, memory, disk, read-only replicas) and changes nothing.

mod metadata;
mod probe;

use capstan_control::findings::Code;

pub use metadata::findings;
pub use probe::{Probed, Prober, ProxySeen, SERVICE, probe_all};

/// No live coordinator: proxies serve nothing without one.
pub const NO_COORDINATOR: Code = Code::new("redis-no-coordinator");
/// No process has probed the proxies recently.
pub const UNPROBED: Code = Code::new("redis-unprobed");
/// A proxy is unreachable.
pub const PROXY_DOWN: Code = Code::new("redis-proxy-down");
/// A proxy is reachable, and does not serve writes to some of its slots.
pub const NOT_SERVING: Code = Code::new("redis-not-serving");
/// A node is not ready.
pub const NODE_DOWN: Code = Code::new("redis-node-down");
/// A node restarted without its data.
pub const NODE_LOST: Code = Code::new("redis-node-lost");
/// A replica is not linked to its primary.
pub const REPLICA_BEHIND: Code = Code::new("redis-replica-unlinked");
/// Slots without an owner.
pub const SLOTS_UNOWNED: Code = Code::new("redis-slots-unowned");
/// Fewer replicas than required.
pub const REPLICAS_MISSING: Code = Code::new("redis-replicas-missing");
/// Fewer primaries than required.
pub const NODES_MISSING: Code = Code::new("redis-nodes-missing");
/// Inconsistent metadata.
pub const UNSOUND: Code = Code::new("redis-metadata-unsound");
/// The configuration of a cluster cannot be read, so its proxies admit no client.
pub const CONFIG_UNREADABLE: Code = Code::new("redis-config-unreadable");
/// Data that is only in the memory of one process.
pub const MEMORY_ONLY: Code = Code::new("redis-memory-only");
/// Slots are moving.
pub const MOVING: Code = Code::new("redis-moving");
/// A cluster is being deleted.
pub const DELETING: Code = Code::new("redis-deleting");
/// Data was lost.
pub const DATA_LOST: Code = Code::new("redis-data-lost");
