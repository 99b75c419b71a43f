//! Do slots move without anybody losing anything? First between plain servers, with a stand-in for the proxy.

mod host;
mod raw;
mod shadow;
mod speed;
mod workload;
