//! How do hosts exchange messages about their logs? Frames over TCP, encrypted if there are certificates: one
//! connection in each direction between two hosts, for all logs.
//!
//! The protocol tolerates lost messages, so a full queue drops, a broken connection is retried, and nothing is
//! acknowledged on this layer. Received data is verified: entries carry the same checksums as on disk.

mod frame;
mod link;
mod serve;
mod tls;

pub use frame::{Frame, Packet, Piece, Taken};
pub(crate) use link::Links;
pub(crate) use serve::{Deliver, serve};
pub use tls::Tls;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use crate::keys::HolderId;

/// The addresses of holders. Updated by the caller; this crate does not discover them.
#[derive(Clone, Debug, Default)]
pub struct AddressBook(Arc<RwLock<HashMap<HolderId, SocketAddr>>>);

impl AddressBook {
    /// Sets the address of a holder.
    pub fn set(&self, holder: HolderId, address: SocketAddr) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(holder, address);
    }

    /// The address of a holder, if known.
    #[must_use]
    pub fn get(&self, holder: &HolderId) -> Option<SocketAddr> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(holder).copied()
    }
}
