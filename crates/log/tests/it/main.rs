//! Every test of this crate that needs more than one module of it, in one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod disk;
mod full;
mod host;
mod late;
mod process;
mod sim;
mod tls;
