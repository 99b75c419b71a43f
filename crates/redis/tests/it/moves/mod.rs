//! Do slots move without anybody losing anything? Between plain servers with a stand-in for the proxy, and through proxies.

mod host;
mod proxied;
mod proxies;
mod raw;
mod shadow;
mod speed;
mod workload;
