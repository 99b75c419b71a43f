//! The node's side: a broker that registers itself, leads topics and serves clients.

mod admit;
mod broker;
mod clients;
mod compaction;
mod letters;
mod news;
mod operate;
mod options;
mod peers;
mod retention;
mod schemas;
mod shelf;
mod upkeep;
mod uploads;
mod watchdog;

pub use broker::Broker;
pub(crate) use broker::{Inner, progress_at};
pub(crate) use clients::producer_id;
pub use options::BrokerOptions;
pub use peers::BrokerTls;
pub(crate) use peers::{BROKER_HEADER, Peer};
pub use shelf::Shelf;
