//! The testkit's own tests, through its public interface.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, report by failing")]

mod disk;
mod etcd;
mod eventually;
mod history;
mod install;
mod ports;
mod process;
mod proxy;
mod seed;
mod tidy;

use std::time::Duration;

/// Long enough for a loaded machine; reached only by a failure.
const DEADLINE: Duration = Duration::from_secs(30);
