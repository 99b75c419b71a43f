//! An OCI layout directory: which images are in it, and how one is put in, verified and removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::document::{Descriptor, MAX_BLOBS, MAX_DOCUMENT_BYTES, OciError, REF_NAME, children};
use crate::artifact::digest::digest_file;
use crate::artifact::files::{link_or_copy, make_dir, open_beneath, read_bounded, sync_dir, write_atomic};
use crate::release::{ArtifactName, Digest, Tag};

const MAX_INDEX_BYTES: u64 = 4 * 1024 * 1024;
/// An index of manifests, and nothing deeper.
const MAX_DEPTH: usize = 3;
const LAYOUT: &[u8] = b"{\"imageLayoutVersion\":\"1.0.0\"}";

/// An OCI layout directory.
#[derive(Clone, Debug)]
pub struct Layout {
    dir: PathBuf,
}

/// `index.json`. Fields that we do not know stay as they are: others may write here too.
#[derive(Serialize, Deserialize)]
struct Index {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    manifests: Vec<Entry>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    descriptor: Descriptor,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Entry {
    fn reference(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

impl Layout {
    /// The layout in this directory; [`Layout::prepare`] makes one.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Layout {
        Layout { dir: dir.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes an empty layout unless there is one.
    pub fn prepare(&self) -> Result<(), OciError> {
        let made = (|| {
            make_dir(&self.dir.join("blobs/sha256"))?;
            if !self.dir.join("oci-layout").exists() {
                write_atomic(&self.dir.join("oci-layout"), LAYOUT)?;
            }
            Ok(())
        })();
        made.map_err(|e| disk(&self.dir, &e))
    }

    /// Where a blob is if it is there.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.hex())
    }

    /// The image that a reference (`name:tag`) names.
    pub fn find(&self, reference: &str) -> Result<Option<Descriptor>, OciError> {
        let index = self.index()?;
        let found = index.manifests.iter().find(|entry| entry.reference() == Some(reference));
        Ok(found.map(|entry| entry.descriptor.clone()))
    }

    /// A document of an image, verified.
    pub fn document(&self, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let wrong = |why: String| OciError::Blob { digest: digest.clone(), why };
        let file = open_beneath(&self.dir.join("blobs/sha256"), Path::new(digest.hex()));
        let bytes = file.and_then(|file| read_bounded(file, MAX_DOCUMENT_BYTES));
        let bytes = bytes.map_err(|e| wrong(format!("cannot be read: {e}")))?;
        match crate::artifact::digest_of(&bytes) {
            found if found == *digest => Ok(bytes),
            found => Err(wrong(format!("has digest {found}"))),
        }
    }

    /// Every blob below a document, the document first.
    pub fn blobs(&self, top: &Descriptor) -> Result<Vec<Descriptor>, OciError> {
        let mut all = vec![top.clone()];
        self.collect(top, MAX_DEPTH, &mut all)?;
        Ok(all)
    }

    fn collect(&self, of: &Descriptor, depth: usize, all: &mut Vec<Descriptor>) -> Result<(), OciError> {
        if depth == 0 || all.len() > MAX_BLOBS {
            return Err(OciError::TooMany);
        }
        for child in children(&of.digest, &self.document(&of.digest)?)? {
            let known = all.iter().any(|blob| blob.digest == child.digest);
            if !known {
                all.push(child.clone());
                if child.is_document() {
                    self.collect(&child, depth - 1, all)?;
                }
            }
        }
        Ok(())
    }

    /// Puts a verified blob into the layout.
    pub fn add_blob(&self, digest: &Digest, from: &Path) -> Result<(), OciError> {
        if self.verify_blob(digest, None).is_ok() {
            return Ok(());
        }
        let to = self.blob_path(digest);
        link_or_copy(from, &to).map_err(|e| disk(&to, &e))?;
        self.verify_blob(digest, None)
    }

    /// Writes a blob that we made ourselves.
    pub fn write_blob(&self, media_type: &str, bytes: &[u8]) -> Result<Descriptor, OciError> {
        let digest = crate::artifact::digest_of(bytes);
        let path = self.blob_path(&digest);
        write_atomic(&path, bytes).map_err(|e| disk(&path, &e))?;
        Ok(Descriptor { media_type: media_type.to_owned(), digest, size: bytes.len() as u64 })
    }

    /// Names an image whose blobs are all there. The last act of an installation: before it the image is invisible.
    pub fn tag(&self, name: &ArtifactName, tag: &Tag, image: Descriptor) -> Result<(), OciError> {
        for blob in self.blobs(&image)? {
            self.verify_blob(&blob.digest, Some(blob.size))?;
        }
        let reference = reference(name, tag);
        let mut index = self.index()?;
        index.manifests.retain(|entry| entry.reference() != Some(&reference));
        let annotations = BTreeMap::from([(REF_NAME.to_owned(), reference)]);
        index.manifests.push(Entry { descriptor: image, annotations, rest: Map::new() });
        self.write_index(&index)
    }

    /// Whether an image is whole: the tag names this digest, and every blob hashes to its name.
    pub fn verify(&self, name: &ArtifactName, tag: &Tag, digest: &Digest) -> Result<(), OciError> {
        let wanted = reference(name, tag);
        let found = self.find(&wanted)?;
        let found = found.ok_or_else(|| OciError::NoImage { dir: self.dir.clone(), name: wanted })?;
        if found.digest != *digest {
            let (name, tag, expected) = (name.clone(), tag.clone(), digest.clone());
            return Err(OciError::OtherImage { name, tag, found: found.digest, expected });
        }
        self.blobs(&found)?.iter().try_for_each(|blob| self.verify_blob(&blob.digest, Some(blob.size)))
    }

    /// Whether a blob is what its name says.
    pub fn verify_blob(&self, digest: &Digest, size: Option<u64>) -> Result<(), OciError> {
        let wrong = |why: String| OciError::Blob { digest: digest.clone(), why };
        let file = open_beneath(&self.dir.join("blobs/sha256"), Path::new(digest.hex()));
        let found = file.and_then(|mut file| digest_file(&mut file));
        match found.map_err(|e| wrong(format!("cannot be read: {e}")))? {
            (found, _) if found != *digest => Err(wrong(format!("has digest {found}"))),
            (_, len) if size.is_some_and(|size| size != len) => {
                Err(wrong(format!("has {len} bytes, and {} are expected", size.unwrap_or_default())))
            }
            _ => Ok(()),
        }
    }

    /// Removes tags of `names` beyond the newest `most` of each, except those in `kept`, and then every blob that no
    /// image needs any more. Images of other names are not the fleet's and stay.
    pub fn collect_garbage(
        &self,
        names: &BTreeSet<ArtifactName>,
        kept: &BTreeSet<(ArtifactName, Tag)>,
        most: usize,
    ) -> Result<(), OciError> {
        let mut index = self.index()?;
        let kept: BTreeSet<String> = kept.iter().map(|(name, tag)| reference(name, tag)).collect();
        let mut seen = BTreeMap::<String, usize>::new();
        let before = index.manifests.len();
        // The newest stand last.
        index.manifests.reverse();
        index.manifests.retain(|entry| {
            let ours = entry.reference().and_then(|text| text.split_once(':'));
            let Some((name, _)) = ours.filter(|(name, _)| names.iter().any(|n| n.as_str() == *name)) else {
                return true;
            };
            let count = seen.entry(name.to_owned()).or_default();
            *count += 1;
            *count <= most || entry.reference().is_some_and(|text| kept.contains(text))
        });
        index.manifests.reverse();
        if index.manifests.len() < before {
            self.write_index(&index)?;
        }
        self.sweep(&index)
    }

    fn sweep(&self, index: &Index) -> Result<(), OciError> {
        let mut needed = BTreeSet::new();
        for entry in &index.manifests {
            // An image that cannot be read may need any blob.
            let Ok(blobs) = self.blobs(&entry.descriptor) else { return Ok(()) };
            needed.extend(blobs.into_iter().map(|blob| blob.digest.hex().to_owned()));
        }
        let dir = self.dir.join("blobs/sha256");
        let swept = (|| {
            for entry in std::fs::read_dir(&dir)? {
                let entry = entry?;
                if !needed.contains(&*entry.file_name().to_string_lossy()) {
                    std::fs::remove_file(entry.path())?;
                }
            }
            sync_dir(&dir)
        })();
        swept.map_err(|e| disk(&dir, &e))
    }

    fn index(&self) -> Result<Index, OciError> {
        let path = self.dir.join("index.json");
        let bytes = match open_beneath(&self.dir, Path::new("index.json")) {
            Ok(file) => read_bounded(file, MAX_INDEX_BYTES).map_err(|e| disk(&path, &e))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Index { schema_version: 2, manifests: Vec::new(), rest: Map::new() });
            }
            Err(e) => return Err(disk(&path, &e)),
        };
        serde_json::from_slice(&bytes)
            .map_err(|e| OciError::Malformed { what: path.display().to_string(), why: e.to_string() })
    }

    fn write_index(&self, index: &Index) -> Result<(), OciError> {
        let path = self.dir.join("index.json");
        let bytes = serde_json::to_vec(index);
        let bytes = bytes
            .map_err(|e| OciError::Malformed { what: path.display().to_string(), why: e.to_string() })?;
        write_atomic(&path, &bytes).map_err(|e| disk(&path, &e))
    }

    /// The only image of a layout: what `release build` takes when no reference is named.
    pub fn only_image(&self) -> Result<Descriptor, OciError> {
        match self.index()?.manifests.as_slice() {
            [only] => Ok(only.descriptor.clone()),
            several => {
                let why = format!("it has {} images: name one with ref", several.len());
                Err(OciError::Malformed { what: self.dir.display().to_string(), why })
            }
        }
    }
}

fn reference(name: &ArtifactName, tag: &Tag) -> String {
    format!("{name}:{tag}")
}

fn disk(path: &Path, error: &io::Error) -> OciError {
    OciError::Disk { path: path.to_owned(), why: error.to_string() }
}
