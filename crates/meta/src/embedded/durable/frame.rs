//! How is a group laid out in a file, and what does a broken one mean?
//!
//! A frame is a header, a payload and zeros up to the next sector. Frames begin on sectors of their own, so no
//! acknowledged byte is ever written again. Where a frame will go there are zeros, durably, before it is written. So after
//! a crash each of its sectors is either as written or zero, and a frame that does not match its checksum is one of two
//! things: *torn*, if a sector of it is zero (it was never acknowledged), or *damaged*, if none is.

use std::ops::Range;

use bytes::BufMut;
use crc_fast::CrcAlgorithm;

use crate::embedded::codec::damaged;
use crate::embedded::engine::EngineError;

/// What a disk writes as a whole or not at all.
pub(super) const SECTOR: usize = 512;

/// Bytes before the payload.
pub(super) const HEADER: usize = 32;

const MAGIC: u32 = u32::from_le_bytes(*b"CMF1");

/// A payload larger than this is damage: nothing larger is written ([`MAX_CHANGE`]).
const MAX_PAYLOAD: usize = 1 << 30;

/// Bytes that one change may have in the log; the rest of its group and its frame are far smaller than what is left.
pub const MAX_CHANGE: u64 = (MAX_PAYLOAD - (64 << 20)) as u64;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Facts about a file: its first frame.
    Head,
    /// Entries of one group.
    Group,
    /// Nothing: it proves that the frame before it was synced.
    Mark,
    /// Keys of a base.
    Rows,
    /// The end of a base.
    End,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Head, Kind::Group, Kind::Mark, Kind::Rows, Kind::End];

    fn code(self) -> u32 {
        match self {
            Kind::Head => 1,
            Kind::Group => 2,
            Kind::Mark => 3,
            Kind::Rows => 4,
            Kind::End => 5,
        }
    }
}

fn checksum(salt: u32, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&salt.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

/// Makes room for a header at the beginning of a frame; the payload goes behind it.
pub(super) fn begin(bytes: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity((HEADER + bytes).next_multiple_of(SECTOR));
    frame.resize(HEADER, 0);
    frame
}

/// Fills the header in and pads to a whole sector. The salt keeps frames of other files from being taken for ours.
pub(super) fn seal(frame: &mut Vec<u8>, kind: Kind, number: u64, salt: u32) {
    let payload = &frame[HEADER..];
    let (length, sum) = (payload.len() as u32, checksum(salt, payload));
    let mut header = Vec::with_capacity(HEADER);
    header.put_u32_le(MAGIC);
    header.put_u32_le(kind.code());
    header.put_u32_le(length);
    header.put_u32_le(sum);
    header.put_u64_le(number);
    header.put_u32_le(0);
    let header_sum = checksum(salt, &header);
    header.put_u32_le(header_sum);
    frame[..HEADER].copy_from_slice(&header);
    frame.resize(frame.len().next_multiple_of(SECTOR), 0);
}

/// A frame in one go.
pub(super) fn framed(kind: Kind, number: u64, salt: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = begin(payload.len());
    frame.extend_from_slice(payload);
    seal(&mut frame, kind, number, salt);
    frame
}

/// A header whose checksum is right.
#[derive(Clone, Copy, Debug)]
struct Header {
    kind: Kind,
    number: u64,
    length: usize,
    sum: u32,
}

impl Header {
    fn read(bytes: &[u8], salt: u32) -> Option<Header> {
        let bytes = bytes.get(..HEADER)?;
        let u32_at = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte));
        if u32_at(0) != MAGIC || u32_at(28) != checksum(salt, &bytes[..28]) {
            return None;
        }
        let number = u64::from(u32_at(20)) << 32 | u64::from(u32_at(16));
        let kind = Kind::ALL.into_iter().find(|kind| kind.code() == u32_at(4))?;
        Some(Header { kind, number, length: u32_at(8) as usize, sum: u32_at(12) })
    }
}

/// A frame as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) number: u64,
    /// All of it.
    pub(super) bytes: Range<usize>,
    /// What it carries.
    pub(super) payload: Range<usize>,
}

/// Reads the frame at a position. `Ok(None)`: nothing was written there.
fn frame_at(content: &[u8], at: usize, salt: u32) -> Result<Option<Frame>, Broken> {
    let rest = content.get(at..).unwrap_or_default();
    if is_zero(rest) {
        return Ok(None);
    }
    let first = &rest[..rest.len().min(SECTOR)];
    let Some(header) = Header::read(rest, salt) else {
        return Err(if is_zero(first) { Broken::Torn } else { Broken::Damaged });
    };
    let bytes = (HEADER + header.length).next_multiple_of(SECTOR);
    if header.length > MAX_PAYLOAD || bytes > rest.len() {
        return Err(Broken::Damaged);
    }
    let payload = HEADER..HEADER + header.length;
    if checksum(salt, &rest[payload.clone()]) != header.sum {
        let torn = rest[..bytes].chunks(SECTOR).enumerate().any(|(n, sector)| {
            let used = (HEADER + header.length - n * SECTOR).min(SECTOR);
            is_zero(&sector[..used])
        });
        return Err(if torn { Broken::Torn } else { Broken::Damaged });
    }
    Ok(Some(Frame {
        kind: header.kind,
        number: header.number,
        bytes: at..at + bytes,
        payload: at + payload.start..at + payload.end,
    }))
}

enum Broken {
    Torn,
    Damaged,
}

/// The length of the frame that begins here, if its header is right.
pub(super) fn length(content: &[u8], salt: u32) -> Option<usize> {
    let header = Header::read(content, salt).filter(|header| header.length <= MAX_PAYLOAD)?;
    Some((HEADER + header.length).next_multiple_of(SECTOR))
}

/// The frames of a file up to its end.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) frames: Vec<Frame>,
    /// Where the next frame goes.
    pub(super) end: usize,
    /// Where the remains of a torn frame end, if there are any.
    pub(super) torn_until: Option<usize>,
}

/// Reads all frames from a position on; they must be numbered without a gap.
pub(super) fn scan(content: &[u8], from: usize, first: u64, salt: u32) -> Result<Scan, EngineError> {
    let mut frames: Vec<Frame> = Vec::new();
    let (mut at, mut number) = (from, first);
    loop {
        match frame_at(content, at, salt) {
            Ok(None) => return Ok(Scan { frames, end: at, torn_until: None }),
            Ok(Some(frame)) if frame.number == number => {
                at = frame.bytes.end;
                number += 1;
                frames.push(frame);
            }
            Ok(Some(frame)) => {
                return Err(damaged(format!("frame {number} is missing: frame {} follows", frame.number)));
            }
            Err(Broken::Damaged) => return Err(damaged(format!("frame {number} (byte {at}) was changed"))),
            Err(Broken::Torn) => break,
        }
    }
    if let Some(later) = find_later(&content[at..], number, salt) {
        return Err(damaged(format!("frame {number} (byte {at}) is lost, and frame {later} follows it")));
    }
    let written = content[at..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let torn_until = (at + written).next_multiple_of(SECTOR).min(content.len());
    Ok(Scan { frames, end: at, torn_until: Some(torn_until) })
}

/// The number of a whole frame behind a torn one: then the torn one was acknowledged.
fn find_later(rest: &[u8], than: u64, salt: u32) -> Option<u64> {
    let sectors = rest.chunks(SECTOR).filter_map(|sector| Header::read(sector, salt));
    sectors.map(|header| header.number).find(|number| *number > than)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|some| some == &ZEROS[..some.len()])
}

static ZEROS: [u8; 4096] = [0; 4096];

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u32 = 9;

    /// Frames of several sizes, one behind the other, and zeros behind them.
    fn file() -> Vec<u8> {
        let mut content = Vec::new();
        for (n, len) in [10, 479, 480, 481, 1300, 3].into_iter().enumerate() {
            content.extend(framed(Kind::Group, n as u64, SALT, &vec![n as u8 + 1; len]));
        }
        content.resize(content.len() + 2048, 0);
        content
    }

    fn frames(content: &[u8]) -> Result<usize, EngineError> {
        scan(content, 0, 0, SALT).map(|scan| scan.frames.len())
    }

    #[test]
    fn frames_come_back_and_zeros_are_the_end() {
        let content = file();
        let scan = scan(&content, 0, 0, SALT).unwrap();
        assert_eq!(scan.frames.len(), 6);
        assert_eq!(scan.frames[4].payload.len(), 1300);
        assert_eq!((scan.end, scan.torn_until), (content.len() - 2048, None));
        assert_eq!(frames(&[]).unwrap(), 0);
        assert_eq!(frames(&[0; 4096]).unwrap(), 0);
    }

    #[test]
    fn every_flipped_bit_is_damage_wherever_it_is() {
        let content = file();
        for bit in 0..(content.len() - 2048) * 8 {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match frames(&flipped) {
                Err(EngineError::Corrupt(_)) => {}
                // A flip in the padding changes nothing that was written.
                Ok(6) => assert!(scan(&flipped, 0, 0, SALT).unwrap().torn_until.is_none()),
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }

    #[test]
    fn lost_sectors_of_the_last_frame_are_torn_and_of_any_other_damage() {
        let content = file();
        let whole = scan(&content, 0, 0, SALT).unwrap().frames;
        for frame in &whole {
            let sectors = frame.bytes.len() / SECTOR;
            for lost in 1..1 << sectors {
                let mut torn = content.clone();
                for sector in (0..sectors).filter(|sector| lost & (1 << sector) != 0) {
                    let at = frame.bytes.start + sector * SECTOR;
                    torn[at..at + SECTOR].fill(0);
                }
                match frames(&torn) {
                    Ok(found) => assert_eq!((found, frame.number), (5, 5)),
                    Err(EngineError::Corrupt(_)) => assert!(frame.number < 5, "frame {}", frame.number),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[test]
    fn a_frame_of_another_file_is_not_taken_for_ours() {
        assert!(scan(&file(), 0, 0, SALT + 1).is_err());
    }
}
