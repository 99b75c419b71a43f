//! How are the steps of a release run on a host?
//!
//! [`Runner`] is all that the worker, which speaks with the metadata store, knows of this side; a simulated host
//! implements the same. [`Host`] is the real one.

mod check;
mod host;
mod images;
mod orphan;
mod packages;
pub mod process;
mod state;
mod step;
mod work;

pub use check::check_source;
pub(crate) use check::fetch_signed;
pub use host::{CacheUse, Host, HostConfig, Launcher};
pub use work::{Generation, Installed, Permission, Runner, StepError, StepOutcome, StepWork};
