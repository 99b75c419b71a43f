//! How roles become a process: what is opened and bound in which order, what runs, and how it stops.

mod access;
mod certs;
mod controller;
mod docs;
mod endpoints;
mod fleet;
mod former;
mod health;
mod host;
mod listen;
mod local;
mod logs;
mod notify;
mod process;
mod redis;
mod redis_ports;
mod selfcheck;
mod serve;
mod signal;
mod topics;

pub(crate) use access::{first_admin, key_of_dir, open_guard, sign_local_user_in};
pub(crate) use certs::{follow_store_tls, renew, renew_overdue, signer, start_certificates};
pub(crate) use controller::{start_controller, start_membership};
pub(crate) use docs::{DOCS_ADDRESS, docs_url, start_docs_host, start_local_docs};
pub(crate) use endpoints::Endpoints;
pub(crate) use fleet::{UpdaterPlace, WorkerPlace, read_trust, start_updater, start_worker};
pub(crate) use former::{InUse, succeed};
pub(crate) use health::{await_green, log_findings, probing, show_events, start_prober, watch_proxies};
pub(crate) use host::{start_host, start_session};
pub(crate) use listen::bind;
pub(crate) use local::{LocalHost, SAMPLE_DIR, local_hosts, start_local_fleet, start_local_hosts};
pub(crate) use logs::{check_local_holders, start_steward};
pub(crate) use process::Process;
pub(crate) use redis::{
    DEMO, RedisHost, RedisShared, SECRET_FILE, client_tls, proxies, secret_of, start_coordinator,
    start_local_redis, start_redis_host,
};
pub(crate) use selfcheck::{SelfCheck, start_self_check};
pub(crate) use serve::{open, start_http, start_wire};
use signal::Signals;
pub(crate) use topics::{DEMO_TOPIC, bind_topics, start_local_topics, start_topics};
