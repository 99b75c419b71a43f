//! The planners through their public behaviour: one binary, so that it links once.

// A helper that fails is a test that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod support;

mod churn;
mod exact;
mod golden;
mod growth;
mod input;
mod load;
mod repair;
mod rules;
mod scale;
mod slots;
