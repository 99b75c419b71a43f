//! Fleet, through its public behaviour.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation is how a test reports")]

mod artifact;
mod conformance;
mod decisions;
mod harm;
mod host_journal;
mod install;
mod machine;
mod release;
mod rig;
mod rollout;
mod scenarios;
mod simulation;
mod states;
mod storage;
mod traffic;
