//! The metadata store: one ordered key space with one revision counter, kept in etcd or embedded.
//!
//! Everything that Capstan believes lives here. This crate knows etcd's model (revisions, transactions, watches,
//! leases) and what is built on it (typed records, views, registrations, elections); it may not know any service,
//! host or shard.
//!
//! Read first: [`Store`] (the contract), [`embedded::Embedded`] (how one process keeps it), [`view::View`] (how
//! everyone reads it).

pub mod backoff;
pub mod clock;
pub mod election;
pub mod embedded;
pub mod error;
pub mod etcd;
pub mod faults;
pub mod kv;
pub mod latest;
pub mod record;
pub mod request;
pub mod session;
pub mod settle;
pub mod store;
mod task;
pub mod tls;
pub mod view;
pub mod wire;

pub use error::{MetaError, Remedy, Result};
pub use kv::{KeyRange, KeyValue, LeaseId, Revision};
pub use request::*;
pub use store::{Backend, Store, WatchStream};
pub use task::OwnedTask;
