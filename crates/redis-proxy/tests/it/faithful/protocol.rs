//! Invalid requests: are the errors the same as Redis's?

use capstan_redis_protocol::resp::{Limits, Parsed, RequestParser, Trust};
use capstan_testkit::RedisServer;
use capstan_testkit::redis::Wire;

#[tokio::test]
async fn protocol_errors_are_those_of_redis() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let long = [b'1'; 70_000];
    for bytes in [
        &b"*2147483648\r\n"[..],
        b"*a\r\n",
        b"*\r\n",
        b"*01\r\n",
        b"*+1\r\n",
        b"*1 \r\n",
        b"*9223372036854775808\r\n",
        b"*1\r\n%4\r\n",
        b"*1\r\n\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$536870913\r\n",
        &[b"*", &long[..]].concat(),
        &[b"*1\r\n$", &long[..]].concat(),
        &[b"*1\r\n", &long[..]].concat(),
        &long[..],
        b"\"a\r\n",
        b"'a\r\n",
        b"'a'b\r\n",
        b"set a \"b\"c\n",
    ] {
        let mut wire = Wire::connect(node.address())?;
        wire.send(bytes)?;
        let redis = String::from_utf8(wire.rest()?)?;
        let ours = RequestParser::new(Limits::default()).parse(bytes, Trust::Authenticated);
        let ours = ours.map_or_else(|error| format!("-ERR {error}\r\n"), |parsed| format!("{parsed:?}"));
        assert_eq!(ours, redis, "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
    }
    Ok(())
}

#[tokio::test]
async fn strangers_get_the_same_limits() -> anyhow::Result<()> {
    let node = RedisServer::options().set("requirepass", "secret").start().await?;
    for bytes in [&b"*11\r\n"[..], b"*1\r\n$16385\r\n"] {
        let mut wire = Wire::connect(node.address())?;
        wire.send(bytes)?;
        let redis = String::from_utf8(wire.rest()?)?;
        let ours = RequestParser::new(Limits::default()).parse(bytes, Trust::Unauthenticated).unwrap_err();
        assert_eq!(format!("-ERR {ours}\r\n"), redis);
    }
    Ok(())
}

#[tokio::test]
async fn unusual_requests_mean_the_same() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    for (bytes, echoed) in [
        (&b"*2\rX$4\rYECHOZZ$1\r\na\r\n"[..], "a"),
        (b"*-1\r\n*0\r\n\r\n  \r\nECHO x\n", "x"),
        (b"ECHO \"a\\x41\\n\\q\\x4g\"\r\n", "aA\nqx4g"),
        (b"ECHO 'it\\'s'\r\n", "it's"),
        (b"  eChO\t\"\" \r\n", ""),
        (b"ECHO a\"b c\"\n", "ab c"),
    ] {
        let mut wire = Wire::connect(node.address())?;
        wire.send(bytes)?;
        assert_eq!(String::from_utf8(wire.reply()?)?, format!("${}\r\n{echoed}\r\n", echoed.len()));
        let mut parser = RequestParser::new(Limits::default());
        let (mut rest, mut seen) = (bytes, None);
        while !rest.is_empty() {
            let (len, request) = match parser.parse(rest, Trust::Authenticated)? {
                Parsed::Complete(len) => (len, rest[..len].to_vec()),
                Parsed::Inline { len, rewritten } => (len, rewritten),
                Parsed::Incomplete { .. } => panic!("{bytes:?}"),
            };
            seen = parser.arguments().last().map(|last| last.of(&request).to_vec()).or(seen);
            rest = &rest[len..];
        }
        assert_eq!(seen.unwrap(), echoed.as_bytes());
    }
    Ok(())
}
