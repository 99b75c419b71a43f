//! What did a client ask? The bytes as they came, and where the arguments lie in them.

use crate::data::resp::Span;

/// A complete command: borrowed from the buffer that it was read into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    raw: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Request<'a> {
    pub(super) fn new(raw: &'a [u8], spans: &'a [Span]) -> Request<'a> {
        Request { raw, spans }
    }

    /// The whole frame, to be passed on.
    pub(super) fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Number of arguments, the command's name included.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// An argument; empty where there is none.
    #[inline]
    pub(super) fn arg(&self, index: usize) -> &'a [u8] {
        self.spans.get(index).map_or(&[], |span| span.of(self.raw))
    }

    /// The arguments from an index on.
    pub(super) fn args(&self, from: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let raw = self.raw;
        self.spans.get(from..).unwrap_or_default().iter().map(move |span| span.of(raw))
    }

    /// Whether an argument is this word, in any case.
    pub(super) fn is(&self, index: usize, word: &str) -> bool {
        self.arg(index).eq_ignore_ascii_case(word.as_bytes())
    }
}
