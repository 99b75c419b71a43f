//! Releases: what is read, what is trusted, where they come from.

mod manifest;
mod publish;
mod server;
mod source;
mod version;
