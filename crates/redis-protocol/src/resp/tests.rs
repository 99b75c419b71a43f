//! Requests and replies: whole, in pieces, and invalid.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn limits() -> Limits {
    Limits { arguments: 1000, bulk: 1000, inline: 100, frame: 5000 }
}

/// All requests in the bytes, given in pieces, until an error or the end.
fn requests(pieces: &[&[u8]], limits: Limits) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut parser = RequestParser::new(limits);
    let mut buffer = Vec::new();
    let mut found = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let (len, bytes) = match parser.parse(&buffer, Trust::Authenticated) {
                Err(error) => return (found, Some(error)),
                Ok(Parsed::Incomplete { at_least }) => {
                    assert!(at_least > buffer.len());
                    break;
                }
                Ok(Parsed::Complete(len)) => (len, buffer[..len].to_vec()),
                Ok(Parsed::Inline { len, rewritten }) => (len, rewritten),
            };
            found.push(parser.arguments().iter().map(|span| span.of(&bytes).to_vec()).collect());
            buffer.drain(..len);
        }
    }
    (found, None)
}

fn one(bytes: &[u8]) -> Result<Vec<String>, ProtocolError> {
    let (found, error) = requests(&[bytes], Limits::default());
    let text = |words: Vec<Vec<u8>>| words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect();
    error.map_or_else(|| Ok(found.into_iter().next().map(text).unwrap_or_default()), Err)
}

#[test]
fn a_request_is_an_array_of_bulks_or_a_line() {
    assert_eq!(one(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n").unwrap(), ["GET", "k"]);
    assert_eq!(one(b"*1\rX$4\rYPINGZZ").unwrap(), ["PING"]);
    assert_eq!(one(b"*0\r\n").unwrap(), [""; 0]);
    assert_eq!(one(b"*-1\r\n").unwrap(), [""; 0]);
    assert_eq!(one(b"\r\n").unwrap(), [""; 0]);
    assert_eq!(one(b"SET k  \"a b\"\r\n").unwrap(), ["SET", "k", "a b"]);
    assert_eq!(one(b"ping\n").unwrap(), ["ping"]);
}

#[test]
fn an_inline_request_is_rewritten_as_an_array() {
    let mut parser = RequestParser::new(limits());
    let words = "SET key:0123456789 '' x\nrest";
    let Ok(Parsed::Inline { len, rewritten }) = parser.parse(words.as_bytes(), Trust::Authenticated) else {
        panic!("not an inline request")
    };
    assert_eq!(&words[len..], "rest");
    assert_eq!(rewritten, b"*4\r\n$3\r\nSET\r\n$14\r\nkey:0123456789\r\n$0\r\n\r\n$1\r\nx\r\n");
    let arguments: Vec<_> = parser.arguments().iter().map(|span| span.of(&rewritten)).collect();
    assert_eq!(arguments, [&b"SET"[..], b"key:0123456789", b"", b"x"]);
}

#[test]
fn broken_requests_are_named_as_redis_names_them() {
    let long = [b'1'; 70_000];
    for (bytes, text) in [
        (&b"*2147483648\r\n"[..], "invalid multibulk length"),
        (b"*a\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*1\r\n%4\r\n", "expected '$', got '%'"),
        (b"*1\r\n\r\n", "expected '$', got ' '"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (&[b"*", &long[..]].concat(), "too big mbulk count string"),
        (&[b"*1\r\n$", &long[..]].concat(), "too big bulk count string"),
        (&long[..], "too big inline request"),
        (b"\"a\r\n", "unbalanced quotes in request"),
    ] {
        let error = one(bytes).unwrap_err().to_string();
        assert_eq!(error, format!("Protocol error: {text}"), "{:?}", &bytes[..bytes.len().min(20)]);
    }
}

#[test]
fn after_an_error_a_parser_is_as_new() {
    let mut parser = RequestParser::new(Limits::default());
    let good = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    for bad in [&b"*2\r\n$3\r\nGET\r\n:1\r\n"[..], b"*1\r\n$x\r\n", b"*x\r\n", b"\"\r\n", b"half \"a"] {
        let mut seen = parser.parse(bad, Trust::Authenticated);
        if matches!(seen, Ok(Parsed::Incomplete { .. })) {
            seen = parser.parse(&[bad, b"\n"].concat(), Trust::Authenticated);
        }
        assert!(seen.is_err(), "{bad:?}");
        assert_eq!(
            parser.parse(good, Trust::Authenticated),
            Ok(Parsed::Complete(good.len())),
            "after {bad:?}"
        );
        assert_eq!(parser.arguments().len(), 2);
    }
}

#[test]
fn a_stranger_may_send_little() {
    let mut parser = RequestParser::new(Limits::default());
    assert_eq!(parser.parse(b"*11\r\n", Trust::Unauthenticated), Err(ProtocolError::UnauthenticatedCount));
    let mut parser = RequestParser::new(Limits::default());
    assert_eq!(
        parser.parse(b"*1\r\n$16385\r\n", Trust::Unauthenticated),
        Err(ProtocolError::UnauthenticatedLength)
    );
}

#[test]
fn a_long_argument_says_how_much_is_missing() {
    let mut parser = RequestParser::new(Limits::default());
    let head = b"*2\r\n$3\r\nGET\r\n$100000000\r\n";
    let needed = head.len() + 100_000_000 + 2;
    assert_eq!(parser.parse(head, Trust::Authenticated), Ok(Parsed::Incomplete { at_least: needed }));
}

#[test]
fn requests_are_bounded() {
    let many: Vec<u8> = b"*1000\r\n".iter().copied().chain(b"$3\r\nabc\r\n".repeat(1000)).collect();
    assert_eq!(requests(&[&many], limits()).1, Some(ProtocolError::EndlessRequest));
    assert_eq!(requests(&[b"*1001\r\n"], limits()).1, Some(ProtocolError::InvalidCount));
    assert_eq!(requests(&[b"*1\r\n$1001\r\n"], limits()).1, Some(ProtocolError::InvalidLength));
}

const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":-12\r\n",
    b"$5\r\na\r\nb\n\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n*0\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",3.14\r\n",
    b"(12345678901234567890123\r\n",
    b"!6\r\nERR no\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n~1\r\n+d\r\n",
    b"~2\r\n:1\r\n:2\r\n",
    b">3\r\n+message\r\n$1\r\nc\r\n$1\r\nm\r\n",
    b"|1\r\n+ttl\r\n:3\r\n*1\r\n:1\r\n",
];

#[test]
fn replies_end_where_they_end_in_any_pieces() {
    let all = REPLIES.concat();
    for size in 1..=all.len() {
        let (mut scanner, mut buffer, mut found) = (ReplyScanner::default(), Vec::new(), Vec::new());
        for piece in all.chunks(size) {
            buffer.extend_from_slice(piece);
            while let Some(len) = scanner.scan(&buffer).unwrap() {
                found.push(buffer.drain(..len).collect::<Vec<_>>());
            }
        }
        assert_eq!(found, REPLIES, "in pieces of {size}");
        assert!(buffer.is_empty());
    }
}

#[test]
fn a_long_reply_streams_through_a_short_buffer() {
    let reply = [&b"*2\r\n$10000\r\n"[..], &[b'x'; 10_000], b"\r\n:1\r\n"].concat();
    let (mut scanner, mut buffer, mut passed) = (ReplyScanner::default(), Vec::new(), 0);
    for piece in reply.chunks(100) {
        buffer.extend_from_slice(piece);
        if let Some(len) = scanner.scan(&buffer).unwrap() {
            assert_eq!(passed + len, reply.len());
            return;
        }
        let sure = scanner.known().min(buffer.len());
        buffer.drain(..sure);
        scanner.forget(sure);
        passed += sure;
        assert!(buffer.len() <= 100);
    }
    panic!("no end in sight");
}

#[test]
fn replies_that_no_redis_sends_are_refused() {
    for (bytes, error) in [
        (&b"?1\r\n"[..], BadReply::UnknownForm(b'?')),
        (b"$-2\r\n", BadReply::InvalidLength),
        (b"$x\r\n", BadReply::InvalidLength),
        (b"*?\r\n", BadReply::InvalidLength),
        (b"*99999999999\r\n", BadReply::InvalidLength),
        (b"+OK\n", BadReply::InvalidLine),
        (b"+\n", BadReply::InvalidLine),
    ] {
        assert_eq!(ReplyScanner::default().scan(bytes), Err(error), "{bytes:?}");
    }
    assert_eq!(ReplyScanner::default().scan(&vec![b'+'; 2 << 20]), Err(BadReply::EndlessLine));
}

#[test]
fn a_view_reads_one_level() {
    assert_eq!(View::of(b":7\r\n"), Some(View::Integer(7)));
    assert_eq!(View::of(b"=7\r\ntxt:abc\r\n"), Some(View::Bulk(b"abc")));
    assert_eq!(View::of(b"$-1\r\n"), Some(View::Null));
    assert_eq!(View::of(b"-ERR x\r\n"), Some(View::Error(b"ERR x")));
    assert_eq!(View::of(b"|1\r\n+ttl\r\n:3\r\n:5\r\n"), Some(View::Integer(5)));
    let nested = b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n";
    let children: Vec<_> = View::of(nested).unwrap().sequence().unwrap().collect();
    assert_eq!(children, [&b"*1\r\n:1\r\n"[..], b"$1\r\nx\r\n"]);
    for incomplete in [&b""[..], b"$5\r\nabc", b"*1", b"!", b"!-1\r\n", b"=3\r\nabc\r\n", b"%-3\r\n"] {
        assert_eq!(View::of(incomplete), None, "{incomplete:?}");
    }
}

/// Every kind of value in one protocol.
fn written(protocol: Protocol) -> String {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, protocol);
    writer.ok();
    writer.error("ERR a\r\nb");
    writer.integer(i64::MIN);
    writer.bulk("x");
    writer.verbatim("t");
    writer.null();
    writer.null_array();
    writer.boolean(true);
    writer.double(1.5);
    writer.double(f64::NEG_INFINITY);
    writer.array(0);
    writer.map(0);
    writer.set(0);
    writer.push(1);
    writer.integer(0);
    String::from_utf8(out).unwrap().replace("\r\n", " ")
}

#[test]
fn resp2_spells_with_less_what_resp3_has_types_for() {
    let resp2 = "+OK -ERR a  b :-9223372036854775808 $1 x $1 t $-1 *-1 :1 $3 1.5 $4 -inf *0 *0 *0 *1 :0 ";
    let resp3 = "+OK -ERR a  b :-9223372036854775808 $1 x =5 txt:t _ _ #t ,1.5 ,-inf *0 %0 ~0 >1 :0 ";
    assert_eq!(written(Protocol::Resp2), resp2);
    assert_eq!(written(Protocol::Resp3), resp3);
}

/// Bytes that resemble RESP more often than random ones.
fn almost_resp() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        vec(any::<u8>(), 0..6),
        "[*$+:%~>|_#,(!=-]{1,2}".prop_map(String::into_bytes),
        "-?[0-9]{1,12}".prop_map(String::into_bytes),
        Just(b"\r\n".to_vec()),
        Just(b"$3\r\nabc\r\n".to_vec()),
        Just(b"*2\r\n".to_vec()),
        Just(b"\"".to_vec()),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn requests_survive_any_split(
        list in vec(vec(vec(any::<u8>(), 0..40), 1..12), 1..5),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut bytes = Vec::new();
        for request in &list {
            write_request(&mut bytes, request);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let mut from = 0;
        let pieces: Vec<&[u8]> =
            cuts.into_iter().map(|to| &bytes[std::mem::replace(&mut from, to)..to]).collect();
        prop_assert_eq!(requests(&pieces, limits()), (list.clone(), None));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(requests(&single, limits()), (list, None));
    }

    #[test]
    fn any_bytes_give_the_same_requests_whole_and_in_single_bytes(bytes in almost_resp()) {
        let whole = requests(&[&bytes], limits());
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let (found, error) = requests(&single, limits());
        // Given whole, more of a request may be parsed before its end is missed; the requests found are the
        // same.
        prop_assert_eq!(&found, &whole.0);
        prop_assert_eq!(error, whole.1);
    }

    #[test]
    fn any_bytes_are_a_reply_or_refused_alike_in_any_pieces(bytes in almost_resp(), size in 1usize..7) {
        let whole = ReplyScanner::default().scan(&bytes);
        let mut scanner = ReplyScanner::default();
        let mut last = Ok(None);
        for end in (0..bytes.len()).step_by(size).skip(1).chain([bytes.len()]) {
            last = scanner.scan(&bytes[..end]);
            if last != Ok(None) {
                break;
            }
        }
        prop_assert_eq!(last, whole);
        // Reading it never panics, complete or not.
        if let Some(View::Sequence(children)) = View::of(&bytes) {
            children.views().for_each(drop);
        }
    }
}
