//! What do keys and values mean? Typed records: a key is a type, declared once next to the record that it leads to.
//!
//! Services declare their keys with [`keys!`](crate::keys) in `keys.rs`, and from then on write no key text:
//!
//! ```
//! use capstan_meta::record::{Extra, Key, Prefix};
//! use capstan_meta::{Txn, json_records, keys, names};
//! use serde::{Deserialize, Serialize};
//!
//! names! {
//!     /// Names a lamp.
//!     pub struct LampId;
//! }
//!
//! /// What is known about a lamp.
//! #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
//! pub struct LampRecord {
//!     /// Whether it is lit.
//!     pub lit: bool,
//!     /// Fields that a newer version wrote.
//!     #[serde(flatten)]
//!     pub extra: Extra,
//! }
//! json_records!(LampRecord);
//!
//! keys! {
//!     /// Every key of the lamps.
//!     pub const CATALOGUE;
//!
//!     /// A lamp.
//!     pub struct LampKey { lamp: LampId } at "/lamps/{lamp}" => LampRecord {
//!         writer: "whoever owns the switch",
//!         lifetime: Durable,
//!         prefixes: [
//!             /// All lamps.
//!             pub struct Lamps {} at "/lamps/",
//!         ],
//!     }
//! }
//!
//! let key = LampKey { lamp: "hall".parse().unwrap() };
//! assert_eq!(key.path(), "/lamps/hall");
//! assert_eq!(LampKey::parse("/lamps/hall"), Some(key.clone()));
//! assert_eq!(Lamps {}.path(), "/lamps/");
//! let switch_on = Txn::new().when(key.absent()).then(key.put(&LampRecord { lit: true, extra: Extra::default() }));
//! assert_eq!(switch_on.success.len(), 1);
//! ```
//!
//! **Unknown fields.** A JSON record carries `#[serde(flatten)] extra: Extra`, so that a read-modify-write by this
//! version keeps what a newer version (or another program) added. Declared fields are written first, in the order of
//! the struct, which is the order in which the documents show them; unknown ones follow in the order they were read.
//!
//! **Bad values** are never a panic and never hide their neighbours: reading one key gives [`BadValue`] with the key
//! and the reason, listing a prefix gives the good entries and, beside them, the bad ones.

mod access;
mod codec;
mod key;
mod macros;
pub mod path;

pub use access::Listing;
pub(crate) use access::list_pages;
pub use bytes::Bytes as Value;
pub use codec::{AnyJson, Empty, Extra, Null, Record, RecordFormat, from_json, from_text, to_json, to_text};
pub use key::{Key, KeyDoc, Lifetime, Prefix, Secrecy, is_secret};
pub use path::{InvalidName, LeaseHex, Root, Segment};

use crate::error::{MetaError, Remedy};
use crate::kv::{KeyValue, LeaseId, Revision};

/// A record as it was found in the store, with what a guard needs to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<R> {
    /// The record.
    pub record: R,
    /// Revision of the first put since the key was last absent.
    pub create_revision: Revision,
    /// Revision of this version.
    pub mod_revision: Revision,
    /// The lease that it dies with.
    pub lease: LeaseId,
}

impl<R: Record> Stored<R> {
    /// Reads the value of a key. `K` names the key in the error and keeps secrets out of it.
    pub fn decode<K: Key<Record = R>>(kv: &KeyValue) -> Result<Stored<R>, BadValue> {
        let record = R::decode(&kv.value).map_err(|reason| BadValue {
            key: kv.key_text().into_owned(),
            reason: match K::DOC.secrecy {
                Secrecy::Public => reason,
                Secrecy::Secret => "not readable (the reason would show a secret)".to_owned(),
            },
        })?;
        let KeyValue { create_revision, mod_revision, lease, .. } = *kv;
        Ok(Stored { record, create_revision, mod_revision, lease })
    }
}

/// A value that is not what its key promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad value at {key}: {reason}")]
pub struct BadValue {
    /// The key.
    pub key: String,
    /// What is wrong with its value.
    pub reason: String,
}

/// What can go wrong when a record is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// The store holds something else than a record of this type.
    #[error(transparent)]
    BadValue(#[from] BadValue),
}

impl RecordError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            RecordError::Store(error) => error.remedy(),
            RecordError::BadValue(_) => Remedy::Report,
        }
    }
}
