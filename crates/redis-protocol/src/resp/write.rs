//! How is a reply written? In the client's protocol: RESP3 has types for what RESP2 encodes as arrays, bulks
//! and integers.

use bytes::BufMut;

/// Digits of a `u64`, with a sign.
const MAX_DIGITS: usize = 20;

/// The protocol that a client chose with `HELLO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The initial protocol of every connection.
    #[default]
    Resp2,
    /// With maps, sets, pushes, nulls and so on.
    Resp3,
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub struct Writer<'a, B> {
    out: &'a mut B,
    protocol: Protocol,
}

impl<'a, B: BufMut> Writer<'a, B> {
    /// A writer for this protocol.
    pub fn new(out: &'a mut B, protocol: Protocol) -> Writer<'a, B> {
        Writer { out, protocol }
    }

    /// The protocol it writes.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Complete frames, as they are.
    pub fn raw(&mut self, frames: &[u8]) {
        self.out.put_slice(frames);
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.simple("OK");
    }

    /// `+text`; the text is our own and has no line end.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `-CODE text`; line ends in it become spaces, as in Redis.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.out.put_u8(b'-');
        for byte in text.as_ref() {
            self.out.put_u8(if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte });
        }
        self.out.put_slice(b"\r\n");
    }

    /// `:number`
    pub fn integer(&mut self, number: i64) {
        self.header(b':', number);
    }

    /// Bytes.
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.count(b'$', bytes.len());
        self.out.put_slice(bytes);
        self.out.put_slice(b"\r\n");
    }

    /// Human-readable text, such as `INFO`: RESP3 marks it as verbatim.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.count(b'=', text.len() + 4);
                self.out.put_slice(b"txt:");
                self.out.put_slice(text.as_bytes());
                self.out.put_slice(b"\r\n");
            }
        }
    }

    /// Null.
    pub fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.out.put_slice(b"$-1\r\n"),
            Protocol::Resp3 => self.out.put_slice(b"_\r\n"),
        }
    }

    /// Null in place of an array.
    pub fn null_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.out.put_slice(b"*-1\r\n"),
            Protocol::Resp3 => self.out.put_slice(b"_\r\n"),
        }
    }

    /// A boolean; 1 or 0 in RESP2.
    pub fn boolean(&mut self, yes: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(i64::from(yes)),
            Protocol::Resp3 => self.line(b'#', if yes { b"t" } else { b"f" }),
        }
    }

    /// A floating-point number.
    pub fn double(&mut self, number: f64) {
        let text = match number {
            number if number.is_nan() => "nan".to_owned(),
            f64::INFINITY => "inf".to_owned(),
            f64::NEG_INFINITY => "-inf".to_owned(),
            number => number.to_string(),
        };
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// Begins an array of `values` elements.
    pub fn array(&mut self, values: usize) {
        self.count(b'*', values);
    }

    /// Begins a map of `pairs` pairs.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.count(b'*', pairs * 2),
            Protocol::Resp3 => self.count(b'%', pairs),
        }
    }

    /// Begins a set of `values` elements.
    pub fn set(&mut self, values: usize) {
        match self.protocol {
            Protocol::Resp2 => self.count(b'*', values),
            Protocol::Resp3 => self.count(b'~', values),
        }
    }

    /// Begins a push message, which is not a reply to a request.
    pub fn push(&mut self, values: usize) {
        match self.protocol {
            Protocol::Resp2 => self.count(b'*', values),
            Protocol::Resp3 => self.count(b'>', values),
        }
    }

    fn count(&mut self, mark: u8, count: usize) {
        self.header(mark, i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn header(&mut self, mark: u8, number: i64) {
        put_number(self.out, mark, number);
    }

    fn line(&mut self, mark: u8, text: &[u8]) {
        self.out.put_u8(mark);
        self.out.put_slice(text);
        self.out.put_slice(b"\r\n");
    }
}

/// A request: an array of bulks.
pub fn write_request<A: AsRef<[u8]>>(out: &mut impl BufMut, arguments: &[A]) {
    let mut writer = Writer::new(out, Protocol::Resp2);
    writer.array(arguments.len());
    for argument in arguments {
        writer.bulk(argument);
    }
}

/// `<mark><number>\r\n`, without `fmt`.
fn put_number(out: &mut impl BufMut, mark: u8, number: i64) {
    let mut text = [0; MAX_DIGITS + 3];
    let mut from = text.len() - 2;
    text[from..].copy_from_slice(b"\r\n");
    let mut rest = number.unsigned_abs();
    loop {
        from -= 1;
        text[from] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        from -= 1;
        text[from] = b'-';
    }
    from -= 1;
    text[from] = mark;
    out.put_slice(&text[from..]);
}
