//! Redis clusters on a pool of hosts: slots that move while clients write.
//!
//! A *proxy* on every host speaks the Redis Cluster protocol and fronts the *nodes* (redis-server processes)
//! of its host. The *broker* changes the metadata, in guarded transactions; *coordinators*, any number of
//! them, push it to the proxies, check their health and complete recorded operations. Everything a proxy has
//! was pushed with an epoch.
//!
//! This crate knows Redis, slots and its own keys; it must not know the other services, how the process was
//! configured, or what is printed where.
//!
//! Read first: [`keys`] (what is stored), [`decide`] (how it is changed), [`coordinator`] (this service's controller,
//! which carries it out). [`facts`] is the metadata at one revision, [`board`] what the proxies reported recently. The data path is `capstan-redis-proxy`, the protocols are `capstan-redis-protocol`.

pub mod agent;
pub mod api;
pub mod board;
pub mod broker;
pub mod check;
pub mod commit;
pub mod coordinator;
pub mod decide;
pub mod drain;
pub mod error;
pub mod facts;
pub mod health;
pub mod host;
pub mod keys;
pub mod shard;
pub mod spec;
pub mod status;
pub mod timing;

pub use capstan_redis_protocol::{Address, ClusterName, Slot, SlotRange, acl, address, nmctl, slots};
