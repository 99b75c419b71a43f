//! What Redis clients, proxies and coordinators send each other, as values: RESP, the command table, ACL rules,
//! slots, `NMCTL`.
//!
//! Everything here is pure: bytes to values and back. The crate opens no connection and no file, has no
//! clock, and does not decide how a command is executed.
//!
//! Read first: [`nmctl::Message`] (what a coordinator sends to a proxy), [`resp::Request`] (a client's
//! command as received), [`command::Command`] (a command's entry in the table).

pub mod address;
mod name;
pub mod slots;

pub mod acl;
pub mod command;
pub mod glob;
pub mod nmctl;
pub mod resp;

pub use address::Address;
pub use name::ClusterName;
pub use slots::{Slot, SlotRange};
