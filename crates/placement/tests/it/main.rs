//! The planners through their public behaviour, in one binary.

// A failing helper is a failing test.
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
