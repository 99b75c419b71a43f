//! The bytes of a release on a host: verified while they arrive, kept in a cache, installed as packages and images.

mod cache;
mod digest;
pub mod dpkg;
pub mod files;
pub mod oci;

pub use cache::{Cache, FetchError};
pub use digest::{Hasher, digest_file, digest_of};
