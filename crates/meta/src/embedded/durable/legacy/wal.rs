//! Is the tail of SQLite's write-ahead log torn, or is the middle damaged?
//!
//! SQLite stops reading its write-ahead log at the first frame whose checksum is wrong, without a word. After a crash
//! that is right for the last transaction, which nobody was told about. But if whole transactions follow the bad frame,
//! then they were synced and acknowledged, and so was the bad one: that is damage, and dropping it would lose writes.

use std::path::Path;

use crate::embedded::engine::EngineError;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// The two magic numbers differ in the byte order of the checksums.
const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;

/// Looks at the write-ahead log beside a database before SQLite does. Answers with what a torn write left, if any.
pub fn check(database: &Path) -> Result<Option<String>, EngineError> {
    let mut path = database.as_os_str().to_owned();
    path.push("-wal");
    match std::fs::read(&path) {
        Ok(wal) if wal.is_empty() => Ok(None),
        Ok(wal) => examine(&wal),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EngineError::Failed(format!("cannot read the write-ahead log: {error}"))),
    }
}

fn examine(wal: &[u8]) -> Result<Option<String>, EngineError> {
    if wal.len() < HEADER {
        return Ok(Some(format!("{} bytes of an unfinished log header", wal.len())));
    }
    let header = Header::read(wal)?;
    let frames: Vec<Frame<'_>> =
        wal[HEADER..].chunks_exact(FRAME_HEADER + header.page_size).map(Frame::read).collect();
    let mut sum = header.sum;
    let mut intact = 0;
    for frame in &frames {
        let next = frame.sum_after(sum, header.big_endian);
        if frame.salts != header.salts || frame.sum != next {
            break;
        }
        sum = next;
        intact += 1;
    }
    verdict(&header, &frames, intact)
}

/// Frames behind the intact ones that still carry this log's salts were written after it was last restarted.
fn verdict(header: &Header, frames: &[Frame<'_>], intact: usize) -> Result<Option<String>, EngineError> {
    let rest = &frames[intact..];
    let ours = |frame: &Frame<'_>| frame.salts == header.salts;
    let Some(last_of_ours) = rest.iter().rposition(ours) else { return Ok(None) };
    let committed = rest.iter().position(|frame| ours(frame) && frame.commits);
    if committed.is_some_and(|commit| commit < last_of_ours) {
        return Err(EngineError::Corrupt(format!(
            "frame {intact} of the write-ahead log is damaged, and acknowledged writes follow it"
        )));
    }
    Ok(Some(format!("{} frames of an unfinished write", last_of_ours + 1)))
}

struct Header {
    big_endian: bool,
    page_size: usize,
    salts: [u8; 8],
    sum: (u32, u32),
}

impl Header {
    fn read(wal: &[u8]) -> Result<Header, EngineError> {
        let damaged = || EngineError::Corrupt("the header of the write-ahead log is damaged".into());
        let big_endian = match be32(wal, 0) {
            MAGIC_LITTLE => false,
            MAGIC_BIG => true,
            _ => return Err(damaged()),
        };
        let sum = checksum((0, 0), &wal[..24], big_endian);
        let page_size = be32(wal, 8) as usize;
        if sum != (be32(wal, 24), be32(wal, 28)) || !(512..=65536).contains(&page_size) {
            return Err(damaged());
        }
        let mut salts = [0; 8];
        salts.copy_from_slice(&wal[16..24]);
        Ok(Header { big_endian, page_size, salts, sum })
    }
}

struct Frame<'a> {
    commits: bool,
    salts: [u8; 8],
    sum: (u32, u32),
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    fn read(bytes: &'a [u8]) -> Frame<'a> {
        let mut salts = [0; 8];
        salts.copy_from_slice(&bytes[8..16]);
        Frame { commits: be32(bytes, 4) != 0, salts, sum: (be32(bytes, 16), be32(bytes, 20)), bytes }
    }

    fn sum_after(&self, sum: (u32, u32), big_endian: bool) -> (u32, u32) {
        let sum = checksum(sum, &self.bytes[..8], big_endian);
        checksum(sum, &self.bytes[FRAME_HEADER..], big_endian)
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// SQLite's own checksum of its write-ahead log: two running sums over pairs of words.
fn checksum((mut first, mut second): (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let word = |bytes: &[u8]| {
        let big = be32(bytes, 0);
        if big_endian { big } else { big.swap_bytes() }
    };
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(word(&pair[..4])).wrapping_add(second);
        second = second.wrapping_add(word(&pair[4..])).wrapping_add(first);
    }
    (first, second)
}
