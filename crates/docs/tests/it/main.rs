//! The document store as its clients see it, on real disks and sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod client;
mod cluster;
mod faults;
mod features;
mod hostile;
mod language;
mod losses;
mod metrics;
mod processes;
mod queue;
mod rabbit;
mod requests;
mod routes;
mod sdk;
mod states;
mod storage;
mod tls;
mod unique;
