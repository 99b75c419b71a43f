//! Which node does a `SCAN` go to next? The client's cursor contains it: a node's cursor with the node's
//! place in the low bits.

/// Bits of the place: 1,024 nodes of a database on one host (or hosts of a database, in `single` mode).
const PLACE_BITS: u32 = 10;

/// A decoded cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The place being scanned, in the order of the routing table.
    pub(super) place: u32,
    /// The node's own cursor.
    pub(super) inner: u64,
}

impl Cursor {
    /// Decodes a client's cursor. Zero is the beginning of the first place.
    pub(super) fn of(number: u64) -> Cursor {
        Cursor { place: (number & ((1 << PLACE_BITS) - 1)) as u32, inner: number >> PLACE_BITS }
    }

    /// The cursor to continue with, after this place returned `inner`; zero when all places are done.
    ///
    /// Redis's cursors are below the size of its tables, so the bits shifted out are zero; if they are not,
    /// `None`.
    pub(super) fn next(place: u32, places: u32, inner: u64) -> Option<u64> {
        if inner > 0 {
            let shifted = inner.checked_shl(PLACE_BITS).filter(|shifted| shifted >> PLACE_BITS == inner)?;
            return Some(shifted | u64::from(place));
        }
        Some(if place + 1 < places { u64::from(place + 1) } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_goes_from_place_to_place() {
        assert_eq!(Cursor::of(0), Cursor { place: 0, inner: 0 });
        let next = Cursor::next(0, 2, 17).unwrap();
        assert_eq!(Cursor::of(next), Cursor { place: 0, inner: 17 });
        let next = Cursor::next(0, 2, 0).unwrap();
        assert_eq!(Cursor::of(next), Cursor { place: 1, inner: 0 });
        assert_eq!(Cursor::next(1, 2, 0), Some(0));
        assert_eq!(Cursor::next(0, 1, 1 << 60), None);
    }

    #[test]
    fn a_proxys_cursor_may_be_inside_anothers() {
        let theirs = Cursor::next(3, 9, 1 << 30).unwrap();
        let ours = Cursor::next(1, 2, theirs).unwrap();
        assert_eq!(Cursor::of(ours), Cursor { place: 1, inner: theirs });
        assert!(ours < 1 << 62, "clients read it as a signed number");
    }
}
