//! Pure decisions about nodes and jobs.

mod job;
mod node;

pub use job::{JobEvent, JobProgress, JobState, Seen, events};
pub use node::{NodeEvent, NodeFacts, NodeState, diagram};
