//! Do slots move without loss? Between plain servers with a stand-in for the proxy, and through proxies.

mod clients;
mod host;
mod kills;
mod processes;
mod proxied;
mod raw;
mod shadow;
mod speed;
mod stage;
mod workload;

pub(crate) use processes::{kill_server, reaper};
