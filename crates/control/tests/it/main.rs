//! Every test of this crate that needs more than one module of it, in one binary.

mod drain;
mod reconcile;
mod tasks;
