//! Which state was pushed to the proxy? Accepting messages by epoch, persisting them, the routing table
//! derived from them.
//!
//! [`ProxyState`] decides, [`StateFile`] persists, [`Routing`] is what the data path reads.

mod file;
mod lease;
mod login;
mod proxy_state;
mod routing;
mod tenure;
#[cfg(test)]
mod tests;
mod topology;

pub use file::{DamagedState, StateFile};
pub use lease::{Clock, Lease, Serving};
pub use login::{Entrance, Login, LoginRefused};
pub use proxy_state::{Move, ProxyState, Refusal, Verdict};
pub use routing::{Database, Permission, Place, Routing};
pub use tenure::Tenure;
pub use topology::{Shard, Topology, node_id, shard_id};
