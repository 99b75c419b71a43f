//! Releases: what is read, what is trusted, where they come from.

mod manifest;
mod publish;
pub mod server;
mod source;
mod version;
