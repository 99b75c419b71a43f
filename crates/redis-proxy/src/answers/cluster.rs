//! `CLUSTER`: what do clients see of a database? Proxies in place of Redis nodes.

use std::fmt::Write;

use bytes::BufMut;

use super::{Answer, Context};
use crate::state::{Shard, Topology, shard_id};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::command::printed;
use capstan_redis_protocol::resp::{Request, Writer, decimal};
use capstan_redis_protocol::slots::{SLOTS, Slot};

/// The offset of Redis's cluster bus port. There is no bus here, but clients split the text at the `@`.
const BUS_OFFSET: u16 = 10_000;
/// The error of a connection without a database.
const NOTHING_KNOWN: &str = "CLUSTERDOWN The cluster is down";

pub(super) fn answer<B: BufMut>(
    sub: &str,
    request: Request<'_>,
    context: &Context<'_>,
    out: &mut Writer<'_, B>,
) -> Answer {
    if context.is_single() {
        out.error("ERR This instance has cluster support disabled");
        return Answer::Written;
    }
    match (sub, context.topology()) {
        ("countkeysinslot", _) => return count_keys(request, out),
        ("getkeysinslot", _) => return keys_in_slot(request, out),
        ("keyslot", _) => out.integer(i64::from(Slot::of(request.argument(2)).number())),
        ("links", _) => out.array(0),
        ("help", _) => write_help(out),
        ("info", topology) => out.verbatim(&info(topology)),
        ("slots" | "shards", None) => out.array(0),
        (_, None) => out.error(NOTHING_KNOWN),
        ("slots", Some(topology)) => write_slots(topology, out),
        ("shards", Some(topology)) => write_shards(topology, out),
        ("nodes", Some(topology)) => out.verbatim(&nodes(topology, context.facts.now.as_millis())),
        ("myid", Some(topology)) => out.bulk(topology.id(&topology.me)),
        ("myshardid", Some(topology)) => out.bulk(my_shard_id(topology)),
        ("replicas" | "slaves", Some(topology)) => write_replicas(request, topology, context, out),
        ("count-failure-reports", Some(topology)) => match known(topology, request.argument(2)) {
            Some(_) => out.integer(0),
            None => unknown_node(request, out),
        },
        (_, Some(_)) => return Answer::Session,
    }
    Answer::Written
}

fn count_keys<B: BufMut>(request: Request<'_>, out: &mut Writer<'_, B>) -> Answer {
    let slot = decimal(request.argument(2));
    match slot.map(|slot| u16::try_from(slot).ok().and_then(Slot::new)) {
        Some(Some(slot)) => return Answer::CountKeysInSlot(slot),
        Some(None) => out.error("ERR Invalid slot"),
        None => out.error("ERR value is not an integer or out of range"),
    }
    Answer::Written
}

fn keys_in_slot<B: BufMut>(request: Request<'_>, out: &mut Writer<'_, B>) -> Answer {
    let Some((slot, count)) = decimal(request.argument(2)).zip(decimal(request.argument(3))) else {
        out.error("ERR value is not an integer or out of range");
        return Answer::Written;
    };
    match u16::try_from(slot).ok().and_then(Slot::new).zip(usize::try_from(count).ok()) {
        Some((slot, count)) => Answer::KeysInSlot(slot, count),
        None => {
            out.error("ERR Invalid slot or number of keys");
            Answer::Written
        }
    }
}

fn info(topology: Option<&Topology>) -> String {
    let assigned = topology.map_or(0, Topology::assigned);
    let known = topology.map_or(1, Topology::known_nodes);
    let size = topology.map_or(0, |topology| topology.shards.len());
    let epoch = topology.map_or(0, |topology| topology.epoch.0);
    let state = if assigned == u32::from(SLOTS) { "ok" } else { "fail" };
    format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{assigned}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{known}\r\ncluster_size:{size}\r\n\
         cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\ncluster_stats_messages_sent:0\r\n\
         cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n"
    )
}

/// One line for every proxy of the database.
fn nodes(topology: &Topology, now_ms: u128) -> String {
    let mut lines = String::new();
    for shard in &topology.shards {
        lines.push_str(&node_line(topology, &shard.proxy, None, now_ms));
        for range in &shard.ranges {
            // Writing into a string cannot fail.
            let _ = write!(lines, " {range}");
        }
        lines.push('\n');
        for replica in &shard.replicas {
            lines.push_str(&node_line(topology, replica, Some(&shard.proxy), now_ms));
            lines.push('\n');
        }
    }
    for idle in &topology.idle {
        lines.push_str(&node_line(topology, idle, None, now_ms));
        lines.push('\n');
    }
    lines
}

/// The line of a proxy, without slots.
fn node_line(topology: &Topology, proxy: &Address, primary: Option<&Address>, now_ms: u128) -> String {
    let myself = if *proxy == topology.me { "myself," } else { "" };
    let (role, primary) = match primary {
        None => ("master", "-".to_owned()),
        Some(primary) => ("slave", topology.id(primary)),
    };
    let (host, port, bus) = (proxy.host(), proxy.port(), proxy.port().checked_add(BUS_OFFSET).unwrap_or(0));
    let (id, epoch) = (topology.id(proxy), topology.epoch);
    format!("{id} {host}:{port}@{bus} {myself}{role} {primary} 0 {now_ms} {epoch} connected")
}

fn write_slots<B: BufMut>(topology: &Topology, out: &mut Writer<'_, B>) {
    let ranges = topology.ranges();
    out.array(ranges.len());
    for (range, shard) in ranges {
        out.array(3 + shard.replicas.len());
        out.integer(i64::from(range.first()));
        out.integer(i64::from(range.last()));
        for proxy in std::iter::once(&shard.proxy).chain(&shard.replicas) {
            out.array(4);
            out.bulk(proxy.host());
            out.integer(i64::from(proxy.port()));
            out.bulk(topology.id(proxy));
            // Other names of the node; there are none.
            out.map(0);
        }
    }
}

fn write_shards<B: BufMut>(topology: &Topology, out: &mut Writer<'_, B>) {
    out.array(topology.shards.len() + topology.idle.len());
    for shard in &topology.shards {
        write_shard(topology, shard, out);
    }
    for idle in &topology.idle {
        let alone = Shard { proxy: idle.clone(), ranges: Vec::new(), replicas: Vec::new() };
        write_shard(topology, &alone, out);
    }
}

fn write_shard<B: BufMut>(topology: &Topology, shard: &Shard, out: &mut Writer<'_, B>) {
    out.map(2);
    out.bulk("slots");
    out.array(shard.ranges.len() * 2);
    for range in &shard.ranges {
        out.integer(i64::from(range.first()));
        out.integer(i64::from(range.last()));
    }
    out.bulk("nodes");
    out.array(1 + shard.replicas.len());
    write_node(topology, &shard.proxy, "master", out);
    for replica in &shard.replicas {
        write_node(topology, replica, "replica", out);
    }
}

fn write_node<B: BufMut>(topology: &Topology, proxy: &Address, role: &str, out: &mut Writer<'_, B>) {
    out.map(7);
    out.bulk("id");
    out.bulk(topology.id(proxy));
    out.bulk("port");
    out.integer(i64::from(proxy.port()));
    for (name, value) in [("ip", proxy.host()), ("endpoint", proxy.host()), ("role", role)] {
        out.bulk(name);
        out.bulk(value);
    }
    out.bulk("replication-offset");
    out.integer(0);
    out.bulk("health");
    out.bulk("online");
}

fn write_replicas<B: BufMut>(
    request: Request<'_>,
    topology: &Topology,
    context: &Context<'_>,
    out: &mut Writer<'_, B>,
) {
    let Some(proxy) = known(topology, request.argument(2)) else { return unknown_node(request, out) };
    if topology.shards.iter().any(|shard| shard.replicas.contains(proxy)) {
        return out.error("ERR The specified node is not a master");
    }
    let shard = topology.shards.iter().find(|shard| shard.proxy == *proxy);
    let replicas = shard.map_or(&[][..], |shard| &shard.replicas);
    out.array(replicas.len());
    for replica in replicas {
        out.bulk(node_line(topology, replica, Some(proxy), context.facts.now.as_millis()));
    }
}

fn unknown_node<B: BufMut>(request: Request<'_>, out: &mut Writer<'_, B>) {
    out.error([b"ERR Unknown node ", printed(request.argument(2))].concat());
}

/// The proxy with this id.
fn known<'a>(topology: &'a Topology, id: &[u8]) -> Option<&'a Address> {
    let shards =
        topology.shards.iter().flat_map(|shard| std::iter::once(&shard.proxy).chain(&shard.replicas));
    shards.chain(&topology.idle).find(|proxy| topology.id(proxy).as_bytes() == id)
}

/// The id of the shard that this proxy belongs to.
fn my_shard_id(topology: &Topology) -> String {
    let mine = topology.shards.iter().find(|shard| shard.replicas.contains(&topology.me));
    shard_id(&topology.name, mine.map_or(&topology.me, |shard| &shard.proxy))
}

fn write_help<B: BufMut>(out: &mut Writer<'_, B>) {
    let lines = [
        "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "COUNT-FAILURE-REPORTS <node-id>",
        "COUNTKEYSINSLOT <slot>",
        "GETKEYSINSLOT <slot> <count>",
        "INFO",
        "KEYSLOT <key>",
        "LINKS",
        "MYID",
        "MYSHARDID",
        "NODES",
        "REPLICAS <node-id>",
        "SHARDS",
        "SLOTS",
        "HELP",
        "    Everything else is decided by the coordinators of the cluster.",
    ];
    out.array(lines.len());
    lines.iter().for_each(|line| out.simple(line));
}
