//! Which node holds which shard, and what must move when a node joins, leaves, dies or changes weight?
//!
//! Every sharded service of Capstan asks this question; this crate answers it with the fewest moves, and proves
//! that they are the fewest. It is pure and synchronous: no I/O, no clock, no threads, integers only. The same input
//! gives the same bytes on any platform, whatever the order of the node list. It knows nothing about documents,
//! slots on the wire, topics or metadata: services translate their records into the types below and back.
//!
//! Read first: [`Cluster`] (what there is), [`Assignment`] (who holds what), [`Plan`] (what to do).

pub use assignment::{Assignment, Placement, Tally};
pub use cluster::Cluster;
pub use error::PlacementError;
pub use explain::explain;
pub use grid::Grid;
pub use node::{Domain, Node, NodeName, NodeState, Weight};
pub use plan::{Add, Bound, NodeSummary, Plan, Removal, RoleChange, Step};
pub use planner::plan;
pub use rebalance::{Rebalance, Throttle, rebalance};
pub use repair::repair;
pub use shard::{Copies, Shard, ShardCount};

mod error;
mod node;
mod shard;

mod assignment;
mod cluster;
mod plan;

mod bounds;
mod flow;
mod mix;
mod planner;
mod primaries;
mod problem;
mod rebalance;
mod repair;
mod shares;

mod explain;
mod grid;

pub mod compare;
pub mod load;
pub mod slots;
