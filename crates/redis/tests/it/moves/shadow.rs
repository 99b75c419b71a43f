//! Do clients see what a single server would reply? Every command is also sent to a shadow: a plain
//! redis-server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_testkit::redis::RedisServer;
use redis::Value;
use redis::aio::MultiplexedConnection;

use super::host::connect;
use super::workload::{Author, Op};

/// Where clients send their commands.
pub(super) trait Front {
    async fn call(&mut self, op: &Op) -> redis::RedisResult<Value>;
}

/// The plain server that everything is compared with.
pub(super) struct Shadow {
    server: RedisServer,
}

/// The observations of a client.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub latencies: Vec<Duration>,
    pub wrong: Vec<String>,
}

impl Shadow {
    pub(super) async fn start() -> Shadow {
        Shadow { server: RedisServer::start().await.unwrap() }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(super) async fn connection(&self) -> MultiplexedConnection {
        connect(self.server.address()).await
    }

    /// All keys with their values.
    pub(super) async fn contents(&self) -> BTreeMap<String, String> {
        contents(&mut self.connection().await).await
    }
}

/// Commands of one client, one after another, until stopped; the first wrong reply ends it.
pub(super) async fn work(
    author: &mut Author,
    front: &mut impl Front,
    shadow: &mut MultiplexedConnection,
    mut go_on: impl FnMut(usize) -> bool,
) -> Seen {
    let mut seen = Seen::default();
    while seen.wrong.is_empty() && go_on(seen.latencies.len()) {
        let op = author.next();
        let began = Instant::now();
        let reply = front.call(&op).await;
        seen.latencies.push(began.elapsed());
        let expected = op.cmd.query_async::<Value>(shadow).await;
        if !same(&reply, &expected) {
            let words = String::from_utf8_lossy(&op.cmd.get_packed_command()).replace("\r\n", " ");
            seen.wrong.push(format!("{words}: {reply:?} instead of {expected:?}"));
        }
    }
    seen
}

/// Errors are the same if they have the same code.
fn same(reply: &redis::RedisResult<Value>, expected: &redis::RedisResult<Value>) -> bool {
    match (reply, expected) {
        (Ok(reply), Ok(expected)) => reply == expected,
        (Err(reply), Err(expected)) => reply.code() == expected.code() && reply.code().is_some(),
        _ => false,
    }
}

/// All keys of a server.
pub(super) async fn keys(connection: &mut MultiplexedConnection) -> Vec<String> {
    redis::cmd("KEYS").arg("*").query_async(connection).await.unwrap()
}

/// All keys of a server with their values, as text.
pub(super) async fn contents(connection: &mut MultiplexedConnection) -> BTreeMap<String, String> {
    let keys = keys(connection).await;
    let mut contents = BTreeMap::new();
    for chunk in keys.chunks(500) {
        let mut types = redis::pipe();
        for key in chunk {
            types.cmd("TYPE").arg(key);
        }
        let types: Vec<String> = types.query_async(connection).await.unwrap();
        let mut reads = redis::pipe();
        for (key, kind) in chunk.iter().zip(&types) {
            reads.add_command(read(kind, key)).cmd("PEXPIRETIME").arg(key);
        }
        let values: Vec<Value> = reads.query_async(connection).await.unwrap();
        for ((key, kind), pair) in chunk.iter().zip(&types).zip(values.chunks(2)) {
            contents.insert(key.clone(), format!("{kind} {} until {:?}", in_order(kind, &pair[0]), pair[1]));
        }
    }
    contents
}

fn read(kind: &str, key: &str) -> redis::Cmd {
    let (word, rest): (&str, &[&str]) = match kind {
        "string" => ("GET", &[]),
        "hash" => ("HGETALL", &[]),
        "list" => ("LRANGE", &["0", "-1"]),
        "set" => ("SMEMBERS", &[]),
        "zset" => ("ZRANGE", &["0", "-1", "WITHSCORES"]),
        "stream" => ("XRANGE", &["-", "+"]),
        // Expired between the two requests.
        _ => ("TYPE", &[]),
    };
    let mut cmd = redis::cmd(word);
    cmd.arg(key).arg(rest);
    cmd
}

/// Hashes and sets have no defined order.
fn in_order(kind: &str, value: &Value) -> String {
    let Value::Array(values) = value else { return format!("{value:?}") };
    let mut parts: Vec<String> = match kind {
        "hash" => values.chunks(2).map(|pair| format!("{pair:?}")).collect(),
        _ => values.iter().map(|part| format!("{part:?}")).collect(),
    };
    if kind == "hash" || kind == "set" {
        parts.sort();
    }
    parts.join(" ")
}
