//! Every test of the example service, in one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is a test's way to report")]

mod crash;
mod decisions;
mod simulation;
