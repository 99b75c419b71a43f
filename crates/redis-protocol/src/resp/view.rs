//! What does a complete reply contain? One level of it, borrowed: for merging or reading replies, not for
//! forwarding them.

use super::number::decimal;
use super::reply::{Form, ReplyScanner};

/// A reply, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum View<'a> {
    /// `+OK`, big numbers and doubles: text on a line.
    Text(&'a [u8]),
    /// An error, with its code.
    Error(&'a [u8]),
    /// A number; a boolean is 0 or 1.
    Integer(i64),
    /// Bytes; for a verbatim string without its three-letter format.
    Bulk(&'a [u8]),
    /// Null, in any of its encodings.
    Null,
    /// Array, set or push, or a map with keys and values in turn.
    Sequence(Children<'a>),
}

impl<'a> View<'a> {
    /// The reply at the start of `reply`. `None` if it is incomplete or invalid.
    #[must_use]
    pub fn of(reply: &'a [u8]) -> Option<View<'a>> {
        let form = Form::of(*reply.first()?)?;
        let end = memchr::memchr(b'\n', reply)?;
        let text = reply.get(1..end)?.strip_suffix(b"\r")?;
        let body = &reply[end + 1..];
        Some(match form {
            Form::Simple | Form::Double | Form::BigNumber => View::Text(text),
            Form::Error => View::Error(text),
            Form::Integer => View::Integer(decimal(text)?),
            Form::Boolean => View::Integer(i64::from(text == b"t")),
            Form::Null => View::Null,
            Form::Bulk => bulk(text, body)?.map_or(View::Null, View::Bulk),
            Form::BulkError => View::Error(bulk(text, body)??),
            Form::Verbatim => View::Bulk(bulk(text, body)??.get(4..)?),
            Form::Array | Form::Set | Form::Push => sequence(text, body, 1)?,
            Form::Map => sequence(text, body, 2)?,
            Form::Attribute => {
                let View::Sequence(mut children) = sequence(text, body, 2)? else { return None };
                children.by_ref().for_each(drop);
                View::of(children.rest)?
            }
        })
    }

    /// The bytes of a bulk or text.
    #[must_use]
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            View::Text(bytes) | View::Bulk(bytes) => Some(bytes),
            View::Error(_) | View::Integer(_) | View::Null | View::Sequence(_) => None,
        }
    }

    /// The number.
    #[must_use]
    pub fn integer(self) -> Option<i64> {
        match self {
            View::Integer(number) => Some(number),
            View::Text(_) | View::Error(_) | View::Bulk(_) | View::Null | View::Sequence(_) => None,
        }
    }

    /// The elements.
    #[must_use]
    pub fn sequence(self) -> Option<Children<'a>> {
        match self {
            View::Sequence(children) => Some(children),
            View::Text(_) | View::Error(_) | View::Integer(_) | View::Bulk(_) | View::Null => None,
        }
    }
}

/// The body of a bulk; `Some(None)` is the RESP2 null.
fn bulk<'a>(text: &[u8], body: &'a [u8]) -> Option<Option<&'a [u8]>> {
    match decimal(text)? {
        -1 => Some(None),
        len => Some(Some(body.get(..usize::try_from(len).ok()?)?)),
    }
}

fn sequence<'a>(text: &[u8], body: &'a [u8], each: usize) -> Option<View<'a>> {
    match decimal(text)? {
        -1 => Some(View::Null),
        count => {
            let count = usize::try_from(count).ok()?.checked_mul(each)?;
            Some(View::Sequence(Children { left: count, rest: body }))
        }
    }
}

/// The elements of an aggregate, each as its raw bytes, which are a frame of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Children<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Children<'a> {
    /// The number of remaining elements.
    #[must_use]
    pub fn count_left(&self) -> usize {
        self.left
    }

    /// The bytes of all remaining elements, and whatever follows the reply.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.rest
    }

    /// The elements as views.
    pub fn views(self) -> impl Iterator<Item = View<'a>> {
        self.filter_map(View::of)
    }
}

impl<'a> Iterator for Children<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let len = ReplyScanner::default().scan(self.rest).ok()??;
        let (child, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(child)
    }
}
