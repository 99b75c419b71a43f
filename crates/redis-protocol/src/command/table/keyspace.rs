//! Commands on keys of any type, and on streams.

use super::row::*;

pub(super) const TABLE: &[Command] = &[
    cmd("copy", -3, WRITE | DENYOOM, KEYSPACE, &[at(1, RO | ACCESS), at(2, OW | UPDATE)]),
    cmd("del", -2, WRITE, KEYSPACE, &[range(1, -1, 1, RM | DELETE)])
        .handled(Split(Merge::Sum))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    cmd("dump", 2, READONLY, KEYSPACE, &[at(1, RO | ACCESS)]).tips(NONDETERMINISTIC),
    cmd("exists", -2, READONLY | FAST, KEYSPACE, &[range(1, -1, 1, RO)])
        .handled(Split(Merge::Sum))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    cmd("expire", -3, WRITE | FAST, KEYSPACE, &[at(1, RW | UPDATE)]),
    cmd("expireat", -3, WRITE | FAST, KEYSPACE, &[at(1, RW | UPDATE)]),
    cmd("expiretime", 2, READONLY | FAST, KEYSPACE, &[at(1, RO | ACCESS)]),
    cmd("keys", 2, READONLY, KEYSPACE | DANGEROUS, &[])
        .handled(AllNodes(Merge::Concatenation))
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"]),
    cmd(
        "migrate",
        -6,
        WRITE | MOVABLE_KEYS,
        KEYSPACE | DANGEROUS,
        &[at(3, RW | ACCESS | DELETE), rest_after("KEYS", -2, RW | ACCESS | DELETE | INCOMPLETE)],
    )
    .handled(Forbidden)
    .tips(NONDETERMINISTIC),
    cmd("move", 3, WRITE | FAST, KEYSPACE, &[at(1, RW | ACCESS | UPDATE)]).handled(Refused(MOVE)),
    cmd("object", -2, NONE, NONE, &[]).with(&[
        cmd("object|encoding", 3, READONLY, KEYSPACE, &[at(2, RO)]).tips(NONDETERMINISTIC),
        cmd("object|freq", 3, READONLY, KEYSPACE, &[at(2, RO)]).tips(NONDETERMINISTIC),
        cmd("object|help", 2, LOADING | STALE, KEYSPACE, &[]).handled(AnyNode),
        cmd("object|idletime", 3, READONLY, KEYSPACE, &[at(2, RO)]).tips(NONDETERMINISTIC),
        cmd("object|refcount", 3, READONLY, KEYSPACE, &[at(2, RO)]).tips(NONDETERMINISTIC),
    ]),
    cmd("persist", 2, WRITE | FAST, KEYSPACE, &[at(1, RW | UPDATE)]),
    cmd("pexpire", -3, WRITE | FAST, KEYSPACE, &[at(1, RW | UPDATE)]),
    cmd("pexpireat", -3, WRITE | FAST, KEYSPACE, &[at(1, RW | UPDATE)]),
    cmd("pexpiretime", 2, READONLY | FAST, KEYSPACE, &[at(1, RO | ACCESS)]),
    cmd("pttl", 2, READONLY | FAST, KEYSPACE, &[at(1, RO | ACCESS)]).tips(NONDETERMINISTIC),
    cmd("randomkey", 1, READONLY, KEYSPACE, &[])
        .handled(AllNodes(Merge::Any))
        .tips(&["request_policy:all_shards", "nondeterministic_output"]),
    cmd("rename", 3, WRITE, KEYSPACE, &[at(1, RW | ACCESS | DELETE), at(2, OW | UPDATE)]),
    cmd("renamenx", 3, WRITE | FAST, KEYSPACE, &[at(1, RW | ACCESS | DELETE), at(2, OW | INSERT)]),
    cmd("restore", -4, WRITE | DENYOOM, KEYSPACE | DANGEROUS, &[at(1, OW | UPDATE)]),
    cmd("scan", -2, READONLY, KEYSPACE, &[])
        .handled(AllNodes(Merge::Scan))
        .tips(&["nondeterministic_output", "request_policy:special"]),
    cmd(
        "sort",
        -2,
        WRITE | DENYOOM | MOVABLE_KEYS,
        SET | SORTEDSET | LIST | DANGEROUS,
        &[at(1, RO | ACCESS), sort_patterns(RO | ACCESS), sort_store(OW | UPDATE)],
    ),
    cmd(
        "sort_ro",
        -2,
        READONLY | MOVABLE_KEYS,
        SET | SORTEDSET | LIST | DANGEROUS,
        &[at(1, RO | ACCESS), sort_patterns(RO | ACCESS)],
    ),
    cmd("touch", -2, READONLY | FAST, KEYSPACE, &[range(1, -1, 1, RO)])
        .handled(Split(Merge::Sum))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    cmd("ttl", 2, READONLY | FAST, KEYSPACE, &[at(1, RO | ACCESS)]).tips(NONDETERMINISTIC),
    cmd("type", 2, READONLY | FAST, KEYSPACE, &[at(1, RO)]),
    cmd("unlink", -2, WRITE | FAST, KEYSPACE, &[range(1, -1, 1, RM | DELETE)])
        .handled(Split(Merge::Sum))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    cmd("wait", 3, NOSCRIPT, CONNECTION, &[])
        .handled(Wait)
        .tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    cmd("xack", -4, WRITE | FAST, STREAM, &[at(1, RW | UPDATE)]),
    cmd("xadd", -5, WRITE | DENYOOM | FAST, STREAM, &[at(1, RW | UPDATE)]).tips(NONDETERMINISTIC),
    cmd("xautoclaim", -6, WRITE | FAST, STREAM, &[at(1, RW | DELETE)]).tips(NONDETERMINISTIC),
    cmd("xclaim", -6, WRITE | FAST, STREAM, &[at(1, RW | UPDATE)]).tips(NONDETERMINISTIC),
    cmd("xdel", -3, WRITE | FAST, STREAM, &[at(1, RW | DELETE)]),
    cmd("xgroup", -2, NONE, NONE, &[]).with(&[
        cmd("xgroup|create", -5, WRITE | DENYOOM, STREAM, &[at(2, RW | INSERT)]),
        cmd("xgroup|createconsumer", 5, WRITE | DENYOOM, STREAM, &[at(2, RW | INSERT)]),
        cmd("xgroup|delconsumer", 5, WRITE, STREAM, &[at(2, RW | DELETE)]),
        cmd("xgroup|destroy", 4, WRITE, STREAM, &[at(2, RW | DELETE)]),
        cmd("xgroup|help", 2, LOADING | STALE, STREAM, &[]).handled(AnyNode),
        cmd("xgroup|setid", -5, WRITE, STREAM, &[at(2, RW | UPDATE)]),
    ]),
    cmd("xinfo", -2, NONE, NONE, &[]).with(&[
        cmd("xinfo|consumers", 4, READONLY, STREAM, &[at(2, RO | ACCESS)]).tips(NONDETERMINISTIC),
        cmd("xinfo|groups", 3, READONLY, STREAM, &[at(2, RO | ACCESS)]),
        cmd("xinfo|help", 2, LOADING | STALE, STREAM, &[]).handled(AnyNode),
        cmd("xinfo|stream", -3, READONLY, STREAM, &[at(2, RO | ACCESS)]),
    ]),
    cmd("xlen", 2, READONLY | FAST, STREAM, &[at(1, RO)]),
    cmd("xpending", -3, READONLY, STREAM, &[at(1, RO | ACCESS)]).tips(NONDETERMINISTIC),
    cmd("xrange", -4, READONLY, STREAM, &[at(1, RO | ACCESS)]),
    cmd("xread", -4, READONLY | BLOCKING | MOVABLE_KEYS, STREAM, &[streams(1, RO | ACCESS)])
        .handled(Blocking(Timeout::Option)),
    cmd("xreadgroup", -7, WRITE | BLOCKING | MOVABLE_KEYS, STREAM, &[streams(4, RO | ACCESS)])
        .handled(Blocking(Timeout::Option)),
    cmd("xrevrange", -4, READONLY, STREAM, &[at(1, RO | ACCESS)]),
    cmd("xsetid", -3, WRITE | DENYOOM | FAST, STREAM, &[at(1, RW | UPDATE)]),
    cmd("xtrim", -4, WRITE, STREAM, &[at(1, RW | DELETE)]).tips(NONDETERMINISTIC),
];
