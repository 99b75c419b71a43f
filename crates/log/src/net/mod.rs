//! How do hosts talk about their logs? Frames over TCP, encrypted if there are certificates: one connection each way
//! between two hosts, for all logs.
//!
//! A message that is lost costs time and nothing else, so a full queue drops, a broken connection is dialled again, and
//! nothing is acknowledged on this layer. What is read from the wire is checked before it is believed: entries carry
//! the checksums that they have on disk.

mod fragment;
mod frame;
mod link;
mod serve;
mod tls;

pub use fragment::MAX_MESSAGE;
pub use frame::{Frame, Packet};
pub(crate) use link::Links;
pub(crate) use serve::{Deliver, serve};
pub use tls::Tls;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use crate::keys::HolderId;

/// Where holders listen. Kept up to date by whoever knows (hosts register their addresses elsewhere).
#[derive(Clone, Debug, Default)]
pub struct AddressBook(Arc<RwLock<HashMap<HolderId, SocketAddr>>>);

impl AddressBook {
    /// Notes where a holder listens.
    pub fn set(&self, holder: HolderId, address: SocketAddr) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(holder, address);
    }

    /// Where a holder listens, if that is known.
    #[must_use]
    pub fn get(&self, holder: &HolderId) -> Option<SocketAddr> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(holder).copied()
    }
}
