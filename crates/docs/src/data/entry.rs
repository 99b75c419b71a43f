//! A log entry of a token: changes of keys. The primary evaluates; holders only apply, so they cannot differ.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::storage::{Change, StorageError};

/// The first byte of every entry.
const VERSION: u8 = 1;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_PREFIX: u8 = 3;

pub(super) fn encode(changes: &[Change]) -> Bytes {
    let mut out = BytesMut::with_capacity(size(changes));
    out.put_u8(VERSION);
    for change in changes {
        match change {
            Change::Put(key, value) => {
                out.put_u8(PUT);
                put(&mut out, key);
                put(&mut out, value);
            }
            Change::Delete(key) => {
                out.put_u8(DELETE);
                put(&mut out, key);
            }
            Change::DeletePrefix(prefix) => {
                out.put_u8(DELETE_PREFIX);
                put(&mut out, prefix);
            }
        }
    }
    out.freeze()
}

/// About how many bytes an entry with these changes has.
pub(super) fn size(changes: &[Change]) -> usize {
    let one = |change: &Change| match change {
        Change::Put(key, value) => key.len() + value.len() + 9,
        Change::Delete(key) | Change::DeletePrefix(key) => key.len() + 5,
    };
    1 + changes.iter().map(one).sum::<usize>()
}

fn put(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

pub(super) fn decode(mut entry: Bytes) -> Result<Vec<Change>, StorageError> {
    let broken = || StorageError("a log entry cannot be read".to_owned());
    if entry.try_get_u8().map_err(|_| broken())? != VERSION {
        return Err(StorageError("a log entry was written by a newer version".to_owned()));
    }
    let take = |entry: &mut Bytes| {
        let length = entry.try_get_u32().map_err(|_| broken())? as usize;
        if length > entry.len() { Err(broken()) } else { Ok(entry.split_to(length)) }
    };
    let mut changes = Vec::new();
    while entry.has_remaining() {
        let change = match entry.get_u8() {
            PUT => Change::Put(take(&mut entry)?, take(&mut entry)?),
            DELETE => Change::Delete(take(&mut entry)?),
            DELETE_PREFIX => Change::DeletePrefix(take(&mut entry)?),
            _ => return Err(broken()),
        };
        changes.push(change);
    }
    Ok(changes)
}
