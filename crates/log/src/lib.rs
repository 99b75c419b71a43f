//! The replicated log: an append that is on disk, on enough machines, in one order, before anyone is told so.
//!
//! Topics and document tokens are logs of this kind. A log's holders, its in-sync set and its epoch are one record in
//! the metadata store, which is the referee: holders never vote. This crate knows entries, holders, disks and
//! connections; it may not know what is written into a log, which service owns it, or who ought to be primary.
//!
//! Read first: [`config::LogConfig`] (who holds a log), [`replica::Replica`] (how one copy behaves).

pub mod config;
pub mod disk;
pub mod entry;
pub mod keys;
pub mod replica;

pub use config::{LogConfig, Refused};
pub use entry::{Entry, EntryKind, History, LogEpoch, Offset};
pub use keys::{HolderId, LogName};
