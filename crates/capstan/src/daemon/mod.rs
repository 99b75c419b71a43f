//! How roles become a process: what is opened and bound in which order, what runs, and how it stops.

mod controller;
mod endpoints;
mod fleet;
mod host;
mod listen;
mod local;
mod notify;
mod process;
mod redis;
mod redis_ports;
mod serve;
mod signal;

pub(crate) use controller::{start_controller, start_membership};
pub(crate) use endpoints::Endpoints;
pub(crate) use fleet::{WorkerPlace, start_updater, start_worker};
pub(crate) use host::{start_host, start_session};
pub(crate) use listen::bind;
pub(crate) use local::{LocalHost, SAMPLE_DIR, local_hosts, start_local_fleet, start_local_hosts};
pub(crate) use process::Process;
pub(crate) use redis::{
    DEMO, RedisHost, RedisShared, client_tls, proxies, start_coordinator, start_local_redis, start_redis_host,
};
pub(crate) use serve::{open, start_http, start_wire};
use signal::Signals;
