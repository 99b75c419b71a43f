//! Tests through the public interface, with real redis-server processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test reports")]

mod acknowledged;
mod agent;
mod chaos;
mod healing;
mod metadata;
mod moves;
