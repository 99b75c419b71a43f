//! What has the proxy been told? Accepting messages by epoch, keeping them on disk, the routing table made of them.
//!
//! [`ProxyState`] decides, [`StateFile`] remembers, [`Routing`] is what the data path looks at.

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
pub use routing::{Database, Place, Routing};
pub use tenure::Tenure;
pub use topology::{Shard, Topology, node_id, shard_id};
