//! Our model of Redis, compared with a real one: protocol errors, the command table, the proxy's own replies.

mod acl;
mod answers;
mod commands;
mod protocol;
mod random;
mod sessions;
mod tree;

use std::time::Duration;

use capstan_redis_protocol::command::find;
use capstan_redis_protocol::nmctl::Message;
use capstan_redis_protocol::resp::{Limits, Protocol, Request, RequestParser, Trust, Writer};
use capstan_redis_proxy::answers::{Answer, Context, Facts, answer, write_hello};
use capstan_redis_proxy::state::{Database, ProxyState, Routing, Verdict};
use capstan_testkit::redis::{Wire, command};
use capstan_testkit::{Port, RedisServer, eventually_blocking};

/// A redis-server in cluster mode that owns every slot, and the port of its bus.
pub async fn cluster_node() -> anyhow::Result<(RedisServer, Port)> {
    let bus = Port::reserve()?;
    let options = RedisServer::options()
        .set("cluster-enabled", "yes")
        .set("cluster-port", bus.number().to_string())
        .set("cluster-announce-ip", "127.0.0.1");
    let node = options.start().await?;
    let mut wire = Wire::connect(node.address())?;
    wire.say("CLUSTER ADDSLOTSRANGE 0 16383")?;
    eventually_blocking("the cluster of one is well", Duration::from_secs(30), || {
        let info = wire.say("CLUSTER INFO").map_err(|error| error.to_string())?;
        if info.contains("cluster_state:ok") { Ok(()) } else { Err(info) }
    });
    Ok((node, bus))
}

/// Calls a function with a request as the proxy sees it.
fn with_request<A: AsRef<[u8]>, T>(words: &[A], look: impl FnOnce(Request<'_>) -> T) -> T {
    let bytes = command(words);
    let mut parser = RequestParser::new(Limits::default());
    parser.parse(&bytes, Trust::Authenticated).unwrap();
    look(Request::new(&bytes, parser.arguments()))
}

/// A proxy at the server's address that owns every slot, like the server.
fn routing(address: &str) -> anyhow::Result<Routing> {
    let message =
        Message::parse(["SETDB", "1", "NOFLAG", "db", "127.0.0.1:1", "0-16383"].map(str::as_bytes))?;
    let Verdict::Accept(state) = ProxyState::default().accept(&message)? else { panic!("not accepted") };
    Ok(Routing::of(&state, &address.parse()?, |_| None))
}

fn ours(words: &[&str], database: &Database, protocol: Protocol) -> String {
    let facts = Facts { now: Duration::from_micros(1_700_000_000_123_456), ..Facts::default() };
    let context = Context { facts: &facts, database: Some(database), user: "default", subscribed: false };
    let mut bytes = Vec::new();
    let mut out = Writer::new(&mut bytes, protocol);
    with_request(words, |request| match find(request) {
        Err(objection) => out.error(objection.line()),
        Ok(command) if command.name() == "hello" => write_hello(&context, 3, &mut out),
        Ok(command) => assert_eq!(answer(command, request, &context, &mut out), Answer::Written, "{words:?}"),
    });
    String::from_utf8(bytes).unwrap()
}
