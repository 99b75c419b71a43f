//! `INFO`: the sections and fields that clients and dashboards read, with the proxy's values.

use bytes::BufMut;

use super::{Context, REDIS_VERSION, Role};
use capstan_redis_protocol::resp::{Request, Writer};

/// The default sections, in Redis's order.
const SECTIONS: [&str; 10] = [
    "Server",
    "Clients",
    "Memory",
    "Persistence",
    "Stats",
    "Replication",
    "CPU",
    "Modules",
    "Cluster",
    "Keyspace",
];

/// Sections for which the nodes are queried.
const OF_NODES: [&str; 4] = ["Memory", "Persistence", "Stats", "Keyspace"];
/// Values that are summed over the nodes. Their memory is that of the data; the proxy's own is
/// `used_memory_rss`.
const ADDED: [&str; 9] = [
    "used_memory",
    "used_memory_peak",
    "maxmemory",
    "rdb_changes_since_last_save",
    "expired_keys",
    "evicted_keys",
    "keyspace_hits",
    "keyspace_misses",
    "pubsub_channels",
];
/// Values that are equal on all nodes, or for which the first node's value is good enough.
const OF_FIRST: [&str; 5] = [
    "maxmemory_policy",
    "mem_fragmentation_ratio",
    "aof_enabled",
    "rdb_last_bgsave_status",
    "pubsub_patterns",
];

pub(super) fn write_info<B: BufMut>(request: Request<'_>, context: &Context<'_>, out: &mut Writer<'_, B>) {
    out.verbatim(&text(request, context));
}

/// The proxy's own part.
#[must_use]
pub fn text(request: Request<'_>, context: &Context<'_>) -> String {
    let shown = SECTIONS.iter().filter(|section| is_wanted(section, request));
    let texts: Vec<String> = shown.map(|section| section_text(section, context)).collect();
    texts.join("\r\n")
}

/// Whether the request includes sections for which the nodes are queried.
#[must_use]
pub fn asks_nodes(request: Request<'_>) -> bool {
    OF_NODES.iter().any(|section| is_wanted(section, request))
}

/// The proxy's own text merged with the replies of its nodes: values summed, keys counted over all nodes.
#[must_use]
pub fn complete(own: &str, nodes: &[&str]) -> String {
    let number =
        |name: &str| -> u64 { nodes.iter().filter_map(|text| field(text, name)?.parse::<u64>().ok()).sum() };
    let line = |line: &str| -> String {
        let Some((name, _)) = line.split_once(':').filter(|_| !nodes.is_empty()) else {
            return if line == "# Keyspace" { format!("{line}{}", keyspace(nodes)) } else { line.to_owned() };
        };
        match (name, name.strip_suffix("_human")) {
            (name, _) if ADDED.contains(&name) => format!("{name}:{}", number(name)),
            (name, Some(bytes)) if ADDED.contains(&bytes) => format!("{name}:{}", human(number(bytes))),
            (name, _) if OF_FIRST.contains(&name) => {
                let found = nodes.iter().find_map(|text| field(text, name));
                found.map_or_else(|| line.to_owned(), |value| format!("{name}:{value}"))
            }
            _ => line.to_owned(),
        }
    };
    own.split("\r\n").map(line).collect::<Vec<_>>().join("\r\n")
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

/// The line of the only database, if there is a key: `keys=1,expires=0,avg_ttl=0`.
fn keyspace(nodes: &[&str]) -> String {
    let count = |line: &str, name: &str| -> u64 {
        let value = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let (mut keys, mut expires, mut lives) = (0, 0, 0);
    for line in nodes.iter().filter_map(|text| field(text, "db0")) {
        keys += count(line, "keys");
        expires += count(line, "expires");
        lives += count(line, "expires") * count(line, "avg_ttl");
    }
    let mean = lives.checked_div(expires).unwrap_or(0);
    if keys == 0 { String::new() } else { format!("\r\ndb0:keys={keys},expires={expires},avg_ttl={mean}") }
}

fn is_wanted(section: &str, request: Request<'_>) -> bool {
    let all = ["default", "all", "everything"];
    let names = |wanted: &[u8]| {
        wanted.eq_ignore_ascii_case(section.as_bytes())
            || all.iter().any(|all| wanted.eq_ignore_ascii_case(all.as_bytes()))
    };
    request.len() == 1 || request.from(1).any(names)
}

fn section_text(section: &str, context: &Context<'_>) -> String {
    let fields = match section {
        "Server" => server(context),
        "Clients" => clients(context),
        "Memory" => memory(context),
        "Persistence" => persistence(),
        "Stats" => stats(context),
        "Replication" => replication(context),
        "CPU" => cpu(context),
        "Cluster" => vec![("cluster_enabled", u8::from(!context.is_single()).to_string())],
        _ => Vec::new(),
    };
    let lines: String = fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
    format!("# {section}\r\n{lines}")
}

type Fields = Vec<(&'static str, String)>;

fn server(context: &Context<'_>) -> Fields {
    let facts = context.facts;
    vec![
        ("redis_version", REDIS_VERSION.to_owned()),
        ("redis_git_sha1", "00000000".to_owned()),
        ("redis_git_dirty", "0".to_owned()),
        ("redis_build_id", "0".to_owned()),
        ("redis_mode", context.mode().to_owned()),
        ("capstan_version", facts.version.clone()),
        ("os", std::env::consts::OS.to_owned()),
        ("arch_bits", usize::BITS.to_string()),
        ("multiplexing_api", "epoll".to_owned()),
        ("process_id", facts.process_id.to_string()),
        ("run_id", facts.run_id.clone()),
        ("tcp_port", facts.port.to_string()),
        ("server_time_usec", facts.now.as_micros().to_string()),
        ("uptime_in_seconds", facts.uptime.as_secs().to_string()),
        ("uptime_in_days", (facts.uptime.as_secs() / 86_400).to_string()),
        ("executable", String::new()),
        ("config_file", String::new()),
    ]
}

fn clients(context: &Context<'_>) -> Fields {
    let facts = context.facts;
    vec![
        ("connected_clients", facts.clients.to_string()),
        ("cluster_connections", "0".to_owned()),
        ("maxclients", facts.max_clients.to_string()),
        ("blocked_clients", facts.blocked_clients.to_string()),
        ("tracking_clients", "0".to_owned()),
        ("clients_in_timeout_table", "0".to_owned()),
    ]
}

fn memory(context: &Context<'_>) -> Fields {
    let bytes = context.facts.resident_bytes;
    vec![
        ("used_memory", bytes.to_string()),
        ("used_memory_human", human(bytes)),
        ("used_memory_rss", bytes.to_string()),
        ("used_memory_rss_human", human(bytes)),
        ("used_memory_peak", bytes.to_string()),
        ("used_memory_peak_human", human(bytes)),
        ("maxmemory", "0".to_owned()),
        ("maxmemory_human", "0B".to_owned()),
        ("maxmemory_policy", "noeviction".to_owned()),
        ("mem_fragmentation_ratio", "1.00".to_owned()),
    ]
}

fn persistence() -> Fields {
    let zeros =
        ["loading", "async_loading", "rdb_changes_since_last_save", "rdb_bgsave_in_progress", "aof_enabled"];
    let mut fields: Fields = zeros.into_iter().map(|name| (name, "0".to_owned())).collect();
    fields.push(("rdb_last_bgsave_status", "ok".to_owned()));
    fields
}

fn stats(context: &Context<'_>) -> Fields {
    let facts = context.facts;
    let numbers = [
        ("total_connections_received", facts.total_connections),
        ("total_commands_processed", facts.total_commands),
        ("instantaneous_ops_per_sec", facts.commands_per_second),
        ("total_net_input_bytes", facts.input_bytes),
        ("total_net_output_bytes", facts.output_bytes),
        ("rejected_connections", facts.rejected_connections),
        ("expired_keys", 0),
        ("evicted_keys", 0),
        ("keyspace_hits", 0),
        ("keyspace_misses", 0),
        ("pubsub_channels", facts.channels),
        ("pubsub_patterns", facts.patterns),
        ("total_error_replies", facts.total_errors),
    ];
    numbers.into_iter().map(|(name, number)| (name, number.to_string())).collect()
}

fn replication(context: &Context<'_>) -> Fields {
    let mut fields = match context.role() {
        Role::Primary => vec![("role", "master".to_owned()), ("connected_slaves", "0".to_owned())],
        Role::Replica { of } => vec![
            ("role", "slave".to_owned()),
            ("master_host", of.host().to_owned()),
            ("master_port", of.port().to_string()),
            ("master_link_status", "up".to_owned()),
            ("slave_read_only", "1".to_owned()),
            ("connected_slaves", "0".to_owned()),
        ],
    };
    fields.push(("master_failover_state", "no-failover".to_owned()));
    fields.push(("master_replid", context.facts.run_id.clone()));
    fields.push(("master_repl_offset", "0".to_owned()));
    fields
}

fn cpu(context: &Context<'_>) -> Fields {
    let seconds = |time: std::time::Duration| format!("{:.6}", time.as_secs_f64());
    vec![
        ("used_cpu_sys", seconds(context.facts.cpu_system)),
        ("used_cpu_user", seconds(context.facts.cpu_user)),
    ]
}

/// A human-readable size, with Redis's unit letters.
fn human(bytes: u64) -> String {
    let units = [("G", 1u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((letter, unit)) => format!("{:.2}{letter}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_complete_what_the_proxy_says() {
        let own =
            "# Memory\r\nused_memory:5\r\nused_memory_human:5B\r\nused_memory_rss:5\r\n\r\n# Keyspace\r\n";
        let nodes = [
            "used_memory:1024\r\nused_memory_rss:1\r\ndb0:keys=2,expires=1,avg_ttl=10\r\n",
            "used_memory:1024\r\ndb0:keys=3,expires=3,avg_ttl=20\r\n",
        ];
        let expected = "# Memory\r\nused_memory:2048\r\nused_memory_human:2.00K\r\nused_memory_rss:5\r\n\r\n\
                        # Keyspace\r\ndb0:keys=5,expires=4,avg_ttl=17\r\n";
        assert_eq!(complete(own, &nodes), expected);
        assert_eq!(complete(own, &[]), own);
    }
}
