//! Where does a node's next reply end? One counter finds the end, whatever the nesting.

use super::number::decimal;

/// Longest line of a reply: an error, a simple string, a number. Redis's own are far shorter; a script's
/// error is bounded by what Redis puts into one line.
const MAX_LINE: usize = 1 << 20;
/// Longest bulk that is accepted: the longest that Redis can be configured to send.
const MAX_BULK: i64 = 4 << 30;

/// The type of a reply, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `+`
    Simple,
    /// `-`
    Error,
    /// `:`
    Integer,
    /// `$`
    Bulk,
    /// `*`
    Array,
    /// `_`
    Null,
    /// `#`
    Boolean,
    /// `,`
    Double,
    /// `(`
    BigNumber,
    /// `!`
    BulkError,
    /// `=`
    Verbatim,
    /// `%`
    Map,
    /// `~`
    Set,
    /// `>`: not a reply to a request.
    Push,
    /// `|`: precedes the reply that it belongs to.
    Attribute,
}

impl Form {
    /// The form for a first byte.
    #[must_use]
    #[inline]
    pub fn of(first: u8) -> Option<Form> {
        Some(match first {
            b'+' => Form::Simple,
            b'-' => Form::Error,
            b':' => Form::Integer,
            b'$' => Form::Bulk,
            b'*' => Form::Array,
            b'_' => Form::Null,
            b'#' => Form::Boolean,
            b',' => Form::Double,
            b'(' => Form::BigNumber,
            b'!' => Form::BulkError,
            b'=' => Form::Verbatim,
            b'%' => Form::Map,
            b'~' => Form::Set,
            b'>' => Form::Push,
            b'|' => Form::Attribute,
            _ => return None,
        })
    }

    /// Whether it is an error.
    #[must_use]
    pub fn is_error(self) -> bool {
        matches!(self, Form::Error | Form::BulkError)
    }
}

/// Bytes that no Redis sends: the connection is out of sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// The first byte of a reply is unknown.
    #[error("a reply cannot begin with byte {0:#04x}")]
    UnknownForm(u8),
    /// A count or length is not a number, or out of range.
    #[error("a reply has an impossible length")]
    InvalidLength,
    /// A line without `\r\n` at its end.
    #[error("a line of a reply does not end with a carriage return and a line feed")]
    InvalidLine,
    /// A line that is too long.
    #[error("a line of a reply has more than {MAX_LINE} bytes")]
    EndlessLine,
}

/// Finds the ends of consecutive replies. It keeps its position between calls; its memory does not grow with
/// the size or nesting of a reply.
#[derive(Debug)]
pub struct ReplyScanner {
    /// Values that must end before the reply does.
    missing: u64,
    /// Where the next value begins; may lie beyond the received bytes.
    at: usize,
    /// No line end before this position.
    searched: usize,
}

impl Default for ReplyScanner {
    fn default() -> ReplyScanner {
        ReplyScanner { missing: 1, at: 0, searched: 0 }
    }
}

impl ReplyScanner {
    /// The length of the reply at the start of `buffer`, if it is complete. If it is not, call again with the
    /// same bytes and more; afterwards, with the bytes that follow it.
    #[inline]
    pub fn scan(&mut self, buffer: &[u8]) -> Result<Option<usize>, BadReply> {
        while self.missing > 0 {
            let Some(first) = buffer.get(self.at) else { return Ok(None) };
            let form = Form::of(*first).ok_or(BadReply::UnknownForm(*first))?;
            let Some(line) = self.line(buffer)? else { return Ok(None) };
            self.value(form, line, &buffer[self.at + 1..line - 2])?;
        }
        if self.at > buffer.len() {
            return Ok(None);
        }
        let len = self.at;
        *self = ReplyScanner::default();
        Ok(Some(len))
    }

    /// Drops the first `len` bytes of the buffer, which were passed on: streams a long reply through a short
    /// buffer.
    pub fn forget(&mut self, len: usize) {
        self.at = self.at.saturating_sub(len);
        self.searched = self.searched.saturating_sub(len);
    }

    /// Bytes at the start of the buffer that certainly belong to this reply, even if its end has not arrived.
    #[must_use]
    pub fn known(&self) -> usize {
        self.at
    }

    /// Where the line that begins at `at` ends, `\r\n` included.
    #[inline]
    fn line(&mut self, buffer: &[u8]) -> Result<Option<usize>, BadReply> {
        let from = self.searched.max(self.at + 1);
        let newline = memchr::memchr(b'\n', buffer.get(from..).unwrap_or_default());
        let end = newline.map_or(buffer.len(), |newline| from + newline + 1);
        if end - self.at > MAX_LINE {
            return Err(BadReply::EndlessLine);
        }
        match newline {
            Some(_) if end - self.at >= 3 && buffer[end - 2] == b'\r' => Ok(Some(end)),
            Some(_) => Err(BadReply::InvalidLine),
            None => {
                self.searched = end;
                Ok(None)
            }
        }
    }

    /// Accounts for a value whose first line is complete.
    #[inline]
    fn value(&mut self, form: Form, line_end: usize, text: &[u8]) -> Result<(), BadReply> {
        self.at = line_end;
        match form {
            Form::Simple
            | Form::Error
            | Form::Integer
            | Form::Null
            | Form::Boolean
            | Form::Double
            | Form::BigNumber => self.missing -= 1,
            Form::Bulk | Form::BulkError | Form::Verbatim => {
                self.missing -= 1;
                // -1 is the null of RESP2 and has no body.
                if let Some(len) = length(text, MAX_BULK)? {
                    self.at = line_end + len as usize + 2;
                }
            }
            Form::Array | Form::Set | Form::Push => self.expect(count(text)?, 1)?,
            Form::Map => self.expect(count(text)?.saturating_mul(2), 1)?,
            Form::Attribute => self.expect(count(text)?.saturating_mul(2), 0)?,
        }
        Ok(())
    }

    fn expect(&mut self, more: u64, done: u64) -> Result<(), BadReply> {
        self.missing = (self.missing - done).checked_add(more).ok_or(BadReply::InvalidLength)?;
        Ok(())
    }
}

/// A length, or `None` for -1.
pub(super) fn length(text: &[u8], most: i64) -> Result<Option<u64>, BadReply> {
    match decimal(text) {
        Some(-1) => Ok(None),
        Some(len) if (0..=most).contains(&len) => Ok(Some(len as u64)),
        _ => Err(BadReply::InvalidLength),
    }
}

/// The number of values in an aggregate; zero for a null array.
pub(super) fn count(text: &[u8]) -> Result<u64, BadReply> {
    Ok(length(text, i64::from(u32::MAX))?.unwrap_or(0))
}
