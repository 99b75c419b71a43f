//! Snapshots of a token, for holders that need entries which were dropped.
//!
//! A snapshot is the pairs of one copy of the data in key order, each as two lengths and the bytes; or, if the pairs are
//! to travel over a queue, the ticket for them.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use capstan_log::{LogName, Offset, Snapshot, StateMachine};

use super::copy::Data;
use super::pace::Pace;
use crate::queue::{Queue, Ticket};
use crate::storage::{Change, Engine, Pairs, StorageError, layout, layout::Applied};

/// Bytes that are written at a time while a snapshot is installed.
const INSTALL_BYTES: usize = 1024 * 1024;
/// The longest key or value that is believed.
const MAX_PART: usize = 16 * 1024 * 1024;
/// Bytes of a pair before its key: the two lengths.
pub(crate) const PAIR_HEAD: usize = 8;

/// The state machine of one token.
pub(crate) struct Machine {
    pub(crate) data: Arc<Data>,
    /// What the pairs travel over, if not directly.
    pub(crate) queue: Option<Arc<Queue>>,
    /// How fast they leave directly.
    pub(crate) pace: Arc<Pace>,
}

impl Machine {
    /// One whose snapshots consist of the pairs.
    pub(crate) fn direct(data: Arc<Data>) -> Machine {
        Machine { data, queue: None, pace: Arc::new(Pace::new(None)) }
    }

    /// Installs the pairs that `feed` gives to what it is called with, in a generation of their own.
    pub(super) fn install_pairs(
        &self,
        at: Offset,
        feed: impl FnOnce(&mut dyn FnMut(&mut dyn Read) -> io::Result<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let data = &self.data;
        data.install(at.0, |prefix| {
            feed(&mut |pairs: &mut dyn Read| {
                let (count, bytes) = write_pairs(&*data.engine, prefix, pairs)?;
                data.count_moved(bytes);
                Ok(count)
            })
        })
    }
}

/// Writes the pairs of a stream below a prefix; says how many there were, and how many bytes.
fn write_pairs(engine: &dyn Engine, prefix: &[u8], from: &mut dyn Read) -> io::Result<(u64, usize)> {
    let (mut changes, mut bytes, mut count, mut all) = (Vec::new(), 0, 0, 0);
    while let Some((key, value)) = read_pair(from)? {
        bytes += key.len() + value.len();
        all += key.len() + value.len();
        count += 1;
        changes.push(Change::Put([prefix, &key].concat().into(), value.into()));
        if bytes >= INSTALL_BYTES {
            engine.write(std::mem::take(&mut changes)).map_err(other)?;
            bytes = 0;
        }
    }
    engine.write(changes).map_err(other)?;
    Ok((count, all))
}

impl StateMachine for Machine {
    fn snapshot(&self, _: &LogName, start: Offset) -> io::Result<Snapshot> {
        let data = &self.data;
        let view = data.engine.snapshot();
        let record = view.get(&Applied::key(data.token)).map_err(other)?;
        let applied = record.as_deref().map(Applied::decode).transpose().map_err(other)?.unwrap_or_default();
        if applied.next < start.0 {
            return Err(io::Error::other("this copy has not applied what its log has dropped"));
        }
        let prefix = layout::copy_prefix(data.token, applied.generation);
        if let Some(queue) = &self.queue {
            let ticket = queue.offer(view, prefix).encode().map_err(other)?;
            return Ok(Snapshot { at: Offset(applied.next), content: Box::new(io::Cursor::new(ticket)) });
        }
        let skip = prefix.len();
        let (from, before) = layout::whole(prefix);
        let pairs = view.range(&from, &before);
        let content = Arc::clone(&self.pace).paced(PairReader { pairs, skip, rest: Bytes::new() });
        Ok(Snapshot { at: Offset(applied.next), content: Box::new(content) })
    }

    fn applied(&self, _: &LogName) -> Option<Offset> {
        Some(Offset(self.data.applied().next))
    }

    fn install(&self, _: &LogName, at: Offset, snapshot: &mut dyn Read) -> io::Result<()> {
        let begun = match Ticket::read(snapshot)? {
            Ok(ticket) => return self.install_by_queue(at, &ticket),
            Err(begun) => begun,
        };
        self.install_pairs(at, |write| write(&mut io::Cursor::new(begun).chain(snapshot)).map(drop))
    }
}

impl Machine {
    fn install_by_queue(&self, at: Offset, ticket: &Ticket) -> io::Result<()> {
        let Some(queue) = &self.queue else {
            let why = format!(
                "node {} sends over a queue, and this one has none: set docs.queue alike",
                ticket.from
            );
            return Err(io::Error::other(why));
        };
        let data = &self.data;
        self.install_pairs(at, |write| {
            queue.receive(data.token, at.0, ticket, |mut pairs| {
                let count = write(&mut pairs)?;
                // Durable before the message is acknowledged.
                data.engine.sync().map_err(other)?;
                Ok(count)
            })
        })
    }
}

fn other(error: StorageError) -> io::Error {
    io::Error::other(error.to_string())
}

/// Writes pairs as a stream of bytes.
struct PairReader {
    pairs: Pairs,
    skip: usize,
    rest: Bytes,
}

impl Read for PairReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            match self.pairs.next() {
                None => return Ok(0),
                Some(Err(error)) => return Err(other(error)),
                Some(Ok((key, value))) => {
                    let key = key.slice(self.skip..);
                    let mut pair = Vec::with_capacity(8 + key.len() + value.len());
                    put_pair(&mut pair, &key, &value);
                    self.rest = pair.into();
                }
            }
        }
        let taken = self.rest.split_to(buffer.len().min(self.rest.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

/// Writes a pair.
pub(crate) fn put_pair(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    for part in [&length(key)[..], &length(value), key, value] {
        to.extend_from_slice(part);
    }
}

/// The lengths of a pair's key and value, which it begins with.
pub(crate) fn pair_lengths(head: [u8; PAIR_HEAD]) -> io::Result<(usize, usize)> {
    let [a, b, c, d, e, f, g, h] = head;
    let (key, value) = (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes([e, f, g, h]) as usize);
    if key > MAX_PART || value > MAX_PART {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a snapshot cannot be read"));
    }
    Ok((key, value))
}

/// Reads a pair; nothing at the end.
pub(crate) fn read_pair(from: &mut dyn Read) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut first = [0; 1];
    if from.read(&mut first)? == 0 {
        return Ok(None);
    }
    let mut head = [0; PAIR_HEAD];
    head[0] = first[0];
    from.read_exact(&mut head[1..])?;
    let (key, value) = pair_lengths(head)?;
    let (mut key, mut value) = (vec![0; key], vec![0; value]);
    from.read_exact(&mut key)?;
    from.read_exact(&mut value)?;
    Ok(Some((key, value)))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::data::entry;
    use crate::id::Token;
    use crate::metrics::DocsMetrics;
    use crate::storage::MemoryEngine;

    fn data() -> Arc<Data> {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::default());
        Arc::new(Data::open("7".parse::<Token>().unwrap(), engine, DocsMetrics::default()).unwrap())
    }

    fn put(key: &str, value: &str) -> Bytes {
        entry::encode(&[Change::Put(key.to_owned().into(), value.to_owned().into())])
    }

    fn pairs(data: &Data) -> Vec<(String, String)> {
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let pairs = data.view().range(&[], &[u8::MAX]);
        pairs.map(|pair| pair.unwrap()).map(|(key, value)| (text(key), text(value))).collect()
    }

    fn log() -> LogName {
        "docs-7".parse().unwrap()
    }

    #[test]
    fn entries_are_applied_once_in_order_and_without_gaps() {
        let data = data();
        data.apply(0, &[(0, put("a", "1")), (1, put("b", "2"))], 2).unwrap();
        // Offset 2 began an epoch and has no data.
        let drop_a = entry::encode(&[Change::DeletePrefix("a".into()), Change::Put("a2".into(), "5".into())]);
        data.apply(2, &[(3, put("a1", "3")), (4, drop_a), (5, put("a3", "6"))], 6).unwrap();
        let expected = [("a2", "5"), ("a3", "6"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(pairs(&data), expected);
        data.apply(0, &[(0, put("a", "again"))], 1).unwrap();
        data.apply(4, &[(4, put("b", "again")), (6, put("c", "7"))], 7).unwrap();
        assert_eq!(pairs(&data).len(), 4);
        assert_eq!(pairs(&data)[2], ("b".to_owned(), "2".to_owned()));
        assert!(data.apply(9, &[(9, put("d", "8"))], 10).is_err());
        assert_eq!(data.applied().next, 7);
    }

    #[test]
    fn a_snapshot_is_installed_as_a_whole_or_not_at_all() {
        let (from, to) = (data(), data());
        let entries: Vec<_> = (0..500).map(|at| (at, put(&format!("k{at:03}"), &"v".repeat(50)))).collect();
        from.apply(0, &entries, 500).unwrap();
        to.apply(0, &[(0, put("old", "state"))], 1).unwrap();
        let mut snapshot = Machine::direct(Arc::clone(&from)).snapshot(&log(), Offset(3)).unwrap();
        assert_eq!(snapshot.at, Offset(500));
        let mut bytes = Vec::new();
        snapshot.content.read_to_end(&mut bytes).unwrap();
        // Cut off in the middle of a pair: nothing has changed.
        let cut = bytes.get(..bytes.len() - 7).unwrap().to_vec();
        assert!(
            Machine::direct(Arc::clone(&to)).install(&log(), Offset(500), &mut Cursor::new(cut)).is_err()
        );
        assert_eq!((to.applied().next, pairs(&to).len()), (1, 1));
        Machine::direct(Arc::clone(&to)).install(&log(), Offset(500), &mut Cursor::new(bytes)).unwrap();
        assert_eq!((to.applied().next, pairs(&to)), (500, pairs(&from)));
        // What comes behind it is applied to the new state, also after a restart.
        to.apply(500, &[(500, put("k000", "new"))], 501).unwrap();
        let again = Data::open(to.token, Arc::clone(&to.engine), DocsMetrics::default()).unwrap();
        assert_eq!((again.applied().next, pairs(&again)[0].1.as_str()), (501, "new"));
        assert!(Machine::direct(to).snapshot(&log(), Offset(502)).is_err());
    }

    #[test]
    fn data_of_a_token_that_moved_away_is_deleted() {
        let data = data();
        data.apply(0, &[(0, put("a", "1"))], 1).unwrap();
        let generation = data.applied().generation;
        data.discard().unwrap();
        assert_eq!((data.applied().next, pairs(&data).len()), (0, 0));
        data.sweep(generation).unwrap();
        data.sweep(data.applied().generation).unwrap();
        data.apply(0, &[(0, put("a", "1"))], 1).unwrap();
        assert_eq!(pairs(&data).len(), 1);
    }
}
