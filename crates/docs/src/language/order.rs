//! How do two values compare? By one byte encoding, which is also the order of index keys and ids.
//!
//! Types come in BSON's order: MinKey, null, numbers (together), strings, objects, arrays, binary, ObjectId, booleans,
//! dates, timestamps, regular expressions, MaxKey. Numerically equal numbers have equal encodings, whatever their type.

use std::cmp::Ordering;

use bson::{Bson, Document};

/// The first byte of every encoding, by type.
mod rank {
    pub(super) const MIN: u8 = 0x01;
    pub(super) const NULL: u8 = 0x05;
    pub(super) const NUMBER: u8 = 0x10;
    pub(super) const STRING: u8 = 0x20;
    pub(super) const OBJECT: u8 = 0x30;
    pub(super) const ARRAY: u8 = 0x38;
    pub(super) const BINARY: u8 = 0x40;
    pub(super) const OBJECT_ID: u8 = 0x48;
    pub(super) const BOOL: u8 = 0x50;
    pub(super) const DATE: u8 = 0x58;
    pub(super) const TIMESTAMP: u8 = 0x60;
    pub(super) const REGEX: u8 = 0x68;
    pub(super) const OTHER: u8 = 0x70;
    pub(super) const MAX: u8 = 0xf0;
}

/// Ends a sequence of elements; below every rank.
const END: u8 = 0x00;

/// The bytes by which a value is ordered. Self-delimiting: what follows does not change the order.
#[must_use]
pub fn sort_key(value: &Bson) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    push(value, &mut out);
    out
}

/// The length of the first encoded value; nothing if it is not one. Objects, arrays and binary are not read: they stand
/// in no index.
#[must_use]
pub(crate) fn encoded_len(bytes: &[u8]) -> Option<usize> {
    let rest = bytes.get(1..)?;
    let length = match *bytes.first()? {
        rank::MIN | rank::MAX | rank::NULL => 0,
        rank::NUMBER => 10,
        rank::STRING | rank::OTHER => text_len(rest)?,
        rank::REGEX => {
            let pattern = text_len(rest)?;
            pattern + text_len(rest.get(pattern..)?)?
        }
        rank::OBJECT_ID => 12,
        rank::BOOL => 1,
        rank::DATE | rank::TIMESTAMP => 8,
        _ => return None,
    };
    (length <= rest.len()).then_some(length + 1)
}

/// The text or the number that an encoding stands for; nothing for other types.
#[must_use]
pub(crate) fn text_of_key(bytes: &[u8]) -> Option<Bson> {
    let rest = bytes.get(1..)?;
    match *bytes.first()? {
        rank::STRING => {
            let length = text_len(rest)?;
            let mut text = Vec::with_capacity(length);
            let mut escaped = rest.get(..length - 2)?.iter();
            while let Some(byte) = escaped.next() {
                text.push(*byte);
                if *byte == 0 {
                    escaped.next();
                }
            }
            String::from_utf8(text).ok().map(Bson::String)
        }
        rank::NUMBER => {
            let (ordered, rest) = rest.split_at_checked(8)?;
            let ordered = u64::from_be_bytes(ordered.try_into().ok()?);
            let bits = if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered };
            let number = f64::from_bits(bits);
            let beyond = u16::from_be_bytes(rest.get(..2)?.try_into().ok()?) ^ 0x8000;
            let whole = number as i128 + i128::from(beyond as i16);
            let is_whole = number.fract() == 0.0 && i64::try_from(whole).is_ok();
            Some(if is_whole { Bson::Int64(i64::try_from(whole).ok()?) } else { Bson::Double(number) })
        }
        _ => None,
    }
}

fn text_len(bytes: &[u8]) -> Option<usize> {
    let ends = bytes.windows(2).enumerate().filter(|(_, pair)| pair[0] == 0);
    ends.into_iter().find(|(_, pair)| pair[1] == END).map(|(at, _)| at + 2)
}

/// Compares two values.
#[must_use]
pub fn compare(one: &Bson, other: &Bson) -> Ordering {
    match (one, other) {
        (Bson::String(one), Bson::String(other)) => one.as_bytes().cmp(other.as_bytes()),
        (Bson::Int32(one), Bson::Int32(other)) => one.cmp(other),
        (Bson::Int64(one), Bson::Int64(other)) => one.cmp(other),
        (one, other) => sort_key(one).cmp(&sort_key(other)),
    }
}

/// Whether two values are of the same kind, so that `$gt` and its relatives apply.
pub(super) fn is_comparable(one: &Bson, other: &Bson) -> bool {
    rank_of(one) == rank_of(other)
}

fn rank_of(value: &Bson) -> u8 {
    match value {
        Bson::MinKey => rank::MIN,
        Bson::Null | Bson::Undefined => rank::NULL,
        Bson::Double(_) | Bson::Int32(_) | Bson::Int64(_) | Bson::Decimal128(_) => rank::NUMBER,
        Bson::String(_) | Bson::Symbol(_) => rank::STRING,
        Bson::Document(_) => rank::OBJECT,
        Bson::Array(_) => rank::ARRAY,
        Bson::Binary(_) => rank::BINARY,
        Bson::ObjectId(_) => rank::OBJECT_ID,
        Bson::Boolean(_) => rank::BOOL,
        Bson::DateTime(_) => rank::DATE,
        Bson::Timestamp(_) => rank::TIMESTAMP,
        Bson::RegularExpression(_) => rank::REGEX,
        Bson::JavaScriptCode(_) | Bson::JavaScriptCodeWithScope(_) | Bson::DbPointer(_) => rank::OTHER,
        Bson::MaxKey => rank::MAX,
    }
}

fn push(value: &Bson, out: &mut Vec<u8>) {
    out.push(rank_of(value));
    match value {
        Bson::MinKey | Bson::MaxKey | Bson::Null | Bson::Undefined => {}
        Bson::Double(number) => push_double(*number, 0, out),
        Bson::Int32(number) => push_double(f64::from(*number), 0, out),
        Bson::Int64(number) => push_long(*number, out),
        Bson::Decimal128(number) => push_double(number.to_string().parse().unwrap_or(f64::NAN), 0, out),
        Bson::String(text) | Bson::Symbol(text) => push_text(text.as_bytes(), out),
        Bson::Document(document) => push_document(document, out),
        Bson::Array(items) => {
            items.iter().for_each(|item| push(item, out));
            out.push(END);
        }
        Bson::Binary(binary) => {
            out.extend(u32::try_from(binary.bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.push(u8::from(binary.subtype));
            out.extend(&binary.bytes);
        }
        Bson::ObjectId(id) => out.extend(id.bytes()),
        Bson::Boolean(flag) => out.push(u8::from(*flag)),
        Bson::DateTime(date) => out.extend(ordered(date.timestamp_millis()).to_be_bytes()),
        Bson::Timestamp(stamp) => {
            out.extend(stamp.time.to_be_bytes());
            out.extend(stamp.increment.to_be_bytes());
        }
        Bson::RegularExpression(regex) => {
            push_text(regex.pattern.as_str().as_bytes(), out);
            push_text(regex.options.as_str().as_bytes(), out);
        }
        Bson::JavaScriptCode(_) | Bson::JavaScriptCodeWithScope(_) | Bson::DbPointer(_) => {
            push_text(value.to_string().as_bytes(), out);
        }
    }
}

fn push_document(document: &Document, out: &mut Vec<u8>) {
    for (name, value) in document {
        push(value, out);
        push_text(name.as_bytes(), out);
    }
    out.push(END);
}

/// A number that a double cannot hold exactly differs from the nearest one by a little, which comes behind it.
fn push_long(number: i64, out: &mut Vec<u8>) {
    let nearest = number as f64;
    let rest = i128::from(number) - nearest as i128;
    push_double(nearest, i16::try_from(rest).unwrap_or(0), out);
}

fn push_double(number: f64, rest: i16, out: &mut Vec<u8>) {
    let number = if number == 0.0 { 0.0 } else { number };
    let bits = if number.is_nan() { 0 } else { number.to_bits() };
    // Negative numbers grow downwards; NaN comes before every number.
    let ordered = match (number.is_nan(), bits >> 63) {
        (true, _) => 0,
        (false, 0) => bits | (1 << 63),
        (false, _) => !bits,
    };
    out.extend(ordered.to_be_bytes());
    out.extend((rest as u16 ^ 0x8000).to_be_bytes());
}

fn ordered(number: i64) -> u64 {
    (number as u64) ^ (1 << 63)
}

/// Text may contain zeros, which are escaped; its end is below everything that could follow.
fn push_text(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
    out.extend([0, END]);
}

#[cfg(test)]
mod tests {
    use bson::{bson, doc};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_read_from_their_encodings() {
        for id in [
            bson!("ab12"),
            bson!(""),
            bson!("a\0b"),
            bson!(7_i64),
            bson!(-3_i64),
            bson!(i64::MAX),
            bson!(2.5),
        ] {
            let encoded = [sort_key(&id), b"behind".to_vec()].concat();
            assert_eq!(text_of_key(&encoded), Some(id));
        }
        assert_eq!(text_of_key(&sort_key(&Bson::Null)), None);
    }

    #[test]
    fn types_and_values_are_in_order() {
        let ascending = [
            Bson::MinKey,
            Bson::Null,
            bson!(f64::NEG_INFINITY),
            bson!(i64::MIN),
            bson!(-1.5),
            bson!(-1),
            bson!(0),
            bson!(0.5),
            bson!(1),
            bson!(i64::MAX - 1),
            bson!(i64::MAX),
            bson!(f64::INFINITY),
            bson!(""),
            bson!("a"),
            bson!("a\0"),
            bson!("aa"),
            bson!("b"),
            Bson::Document(doc! {}),
            Bson::Document(doc! { "a": 1 }),
            Bson::Document(doc! { "a": 2 }),
            bson!([]),
            bson!([1]),
            bson!([1, 2]),
            bson!([2]),
            bson!(false),
            bson!(true),
            Bson::DateTime(bson::DateTime::from_millis(-5)),
            Bson::DateTime(bson::DateTime::from_millis(5)),
            Bson::MaxKey,
        ];
        for pair in ascending.windows(2) {
            assert_eq!(compare(&pair[0], &pair[1]), Ordering::Less, "{} < {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn equal_numbers_are_equal_whatever_their_type() {
        for number in [0, 1, -7, 1 << 40] {
            let double = Bson::Double(number as f64);
            assert_eq!(compare(&Bson::Int64(number), &double), Ordering::Equal);
        }
        assert_eq!(sort_key(&Bson::Double(-0.0)), sort_key(&Bson::Int32(0)));
    }

    proptest! {
        #[test]
        fn the_encoding_keeps_the_order_of_numbers_and_text(a: i64, b: i64, s: String, t: String, x: f64) {
            prop_assert_eq!(compare(&Bson::Int64(a), &Bson::Int64(b)), sort_key(&Bson::Int64(a)).cmp(&sort_key(&Bson::Int64(b))));
            prop_assert_eq!(s.as_bytes().cmp(t.as_bytes()), sort_key(&Bson::String(s)).cmp(&sort_key(&Bson::String(t))));
            let small = i32::try_from(a % 1_000_000).unwrap_or(0);
            prop_assert_eq!(f64::from(small).partial_cmp(&x), Some(compare(&Bson::Int32(small), &Bson::Double(x))));
        }
    }
}
