//! The proxy's own replies: do they have the shape of those of a redis-server in cluster mode?

use capstan_redis_protocol::resp::Protocol;
use capstan_testkit::RedisServer;
use capstan_testkit::redis::Wire;

use super::tree::Tree;
use super::{cluster_node, ours, routing};

/// The text with everything normalized that differs between any two servers: ids, times, epochs, and
/// dependent lengths.
fn shape(reply: &str, bus: u16) -> String {
    let reply = reply.replace(&format!("@{bus}"), "@BUS");
    let word = |word: &str| -> String {
        let hex = word.len() == 40 && word.chars().all(|c| c.is_ascii_hexdigit());
        let digits = word.len() >= 13 && word.chars().all(|c| c.is_ascii_digit());
        match word {
            _ if hex => "ID".to_owned(),
            _ if digits => "TIME".to_owned(),
            word => word.to_owned(),
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    reply.split("\r\n").map(line).collect::<Vec<_>>().join("\r\n")
}

const QUESTIONS: &str = "\
PING|PING hi|PING a b|ECHO x|SELECT 0|SELECT 1|SELECT x|ROLE|MODULE LIST|ACL WHOAMI|LOLWUT|ACL LIST|ACL USERS|ACL CAT|ACL CAT nosuch|ACL CAT a b
ACL GETUSER default|ACL GETUSER nobody|ACL DRYRUN default GET x|ACL DRYRUN nobody GET x|ACL DRYRUN default NOSUCH x
ACL DRYRUN default GET|ACL DRYRUN default CONFIG nosuch|ACL DRYRUN default CONFIG GET x
CLUSTER SLOTS|CLUSTER SHARDS|CLUSTER MYID|CLUSTER KEYSLOT foo|CLUSTER LINKS|CLUSTER REPLICAS x|CLUSTER FOO
CLUSTER COUNT-FAILURE-REPORTS x|CLUSTER COUNTKEYSINSLOT 99999|CLUSTER COUNTKEYSINSLOT x|CLUSTER GETKEYSINSLOT 1 -1
CLUSTER SLOTS x|CLUSTER GETKEYSINSLOT 16384 1|CLUSTER GETKEYSINSLOT a b|CLUSTER KEYSLOT {a}b
CONFIG GET nosuch|CONFIG GET proto-max*x|CONFIG GET TIMEOUT
COMMAND GETKEYS set a b|COMMAND GETKEYSANDFLAGS set a b|COMMAND GETKEYSANDFLAGS set a b GET|COMMAND GETKEYS ping x
COMMAND GETKEYSANDFLAGS sort a store b|COMMAND GETKEYS nosuch x|COMMAND GETKEYS get a b|COMMAND GETKEYS eval s 0 x
COMMAND GETKEYSANDFLAGS bitfield a set u8 0 1|COMMAND GETKEYSANDFLAGS bitfield a get u8 0|COMMAND GETKEYSANDFLAGS mget a b
COMMAND LIST FOO|COMMAND LIST FILTERBY FOO x|COMMAND LIST FILTERBY MODULE x|COMMAND LIST FILTERBY PATTERN nosuch
INFO cluster|INFO nosuch|COMMAND INFO get nosuch mget object|encoding|HELLO";

#[tokio::test]
async fn answers_have_the_bytes_of_redis() -> anyhow::Result<()> {
    let (node, bus) = cluster_node().await?;
    let routing = routing(&node.address().to_string())?;
    let our_bus = node.address().port().checked_add(10_000).unwrap_or(0);
    for (protocol, version) in [(Protocol::Resp2, "2"), (Protocol::Resp3, "3")] {
        let mut wire = Wire::connect(node.address())?;
        wire.ask(&["HELLO", version])?;
        // A name with a bar is one word of a request, not a separator.
        let questions = QUESTIONS.replace("object|encoding", "object\u{1}encoding");
        for question in questions.split(['|', '\n']) {
            let question = question.replace('\u{1}', "|");
            let words: Vec<&str> = question.split(' ').collect();
            let redis = String::from_utf8(wire.ask(&words)?)?;
            let redis = if words[0] == "HELLO" { without_client_id(&redis) } else { redis };
            let ours = ours(&words, &routing.databases()[0], protocol);
            assert_eq!(shape(&ours, our_bus), shape(&redis, bus.number()), "{question} in RESP{version}");
        }
    }
    Ok(())
}

/// Client ids are counted by each server.
fn without_client_id(hello: &str) -> String {
    let (before, after) = hello.split_once("$2\r\nid\r\n:").unwrap();
    let (_, after) = after.split_once("\r\n").unwrap();
    format!("{before}$2\r\nid\r\n:3\r\n{after}")
}

#[tokio::test]
async fn the_line_of_a_node_is_read_like_that_of_redis() -> anyhow::Result<()> {
    let (node, bus) = cluster_node().await?;
    let mut wire = Wire::connect(node.address())?;
    let redis = shape(&wire.say("CLUSTER NODES")?, bus.number());
    let routing = routing(&node.address().to_string())?;
    let our_bus = node.address().port().checked_add(10_000).unwrap_or(0);
    let ours = shape(&ours(&["CLUSTER", "NODES"], &routing.databases()[0], Protocol::Resp2), our_bus);
    let fields = |reply: &str| -> Vec<String> {
        let line = reply.split("\r\n").nth(1).unwrap().trim_end();
        line.split(' ').map(str::to_owned).collect()
    };
    let (ours, redis) = (fields(&ours), fields(&redis));
    assert_eq!(ours.len(), redis.len(), "{ours:?} {redis:?}");
    for field in [0, 1, 2, 3, 4, 7, 8] {
        assert_eq!(ours[field], redis[field], "field {field} of {ours:?} and {redis:?}");
    }
    Ok(())
}

#[tokio::test]
async fn info_has_no_field_that_redis_does_not_have() -> anyhow::Result<()> {
    let (node, _bus) = cluster_node().await?;
    let mut wire = Wire::connect(node.address())?;
    wire.say("SET {}k v")?;
    let names = |info: &str| -> Vec<String> {
        info.split("\r\n").filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned()).collect()
    };
    let sections = |info: &str| -> Vec<String> {
        info.split("\r\n").filter(|line| line.starts_with('#')).map(str::to_owned).collect()
    };
    let redis = wire.say("INFO default")?;
    let routing = routing(&node.address().to_string())?;
    let ours = ours(&["INFO"], &routing.databases()[0], Protocol::Resp2);
    let known = names(&redis);
    let unknown: Vec<String> = names(&ours).into_iter().filter(|name| !known.contains(name)).collect();
    assert_eq!(unknown, ["capstan_version"]);
    let order: Vec<String> =
        sections(&redis).into_iter().filter(|section| section != "# Errorstats").collect();
    assert_eq!(sections(&ours), order);
    Ok(())
}

#[tokio::test]
async fn the_list_of_commands_is_that_of_the_server() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let mut wire = Wire::connect(node.address())?;
    let routing = routing("127.0.0.1:1")?;
    let newer = ["hexpire", "hgetex", "hgetdel", "hpersist", "hpexpire", "hpttl", "hsetex", "httl"];
    for question in [
        "COMMAND LIST FILTERBY PATTERN x*",
        "COMMAND LIST FILTERBY PATTERN *[gs]et",
        "COMMAND LIST FILTERBY ACLCAT hyperloglog",
        "COMMAND LIST FILTERBY ACLCAT dangerous",
        "COMMAND LIST FILTERBY ACLCAT pubsub",
        "COMMAND LIST FILTERBY ACLCAT blocking",
    ] {
        let words: Vec<&str> = question.split(' ').collect();
        let names = |reply: &str| {
            let mut names: Vec<String> =
                Tree::of(reply.as_bytes()).list().iter().map(|name| name.text().to_owned()).collect();
            names.sort();
            names.retain(|name| {
                name != "nmctl" && name != "waitaof" && !newer.iter().any(|newer| name.starts_with(newer))
            });
            names
        };
        let redis = names(&wire.say(question)?);
        assert_eq!(names(&ours(&words, &routing.databases()[0], Protocol::Resp2)), redis, "{question}");
    }
    Ok(())
}
