//! Where documents are kept on a node: one embedded engine behind a small trait.
//!
//! The log of a token is durable already, so an engine need not sync every batch: after a crash it may be behind, but a
//! batch is there as a whole or not at all, and batches vanish from the end only. Every batch carries the offset up to
//! which its token was applied, and what is behind is applied again from the log.
//!
//! Read first: [`Engine`], then `layout.rs` (what the keys are).

mod disk;
pub(crate) mod layout;
mod memory;

use bytes::Bytes;

pub use disk::DiskEngine;
pub use memory::MemoryEngine;

/// Something is wrong with the engine or its directory. Nothing that failed in this way was half done.
#[derive(Clone, Debug, thiserror::Error)]
#[error("storage: {0}")]
pub struct StorageError(pub String);

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value.
    Put(Bytes, Bytes),
    /// The key is not there.
    Delete(Bytes),
    /// No key with this prefix is there.
    DeletePrefix(Bytes),
}

/// A key and its value.
pub type Pair = (Bytes, Bytes);

/// An ordered map of bytes with atomic batches and snapshots.
pub trait Engine: Send + Sync + 'static {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// All changes or none, also after a crash.
    fn write(&self, changes: Vec<Change>) -> Result<(), StorageError>;

    /// What is there now; later changes are not seen.
    fn snapshot(&self) -> Box<dyn View>;

    /// Everything that was written before is durable when it returns.
    fn sync(&self) -> Result<(), StorageError>;
}

/// The pairs of a range, in key order.
pub type Pairs = Box<dyn Iterator<Item = Result<Pair, StorageError>> + Send>;

/// An engine at one moment.
pub trait View: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// The pairs from a key on and before another one.
    fn range(&self, from: &[u8], before: &[u8]) -> Pairs;
}

/// The first key behind all keys with this prefix.
pub(crate) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![u8::MAX; prefix.len() + 1]
}
