//! The data path: from a client's bytes to a node's and back. It never waits for the metadata store.

pub mod answers;
pub mod command;
pub mod conversation;
pub mod gate;
pub mod moves;
pub mod proxy;
pub mod resp;
pub mod state;
