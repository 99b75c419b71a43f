//! The machine that every service's control loop is written on: hosts and drains, epochs, failure reports, the
//! reconcile loop, and the supervisor of all tasks.
//!
//! This crate knows hosts, and that services run on them; it may not know any service, nor what a host is drained for.
//! Whatever crosses between services crosses as a record declared in [`keys`].
//!
//! Read first: [`reconcile::Controller`] (how decisions are made), [`drain::DrainRecord`] (how a host is emptied),
//! [`tasks::Supervisor`] (what runs, and what its failure means).

pub mod api;
pub mod drain;
pub mod epoch;
pub mod error;
pub mod failure;
pub mod hosts;
pub mod keys;
pub mod reconcile;
pub mod tasks;

pub use epoch::Epoch;
pub use error::ControlError;
