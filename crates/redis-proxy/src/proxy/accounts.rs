//! How are the reports of several nodes merged? `SLOWLOG`, `LATENCY`, `INFO` and `CONFIG GET`.

use std::collections::BTreeMap;

use crate::answers::complete_info;
use capstan_redis_protocol::resp::{Protocol, View, Writer};

/// Settings of a node that clients of a proxy must not see.
const PRIVATE: [&str; 17] = [
    "aclfile",
    "bind",
    "bind-source-addr",
    "cluster-config-file",
    "dbfilename",
    "dir",
    "logfile",
    "masterauth",
    "masteruser",
    "pidfile",
    "primaryauth",
    "primaryuser",
    "replicaof",
    "requirepass",
    "slaveof",
    "tls-key-file-pass",
    "unixsocket",
];

fn views(reply: &[u8]) -> Vec<View<'_>> {
    View::of(reply).and_then(View::sequence).map(|parts| parts.views().collect()).unwrap_or_default()
}

/// The newest entries of several logs. Each node numbers its own, so with several nodes the numbers are made
/// unique.
pub(super) fn newest(writer: &mut Writer<'_, Vec<u8>>, parts: &[Vec<u8>], count: usize) {
    let mut entries: Vec<(i64, i64, Vec<&[u8]>)> = Vec::new();
    for (part, reply) in parts.iter().enumerate() {
        for entry in View::of(reply).and_then(View::sequence).into_iter().flatten() {
            let fields: Vec<&[u8]> = View::of(entry).and_then(View::sequence).into_iter().flatten().collect();
            let number = |field: usize| View::of(fields.get(field)?)?.integer();
            let (Some(id), Some(at)) = (number(0), number(1)) else { continue };
            let id = id.saturating_mul(parts.len() as i64).saturating_add(part as i64);
            entries.push((at, id, fields));
        }
    }
    entries.sort_by_key(|(at, id, _)| std::cmp::Reverse((*at, *id)));
    entries.truncate(count);
    writer.array(entries.len());
    for (_, id, fields) in entries {
        writer.array(fields.len());
        writer.integer(id);
        fields[1..].iter().for_each(|field| writer.raw(field));
    }
}

/// Calls of a command, and for each power of two the number of calls that took at most that many
/// microseconds.
#[derive(Debug, Default)]
struct Histogram {
    calls: i64,
    counts: Vec<BTreeMap<i64, i64>>,
}

/// Merges `LATENCY HISTOGRAM` of several nodes. A node omits powers with an unchanged count: its last count
/// is used there.
pub(super) fn histograms(writer: &mut Writer<'_, Vec<u8>>, parts: &[Vec<u8>]) {
    let mut all: BTreeMap<Vec<u8>, Histogram> = BTreeMap::new();
    for reply in parts {
        for pair in views(reply).chunks_exact(2) {
            let (Some(name), Some(facts)) = (pair[0].bytes(), pair[1].sequence()) else { continue };
            let facts: Vec<View<'_>> = facts.views().collect();
            let [_, calls, _, counts] = facts[..] else { continue };
            let counts: Vec<i64> =
                counts.sequence().into_iter().flat_map(|all| all.views()).filter_map(View::integer).collect();
            let known = all.entry(name.to_vec()).or_default();
            known.calls += calls.integer().unwrap_or(0);
            known.counts.push(counts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
        }
    }
    writer.map(all.len());
    for (name, histogram) in all {
        writer.bulk(name);
        writer.map(2);
        writer.bulk("calls");
        writer.integer(histogram.calls);
        writer.bulk("histogram_usec");
        let powers: std::collections::BTreeSet<i64> =
            histogram.counts.iter().flat_map(|counts| counts.keys().copied()).collect();
        writer.map(powers.len());
        for power in powers {
            let at_most = |counts: &BTreeMap<i64, i64>| {
                counts.range(..=power).next_back().map_or(0, |(_, count)| *count)
            };
            writer.integer(power);
            writer.integer(histogram.counts.iter().map(at_most).sum());
        }
    }
}

/// The proxy's own `INFO` merged with that of the nodes. A node without a reply is left out.
pub(super) fn info(own: &str, parts: &[Vec<u8>], protocol: Protocol) -> Vec<u8> {
    let texts = parts.iter().filter_map(|part| std::str::from_utf8(View::of(part)?.bytes()?).ok());
    let mut reply = Vec::new();
    Writer::new(&mut reply, protocol).verbatim(&complete_info(own, &texts.collect::<Vec<_>>()));
    reply
}

/// A node's settings with the proxy's own values; only the latter if the node does not reply.
pub(super) fn settings(own: &[(String, String)], parts: &[Vec<u8>], protocol: Protocol) -> Vec<u8> {
    let fields: Vec<&[u8]> = parts
        .first()
        .map(|part| views(part).into_iter().filter_map(View::bytes).collect())
        .unwrap_or_default();
    let is = |name: &[u8], other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    let mut all: Vec<(&[u8], &[u8])> = fields
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(name, _)| !PRIVATE.iter().any(|private| is(name, private)))
        .filter(|(name, _)| !own.iter().any(|(known, _)| is(name, known)))
        .collect();
    all.extend(own.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
    let mut reply = Vec::new();
    let mut writer = Writer::new(&mut reply, protocol);
    writer.map(all.len());
    for (name, value) in all {
        writer.bulk(name);
        writer.bulk(value);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer<'_, Vec<u8>>)) -> String {
        let mut bytes = Vec::new();
        write(&mut Writer::new(&mut bytes, Protocol::Resp2));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn slow_commands_of_all_nodes_are_shown_newest_first() {
        let parts = [
            b"*1\r\n*3\r\n:5\r\n:100\r\n+a\r\n".to_vec(),
            b"*2\r\n*3\r\n:9\r\n:200\r\n+b\r\n*3\r\n:8\r\n:50\r\n+c\r\n".to_vec(),
        ];
        let reply = written(|writer| newest(writer, &parts, 2));
        assert_eq!(reply, "*2\r\n*3\r\n:19\r\n:200\r\n+b\r\n*3\r\n:10\r\n:100\r\n+a\r\n");
        let alone = written(|writer| newest(writer, &parts[..1], 9));
        assert_eq!(alone.as_bytes(), parts[0]);
    }

    #[test]
    fn histograms_are_added_up_where_a_node_has_left_something_out() {
        let part = |calls: u32, counts: &str| {
            format!("*2\r\n+get\r\n*4\r\n+calls\r\n:{calls}\r\n+histogram_usec\r\n{counts}").into_bytes()
        };
        let parts = [part(3, "*4\r\n:1\r\n:2\r\n:8\r\n:3\r\n"), part(1, "*2\r\n:4\r\n:1\r\n")];
        let reply = written(|writer| histograms(writer, &parts));
        assert!(reply.contains("$5\r\ncalls\r\n:4\r\n"), "{reply}");
        assert!(reply.ends_with("*6\r\n:1\r\n:2\r\n:4\r\n:3\r\n:8\r\n:4\r\n"), "{reply}");
    }

    #[test]
    fn a_nodes_secrets_stay_there_and_the_proxys_settings_win() {
        let node = b"*6\r\n+requirepass\r\n+s\r\n+port\r\n+1\r\n+maxmemory\r\n+9\r\n".to_vec();
        let own = [("PORT".to_owned(), "7".to_owned())];
        let reply = String::from_utf8(settings(&own, &[node], Protocol::Resp2)).unwrap();
        assert_eq!(reply, "*4\r\n$9\r\nmaxmemory\r\n$1\r\n9\r\n$4\r\nPORT\r\n$1\r\n7\r\n");
        let lost = String::from_utf8(settings(&own, &[b"-ERR x\r\n".to_vec()], Protocol::Resp2)).unwrap();
        assert_eq!(lost, "*2\r\n$4\r\nPORT\r\n$1\r\n7\r\n");
    }
}
