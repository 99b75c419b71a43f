//! The data path of a node: it reads views and never waits for the metadata store.
//!
//! - `command.rs`: what is asked of a token. `entry.rs`: what a log entry is.
//! - `evaluate.rs`, `find.rs`: pure over a view of the engine: what a write changes, what a read finds.
//!   `index.rs`: which entries of an index a filter needs. `known.rs`: what need not be looked up each time.
//! - `copy.rs`: one token on this node: it applies the log, and evaluates writes while it leads.
//! - `machine.rs`: snapshots for copies that need them. `pace.rs`: how fast they leave.
//! - `tokens.rs`: all tokens of this node.

pub(crate) mod command;
pub(crate) mod copy;
mod entry;
mod evaluate;
mod find;
mod index;
mod known;
pub(crate) mod machine;
pub(crate) mod pace;
#[cfg(test)]
mod sim;
mod state;
pub(crate) mod tokens;

pub(crate) use evaluate::change_of;
pub(crate) use find::{Allowance, Question};
pub(crate) use machine::{PAIR_HEAD, pair_lengths, read_pair};
