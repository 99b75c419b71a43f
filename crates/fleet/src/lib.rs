//! Service 4: updates of a fleet of hosts, one safe step at a time.
//!
//! An elected updater decides, a worker on every host acts, and they talk through keys in the metadata only. It knows
//! nothing about the other services: what it asks of them it asks through drains.
//!
//! Read first: [`release::Manifest`] (what a release is), [`decide::decide`] (what comes next, and why),
//! [`worker::Worker`] (how a host obeys), [`run::Runner`] (how a step runs on a host).

pub mod api;
pub mod artifact;
pub mod check;
pub mod courier;
pub mod decide;
pub mod drains;
pub mod encoding;
pub mod error;
pub mod history;
pub mod http;
pub mod journal;
pub mod keys;
pub mod lrn;
pub mod outbox;
pub mod plan;
pub mod probe;
pub mod records;
pub mod release;
pub mod run;
pub mod safety;
pub mod scout;
pub mod simulate;
pub mod spec;
pub mod status;
pub mod txns;
pub mod updater;
pub mod worker;
pub mod world;

pub use api::Fleet;
pub use error::FleetError;
pub use keys::Tree;
pub use lrn::{Lrn, Lrns};
