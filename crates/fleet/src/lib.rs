//! Service 4: updates of a fleet of hosts, one safe step at a time.
//!
//! An elected updater decides, a worker on every host acts, and they talk through keys in the metadata only. It knows
//! nothing about the other services: what it asks of them it asks through drains.
//!
//! Modules are in reading order: records, what the updater decides, what a host does, what operators call, simulation.
//!
//! Read first: [`release::Manifest`] (what a release is), [`decide::decide`] (what comes next, and why),
//! [`agent::Worker`] (how a host obeys), [`run::Runner`] (how a step runs on a host).

pub mod keys;
pub mod spec;
pub mod status;

pub mod encoding;
pub mod error;
pub mod lrn;
pub mod records;

pub mod facts;
pub mod plan;

pub mod decide;

pub mod commit;
pub mod controller;

pub mod drain;

pub mod courier;
pub mod history;
pub mod outbox;
pub mod scout;

pub mod agent;

pub mod release;

pub mod artifact;
pub mod journal;

pub mod run;

pub mod http;
pub mod probe;

pub mod api;

pub mod check;

pub mod safety;
pub mod simulate;

pub use api::Fleet;
pub use error::FleetError;
pub use keys::Tree;
pub use lrn::{Lrn, Lrns};
