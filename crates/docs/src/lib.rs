//! Service 3: a replicated document store.
//!
//! Documents are split over tokens by the first hex digits of their ids. A token is a log with a state machine: its
//! primary evaluates writes and appends what they change; every holder applies the same changes to its engine, with the
//! log's offset in the same atomic batch. This crate may not know the other services.
//!
//! Read first: [`language::Filter`] (what a query is), `data/copy.rs` (how one token lives on a node),
//! [`node::Node`] (what a daemon starts).

pub mod keys;
pub mod spec;
pub mod status;

pub mod error;

pub mod id;
pub mod language;
pub mod storage;

pub mod decide;

mod data;
mod guarded;
mod jobs;
mod queue;
mod report;
mod router;
mod way;

pub mod node;

pub mod api;
pub mod check;
pub mod metrics;

pub use error::DocsError;
pub use id::Token;
pub use node::{Node, NodeOptions, Prepared};
