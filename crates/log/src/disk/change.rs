//! What does a journal group contain? Changes of logs, in the order in which they happened.

use super::record::{u32_at, u64_at};
use crate::config::Incarnation;
use crate::entry::{History, Offset};
use crate::keys::LogName;

const APPEND: u8 = 1;
const CUT: u8 = 2;
const TRUNCATE: u8 = 3;
const CREATE: u8 = 4;
const RESET: u8 = 5;
const REMOVE: u8 = 6;
const TRUST: u8 = 7;
const CREATE_INCARNATION: u8 = 8;
const COMMITTED: u8 = 9;
/// Bytes before the payload of a change: kind, log, length.
pub(super) const HEADER: usize = 13;

/// A change of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Appends records.
    Append(&'a [u8]),
    /// Removes everything from this offset on.
    Cut(Offset),
    /// Allows dropping everything before this offset.
    Truncate(Offset),
    /// Creates the log.
    Create(LogName, Incarnation),
    /// Removes everything; the log begins at the end of this history.
    Reset(History),
    /// Removes the log.
    Remove,
    /// Clears the mark that entries may be missing at the end: the metadata confirms that other copies are complete.
    Trust,
    /// Everything before this offset is committed: a lower bound.
    Committed(Offset),
}

/// Adds a change whose payload `body` writes.
pub fn put(out: &mut Vec<u8>, log: u64, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.push(kind);
    out.extend_from_slice(&log.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - begin - HEADER) as u32;
    out[begin + 9..begin + HEADER].copy_from_slice(&len.to_le_bytes());
}

/// Adds an append whose records `body` writes; returns their position.
pub fn put_append(out: &mut Vec<u8>, log: u64, body: impl FnOnce(&mut Vec<u8>)) -> std::ops::Range<usize> {
    let begin = out.len() + HEADER;
    put(out, log, APPEND, body);
    begin..out.len()
}

impl Change<'_> {
    /// Adds the change to a group.
    pub fn encode(&self, log: u64, out: &mut Vec<u8>) {
        match self {
            Change::Append(records) => put(out, log, APPEND, |out| out.extend_from_slice(records)),
            Change::Cut(from) => put(out, log, CUT, |out| out.extend_from_slice(&from.0.to_le_bytes())),
            Change::Truncate(before) => {
                put(out, log, TRUNCATE, |out| out.extend_from_slice(&before.0.to_le_bytes()));
            }
            Change::Create(name, incarnation) => put(out, log, CREATE_INCARNATION, |out| {
                out.extend_from_slice(&incarnation.0.to_le_bytes());
                out.extend_from_slice(name.as_ref().as_bytes());
            }),
            Change::Reset(history) => put(out, log, RESET, |out| {
                out.extend_from_slice(&history.end().0.to_le_bytes());
                for (epoch, first) in history.epochs() {
                    out.extend_from_slice(&epoch.0.to_le_bytes());
                    out.extend_from_slice(&first.0.to_le_bytes());
                }
            }),
            Change::Remove => put(out, log, REMOVE, |_| {}),
            Change::Trust => put(out, log, TRUST, |_| {}),
            Change::Committed(upto) => {
                put(out, log, COMMITTED, |out| out.extend_from_slice(&upto.0.to_le_bytes()));
            }
        }
    }
}

/// The changes of a group, each with its log; `None` for bytes that are no change.
pub fn changes(content: &[u8]) -> impl Iterator<Item = Option<(u64, Change<'_>)>> {
    let mut rest = content;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let parsed = split(rest);
        rest = parsed.map_or(&[][..], |(_, _, behind)| behind);
        Some(parsed.and_then(|(log, change, _)| Some((log, decode(change.0, change.1)?))))
    })
}

type Raw<'a> = (u64, (u8, &'a [u8]), &'a [u8]);

fn split(bytes: &[u8]) -> Option<Raw<'_>> {
    let header = bytes.get(..HEADER)?;
    let len = u32_at(header, 9) as usize;
    let body = bytes.get(HEADER..HEADER + len)?;
    Some((u64_at(header, 1), (header[0], body), &bytes[HEADER + len..]))
}

fn name(text: &[u8]) -> Option<LogName> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn decode(kind: u8, body: &[u8]) -> Option<Change<'_>> {
    let offset = || (body.len() == 8).then(|| Offset(u64_at(body, 0)));
    Some(match kind {
        APPEND => Change::Append(body),
        CUT => Change::Cut(offset()?),
        TRUNCATE => Change::Truncate(offset()?),
        CREATE => Change::Create(name(body)?, Incarnation::default()),
        CREATE_INCARNATION => {
            let (incarnation, text) = body.split_at_checked(8)?;
            Change::Create(name(text)?, Incarnation(u64_at(incarnation, 0)))
        }
        COMMITTED => Change::Committed(offset()?),
        RESET => {
            let (end, epochs) = body.split_at_checked(8)?;
            let pair = |pair: &[u8]| (crate::entry::LogEpoch(u64_at(pair, 0)), Offset(u64_at(pair, 8)));
            Change::Reset(History::from_parts(
                epochs.chunks_exact(16).map(pair).collect(),
                Offset(u64_at(end, 0)),
            ))
        }
        REMOVE => Change::Remove,
        TRUST => Change::Trust,
        _ => return None,
    })
}
