//! Container images on a host: one OCI layout directory, written by our own code, which skopeo, umoci and podman read.
//!
//! ```text
//! oci-layout              the version of the layout
//! index.json              every image: digest, and name:tag in an annotation
//! blobs/sha256/<digest>   hard links into the cache
//! ```

mod document;
mod layout;

pub use document::{Descriptor, MANIFEST, OciError, children, media_type_of};
pub use layout::Layout;
