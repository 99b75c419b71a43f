//! Who carries the steps of a release out on a host.
//!
//! The interface is here; the worker that speaks with the metadata store knows nothing else of this side, and a
//! simulated host implements the same.

mod work;

pub use work::{Generation, Installed, Permission, Runner, StepError, StepOutcome, StepWork};
