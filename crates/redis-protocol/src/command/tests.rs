//! The table by itself; the integration tests compare it with a real server.

use super::*;
use crate::resp::{Limits, Parsed, RequestParser, Span, Trust};

/// The request of an inline command line.
fn request(line: &str) -> (Vec<u8>, Vec<Span>) {
    let mut parser = RequestParser::new(Limits::default());
    let Ok(Parsed::Inline { rewritten, .. }) =
        parser.parse(format!("{line}\n").as_bytes(), Trust::Authenticated)
    else {
        panic!("{line}: not a request")
    };
    (rewritten, parser.arguments().to_vec())
}

fn with<T>(line: &str, look: impl FnOnce(&'static Command, Request<'_>) -> T) -> T {
    let (bytes, arguments) = request(line);
    let request = Request::new(&bytes, &arguments);
    look(find(request).unwrap(), request)
}

fn keys_of(line: &str) -> Vec<String> {
    with(line, |command, request| {
        let text = |key: &KeyPosition| String::from_utf8(request.argument(key.index()).to_vec()).unwrap();
        command.keys(request).unwrap().iter().map(text).collect()
    })
}

fn objection(line: &str) -> String {
    let (bytes, arguments) = request(line);
    String::from_utf8(find(Request::new(&bytes, &arguments)).unwrap_err().line()).unwrap()
}

#[test]
fn every_command_is_found_under_its_own_name_only() {
    for command in commands() {
        assert_eq!(lookup(command.name.as_bytes()), Some(command));
        assert_eq!(lookup(command.name.to_uppercase().as_bytes()), Some(command));
        for sub in command.subcommands() {
            let word = sub.name.strip_prefix(command.name).and_then(|rest| rest.strip_prefix('|')).unwrap();
            assert_eq!(command.subcommand(word.to_uppercase().as_bytes()), Some(sub));
        }
    }
    for unknown in [&b""[..], b"gett", b"ge", b"object|encoding", &[0xff; 24], &[b'x'; 1000]] {
        assert_eq!(lookup(unknown), None);
    }
}

#[test]
fn keys_are_where_redis_finds_them() {
    for (line, keys) in [
        ("get a", &["a"][..]),
        ("mset a 1 b 2", &["a", "b"]),
        ("object encoding k", &["k"]),
        ("eval s 2 a b c", &["a", "b"]),
        ("eval s 0 a", &[]),
        ("sort a get x by store store b store c", &["a", "c"]),
        ("migrate h 1 \"\" 0 5 keys a b", &["a", "b"]),
        ("migrate h 1 k 0 5", &["k"]),
        ("xread block 1 streams a b 0 0", &["a", "b"]),
        ("xread streams a b c", &["a"]),
        ("georadius k 1 2 3 m store a storedist b", &["k", "a", "b"]),
        ("zunionstore d 2 a b", &["d", "a", "b"]),
        ("blpop a b 0", &["a", "b"]),
        ("blmpop 1 2 a b left", &["a", "b"]),
        ("bitop and d a b", &["d", "a", "b"]),
        ("ssubscribe a b", &["a", "b"]),
    ] {
        assert_eq!(keys_of(line), keys, "{line}");
    }
    for nonsense in
        ["eval s x", "eval s 5 a", "eval s -1 a", "zunionstore d 5 a b", "lmpop 99999999999 a b LEFT"]
    {
        with(nonsense, |command, request| assert_eq!(command.keys(request), Err(InvalidKeys), "{nonsense}"));
    }
}

#[test]
fn objections_are_in_the_words_of_redis() {
    for (line, text) in [
        ("foo bar 'b a\"z'", "ERR unknown command 'foo', with args beginning with: 'bar' 'b a\"z' "),
        ("get", "ERR wrong number of arguments for 'get' command"),
        ("get a b", "ERR wrong number of arguments for 'get' command"),
        ("object", "ERR wrong number of arguments for 'object' command"),
        ("object encoding", "ERR wrong number of arguments for 'object|encoding' command"),
        ("Object foo", "ERR unknown subcommand 'foo'. Try OBJECT HELP."),
    ] {
        assert_eq!(objection(line), text, "{line}");
    }
    let long = "x".repeat(200);
    assert!(objection(&format!("{long} {long} y")).ends_with(&format!("'{}' ", &long[..128])));
}

#[test]
fn options_that_reach_beyond_a_slot_are_refused() {
    for (line, refused) in [
        ("sort a by x*", true),
        ("sort a by nosort", false),
        ("sort a get x", true),
        ("sort a limit get get asc", false),
        ("sort_ro a get #", true),
        ("copy a b db 1", true),
        ("copy a b db 0", false),
        ("copy a b replace", false),
        ("get a", false),
    ] {
        assert_eq!(with(line, |command, request| command.refuses(request).is_some()), refused, "{line}");
    }
}

#[test]
fn only_some_requests_wait_in_the_node() {
    for (line, blocks) in [
        ("blpop a 0", true),
        ("bzmpop 0 1 a min", true),
        ("xread block 0 streams a $", true),
        ("xread count 1 streams block 0", false),
        ("lpop a", false),
        ("wait 1 0", false),
    ] {
        assert_eq!(with(line, |command, request| command.blocks(request)), blocks, "{line}");
    }
}

#[test]
fn scripts_write_unless_they_say_otherwise() {
    for (name, writes) in [("eval", true), ("eval_ro", false), ("fcall", true), ("set", true), ("get", false)]
    {
        assert_eq!(lookup(name.as_bytes()).unwrap().writes(), writes, "{name}");
    }
    assert!(lookup(b"subscribe").unwrap().while_subscribed());
    assert!(!lookup(b"publish").unwrap().while_subscribed());
    assert!(lookup(b"auth").unwrap().before_auth());
}
