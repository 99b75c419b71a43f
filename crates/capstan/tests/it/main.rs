//! The binary as its users meet it: real processes, real files, real clients.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test reports")]

mod access;
mod bench;
mod binary;
mod certs;
mod cluster;
mod config;
mod encrypted;
mod etcd;
mod exits;
mod fleet;
mod fleet_release;
mod golden;
mod headline;
mod health;
mod help;
mod host_death;
mod load;
mod log;
mod meta;
mod monitoring;
mod proxy;
mod reference;
mod schemas;
mod screens;
mod shapes;
mod tls;
mod topics;
mod topics_chaos;
mod topics_load;
mod up;
mod users;
