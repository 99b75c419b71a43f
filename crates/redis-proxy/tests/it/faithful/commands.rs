//! The command table: is it what the server reports?

use std::collections::BTreeMap;

use capstan_redis_protocol::command::{Command, Objection, commands, find};
use capstan_redis_protocol::resp::{Protocol, Writer};
use capstan_testkit::RedisServer;
use capstan_testkit::redis::{Wire, command};
use capstan_testkit::seed::{rng, seeds, soak};
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::tree::Tree;
use super::{ours, routing, with_request};

/// The fields of a command, and its subcommands by name.
type Description = (Vec<Tree>, BTreeMap<String, Vec<Tree>>);

/// A command's description, with its subcommands by name. Redis's notes about its own implementation are left
/// out.
fn described(tree: &Tree) -> (String, Description) {
    let fields: Vec<Tree> = tree.list().iter().map(|field| field.without("notes")).collect();
    // Redis sends an empty set if there are none.
    let subcommands = if let Tree::List(list) = &fields[9] { &list[..] } else { &[] };
    let subcommands = subcommands.iter().map(|sub| {
        let fields = sub.list().to_vec();
        (fields[0].text().to_owned(), fields)
    });
    (fields[0].text().to_owned(), (fields[..9].to_vec(), subcommands.collect()))
}

fn description(command: &Command) -> Tree {
    let mut bytes = Vec::new();
    command.describe(&mut Writer::new(&mut bytes, Protocol::Resp3));
    Tree::of(&bytes)
}

#[tokio::test]
async fn every_command_of_the_server_is_known_as_it_is() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let mut wire = Wire::connect(node.address())?;
    wire.say("HELLO 3")?;
    let reply = Tree::of(&wire.ask(&["COMMAND"])?);
    let redis: BTreeMap<_, _> = reply.list().iter().map(described).collect();
    assert!(redis.len() >= 240, "only {} commands", redis.len());
    let known = commands().iter().filter(|command| !command.is_newer());
    let mut table: BTreeMap<_, _> = known.map(|command| described(&description(command))).collect();
    for command in commands() {
        for sub in command.subcommands().iter().filter(|sub| sub.is_newer()) {
            table.get_mut(command.name()).unwrap().1.remove(sub.name());
        }
    }
    for (name, facts) in &redis {
        assert_eq!(table.get(name), Some(facts), "{name}");
    }
    let extra: Vec<_> = table.keys().filter(|name| !redis.contains_key(*name)).collect();
    assert!(extra.is_empty(), "{extra:?}");
    Ok(())
}

#[tokio::test]
async fn objections_are_those_of_redis() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let mut wire = Wire::connect(node.address())?;
    let long = "x".repeat(200);
    for words in [
        vec!["foo"],
        vec!["foo", "bar", "b a\"z", ""],
        vec![&long, &long, "y"],
        vec!["foo", "a\r\nb"],
        vec!["get"],
        vec!["GET", "a", "b"],
        vec!["object"],
        vec!["OBJECT", "encoding"],
        vec!["Object", "foo"],
        vec!["client", "kill"],
        vec!["config", &long],
        vec!["mset", "a"],
        vec![""],
    ] {
        let redis = String::from_utf8_lossy(&wire.ask(&words)?).into_owned();
        let objection: Objection = with_request(&words, |request| find(request).unwrap_err());
        let mut bytes = Vec::new();
        Writer::new(&mut bytes, Protocol::Resp2).error(objection.line());
        assert_eq!(String::from_utf8_lossy(&bytes), redis, "{words:?}");
    }
    Ok(())
}

/// Queries the server for the keys of many command lines, and compares.
fn compare(wire: &mut Wire, lines: &[Vec<&str>]) -> anyhow::Result<()> {
    let routing = routing("127.0.0.1:1")?;
    let mut pipeline = Vec::new();
    for line in lines {
        pipeline.extend(command(&[&["COMMAND", "GETKEYS"], &line[..]].concat()));
    }
    wire.send(&pipeline)?;
    for line in lines {
        let redis = String::from_utf8(wire.reply()?)?;
        let question = [&["COMMAND", "GETKEYS"], &line[..]].concat();
        assert_eq!(ours(&question, &routing.databases()[0], Protocol::Resp2), redis, "{line:?}");
    }
    Ok(())
}

const LINES: &str = "\
get a|set a b|set a b GET EX 5|mget a b c|mset a 1 b 2|mset a 1 b|msetnx a 1 b 2|del a|del a b c|getex a EX 5
object encoding a|object freq a|object help|memory usage a|memory usage a SAMPLES 5|memory doctor|dump a|restore a 0 x
eval s 0|eval s 1 a|eval s 2 a b c|eval s 5 a|eval s x|eval s -1 a|evalsha h 1 a b|eval_ro s 1 a|fcall f 2 a b c|fcall_ro f 0
sort a|sort a store b|sort a by x store b|sort a get store store c|sort a limit 1 2 store b store c|sort a store|sort_ro a by x
migrate h 1 k 0 5|migrate h 1 k 0 5 COPY REPLACE|migrate h 1 EMPTY 0 5 KEYS a b|migrate h 1 k 0 5 KEYS a
georadius k 1 2 3 m|georadius k 1 2 3 m store a|georadius k 1 2 3 m STOREDIST b|georadius k 1 2 3 m store a storedist b
georadiusbymember k m 3 km store a|georadius_ro k 1 2 3 m|geosearch k FROMMEMBER m BYRADIUS 1 m|geosearchstore d k FROMMEMBER m BYRADIUS 1 m
xread streams a 0|xread count 1 block 5 streams a b 0 0|xread streams a b c|xread streams|xreadgroup group g c streams a >
xreadgroup group g c count 1 noack streams a b 0 0|xgroup create k g 0|xgroup help|xinfo stream k|xinfo groups k|xadd k * f v
xautoclaim k g c 0 0|xclaim k g c 0 1-1|xdel k 1-1|xtrim k maxlen 5|xrange k - +|xlen k|xack k g 1-1|xsetid k 1-1|xpending k g
zunionstore d 2 a b|zunionstore d 5 a b|zunionstore d 0 a|zinterstore d 1 a WEIGHTS 2|zdiffstore d 2 a b|zunion 2 a b|zinter 2 a b WITHSCORES
zdiff 1 a|zintercard 2 a b LIMIT 1|zmpop 1 a MIN|zmpop 2 a b MAX COUNT 2|bzmpop 0 2 a b MIN|zrangestore d s 0 -1|zadd k 1 a|zrangebyscore k 0 1
lmpop 1 a LEFT|lmpop 2 a b LEFT|lmpop 99999999999 a b LEFT|blmpop 0 2 a b LEFT|blpop a 0|blpop a b c 0|brpop a 0|brpoplpush a b 0|blmove a b LEFT RIGHT 0
lmove a b LEFT RIGHT|rpoplpush a b|lcs a b LEN|copy a b|copy a b DB 1|rename a b|renamenx a b|smove a b m|sinterstore d a b|sunion a b c|sdiffstore d a
sintercard 2 a b|sintercard 3 a b|pfcount a b|pfmerge d a b|pfadd a b|bitop and d a b|bitop not d a|bitcount a|bitfield a get u8 0|bitfield_ro a get u8 0
spublish c m|ssubscribe a b|subscribe a|publish c m|watch a b|ping x|nosuch x|get|get a b|touch a b|unlink a b|exists a b|move a 1|type a
bzpopmin a b 0|bzpopmax a 0|getbit a 1|setrange a 1 x|substr a 0 1|hset a f v|hmget a f g|hrandfield a 1|lpos a x|linsert a before x y|pfdebug encoding a
restore-asking a 0 x|wait 1 0|keys x|scan 0|randomkey x|client kill x|config get x|cluster keyslot x|script load x|function load x|latency reset x";

#[tokio::test]
async fn keys_are_where_the_server_finds_them() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let mut wire = Wire::connect(node.address())?;
    let words = |line: &'static str| -> Vec<&str> {
        line.split(' ').map(|word| if word == "EMPTY" { "" } else { word }).collect()
    };
    let lines: Vec<Vec<&str>> = LINES.split(['|', '\n']).map(words).filter(|line| line.len() > 1).collect();
    assert!(lines.len() > 140, "{}", lines.len());
    compare(&mut wire, &lines)
}

/// Words that have a meaning in some command, at any position.
const WORDS: [&str; 20] = [
    "a",
    "b",
    "c",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "STREAMS",
    "STORE",
    "STOREDIST",
    "KEYS",
    "GET",
    "BY",
    "LIMIT",
    "BLOCK",
    "COUNT",
    "LEFT",
    "",
    "99999999999999999999",
];

/// Lines that Redis itself interprets inconsistently. `SORT key STORE by ...` is executed with the
/// destination `by`, as in our table, but `GETKEYS` takes that for the next option. `XREADGROUP` with two
/// `STREAMS` is interpreted in two ways.
fn is_ambiguous(line: &[&str]) -> bool {
    let options = ["STORE", "BY", "GET", "LIMIT"];
    let sorted =
        line[0] == "sort" && line.windows(2).any(|two| two[0] == "STORE" && options.contains(&two[1]));
    sorted || (line[0].starts_with("xread") && line.iter().filter(|word| **word == "STREAMS").count() > 1)
}

#[tokio::test]
async fn keys_of_random_lines_are_where_the_server_finds_them() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let address = node.address();
    seeds(1, |seed| {
        let mut rng = rng(seed);
        let mut wire = Wire::connect(address).unwrap();
        for _ in 0..soak(20, 500) {
            let line = |_| -> Vec<&str> {
                let command = commands().iter().filter(|command| !command.is_newer()).collect::<Vec<_>>();
                let command = command.choose(&mut rng).unwrap();
                let mut words = vec![command.name()];
                if let Some(sub) = command.subcommands().choose(&mut rng).filter(|sub| !sub.is_newer()) {
                    words.push(sub.name().split_once('|').unwrap().1);
                }
                let count = rng.random_range(1..9);
                words.extend((0..count).map(|_| *WORDS.choose(&mut rng).unwrap()));
                words
            };
            let mut lines: Vec<Vec<&str>> = (0..200).map(line).collect();
            lines.retain(|line| !is_ambiguous(line));
            compare(&mut wire, &lines).unwrap();
        }
    });
    Ok(())
}
