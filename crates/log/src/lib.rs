//! The replicated log: an append is acknowledged after it is durable on enough machines, in one order.
//!
//! Topics and document tokens are such logs. A log's holders, in-sync set and epoch are one record in the metadata
//! store; holders never vote. This crate knows entries, holders, disks and connections; it must not know the content of
//! a log, which service owns it, or which holder should lead.
//!
//! The API of an owner, [`Log`]:
//!
//! - [`Log::standing`]: whether this copy leads ([`Standing::Leading`]: everything ever acknowledged is committed here)
//!   and in which epoch, follows, or is out.
//! - [`Log::append`] resolves when the entries are committed; [`Log::append_in`] only in a given epoch; [`Log::submit`]
//!   returns offsets at once. After an error, [`LogError::fate`] tells whether they may be in the log.
//! - [`Log::read`], [`Log::tail`], [`Log::offset_at`]: committed entries, on any holder. [`Log::read_index`] is for
//!   linearizable reads on the primary.
//! - [`Log::hand_over`], [`Log::seal`], [`Log::closed_segments`]; retention by [`LogConfig::raise_floor`] on every holder,
//!   or [`Log::truncate_before`] on this one.
//! - [`StateMachine`] provides snapshots when a copy needs dropped entries.
//!
//! A controller changes the record through [`referee`] (create, change one or many in one transaction, delete) with the
//! pure changes of [`LogConfig`]. A host uses [`Host::open`], [`Host::close`], [`Host::delete`].
//!
//! Read first: [`host::Log`] (the owner's handle), [`replica::Replica`] (how one copy behaves), [`disk::Disk`] (how the
//! copies of a host are stored). [`config::LogConfig`] is the record of a log.

pub mod config;
pub mod disk;
pub mod entry;
pub mod error;
pub mod host;
pub mod keys;
pub mod net;
pub mod referee;
pub mod replica;

pub use config::{Directory, Grave, Incarnation, LogConfig, Refused};
pub use disk::Disk;
pub use entry::{Entry, EntryKind, History, LogEpoch, Offset};
pub use error::{Fate, LogError};
/// The former name of [`StateMachine`].
pub use host::StateMachine as Snapshots;
pub use host::{
    Batch, Host, HostOptions, Log, NoSnapshots, Pending, SegmentInfo, Snapshot, StateMachine, Tail,
};
pub use keys::{HolderId, LogName};
pub use replica::Standing;
