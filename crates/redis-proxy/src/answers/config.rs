//! `CONFIG GET`: the settings of a proxy that have a name in Redis, with the proxy's values. The others are
//! the nodes'.

use bytes::BufMut;

use super::{Context, Facts};
use capstan_redis_protocol::glob;
use capstan_redis_protocol::resp::{Request, Writer};

/// The proxy's own reply, used when no node replies.
pub(super) fn write_config<B: BufMut>(request: Request<'_>, context: &Context<'_>, out: &mut Writer<'_, B>) {
    let settings = own_settings(request, context);
    out.map(settings.len());
    for (name, value) in settings {
        out.bulk(name);
        out.bulk(value);
    }
}

/// The proxy's own settings that match a `CONFIG GET`. A name without wildcards is spelled as in the request.
#[must_use]
pub fn own_settings(request: Request<'_>, context: &Context<'_>) -> Vec<(String, String)> {
    let cluster = if context.is_single() { "no" } else { "yes" };
    let mut all = settings(context.facts);
    all.push(("cluster-enabled", cluster.to_owned()));
    let mut found: Vec<(String, String)> = Vec::new();
    for pattern in request.from(2) {
        let is_pattern = pattern.iter().any(|byte| b"*?[".contains(byte));
        for (name, value) in &all {
            let meant = glob::matches(pattern, name.as_bytes(), true);
            if meant && !found.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                let spelt = if is_pattern {
                    (*name).to_owned()
                } else {
                    String::from_utf8_lossy(pattern).into_owned()
                };
                found.push((spelt, value.clone()));
            }
        }
    }
    found
}

/// Settings of the proxy, not of a node. Persistence, eviction and logging are the nodes'.
fn settings(facts: &Facts) -> Vec<(&'static str, String)> {
    vec![
        ("client-query-buffer-limit", facts.max_request.to_string()),
        ("io-threads", "1".to_owned()),
        ("maxclients", facts.max_clients.to_string()),
        ("port", facts.port.to_string()),
        ("proto-max-bulk-len", facts.max_bulk.to_string()),
        ("timeout", facts.idle_seconds.to_string()),
    ]
}
