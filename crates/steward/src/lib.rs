//! The steward: which hosts hold and lead which log.
//!
//! A service specifies the number of copies of a log and the kind of holder ([`WantedLog`]). The steward chooses the
//! holders, replaces failed primaries, restores lost copies, empties retiring holders and balances the rest, in one
//! pure decision over all logs of all services. The decisions are changes of the logs' records
//! (`capstan_log::LogConfig`), which the holders follow.
//!
//! This crate knows logs, holders, hosts and drains. It must not know the content of a log or the services.
//!
//! Read first: [`Logs`] (how a service creates and deletes logs), [`Holder`] (how a daemon holds them),
//! [`decide`](mod@decide) (which holder keeps what).

pub mod keys;
pub mod spec;
pub mod status;

pub mod error;

pub mod facts;

pub mod decide;
pub mod forecast;

mod commit;
pub mod controller;
pub mod drain;

pub mod holder;

pub mod api;
pub mod check;

pub use api::Logs;
pub use controller::Steward;
pub use decide::decide;
pub use error::StewardError;
pub use facts::Facts;
pub use forecast::{Forecast, forecast};
pub use holder::{Holder, HolderOptions, Joining, Owner};
pub use spec::{HolderRecord, Policy, WantedLog};
pub use status::HolderStatus;
