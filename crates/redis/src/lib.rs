//! Redis clusters on a pool of hosts: slots that move while clients write.
//!
//! A *proxy* on every host speaks the Redis Cluster protocol and fronts the *nodes* (redis-server processes) of its host.
//! The *broker* changes the metadata, in guarded transactions; *coordinators*, any number of them, push it to the
//! proxies, watch over them and complete what was begun. Everything a proxy knows it was told with an epoch.
//!
//! This crate knows Redis, slots and the keys of its documents; it may not know the other services, how the process was
//! configured, or what is printed where.
//!
//! Read first: [`nmctl`] (what a proxy is told), [`keys`] (what is true), [`data::proxy`] (how a command travels).

pub mod address;
pub mod agent;
pub mod api;
pub mod broker;
pub mod check;
pub mod coordinator;
pub mod data;
pub mod host;
pub mod keys;
pub mod nmctl;
pub mod plan;
pub mod slots;
pub mod spec;
pub mod status;

pub use address::Address;
pub use keys::ClusterName;
pub use slots::{Slot, SlotRange};
