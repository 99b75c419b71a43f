//! Real installations into roots of their own.

mod crash;
pub mod fixture;
mod fleet;
mod refusals;
mod steps;

pub use fixture::{Workshop, stop, tree};
