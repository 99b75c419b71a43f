//! `INFO`: the sections and fields that clients and dashboards read, with what is true of the proxy.

use bytes::BufMut;

use super::{Context, REDIS_VERSION, Role};
use crate::data::resp::{Request, Writer};

/// Sections that are shown when nobody names any, in Redis's order.
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

pub(super) fn write_info<B: BufMut>(request: Request<'_>, context: &Context<'_>, out: &mut Writer<'_, B>) {
    let shown = SECTIONS.iter().filter(|section| is_wanted(section, request));
    let texts: Vec<String> = shown.map(|section| text(section, context)).collect();
    out.verbatim(&texts.join("\r\n"));
}

fn is_wanted(section: &str, request: Request<'_>) -> bool {
    let all = ["default", "all", "everything"];
    let names = |wanted: &[u8]| {
        wanted.eq_ignore_ascii_case(section.as_bytes())
            || all.iter().any(|all| wanted.eq_ignore_ascii_case(all.as_bytes()))
    };
    request.len() == 1 || request.from(1).any(names)
}

fn text(section: &str, context: &Context<'_>) -> String {
    let fields = match section {
        "Server" => server(context),
        "Clients" => clients(context),
        "Memory" => memory(context),
        "Persistence" => persistence(),
        "Stats" => stats(context),
        "Replication" => replication(context),
        "CPU" => cpu(context),
        "Cluster" => vec![("cluster_enabled", u8::from(!context.is_single()).to_string())],
        "Keyspace" => keyspace(context),
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

fn keyspace(context: &Context<'_>) -> Fields {
    let counted = context.facts.keys.filter(|(keys, _)| *keys > 0);
    counted
        .map(|(keys, expires)| ("db0", format!("keys={keys},expires={expires},avg_ttl=0")))
        .into_iter()
        .collect()
}

/// Bytes for people, with the letters of Redis.
fn human(bytes: u64) -> String {
    let units = [("G", 1u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((letter, unit)) => format!("{:.2}{letter}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}
