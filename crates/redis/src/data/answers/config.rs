//! `CONFIG GET`: the settings of a proxy that have a name in Redis, with the values that are true here.

use bytes::BufMut;

use super::{Context, Facts, glob};
use crate::data::resp::{Request, Writer};

pub(super) fn write_config<B: BufMut>(request: Request<'_>, context: &Context<'_>, out: &mut Writer<'_, B>) {
    let wanted = |name: &str| request.from(2).any(|pattern| glob::matches(pattern, name.as_bytes(), true));
    let cluster = if context.is_single() { "no" } else { "yes" };
    let mut settings = settings(context.facts);
    settings.push(("cluster-enabled", cluster.to_owned()));
    settings.retain(|(name, _)| wanted(name));
    out.map(settings.len());
    for (name, value) in settings {
        out.bulk(name);
        out.bulk(value);
    }
}

/// What nodes persist and evict is a matter of the cluster and not of a connection: a proxy has no files of its own to
/// save, and no memory to bound.
fn settings(facts: &Facts) -> Vec<(&'static str, String)> {
    vec![
        ("appendonly", "no".to_owned()),
        ("client-query-buffer-limit", facts.max_request.to_string()),
        ("databases", "1".to_owned()),
        ("io-threads", "1".to_owned()),
        ("latency-monitor-threshold", "0".to_owned()),
        ("maxclients", facts.max_clients.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", facts.port.to_string()),
        ("proto-max-bulk-len", facts.max_bulk.to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", facts.slow_micros.to_string()),
        ("slowlog-max-len", super::slowlog::MAX_ENTRIES.to_string()),
        ("timeout", facts.idle_seconds.to_string()),
    ]
}
