//! What about clients that send their endpoint with its scheme where only a host belongs?
//!
//! Some commands of etcdctl 3.4 (`endpoint status`, `endpoint hashkv`, `defrag`, `move-leader`) put `http://host:port` into
//! `:authority` when the endpoint is written so. Etcd takes it; HTTP/2 implementations that parse the field refuse the call.
//! Nothing here depends on the field. So, before the connection is parsed, the three characters `://` of such a value are
//! overwritten by three that may stand in a host name and that are as long, plain and Huffman-coded: lengths, and with them
//! the state of header compression, stay as they are.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// Longer header frames pass unread: we tell clients not to send them.
const MAX_HEADERS: usize = 64 << 10;
/// Read at once.
const CHUNK: usize = 16 << 10;
/// The place of `:authority` in the static table of header compression.
const AUTHORITY: usize = 1;

/// A connection whose header frames are looked at on their way in.
pub(super) struct Lenient<IO> {
    io: IO,
    scanner: Scanner,
    /// Read and not handed on; the first `ready` bytes may be. At most a header frame and what was read with it.
    held: Vec<u8>,
    ready: usize,
}

impl<IO> Lenient<IO> {
    pub(super) fn new(io: IO) -> Lenient<IO> {
        Lenient { io, scanner: Scanner::Preface, held: Vec::new(), ready: 0 }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Lenient<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Lenient { io, scanner, held, ready } = &mut *self;
        loop {
            if *ready > 0 {
                let some = (*ready).min(buf.remaining());
                buf.put_slice(&held[..some]);
                held.drain(..some);
                *ready -= some;
                return Poll::Ready(Ok(()));
            }
            if *scanner == Scanner::Other && held.is_empty() {
                return Pin::new(io).poll_read(cx, buf);
            }
            let mut chunk = [0; CHUNK];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut *io).poll_read(cx, &mut read))?;
            let ended = read.filled().is_empty();
            held.extend_from_slice(read.filled());
            // At its end a connection is what it is.
            *ready = if ended { held.len() } else { scanner.advance(held) };
            if ended && *ready == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Lenient<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Where in a connection the next byte stands.
#[derive(Debug, PartialEq, Eq)]
enum Scanner {
    Preface,
    /// So many bytes are left of a frame that is not looked at.
    Frame {
        left: usize,
    },
    /// It is not HTTP/2.
    Other,
}

impl Scanner {
    /// Looks at what is held, and says how many bytes of it may be handed on. What is not is the beginning of something
    /// that is not complete.
    fn advance(&mut self, held: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let rest = &mut held[at..];
            match self {
                Scanner::Other => return held.len(),
                Scanner::Preface => {
                    let known = rest.len().min(PREFACE.len());
                    if rest[..known] != PREFACE[..known] {
                        *self = Scanner::Other;
                    } else if known < PREFACE.len() {
                        return at;
                    } else {
                        at += known;
                        *self = Scanner::Frame { left: 0 };
                    }
                }
                Scanner::Frame { left: 0 } => {
                    let Some((header, payload)) = rest.split_at_mut_checked(FRAME_HEADER) else { return at };
                    let len =
                        usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
                    if header[3] != HEADERS || len > MAX_HEADERS {
                        at += FRAME_HEADER;
                        *self = Scanner::Frame { left: len };
                    } else if payload.len() < len {
                        return at;
                    } else {
                        look_at_headers(&mut payload[..len], header[4]);
                        at += FRAME_HEADER + len;
                    }
                    if at == held.len() {
                        return at;
                    }
                }
                Scanner::Frame { left } => {
                    let some = (*left).min(rest.len());
                    *left -= some;
                    at += some;
                    if at == held.len() {
                        return at;
                    }
                }
            }
        }
    }
}

/// Goes through a block of headers, as far as it is understood.
fn look_at_headers(payload: &mut [u8], flags: u8) {
    let mut at = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    while let Some(next) = look_at_header(payload, at) {
        at = next;
    }
}

/// Looks at one header, and says where the next one begins.
fn look_at_header(block: &mut [u8], at: usize) -> Option<usize> {
    let first = *block.get(at)?;
    let (bits, literal) = match first {
        0x80.. => (7, false),
        0x40.. => (6, true),
        0x20.. => (5, false),
        _ => (4, true),
    };
    let (index, mut at) = number(block, at, bits)?;
    if !literal {
        return Some(at);
    }
    if index == 0 {
        let (len, value) = number(block, at, 7)?;
        at = value.checked_add(len)?;
    }
    let coded = *block.get(at)? & 0x80 != 0;
    let (len, value) = number(block, at, 7)?;
    let end = value.checked_add(len)?;
    let text = block.get_mut(value..end)?;
    if index == AUTHORITY {
        if coded { overwrite_coded(text) } else { overwrite_plain(text) }
    }
    Some(end)
}

/// A number of header compression, and where it ends.
fn number(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1_usize << bits) - 1;
    let first = usize::from(*block.get(at)?) & most;
    if first < most {
        return Some((first, at + 1));
    }
    let (mut number, mut at, mut shift) = (most, at + 1, 0);
    loop {
        let byte = *block.get(at)?;
        // Four more bytes are more than any frame is long.
        if shift > 21 {
            return None;
        }
        number += usize::from(byte & 0x7f) << shift;
        at += 1;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some((number, at));
        }
    }
}

fn overwrite_plain(text: &mut [u8]) {
    for scheme in [&b"http://"[..], b"https://"] {
        if text.starts_with(scheme) {
            text[scheme.len() - 3..scheme.len()].copy_from_slice(b"z--");
        }
    }
}

/// Huffman codes of the characters that matter: bits and how many.
const HTTP: [(u64, u32); 4] = [(0x27, 6), (0x9, 5), (0x9, 5), (0x2b, 6)];
const S: (u64, u32) = (0x8, 5);
/// `://`
const SEPARATOR: [(u64, u32); 3] = [(0x5c, 7), (0x18, 6), (0x18, 6)];
/// `z--`
const INSTEAD: [(u64, u32); 3] = [(0x7b, 7), (0x16, 6), (0x16, 6)];

fn overwrite_coded(text: &mut [u8]) {
    for scheme in [HTTP.to_vec(), [&HTTP[..], &[S]].concat()] {
        let (before, len) = joined(&[&scheme[..], &SEPARATOR].concat());
        let (after, _) = joined(&[&scheme[..], &INSTEAD].concat());
        let Some(begin) = text.first_chunk_mut::<8>() else { continue };
        let bits = u64::from_be_bytes(*begin);
        if bits >> (64 - len) == before {
            let rest = bits & (u64::MAX >> len);
            *begin = (after << (64 - len) | rest).to_be_bytes();
        }
    }
}

/// Codes one behind the other, and how many bits they have.
fn joined(codes: &[(u64, u32)]) -> (u64, u32) {
    codes.iter().fold((0, 0), |(bits, len), (code, more)| (bits << more | code, len + more))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `http://127.0.0.1:2379` as Go's encoder writes it.
    const CODED: &[u8] =
        &[0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x04, 0x4e, 0xae, 0x05, 0xc0, 0xb8, 0x6e, 0x09, 0x97, 0x5f];

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, (payload.len() >> 8) as u8, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn literal(first: u8, text: &[u8], coded: bool) -> Vec<u8> {
        [&[first, text.len() as u8 | if coded { 0x80 } else { 0 }], text].concat()
    }

    /// What comes out, read in pieces of some length.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut scanner, mut held, mut out) = (Scanner::Preface, Vec::new(), Vec::new());
        for some in bytes.chunks(piece) {
            held.extend_from_slice(some);
            let ready = scanner.advance(&mut held);
            out.extend(held.drain(..ready));
        }
        out.extend(held);
        out
    }

    #[test]
    fn a_scheme_is_overwritten_wherever_the_connection_is_cut() {
        let plain = literal(0x41, b"http://127.0.0.1:2379", false);
        let before = [
            PREFACE.to_vec(),
            frame(4, 0, &[0; 12]),
            frame(HEADERS, 4, &[&[0x83, 0x86][..], &plain, &literal(0x40, b"name", false)].concat()),
            frame(0, 1, &frame(HEADERS, 4, &plain)),
            frame(HEADERS, 4 | PADDED | PRIORITY, &[&[0, 0, 0, 0, 0, 16][..], &plain].concat()),
        ]
        .concat();
        let shown = passed(&before, before.len());
        assert_eq!(shown.len(), before.len());
        let hits =
            |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).filter(|window| *window == what).count();
        assert_eq!(hits(&shown, b"httpz--127.0.0.1:2379"), 2);
        assert_eq!(hits(&shown, b"http://127.0.0.1:2379"), 1, "data is not looked at");
        for piece in 1..40 {
            assert_eq!(passed(&before, piece), shown, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_coded_scheme_is_overwritten_bit_by_bit() {
        let mut text = CODED.to_vec();
        overwrite_coded(&mut text);
        let (bits, len) = joined(&[&HTTP[..], &INSTEAD].concat());
        assert_eq!(u64::from_be_bytes(text[..8].try_into().unwrap()) >> (64 - len), bits);
        let before = u64::from_be_bytes(CODED[..8].try_into().unwrap());
        let after = u64::from_be_bytes(text[..8].try_into().unwrap());
        assert_eq!(before & (u64::MAX >> len), after & (u64::MAX >> len), "the rest stays");
        assert_eq!(text[8..], CODED[8..]);
    }

    #[test]
    fn what_is_not_http2_and_what_is_damaged_passes_unchanged() {
        let old = b"GET /health HTTP/1.1\r\nhost: http://x\r\n\r\n".to_vec();
        assert_eq!(passed(&old, 7), old);
        let cut = [PREFACE.to_vec(), frame(HEADERS, 4, &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff])].concat();
        assert_eq!(passed(&cut, 5), cut);
        let short = [PREFACE.to_vec(), frame(HEADERS, 4, &[0x41, 0x50, b'h'])].concat();
        assert_eq!(passed(&short, 3), short);
        assert_eq!(passed(&short[..short.len() - 1], 3), short[..short.len() - 1]);
    }
}
