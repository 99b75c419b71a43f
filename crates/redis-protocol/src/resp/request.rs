//! Where does a client's next request end, and where in it are its arguments?

use smallvec::SmallVec;

use super::inline;
use super::number::{Line, number_line};
use super::write::write_request;

/// Arguments that need no allocation: enough for `SET key value EX 10` and almost every other command.
const FEW_ARGUMENTS: usize = 8;
/// Most arguments of a request before authentication.
const UNAUTHENTICATED_ARGUMENTS: i64 = 10;
/// Longest argument before authentication, in bytes.
const UNAUTHENTICATED_BULK: i64 = 16 * 1024;

/// The position of an argument, relative to the first byte of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The argument, in the buffer that begins with its request. Empty for a buffer that is too short.
    #[must_use]
    #[inline]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.start()..self.end()).unwrap_or_default()
    }

    /// Its first byte.
    #[must_use]
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// The byte after its last.
    #[must_use]
    pub fn end(self) -> usize {
        self.start as usize + self.len as usize
    }
}

/// The arguments of a request, its command first.
pub type Arguments = SmallVec<[Span; FEW_ARGUMENTS]>;

/// A complete request: its bytes, and the positions of its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    bytes: &'a [u8],
    arguments: &'a [Span],
}

impl<'a> Request<'a> {
    /// The request at the start of these bytes.
    #[must_use]
    #[inline]
    pub fn new(bytes: &'a [u8], arguments: &'a [Span]) -> Request<'a> {
        Request { bytes, arguments }
    }

    /// The number of arguments, the command included.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a request without a command is skipped")]
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// An argument; the command is number 0. Empty if it is missing: no command distinguishes the two.
    #[must_use]
    #[inline]
    pub fn argument(&self, index: usize) -> &'a [u8] {
        self.arguments.get(index).map_or(&[], |span| span.of(self.bytes))
    }

    /// The request without its first arguments.
    #[must_use]
    pub fn tail(&self, from: usize) -> Request<'a> {
        Request { bytes: self.bytes, arguments: self.arguments.get(from..).unwrap_or_default() }
    }

    /// All of its bytes as received, for forwarding.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether an argument equals this word, case-insensitive.
    #[must_use]
    #[inline]
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.argument(index).eq_ignore_ascii_case(word.as_bytes())
    }

    /// The arguments from the `index`-th on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        self.arguments.iter().skip(index).map(move |span| span.of(bytes))
    }
}

/// Whether the client has authenticated, where it is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Authenticated: it may send what the limits allow.
    Authenticated,
    /// Not authenticated: it may send enough for `AUTH` and `HELLO`.
    Unauthenticated,
}

/// Limits for requests; the defaults are Redis's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most arguments of a request.
    pub arguments: u32,
    /// Longest argument in bytes (`proto-max-bulk-len`).
    pub bulk: u32,
    /// Longest inline request, and longest line with a number, in bytes.
    pub inline: u32,
    /// Longest request in bytes (`client-query-buffer-limit`). Positions in a request are 32 bits wide.
    pub frame: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { arguments: i32::MAX as u32, bulk: 512 << 20, inline: 64 << 10, frame: 1 << 30 }
    }
}

/// A request that violates the protocol. The text is Redis's own; the connection is closed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*` without a number, or too many arguments.
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// Too many arguments for a client that has not authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// A count line that is too long.
    #[error("Protocol error: too big mbulk count string")]
    EndlessCount,
    /// An argument that does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", printable(*.0))]
    NotABulk(u8),
    /// `$` without a number, or too long an argument.
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// Too long an argument for a client that has not authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
    /// A length line that is too long.
    #[error("Protocol error: too big bulk count string")]
    EndlessLength,
    /// An inline request that is too long.
    #[error("Protocol error: too big inline request")]
    EndlessInline,
    /// Quotes in an inline request do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The request is longer than allowed. (Redis closes the connection without a reply.)
    #[error("Protocol error: too big request")]
    EndlessRequest,
}

/// Error lines cannot contain line ends; Redis writes a space instead.
fn printable(byte: u8) -> char {
    if matches!(byte, b'\r' | b'\n') { ' ' } else { char::from(byte) }
}

/// The result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Its end has not arrived; parsing again makes sense once the buffer has this many bytes.
    Incomplete {
        /// Bytes from the beginning of the request.
        at_least: usize,
    },
    /// It has this many bytes; its arguments are positions in them. Without arguments: skip it without a
    /// reply.
    Complete(usize),
    /// An inline request of `len` bytes.
    Inline {
        /// Bytes to drop from the buffer.
        len: usize,
        /// The same request as an array of bulks; the arguments are positions in this.
        rewritten: Vec<u8>,
    },
}

/// Finds the consecutive requests of one connection. It keeps its position between calls, so that a request
/// that arrives in many pieces is not parsed from its beginning again.
#[derive(Debug)]
pub struct RequestParser {
    limits: Limits,
    arguments: Arguments,
    /// Where the next line begins.
    at: usize,
    /// Arguments still to come; `None` before the first line is parsed.
    missing: Option<u32>,
    /// No line end before this position.
    searched: usize,
}

impl RequestParser {
    /// A parser at the beginning of a connection.
    #[must_use]
    pub fn new(limits: Limits) -> RequestParser {
        RequestParser { limits, arguments: Arguments::new(), at: 0, missing: None, searched: 0 }
    }

    /// The arguments of the last complete request.
    #[must_use]
    #[inline]
    pub fn arguments(&self) -> &[Span] {
        &self.arguments
    }

    /// Searches for the end of the request at the start of `buffer`. While it is incomplete, call again with
    /// the same bytes and more; once it is complete, with the bytes that follow it. An error resets the
    /// parser: the next use must not inherit the state of an invalid request.
    pub fn parse(&mut self, buffer: &[u8], trust: Trust) -> Result<Parsed, ProtocolError> {
        let Some(first) = buffer.first() else { return Ok(Parsed::Incomplete { at_least: 1 }) };
        let parsed = if *first == b'*' { self.parse_bulks(buffer, trust) } else { self.parse_inline(buffer) };
        if parsed.is_err() {
            self.start_over();
        }
        parsed
    }

    fn parse_bulks(&mut self, buffer: &[u8], trust: Trust) -> Result<Parsed, ProtocolError> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => match self.count(buffer, trust)? {
                Some(count) => count,
                None => return self.incomplete(buffer, buffer.len() + 1),
            },
        };
        while missing > 0 {
            let Some((start, end)) = self.bulk(buffer, trust)? else {
                self.missing = Some(missing);
                return self.incomplete(buffer, buffer.len() + 1);
            };
            if end + 2 > buffer.len() {
                self.missing = Some(missing);
                return self.incomplete(buffer, end + 2);
            }
            self.arguments.push(Span { start: start as u32, len: (end - start) as u32 });
            self.at = end + 2;
            missing -= 1;
        }
        let len = self.at;
        self.start_over();
        Ok(Parsed::Complete(len))
    }

    /// The number of arguments, if its line is complete; `at` is then after it.
    fn count(&mut self, buffer: &[u8], trust: Trust) -> Result<Option<u32>, ProtocolError> {
        self.arguments.clear();
        let (count, next) = match number_line(buffer, 1) {
            Line::Number(count, next) => (count, next),
            Line::Malformed => return Err(ProtocolError::InvalidCount),
            Line::Partial => return self.line_may_go_on(buffer, ProtocolError::EndlessCount),
        };
        if count > i64::from(self.limits.arguments) {
            return Err(ProtocolError::InvalidCount);
        }
        if trust == Trust::Unauthenticated && count > UNAUTHENTICATED_ARGUMENTS {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        self.at = next;
        // Negative counts are empty requests.
        Ok(Some(u32::try_from(count).unwrap_or(0)))
    }

    /// Where the next argument begins and ends, if the line before it is complete.
    #[inline]
    fn bulk(&mut self, buffer: &[u8], trust: Trust) -> Result<Option<(usize, usize)>, ProtocolError> {
        let Some(mark) = buffer.get(self.at) else { return Ok(None) };
        if *mark != b'$' {
            return self.not_a_bulk(buffer, *mark);
        }
        let line = number_line(buffer, self.at + 1);
        if line == Line::Partial {
            return self.line_may_go_on(buffer, ProtocolError::EndlessLength);
        }
        let Line::Number(len, start) = line else { return Err(ProtocolError::InvalidLength) };
        if len < 0 || len > i64::from(self.limits.bulk) {
            return Err(ProtocolError::InvalidLength);
        }
        if trust == Trust::Unauthenticated && len > UNAUTHENTICATED_BULK {
            return Err(ProtocolError::UnauthenticatedLength);
        }
        let end = start + len as usize;
        if end + 2 > self.limits.frame as usize {
            return Err(ProtocolError::EndlessRequest);
        }
        Ok(Some((start, end)))
    }

    /// As in Redis, reports the error once the line is complete.
    #[cold]
    fn not_a_bulk<T>(&self, buffer: &[u8], mark: u8) -> Result<Option<T>, ProtocolError> {
        match memchr::memchr(b'\r', &buffer[self.at..]) {
            Some(end) if buffer.len() >= self.at + end + 2 => Err(ProtocolError::NotABulk(mark)),
            _ => self.line_may_go_on(buffer, ProtocolError::EndlessLength),
        }
    }

    /// An unterminated line is an error once it is too long.
    fn line_may_go_on<T>(&self, buffer: &[u8], endless: ProtocolError) -> Result<Option<T>, ProtocolError> {
        if buffer.len() > self.at + self.limits.inline as usize { Err(endless) } else { Ok(None) }
    }

    fn parse_inline(&mut self, buffer: &[u8]) -> Result<Parsed, ProtocolError> {
        let limit = self.limits.inline as usize;
        let Some(newline) = memchr::memchr(b'\n', buffer.get(self.searched..).unwrap_or_default()) else {
            self.searched = buffer.len();
            if buffer.len() > limit {
                return Err(ProtocolError::EndlessInline);
            }
            return Ok(Parsed::Incomplete { at_least: buffer.len() + 1 });
        };
        let newline = self.searched + newline;
        let line = &buffer[..newline];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > limit {
            return Err(ProtocolError::EndlessInline);
        }
        let words = inline::words(line).ok_or(ProtocolError::UnbalancedQuotes)?;
        self.start_over();
        self.arguments.clear();
        if words.is_empty() {
            return Ok(Parsed::Complete(newline + 1));
        }
        Ok(Parsed::Inline { len: newline + 1, rewritten: self.rewrite(&words) })
    }

    fn rewrite(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut rewritten = Vec::new();
        write_request(&mut rewritten, words);
        let mut end = rewritten.len();
        for word in words.iter().rev() {
            let start = end - 2 - word.len();
            self.arguments.push(Span { start: start as u32, len: word.len() as u32 });
            end = start - bulk_header_len(word.len());
        }
        self.arguments.reverse();
        rewritten
    }

    fn incomplete(&self, buffer: &[u8], at_least: usize) -> Result<Parsed, ProtocolError> {
        if buffer.len() > self.limits.frame as usize {
            return Err(ProtocolError::EndlessRequest);
        }
        Ok(Parsed::Incomplete { at_least })
    }

    fn start_over(&mut self) {
        (self.at, self.missing, self.searched) = (0, None, 0);
    }
}

/// Bytes of `$<len>\r\n`.
fn bulk_header_len(len: usize) -> usize {
    len.checked_ilog10().unwrap_or(0) as usize + 1 + 3
}
