//! What stands in the JSON documents of an image: descriptors of further blobs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::release::{ArtifactName, Digest, Tag};

/// The image manifest of one platform.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// A list of image manifests, one a platform.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Where the name and tag of an image stand.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// A manifest or an index is JSON that is read whole.
pub const MAX_DOCUMENT_BYTES: u64 = 256 * 1024;
/// Layers of one image over all its platforms.
pub const MAX_BLOBS: usize = 1024;
const MAX_BLOB_BYTES: u64 = 16 << 30;

/// Why an image is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciError {
    /// A document cannot be read.
    #[error("{what} cannot be read: {why}")]
    Malformed {
        /// Which document.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// No such image.
    #[error("{dir} has no image {name}")]
    NoImage {
        /// Which layout.
        dir: PathBuf,
        /// Which image.
        name: String,
    },
    /// The image is another one.
    #[error("image {name}:{tag} is {found}, and the release says {expected}")]
    OtherImage {
        /// Which image.
        name: ArtifactName,
        /// Its tag.
        tag: Tag,
        /// What is there.
        found: Digest,
        /// What should be.
        expected: Digest,
    },
    /// A blob is missing, or not what its name says.
    #[error("blob {digest} {why}")]
    Blob {
        /// Which blob.
        digest: Digest,
        /// What is wrong with it.
        why: String,
    },
    /// More blobs than an image may have.
    #[error("the image has more than {MAX_BLOBS} blobs, or they are nested too deeply")]
    TooMany,
    /// The disk.
    #[error("{path}: {why}")]
    Disk {
        /// Where.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },
}

/// Points to a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// What it is.
    #[serde(rename = "mediaType")]
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}

impl Descriptor {
    /// Whether the blob is JSON that points to further blobs.
    #[must_use]
    pub fn is_document(&self) -> bool {
        [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX].contains(&self.media_type.as_str())
    }
}

/// A manifest has a config and layers, an index has manifests; what else they have does not concern us.
#[derive(Deserialize)]
struct Document {
    #[serde(default, rename = "mediaType")]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

/// The blobs that a manifest or an index points to.
pub fn children(digest: &Digest, bytes: &[u8]) -> Result<Vec<Descriptor>, OciError> {
    let malformed = |why: String| OciError::Malformed { what: format!("image document {digest}"), why };
    let document: Document = serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
    let children: Vec<Descriptor> =
        document.config.into_iter().chain(document.layers).chain(document.manifests).collect();
    if children.is_empty() {
        return Err(malformed("it points to nothing".to_owned()));
    }
    let most = |child: &Descriptor| if child.is_document() { MAX_DOCUMENT_BYTES } else { MAX_BLOB_BYTES };
    match children.iter().find(|child| child.size > most(child)) {
        Some(child) => Err(malformed(format!("{} would have {} bytes", child.digest, child.size))),
        None if children.len() > MAX_BLOBS => Err(OciError::TooMany),
        None => Ok(children),
    }
}

/// What a document is: it may say so itself, else its content does.
pub fn media_type_of(digest: &Digest, bytes: &[u8]) -> Result<String, OciError> {
    let malformed = |why: String| OciError::Malformed { what: format!("image document {digest}"), why };
    let document: Document = serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
    let seen = if document.manifests.is_empty() { MANIFEST } else { INDEX };
    let media_type = document.media_type.unwrap_or_else(|| seen.to_owned());
    let descriptor = Descriptor { media_type, digest: digest.clone(), size: bytes.len() as u64 };
    match descriptor.is_document() {
        true => Ok(descriptor.media_type),
        false => Err(malformed(format!("{} is no image", descriptor.media_type))),
    }
}
