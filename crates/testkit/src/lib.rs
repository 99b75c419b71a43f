//! What Capstan's tests stand on: real servers, real faults, honest waiting.
//!
//! This crate is a dev-dependency of every other one and knows none of them but `capstan-disk`, whose trait
//! [`disk::SimDisk`] implements. It holds no mocks. What it starts is a real process on its own ports and in its own directory, it proves that the listener it
//! talks to belongs to the process it started, and it ends with the test, even when the test is killed.
//!
//! Read first: [`eventually`] (how a test waits), [`Process`] (how a test runs a server), [`Proxy`] (how a test breaks
//! a network).
//!
//! | variable | meaning |
//! |---|---|
//! | `CAPSTAN_SEED` | replay one seed of a seeded test ([`seed`]) |
//! | `CAPSTAN_SEEDS` | how many seeds a seeded test runs, instead of its default |
//! | `CAPSTAN_SOAK` | `1`: tests that have a long form run it ([`seed::soak`]) |
//! | `CAPSTAN_TEST_KEEP` | `1`: keep the directories of passed tests too ([`TempDir`]) |
//! | `CAPSTAN_BIN` | the `capstan` binary under test ([`process::capstan_binary`]) |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the whole crate is test support: a panic here is a failed test, which is its way to report"
)]

pub mod crash;
pub mod disk;
pub mod etcd;
mod eventually;
pub mod history;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod seed;
pub mod tap;
mod tempdir;

pub use etcd::Etcd;
pub use eventually::{TimedOut, eventually, eventually_blocking, try_eventually, try_eventually_blocking};
pub use ports::{Port, PortBlock};
pub use process::{Process, Ready};
pub use proxy::Proxy;
pub use redis::RedisServer;
pub use tap::Tap;
pub use tempdir::TempDir;
