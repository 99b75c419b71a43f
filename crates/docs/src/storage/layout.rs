//! What the keys of an engine are. The only place that makes them.
//!
//! ```text
//! t <token>                                how far a token was applied, and in which generation its data is
//! g <token> <generation> ...               one complete copy of the token's data; in it:
//!   c <collection>                         what the token knows about a collection
//!   d <collection> <id>                    a document
//!   x <collection> <index> <value> <id>    an index entry
//!   u <collection> <index> <value>         a reservation of a unique value
//!   a <collection> <id> <file> <chunk>     a piece of an attachment
//! ```
//!
//! Log entries have keys without token and generation, so they are the same on every holder. A snapshot of another
//! holder is installed as the next generation, beside the present one, and counts when the token's record names it.

use bson::Bson;
use bytes::Bytes;

use super::{StorageError, behind};
use crate::id::Token;
use crate::language::sort_key;
use crate::spec::CollectionId;

/// How far a token was applied here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// The first offset of the log that was not applied.
    pub(crate) next: u64,
    /// Which copy of the data counts.
    pub(crate) generation: u32,
}

impl Applied {
    pub(crate) fn key(token: Token) -> Bytes {
        [&b"t"[..], &token.number().to_be_bytes()].concat().into()
    }

    pub(crate) fn encode(self) -> Bytes {
        [&self.next.to_be_bytes()[..], &self.generation.to_be_bytes()].concat().into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Applied, StorageError> {
        let (next, generation) = value.split_at_checked(8).ok_or_else(damaged)?;
        Ok(Applied {
            next: u64::from_be_bytes(next.try_into().map_err(|_| damaged())?),
            generation: u32::from_be_bytes(generation.try_into().map_err(|_| damaged())?),
        })
    }
}

fn damaged() -> StorageError {
    StorageError("the record of a token is damaged".to_owned())
}

/// Before every key of every copy of the data of all tokens.
pub(crate) const COPIES: &[u8] = b"g";

/// Before every key of one copy of a token's data.
pub(crate) fn copy_prefix(token: Token, generation: u32) -> Vec<u8> {
    [COPIES, &token.number().to_be_bytes(), &generation.to_be_bytes()].concat()
}

/// The number of the token and the generation of the copy that a key belongs to.
pub(crate) fn copy_of(key: &[u8]) -> Result<(u16, u32), StorageError> {
    let rest = key.strip_prefix(COPIES).ok_or_else(damaged)?;
    let (number, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
    let generation = rest.first_chunk().ok_or_else(damaged)?;
    Ok((u16::from_be_bytes(*number), u32::from_be_bytes(*generation)))
}

fn of(kind: u8, collection: CollectionId) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend(collection.0.to_be_bytes());
    key
}

/// Before what the token knows about every collection.
pub(crate) const COLLECTIONS: &[u8] = b"c";

pub(crate) fn collection(collection: CollectionId) -> Vec<u8> {
    of(b'c', collection)
}

pub(crate) fn documents(collection: CollectionId) -> Vec<u8> {
    of(b'd', collection)
}

pub(crate) fn document(collection: CollectionId, id: &Bson) -> Vec<u8> {
    [documents(collection), sort_key(id)].concat()
}

/// Before everything of a collection, except what the token knows about it.
pub(crate) fn everything_of(collection: CollectionId) -> impl Iterator<Item = Vec<u8>> {
    b"dxua".iter().map(move |kind| of(*kind, collection))
}

pub(crate) fn index(collection: CollectionId, index: u32) -> Vec<u8> {
    let mut key = of(b'x', collection);
    key.extend(index.to_be_bytes());
    key
}

pub(crate) fn entry(collection: CollectionId, number: u32, value: &Bson, id: &Bson) -> Vec<u8> {
    [index(collection, number), sort_key(value), sort_key(id)].concat()
}

/// What is behind the number of the index in an entry: its value, then its id. Nothing if the key is no entry.
pub(crate) fn value_of_entry(key: &[u8]) -> Option<&[u8]> {
    match split(key)? {
        (b'x', _, rest) => rest.get(size_of::<u32>()..),
        _ => None,
    }
}

pub(crate) fn reservation(collection: CollectionId, index: u32, value: &Bson) -> Vec<u8> {
    let mut key = of(b'u', collection);
    key.extend(index.to_be_bytes());
    key.extend(sort_key(value));
    key
}

pub(crate) fn reservations(collection: CollectionId, index: u32) -> Vec<u8> {
    let mut key = of(b'u', collection);
    key.extend(index.to_be_bytes());
    key
}

/// Before every piece of a file of a collection.
pub(crate) fn files(collection: CollectionId) -> Vec<u8> {
    of(b'a', collection)
}

/// Splits a key of a copy's data: what it is of which collection, and the rest.
pub(crate) fn split(key: &[u8]) -> Option<(u8, CollectionId, &[u8])> {
    let (kind, rest) = key.split_first()?;
    let (id, rest) = rest.split_at_checked(8)?;
    Some((*kind, CollectionId(u64::from_be_bytes(id.try_into().ok()?)), rest))
}

pub(crate) fn attachments(collection: CollectionId, id: &Bson) -> Vec<u8> {
    [of(b'a', collection), sort_key(id)].concat()
}

pub(crate) fn attachment(collection: CollectionId, id: &Bson, file: &str) -> Vec<u8> {
    [attachments(collection, id), sort_key(&Bson::String(file.to_owned()))].concat()
}

pub(crate) fn chunk(collection: CollectionId, id: &Bson, file: &str, chunk: u32) -> Vec<u8> {
    [attachment(collection, id, file), chunk.to_be_bytes().to_vec()].concat()
}

/// The range of all keys with a prefix.
pub(crate) fn whole(prefix: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let end = behind(&prefix);
    (prefix, end)
}
