//! What is a key? The trait behind every type that [`keys!`](crate::keys) declares, and the catalogue of them all.

use std::fmt;

use bytes::Bytes;

use super::Stored;
use super::codec::{Record, RecordFormat};
use super::path::captures;
use crate::kv::KeyRange;
use crate::request::{Compare, Delete, Put, Range};

/// A typed key. Declared with [`keys!`](crate::keys), never by hand.
pub trait Key: Clone + fmt::Debug + fmt::Display + Ord + Send + Sync + 'static {
    /// What the key leads to.
    type Record: Record;

    /// What is documented about it.
    const DOC: KeyDoc;

    /// The key that has this path, if it is one of this type.
    fn parse(path: &str) -> Option<Self>;

    /// The key's text in the store.
    fn path(&self) -> String {
        self.to_string()
    }

    /// The key's bytes in the store.
    fn bytes(&self) -> Bytes {
        Bytes::from(self.path())
    }

    /// Writes this record, detached from any lease.
    ///
    /// A record that cannot be encoded (a defect of its type, logged as an error) becomes a put without a key, which
    /// every store refuses together with the transaction it is in: nothing is overwritten by half a value.
    fn put(&self, record: &Self::Record) -> Put {
        match record.encode() {
            Ok(value) => Put::new(self.bytes(), value),
            Err(reason) => {
                tracing::error!(key = %self, reason, "record cannot be encoded");
                Put::default()
            }
        }
    }

    /// Writes this record in place of the one that was read: under the lease that it was found with.
    fn replace(&self, seen: &Stored<Self::Record>, record: &Self::Record) -> Put {
        self.put(record).lease(seen.lease)
    }

    /// Deletes the key.
    fn delete(&self) -> Delete {
        Delete::one(self.bytes())
    }

    /// Reads the key inside a transaction.
    fn range(&self) -> Range {
        Range::one(self.bytes())
    }

    /// Guard: the key does not exist.
    fn absent(&self) -> Compare {
        Compare::absent(self.bytes())
    }

    /// Guard: the key exists.
    fn present(&self) -> Compare {
        Compare::present(self.bytes())
    }

    /// Guard: nobody has written or deleted the key since it was read.
    fn unchanged(&self, seen: &Stored<Self::Record>) -> Compare {
        Compare::mod_revision(self.bytes(), seen.mod_revision)
    }

    /// Guard: the key is still as it was read, also if it was absent.
    fn as_seen(&self, seen: Option<&Stored<Self::Record>>) -> Compare {
        seen.map_or_else(|| self.absent(), |seen| self.unchanged(seen))
    }

    /// Guard: the key has not been deleted since it was read; its value may have changed.
    fn same_life(&self, seen: &Stored<Self::Record>) -> Compare {
        Compare::create_revision(self.bytes(), seen.create_revision)
    }
}

/// A typed prefix: some of the keys of one type. Its text always ends in a slash, so host 1 is not host 10.
pub trait Prefix: Clone + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The keys that it lists. Keys of other types under the same text are skipped.
    type Key: Key;

    /// The prefix's text in the store.
    fn path(&self) -> String {
        self.to_string()
    }

    /// The range of keys that it covers.
    fn range(&self) -> KeyRange {
        KeyRange::prefix(self.path())
    }

    /// Deletes everything under it, whatever its type.
    fn delete_all(&self) -> Delete {
        Delete { keys: Prefix::range(self), prev_kv: false }
    }
}

/// Whether a key dies with its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    /// Until it is deleted.
    Durable,
    /// Until its writer's lease ends.
    Leased,
}

/// Whether a value may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Secrecy {
    /// To anybody who may read the tree.
    Public,
    /// Redacted in logs, dumps, trees and pages.
    Secret,
}

/// One line of the catalogue from which `docs/metadata.md` is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KeyDoc {
    /// The path with its placeholders: `/capstan/hosts/{host}`.
    pub pattern: &'static str,
    /// The Rust type of the key.
    pub key: &'static str,
    /// The Rust type of the value.
    pub record: &'static str,
    /// How the value is written.
    pub format: RecordFormat,
    /// What the key is for.
    pub doc: &'static str,
    /// Who writes it.
    pub writer: &'static str,
    /// Whether it dies with its writer.
    pub lifetime: Lifetime,
    /// Whether its value may be shown.
    pub secrecy: Secrecy,
}

impl KeyDoc {
    /// Whether this line describes that path.
    #[must_use]
    pub fn describes(&self, path: &str) -> bool {
        captures(self.pattern, path).is_some()
    }
}

/// Whether any of the catalogues calls the value at this path a secret.
#[must_use]
pub fn is_secret(catalogues: &[&[KeyDoc]], path: &str) -> bool {
    let mut docs = catalogues.iter().flat_map(|catalogue| catalogue.iter());
    docs.any(|doc| doc.secrecy == Secrecy::Secret && doc.describes(path))
}
