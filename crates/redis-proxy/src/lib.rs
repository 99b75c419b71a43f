//! The data path of Redis clusters: from a client's bytes to a node's and back, while slots move.
//!
//! A proxy has what coordinators have pushed with `NMCTL`, each message with an epoch, and what the host's
//! agent has published about its nodes ([`nodes`]). It never waits for the metadata store, and has no
//! connection to one.
//!
//! Read first: [`Proxy`] (how it is started), [`state::Routing`] (which node serves a slot), [`moves::Moves`]
//! (how slots move to another host).

pub mod answers;
pub mod conversation;
pub mod gate;
pub mod moves;
pub mod nodes;
mod proxy;
pub mod state;

pub use proxy::{ClientTls, Config, Limits, PlainClients, Proxy, StartError};
