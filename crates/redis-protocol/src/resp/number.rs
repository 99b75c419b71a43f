//! Which number do these bytes encode? Decimal, as strict as Redis is with lengths and counts.

/// Digits that fit into an `i64` without a check for overflow.
const SAFE_DIGITS: usize = 18;

/// The decimal number in the bytes: an optional `-`, no `+`, no leading zeros, nothing around it, within
/// `i64`.
#[must_use]
pub fn decimal(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    let mut value: i64 = 0;
    for (place, byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        let digit = i64::from(if negative { 0 } else { digit }) - i64::from(if negative { digit } else { 0 });
        value = if place < SAFE_DIGITS {
            value * 10 + digit
        } else {
            value.checked_mul(10)?.checked_add(digit)?
        };
    }
    Some(value)
}

/// A line where a number is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The number, and where the next line begins.
    Number(i64, usize),
    /// Complete, but not a number.
    Malformed,
    /// Its end has not arrived.
    Partial,
}

/// Reads the number that begins at `at` and ends before a carriage return. As in Redis, the byte after it is
/// skipped without a check: the node behind the proxy parses the same bytes in the same way.
#[inline]
pub(super) fn number_line(buffer: &[u8], at: usize) -> Line {
    let Some(rest) = buffer.get(at..) else { return Line::Partial };
    let mut value: i64 = 0;
    for (place, byte) in rest.iter().enumerate() {
        match byte {
            b'0'..=b'9' if place < SAFE_DIGITS => value = value * 10 + i64::from(byte - b'0'),
            b'\r' if place > 0 => {
                return match rest {
                    [b'0', ..] if place > 1 => Line::Malformed,
                    _ if rest.len() < place + 2 => Line::Partial,
                    _ => Line::Number(value, at + place + 2),
                };
            }
            _ => return unusual_line(rest, at),
        }
    }
    Line::Partial
}

/// Negative, very long, or not a number.
#[cold]
fn unusual_line(rest: &[u8], at: usize) -> Line {
    let Some(len) = memchr::memchr(b'\r', rest) else { return Line::Partial };
    match decimal(&rest[..len]) {
        _ if rest.len() < len + 2 => Line::Partial,
        Some(value) => Line::Number(value, at + len + 2),
        None => Line::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_strict() {
        for (text, number) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(decimal(text.as_bytes()), number, "{text}");
        }
        for bad in ["", "-", "+1", "01", "-0", "1 ", " 1", "1a", "0x1"] {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_line_ends_at_its_carriage_return_and_one_byte() {
        assert_eq!(number_line(b"*12\r\n", 1), Line::Number(12, 5));
        assert_eq!(number_line(b"*12\rx", 1), Line::Number(12, 5));
        assert_eq!(number_line(b"*-1\r\n", 1), Line::Number(-1, 5));
        assert_eq!(number_line(b"*1234567890123456789\r\n", 1), Line::Number(1_234_567_890_123_456_789, 22));
        for partial in [&b"*"[..], b"*1", b"*1\r", b"*-", b"*x"] {
            assert_eq!(number_line(partial, 1), Line::Partial, "{partial:?}");
        }
        for malformed in [&b"*\r\n"[..], b"*x\r\n", b"*01\r\n", b"*1 \r\n", b"*+1\r\n"] {
            assert_eq!(number_line(malformed, 1), Line::Malformed, "{malformed:?}");
        }
        assert_eq!(number_line(b"", 1), Line::Partial);
    }
}
