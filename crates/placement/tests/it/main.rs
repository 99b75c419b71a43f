//! The planners through their public behaviour: one binary, so that it links once.

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
