//! The steward through its public API.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod chaos;
mod cluster;
mod decisions;
mod holders;
mod processes;
mod scale;
mod world;
