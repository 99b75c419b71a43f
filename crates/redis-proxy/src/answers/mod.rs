//! What does the proxy answer by itself? Pure functions from its state to a reply.
//!
//! [`answer`] writes the reply of a command whose handling is
//! [`Local`](capstan_redis_protocol::command::Handling::Local), or returns what else has to be done: by the
//! session that owns the state, or with the help of a node.

mod acl;
mod cluster;
mod commands;
mod config;
mod facts;
mod hello;
mod info;
#[cfg(test)]
mod tests;

pub use config::own_settings;
pub use facts::Facts;
pub use hello::{Hello, HelloRefused, write_hello};
pub use info::{asks_nodes as info_asks_nodes, complete as complete_info, text as info_text};

use bytes::BufMut;

use crate::state::{Database, Topology};
use capstan_redis_protocol::command::Command;
use capstan_redis_protocol::resp::{Protocol, Request, Writer, decimal};
use capstan_redis_protocol::slots::Slot;

/// The Redis version whose commands, replies and errors the proxy implements.
pub const REDIS_VERSION: &str = "7.0.15";

/// What a reply may depend on.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The proxy.
    pub facts: &'a Facts,
    /// The database of the connection, if it has one.
    pub database: Option<&'a Database>,
    /// The user of the connection.
    pub user: &'a str,
    /// Whether the connection has subscribed to something.
    pub subscribed: bool,
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The reply is written.
    Written,
    /// Nothing is written: it changes or reads state of the session (`AUTH`, `HELLO`, `CLIENT`, `RESET`,
    /// `QUIT`, `READONLY`, `READWRITE`, `ASKING`, `MONITOR`), or of all workers (`CONFIG RESETSTAT`).
    Session,
    /// Nothing is written: the keys of the slot have to be counted on the node.
    CountKeysInSlot(Slot),
    /// Nothing is written: keys of the slot, at most this many, have to be read from the node.
    KeysInSlot(Slot, usize),
}

/// The role of the server as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role<'a> {
    Primary,
    Replica { of: &'a capstan_redis_protocol::Address },
}

impl<'a> Context<'a> {
    /// The topology of the database, if it is presented as a cluster.
    fn topology(&self) -> Option<&'a Topology> {
        self.database.filter(|database| !database.is_single()).map(Database::topology)
    }

    /// Whether the proxy presents itself as a single Redis.
    fn is_single(&self) -> bool {
        self.database.is_some_and(Database::is_single)
    }

    fn role(&self) -> Role<'a> {
        let topology = self.topology();
        let holds_me = |shard: &&crate::state::Shard| {
            topology.is_some_and(|topology| shard.replicas.contains(&topology.me))
        };
        let shard = topology.and_then(|topology| topology.shards.iter().find(holds_me));
        shard.map_or(Role::Primary, |shard| Role::Replica { of: &shard.proxy })
    }

    fn mode(&self) -> &'static str {
        if self.is_single() { "standalone" } else { "cluster" }
    }
}

/// Writes the reply of a command, or returns what else has to produce it.
pub fn answer<B: BufMut>(
    command: &Command,
    request: Request<'_>,
    context: &Context<'_>,
    out: &mut Writer<'_, B>,
) -> Answer {
    let (container, sub) = command.name().split_once('|').unwrap_or((command.name(), ""));
    match container {
        "cluster" => return cluster::answer(sub, request, context, out),
        "command" => commands::answer(sub, request, out),
        "info" => info::write_info(request, context, out),
        "config" if sub == "get" => config::write_config(request, context, out),
        "ping" => write_ping(request, context.subscribed, out),
        "echo" => out.bulk(request.argument(1)),
        "time" => write_time(context.facts, out),
        "select" => write_select(request, context, out),
        "role" => write_role(context, out),
        "lolwut" => out.verbatim(&format!("Redis ver. {REDIS_VERSION}\n")),
        "module" => out.array(0),
        "acl" => acl::answer(sub, request, context, out),
        _ => return Answer::Session,
    }
    Answer::Written
}

/// A RESP2 subscriber gets an array, so that it can tell the reply from a message.
fn write_ping<B: BufMut>(request: Request<'_>, subscribed: bool, out: &mut Writer<'_, B>) {
    if request.len() > 2 {
        return out.error("ERR wrong number of arguments for 'ping' command");
    }
    if subscribed && out.protocol() == Protocol::Resp2 {
        out.array(2);
        out.bulk("pong");
        out.bulk(request.argument(1));
    } else if request.len() == 2 {
        out.bulk(request.argument(1));
    } else {
        out.simple("PONG");
    }
}

fn write_time<B: BufMut>(facts: &Facts, out: &mut Writer<'_, B>) {
    out.array(2);
    out.bulk(facts.now.as_secs().to_string());
    out.bulk(facts.now.subsec_micros().to_string());
}

fn write_select<B: BufMut>(request: Request<'_>, context: &Context<'_>, out: &mut Writer<'_, B>) {
    match decimal(request.argument(1)) {
        Some(0) => out.ok(),
        Some(_) if context.is_single() => out.error("ERR DB index is out of range"),
        Some(_) => out.error("ERR SELECT is not allowed in cluster mode"),
        None => out.error("ERR value is not an integer or out of range"),
    }
}

fn write_role<B: BufMut>(context: &Context<'_>, out: &mut Writer<'_, B>) {
    match context.role() {
        Role::Primary => {
            out.array(3);
            out.bulk("master");
            out.integer(0);
            out.array(0);
        }
        Role::Replica { of } => {
            out.array(5);
            out.bulk("slave");
            out.bulk(of.host());
            out.integer(i64::from(of.port()));
            out.bulk("connected");
            out.integer(0);
        }
    }
}
