//! The planners through their public behaviour: one binary, so that it links once.

mod support;

mod churn;
mod growth;
