//! Which redis-server processes should run on this host, and what are they? The supervisor of this host's nodes.
//!
//! Read first: [`Nodes`] (what the proxy asks before it takes a node), [`Wanted`] (what the metadata asks for).

mod nodes;
mod wanted;

pub use nodes::{NodeAuth, NodeState, Nodes};
pub use wanted::{Incarnation, Persistence, Wanted};
