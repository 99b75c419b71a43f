//! Every test of this crate that needs more than one module of it, in one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod disk;
mod edges;
mod fault;
mod forgetful;
mod full;
mod host;
mod late;
mod owners;
mod power;
mod power_host;
mod process;
mod rest;
mod sim;
mod syncs;
mod tls;
