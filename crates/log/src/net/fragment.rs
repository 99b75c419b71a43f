//! How does a message travel that is longer than a frame? In fragments, one behind the other on the same connection. One
//! that is lost loses the message, like everything on the wire may be lost.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::frame::{FRAGMENT, MAX_FRAME};

/// Longest message: a snapshot of this size, with its wrapping, still fits into the memory of both ends.
pub const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// Bytes of one fragment: half a frame, so that entries of other logs do not wait long behind it.
const PIECE: usize = MAX_FRAME / 2;

/// The frames that carry an encoded frame: itself, or its fragments; nothing if it is too long for that too.
#[must_use]
pub fn split(frame: Bytes) -> Option<Vec<Bytes>> {
    // The length in front is the frame's own, not part of what is carried.
    let whole = frame.len() - 4;
    if whole <= MAX_FRAME {
        return Some(vec![frame]);
    }
    if whole > MAX_MESSAGE {
        return None;
    }
    let body = frame.slice(4..);
    let pieces = (0..whole).step_by(PIECE).map(|at| {
        let piece = body.slice(at..whole.min(at + PIECE));
        let mut out = BytesMut::with_capacity(piece.len() + 13);
        out.put_u32_le((piece.len() + 9) as u32);
        out.put_u8(FRAGMENT);
        out.put_u32_le(at as u32);
        out.put_u32_le(whole as u32);
        out.put_slice(&piece);
        out.freeze()
    });
    Some(pieces.collect())
}

/// Puts fragments together again; one message at a time.
#[derive(Debug, Default)]
pub struct Assembly {
    bytes: BytesMut,
}

impl Assembly {
    /// Takes what followed the kind of a fragment. Answers with the whole when this was the last one; nothing for
    /// fragments that do not follow on the ones before.
    pub fn add(&mut self, mut fragment: Bytes) -> Option<Bytes> {
        let at = fragment.try_get_u32_le().ok()? as usize;
        let whole = fragment.try_get_u32_le().ok()? as usize;
        if at == 0 {
            self.bytes.clear();
        }
        if at != self.bytes.len() || whole > MAX_MESSAGE || at + fragment.len() > whole {
            self.bytes = BytesMut::new();
            return None;
        }
        self.bytes.extend_from_slice(&fragment);
        (self.bytes.len() == whole).then(|| std::mem::take(&mut self.bytes).freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u32_le(len as u32);
        out.extend((0..len).map(|at| at as u8));
        out.freeze()
    }

    #[test]
    fn long_frames_travel_in_fragments_and_arrive_whole() {
        let long = frame(2 * MAX_FRAME + 17);
        let fragments = split(long.clone()).unwrap();
        assert!(fragments.len() > 2 && fragments.iter().all(|fragment| fragment.len() <= MAX_FRAME + 4));
        let mut assembly = Assembly::default();
        let mut whole = None;
        for fragment in &fragments {
            assert_eq!(whole, None);
            assert_eq!(fragment[4], FRAGMENT);
            whole = assembly.add(fragment.slice(5..));
        }
        assert_eq!(whole, Some(long.slice(4..)));
        assert_eq!(split(frame(10)), Some(vec![frame(10)]));
        assert_eq!(split(Bytes::from(vec![0; MAX_MESSAGE + 5])), None);
    }

    #[test]
    fn a_lost_fragment_loses_the_message_and_not_the_next_one() {
        let fragments = split(frame(2 * MAX_FRAME)).unwrap();
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(fragments[0].slice(5..)), None);
        assert_eq!(assembly.add(fragments[2].slice(5..)), None);
        let again: Vec<_> = fragments.iter().map(|fragment| assembly.add(fragment.slice(5..))).collect();
        assert!(again[..again.len() - 1].iter().all(Option::is_none) && again.last().unwrap().is_some());
        assert_eq!(assembly.add(Bytes::from_static(&[9])), None);
        let lies = [[0u8; 4], u32::MAX.to_le_bytes()].concat();
        assert_eq!(assembly.add(lies.into()), None);
    }
}
