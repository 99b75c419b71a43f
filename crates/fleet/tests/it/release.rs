//! Manifests: what is read, what is refused.

mod manifest;
mod version;
