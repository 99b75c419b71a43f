//! The tests of this crate that need more than one module, in one binary.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports, also in what tests share")]

mod drain;
mod edges;
mod fences;
mod reconcile;
mod simulation;
mod tasks;
