//! Every test of this crate that needs more than one module of it, in one binary.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports, also in what tests share")]

mod drain;
mod reconcile;
mod simulation;
mod tasks;
