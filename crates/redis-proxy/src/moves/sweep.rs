//! Which keys of a node belong to a range, and how are they removed? One scan of the node, page by page.

use bytes::Bytes;

use super::names::contains;
use crate::conversation::{Conversation, TalkError};
use capstan_redis_protocol::resp::View;
use capstan_redis_protocol::slots::SlotRange;

/// Keys that a node scans per page. It serves no other command meanwhile: about a quarter of a millisecond.
const PAGE: &str = "512";
/// Keys removed at once. Their memory is freed by another thread of the node.
const REMOVED_AT_ONCE: usize = 256;

/// A scan of all keys of a node.
#[derive(Debug)]
pub(super) struct Walk {
    /// The node's cursor; `None`: the scan is over.
    cursor: Option<Bytes>,
}

/// One page of the scan.
#[derive(Debug)]
pub(super) struct Page {
    /// Keys of the range.
    pub keys: Vec<Bytes>,
    /// Keys scanned.
    pub scanned: u64,
}

impl Walk {
    pub(super) fn new() -> Walk {
        Walk { cursor: Some(Bytes::from_static(b"0")) }
    }

    /// The keys of the range on the next page; `None` after the last page. A key that exists during the whole
    /// scan is returned at least once, possibly twice.
    pub(super) async fn next(
        &mut self,
        node: &mut Conversation,
        range: SlotRange,
    ) -> Result<Option<Page>, TalkError> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let reply = node.ask(&[&b"SCAN"[..], &cursor, b"COUNT", PAGE.as_bytes()]).await?;
        let (next, page) = read(&reply, range).ok_or_else(|| node.unexpected("SCAN"))?;
        self.cursor = (&next[..] != b"0").then_some(next);
        Ok(Some(page))
    }
}

/// Parses a reply of `SCAN`. The keys share the memory of the reply.
fn read(reply: &Bytes, range: SlotRange) -> Option<(Bytes, Page)> {
    let mut parts = View::of(reply)?.sequence()?.views();
    let cursor = reply.slice_ref(parts.next()?.bytes()?);
    let (mut keys, mut scanned) = (Vec::new(), 0);
    for key in parts.next()?.sequence()?.views() {
        let key = key.bytes()?;
        scanned += 1;
        if contains(range, key) {
            keys.push(reply.slice_ref(key));
        }
    }
    Some((cursor, Page { keys, scanned }))
}

/// The number of keys of a node.
pub(super) async fn count_keys(node: &mut Conversation) -> Result<u64, TalkError> {
    let reply = node.ask(&["DBSIZE"]).await?;
    let count = View::of(&reply).and_then(View::integer).ok_or_else(|| node.unexpected("DBSIZE"))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Removes all keys of a range from a node and returns how many. Only for a range that is not written to.
pub(super) async fn empty(node: &mut Conversation, range: SlotRange) -> Result<u64, TalkError> {
    if count_keys(node).await? == 0 {
        return Ok(0);
    }
    let (mut walk, mut removed) = (Walk::new(), 0);
    while let Some(page) = walk.next(node, range).await? {
        removed += remove(node, &page.keys).await?;
    }
    Ok(removed)
}

/// Removes these keys, a bounded number at a time.
pub(super) async fn remove(node: &mut Conversation, keys: &[Bytes]) -> Result<u64, TalkError> {
    for chunk in keys.chunks(REMOVED_AT_ONCE) {
        let mut request: Vec<&[u8]> = vec![b"UNLINK"];
        request.extend(chunk.iter().map(|key| &key[..]));
        node.ask(&request).await?;
    }
    Ok(keys.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_keys_of_the_range() {
        let reply = Bytes::from_static(b"*2\r\n$2\r\n17\r\n*2\r\n$3\r\nfoo\r\n$3\r\nbar\r\n");
        let (cursor, page) = read(&reply, SlotRange::new(12000, 13000).unwrap()).unwrap();
        assert_eq!((&cursor[..], page.scanned), (&b"17"[..], 2));
        assert_eq!(page.keys, [Bytes::from_static(b"foo")]);
        assert!(read(&Bytes::from_static(b"+OK\r\n"), SlotRange::new(0, 1).unwrap()).is_none());
    }
}
