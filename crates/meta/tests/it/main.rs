//! Every test of this crate that needs more than one module of it, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is a test's way to report, also in what tests share"
)]

mod alarms;
mod auth;
mod contract;
mod crash;
mod differential;
mod election;
mod embedded_disk;
mod embedded_edges;
mod embedded_full;
mod etcd_access;
mod etcd_faults;
mod etcdctl;
mod power;
mod session;
mod settle;
mod subjects;
mod view;
mod wire_fuzz;
mod wire_kv;
mod wire_lock;
mod wire_support;
mod wire_watch;
