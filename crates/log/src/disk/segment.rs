//! What is a segment? A file with a header that identifies its log, consecutive records, and a sparse index in memory.

use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use capstan_disk::DiskFile;

use super::error::{DiskError, DiskResult};
use super::record::{self, Found, Header, Salt, crc32c, u32_at, u64_at};
use crate::entry::{History, Offset};

/// Bytes before the first record: a disk sector, so that records never share one with the header.
pub const SEGMENT_HEADER: u64 = 512;
const MAGIC: &[u8; 8] = b"CAPLOG01";
/// Bytes per index point: few enough that finding an entry reads little, many enough to cost almost no memory.
const INDEX_EVERY: u64 = 16 * 1024;
/// Bytes of the first read when searching for an entry: one index gap. Then four times as many, up to more than a
/// record.
const FIRST_WINDOW: usize = 32 * 1024;
const LAST_WINDOW: usize = 2 * record::MAX_DATA;

/// One file of a log.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its first offset.
    pub base: Offset,
    /// Its path.
    pub path: PathBuf,
    /// Valid bytes, including the header.
    pub len: u64,
    /// The positions of some entries: (offset, position), ascending. Always includes the first.
    index: Vec<(Offset, u64)>,
}

/// The name of a segment's file.
#[must_use]
pub fn file_name(log: u64, base: Offset) -> String {
    format!("{log:08}-{:020}.seg", base.0)
}

/// Log and first offset from a file name; `None` if it is no segment.
#[must_use]
pub fn parse_name(name: &str) -> Option<(u64, Offset)> {
    let (log, base) = name.strip_suffix(".seg")?.split_once('-')?;
    Some((log.parse().ok()?, Offset(base.parse().ok()?)))
}

/// The header of a segment: its log and first offset.
#[must_use]
pub fn header(name: &str, base: Offset) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEGMENT_HEADER as usize);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&base.0.to_le_bytes());
    bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(SEGMENT_HEADER as usize - 4, 0);
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Name and first offset from a segment's header; `None` if it is damaged.
#[must_use]
pub fn read_header(bytes: &[u8]) -> Option<(String, Offset)> {
    let bytes = bytes.get(..SEGMENT_HEADER as usize)?;
    let body = &bytes[..bytes.len() - 4];
    if &bytes[..8] != MAGIC || crc32c(body) != u32_at(bytes, body.len()) {
        return None;
    }
    let name = body.get(20..20 + u32_at(bytes, 16) as usize)?;
    Some((String::from_utf8(name.to_vec()).ok()?, Offset(u64_at(bytes, 8))))
}

impl Segment {
    /// A segment with this many valid bytes.
    #[must_use]
    pub fn new(dir: &Path, log: u64, base: Offset, len: u64) -> Segment {
        let path = dir.join(file_name(log, base));
        Segment { base, path, len, index: vec![(base, SEGMENT_HEADER)] }
    }

    /// Records the position of a record.
    pub fn note(&mut self, offset: Offset, at: u64) {
        if self.index.last().is_none_or(|(_, last)| at >= last + INDEX_EVERY) {
            self.index.push((offset, at));
        }
    }

    /// Drops index points from this offset on.
    pub fn forget(&mut self, from: Offset) {
        self.index.retain(|(offset, _)| *offset < from || *offset == self.base);
    }

    /// An indexed entry at or before this one.
    #[must_use]
    pub fn near(&self, offset: Offset) -> (Offset, u64) {
        let after = self.index.partition_point(|(indexed, _)| *indexed <= offset);
        self.index[after.saturating_sub(1)]
    }

    /// The segment with only the index needed to find this entry.
    #[must_use]
    pub fn around(&self, offset: Offset) -> Segment {
        let index = vec![self.near(offset)];
        Segment { base: self.base, path: self.path.clone(), len: self.len, index }
    }

    /// Finds an entry by reading from the nearest indexed one. Every entry on the way is verified, so the search stops
    /// at the first damaged entry. An entry whose epoch differs from the history is damaged too.
    pub fn locate(
        &self,
        file: &dyn DiskFile,
        salt: Salt,
        wanted: Offset,
        history: &History,
    ) -> DiskResult<Located> {
        let (mut offset, mut at) = self.near(wanted);
        let mut learned = Vec::new();
        let mut indexed_at = at;
        let mut window = Bytes::new();
        let mut begin = at;
        let mut size = FIRST_WINDOW;
        while offset < wanted && at < self.len {
            match record::decode(&window, (at - begin) as usize, salt, offset) {
                Found::Entry(entry, _) if !history.may_have(entry.offset, entry.epoch) => break,
                Found::Entry(_, next) => (offset, at) = (offset.plus(1), begin + next as u64),
                Found::Cut if size <= LAST_WINDOW && begin + (window.len() as u64) < self.len => {
                    begin = at;
                    window = self.window(file, at, size)?;
                    size = (size * 4).min(LAST_WINDOW).max(self.first_record(&window));
                    continue;
                }
                Found::Cut | Found::Damage(_) => break,
            }
            if at >= indexed_at + INDEX_EVERY {
                learned.push((offset, at));
                indexed_at = at;
            }
        }
        Ok(Located { offset, at, learned })
    }

    fn window(&self, file: &dyn DiskFile, at: u64, size: usize) -> DiskResult<Bytes> {
        let mut bytes = BytesMut::zeroed(size.min(LAST_WINDOW).min((self.len - at) as usize));
        read_at(file, &self.path, &mut bytes, at)?;
        Ok(bytes.freeze())
    }

    /// The length of the window's first record, which a window must hold completely.
    fn first_record(&self, window: &Bytes) -> usize {
        Header::read(window).map_or(0, |header| header.record_len())
    }

    /// Adds index points that a scan found.
    pub fn learn(&mut self, learned: Vec<(Offset, u64)>) {
        for point in learned {
            if let Err(place) = self.index.binary_search_by_key(&point.0, |(offset, _)| *offset)
                && point.1 < self.len
            {
                self.index.insert(place, point);
            }
        }
    }
}

/// The position of an entry, or of the damaged entry before it at which the search stopped.
#[derive(Debug)]
pub struct Located {
    /// The entry at this position; lower than requested if an entry in between is damaged.
    pub offset: Offset,
    /// Its position.
    pub at: u64,
    /// New points for the index.
    pub learned: Vec<(Offset, u64)>,
}

/// Reads exactly this many bytes; bytes after the end of the file are zeros, which fail every checksum.
pub fn read_at(file: &dyn DiskFile, path: &Path, buffer: &mut [u8], at: u64) -> DiskResult<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => {
                buffer[done..].fill(0);
                return Ok(());
            }
            Ok(read) => done += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(DiskError::io(path, &error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_headers_say_whose_a_file_is() {
        assert_eq!(parse_name(&file_name(3, Offset(17))), Some((3, Offset(17))));
        assert_eq!(parse_name("lock"), None);
        let mut bytes = header("orders", Offset(17));
        assert_eq!(read_header(&bytes), Some(("orders".to_owned(), Offset(17))));
        bytes[9] ^= 1;
        assert_eq!(read_header(&bytes), None);
    }
}
