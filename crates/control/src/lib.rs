//! The control machine that every service is built on: hosts and drains, epochs, failure reports, the reconcile loop,
//! findings and events, and the supervisor of all tasks.
//!
//! This crate knows hosts, and that services run on them; it must not know any service, or why a host is drained. What
//! crosses between services is a record declared in [`keys`].
//!
//! Read first: [`reconcile::Controller`] (how decisions are made), [`drain::DrainRecord`] (how a host is drained),
//! [`tasks::Supervisor`] (what runs, and what its failure means).

pub mod api;
pub mod check;
pub mod cron;
pub mod drain;
pub mod epoch;
pub mod error;
pub mod events;
pub mod failure;
pub mod findings;
pub mod hosts;
pub mod incidents;
pub mod kernel;
pub mod keys;
pub mod reconcile;
pub mod report;
pub mod tasks;
pub mod time;

pub use epoch::Epoch;
pub use error::ControlError;
