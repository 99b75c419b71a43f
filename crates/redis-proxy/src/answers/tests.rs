//! Replies by themselves; the integration tests compare them with a real server.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::state::{ProxyState, Routing, Verdict, node_id};
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::command::find;
use capstan_redis_protocol::nmctl::Message;
use capstan_redis_protocol::resp::{Limits, Parsed, RequestParser, Trust};

const PEER: &str = "SETPEER 2 NOFLAG db 10.0.0.2:7002 100-16383";
const ROLES: &str = "SETREPL 2 NOFLAG db n:1 10.0.0.2:7002 primary db r:1 10.0.0.3:7003 replica-of n:1 \
                     db x:1 10.0.0.4:7004 primary";

/// The database of a proxy after these messages.
fn database_at(me: &str, messages: &[&str]) -> Arc<Database> {
    let state = messages.iter().fold(ProxyState::default(), |state, line| {
        let message = Message::parse(line.split_whitespace().map(str::as_bytes)).unwrap();
        let Verdict::Accept(next) = state.accept(&message).unwrap() else { panic!("{line}") };
        *next
    });
    Routing::of(&state, &me.parse().unwrap(), |_| None).databases()[0].clone()
}

fn database(extra: &[&str]) -> Arc<Database> {
    let messages = ["SETDB 3 NOFLAG db h:1 0-99", PEER, ROLES];
    database_at("10.0.0.1:7001", &[&messages[..], extra].concat())
}

fn ask_in(
    line: &str,
    database: Option<&Database>,
    protocol: Protocol,
    subscribed: bool,
) -> Result<String, Answer> {
    let mut parser = RequestParser::new(Limits::default());
    let Ok(Parsed::Inline { rewritten, .. }) =
        parser.parse(format!("{line}\n").as_bytes(), Trust::Authenticated)
    else {
        panic!("{line}")
    };
    let request = Request::new(&rewritten, parser.arguments());
    let facts = Facts { now: Duration::from_micros(1_700_000_000_123_456), clients: 7, ..Facts::default() };
    let context = Context { facts: &facts, database, user: "app", subscribed };
    let mut out = Vec::new();
    match answer(find(request).unwrap(), request, &context, &mut Writer::new(&mut out, protocol)) {
        Answer::Written => Ok(String::from_utf8(out).unwrap()),
        other => Err(other),
    }
}

fn ask(line: &str) -> String {
    ask_in(line, Some(&database(&[])), Protocol::Resp2, false).unwrap()
}

#[test]
fn ping_depends_on_protocol_and_subscription() {
    for (line, protocol, subscribed, reply) in [
        ("PING", Protocol::Resp2, false, "+PONG\r\n"),
        ("PING hi", Protocol::Resp2, false, "$2\r\nhi\r\n"),
        ("PING", Protocol::Resp2, true, "*2\r\n$4\r\npong\r\n$0\r\n\r\n"),
        ("PING hi", Protocol::Resp2, true, "*2\r\n$4\r\npong\r\n$2\r\nhi\r\n"),
        ("PING hi", Protocol::Resp3, true, "$2\r\nhi\r\n"),
        ("PING a b", Protocol::Resp2, false, "-ERR wrong number of arguments for 'ping' command\r\n"),
    ] {
        assert_eq!(ask_in(line, None, protocol, subscribed).unwrap(), reply, "{line}");
    }
}

#[test]
fn nodes_are_proxies() {
    let name = ClusterName::new("db").unwrap();
    let id = |proxy: &str| node_id(&name, &proxy.parse().unwrap());
    let (one, two, three, four) =
        (id("10.0.0.1:7001"), id("10.0.0.2:7002"), id("10.0.0.3:7003"), id("10.0.0.4:7004"));
    let lines = [
        format!("{one} 10.0.0.1:7001@17001 myself,master - 0 1700000000123 3 connected 0-99"),
        format!("{two} 10.0.0.2:7002@17002 master - 0 1700000000123 3 connected 100-16383"),
        format!("{three} 10.0.0.3:7003@17003 slave {two} 0 1700000000123 3 connected"),
        format!("{four} 10.0.0.4:7004@17004 master - 0 1700000000123 3 connected"),
    ];
    let text = lines.join("\n") + "\n";
    assert_eq!(ask("CLUSTER NODES"), format!("${}\r\n{text}\r\n", text.len()));
    assert_eq!(ask("CLUSTER MYID"), format!("$40\r\n{one}\r\n"));
    assert_eq!(
        ask(&format!("CLUSTER REPLICAS {two}")),
        format!("*1\r\n${}\r\n{}\r\n", lines[2].len(), lines[2])
    );
    assert_eq!(ask(&format!("CLUSTER REPLICAS {four}")), "*0\r\n");
    assert_eq!(ask(&format!("CLUSTER REPLICAS {three}")), "-ERR The specified node is not a master\r\n");
    assert_eq!(ask("CLUSTER REPLICAS x"), "-ERR Unknown node x\r\n");
    assert_eq!(ask(&format!("CLUSTER COUNT-FAILURE-REPORTS {two}")), ":0\r\n");
    assert!(ask("CLUSTER INFO").contains("cluster_state:ok\r\ncluster_slots_assigned:16384"));
    let slots = ask("CLUSTER SLOTS");
    assert!(
        slots.starts_with("*2\r\n*3\r\n:0\r\n:99\r\n*4\r\n$8\r\n10.0.0.1\r\n:7001\r\n$40\r\n"),
        "{slots}"
    );
    assert!(slots.contains("*4\r\n:100\r\n:16383\r\n*4\r\n$8\r\n10.0.0.2\r\n:7002\r\n"), "{slots}");
    assert!(
        ask("CLUSTER SHARDS")
            .starts_with("*3\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:99\r\n$5\r\nnodes\r\n*1\r\n*14\r\n")
    );
}

#[test]
fn keys_of_a_slot_are_asked_of_the_node() {
    let database = database(&[]);
    let ask = |line: &str| ask_in(line, Some(&database), Protocol::Resp2, false);
    assert_eq!(ask("CLUSTER COUNTKEYSINSLOT 5"), Err(Answer::CountKeysInSlot(Slot::new(5).unwrap())));
    assert_eq!(ask("CLUSTER GETKEYSINSLOT 5 9"), Err(Answer::KeysInSlot(Slot::new(5).unwrap(), 9)));
    assert_eq!(ask("CLUSTER COUNTKEYSINSLOT 16384"), Ok("-ERR Invalid slot\r\n".to_owned()));
    assert_eq!(ask("CLUSTER GETKEYSINSLOT 1 -1"), Ok("-ERR Invalid slot or number of keys\r\n".to_owned()));
    assert_eq!(ask("CLIENT ID"), Err(Answer::Session));
}

#[test]
fn a_single_database_looks_like_one_redis() {
    let single = database(&[r#"SETCONF 1 NOFLAG db {"mode":"single"}"#]);
    let ask = |line: &str| ask_in(line, Some(&single), Protocol::Resp2, false).unwrap();
    assert!(ask("INFO").contains("redis_mode:standalone"));
    assert!(ask("INFO cluster").contains("cluster_enabled:0"));
    assert_eq!(ask("CLUSTER SLOTS"), "-ERR This instance has cluster support disabled\r\n");
    assert_eq!(ask("SELECT 1"), "-ERR DB index is out of range\r\n");
}

#[test]
fn a_proxy_of_replicas_says_so() {
    let replica = database_at("10.0.0.3:7003", &[PEER, ROLES]);
    assert!(ask_in("ROLE", Some(&replica), Protocol::Resp2, false).unwrap().contains("slave"));
    assert!(
        ask_in("INFO replication", Some(&replica), Protocol::Resp2, false).unwrap().contains("role:slave")
    );
}

#[test]
fn without_a_database_the_cluster_is_down() {
    let ask = |line: &str| ask_in(line, None, Protocol::Resp2, false).unwrap();
    assert!(ask("CLUSTER INFO").contains("cluster_state:fail"));
    assert_eq!(ask("CLUSTER SLOTS"), "*0\r\n");
    assert_eq!(ask("CLUSTER NODES"), "-CLUSTERDOWN The cluster is down\r\n");
    assert_eq!(ask("CLUSTER KEYSLOT foo"), ":12182\r\n");
}

#[test]
fn small_answers() {
    assert_eq!(ask("TIME"), "*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n");
    assert_eq!(ask("ECHO x"), "$1\r\nx\r\n");
    assert_eq!(ask("SELECT 0"), "+OK\r\n");
    assert_eq!(ask("ACL WHOAMI"), "$3\r\napp\r\n");
    assert!(ask("INFO").contains("connected_clients:7\r\n"));
    assert!(!ask("INFO memory").contains("connected_clients"));
    assert_eq!(ask("INFO nothing"), "$0\r\n\r\n");
    assert_eq!(ask("CONFIG GET Port"), "*2\r\n$4\r\nPort\r\n$1\r\n0\r\n");
    assert_eq!(ask("CONFIG GET nothing"), "*0\r\n");
    assert_eq!(ask("COMMAND GETKEYS eval s 5 a"), "*0\r\n");
}

#[test]
fn hello_is_read_whole_or_refused() {
    let parse = |line: &str| {
        let mut parser = RequestParser::new(Limits::default());
        let Ok(Parsed::Inline { rewritten, .. }) =
            parser.parse(format!("{line}\n").as_bytes(), Trust::Authenticated)
        else {
            panic!("{line}")
        };
        let hello = Hello::parse(Request::new(&rewritten, parser.arguments()));
        hello.map(|hello| format!("{hello:?}")).map_err(|refused| String::from_utf8(refused.line()).unwrap())
    };
    assert!(parse("HELLO 3 AUTH u p SETNAME n").unwrap().contains("Resp3"));
    for (line, text) in [
        ("HELLO a", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO 3 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 3 AUTH u", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 3 SETNAME 'a b'", "ERR Client names cannot contain spaces, newlines or special characters."),
    ] {
        assert_eq!(parse(line), Err(text.to_owned()), "{line}");
    }
}
