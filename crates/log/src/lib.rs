//! The replicated log: an append that is on disk, on enough machines, in one order, before anyone is told so.
//!
//! Topics and document tokens are logs of this kind. A log's holders, its in-sync set and its epoch are one record in
//! the metadata store, which is the referee: holders never vote. This crate knows entries, holders, disks and
//! connections; it may not know what is written into a log, which service owns it, or who ought to be primary.
//!
//! Read first: [`host::Log`] (what an owner holds), [`replica::Replica`] (how one copy behaves), [`disk::Disk`] (how the
//! copies of a host are kept). [`config::LogConfig`] is the record that decides.

pub mod config;
pub mod disk;
pub mod entry;
pub mod error;
pub mod host;
pub mod keys;
pub mod net;
pub mod referee;
pub mod replica;

pub use config::{LogConfig, Refused};
pub use disk::Disk;
pub use entry::{Entry, EntryKind, History, LogEpoch, Offset};
pub use error::LogError;
pub use host::{Host, HostOptions, Log, NoSnapshots, Snapshots, Tail};
pub use keys::{HolderId, LogName};
