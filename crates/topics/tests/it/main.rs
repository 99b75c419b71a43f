//! The broker from outside: clients on the wire, the metadata tree, brokers that come and go.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod abuse;
mod access;
mod admin;
mod cluster;
mod compaction;
mod danube;
mod delivery;
mod document;
mod failures;
mod metadata;
mod moves;
mod news;
mod power;
mod publish;
mod registry;
mod retention;
mod tiers;
