//! Commands on strings, bitmaps and HyperLogLogs.

use super::row::*;

pub(super) const TABLE: &[Command] = &[
    cmd("append", 3, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | INSERT)]),
    cmd("decr", 2, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("decrby", 3, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("get", 2, READONLY | FAST, STRING, &[at(1, RO | ACCESS)]),
    cmd("getdel", 2, WRITE | FAST, STRING, &[at(1, RW | ACCESS | DELETE)]),
    cmd("getex", -2, WRITE | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("getrange", 4, READONLY, STRING, &[at(1, RO | ACCESS)]),
    cmd("getset", 3, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("incr", 2, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("incrby", 3, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("incrbyfloat", 3, WRITE | DENYOOM | FAST, STRING, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("lcs", -3, READONLY, STRING, &[range(1, 1, 1, RO | ACCESS)]),
    cmd("mget", -2, READONLY | FAST, STRING, &[range(1, -1, 1, RO | ACCESS)])
        .handled(Split(Merge::Values))
        .tips(&["request_policy:multi_shard"]),
    cmd("mset", -3, WRITE | DENYOOM, STRING, &[range(1, -1, 2, OW | UPDATE)])
        .handled(Split(Merge::AllOk))
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"]),
    cmd("msetnx", -3, WRITE | DENYOOM, STRING, &[range(1, -1, 2, OW | INSERT)])
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"]),
    cmd("psetex", 4, WRITE | DENYOOM, STRING, &[at(1, OW | UPDATE)]),
    cmd("set", -3, WRITE | DENYOOM, STRING, &[at(1, RW | ACCESS | UPDATE | VARIABLE)]),
    cmd("setex", 4, WRITE | DENYOOM, STRING, &[at(1, OW | UPDATE)]),
    cmd("setnx", 3, WRITE | DENYOOM | FAST, STRING, &[at(1, OW | INSERT)]),
    cmd("setrange", 4, WRITE | DENYOOM, STRING, &[at(1, RW | UPDATE)]),
    cmd("strlen", 2, READONLY | FAST, STRING, &[at(1, RO)]),
    cmd("substr", 4, READONLY, STRING, &[at(1, RO | ACCESS)]),
    cmd("bitcount", -2, READONLY, BITMAP, &[at(1, RO | ACCESS)]),
    cmd("bitfield", -2, WRITE | DENYOOM, BITMAP, &[at(1, RW | ACCESS | UPDATE | VARIABLE)]),
    cmd("bitfield_ro", -2, READONLY | FAST, BITMAP, &[at(1, RO | ACCESS)]),
    cmd("bitop", -4, WRITE | DENYOOM, BITMAP, &[at(2, OW | UPDATE), range(3, -1, 1, RO | ACCESS)]),
    cmd("bitpos", -3, READONLY, BITMAP, &[at(1, RO | ACCESS)]),
    cmd("getbit", 3, READONLY | FAST, BITMAP, &[at(1, RO | ACCESS)]),
    cmd("setbit", 4, WRITE | DENYOOM, BITMAP, &[at(1, RW | ACCESS | UPDATE)]),
    cmd("pfadd", -2, WRITE | DENYOOM | FAST, HYPERLOGLOG, &[at(1, RW | INSERT)]),
    cmd("pfcount", -2, READONLY, HYPERLOGLOG, &[range(1, -1, 1, RW | ACCESS)]),
    cmd("pfdebug", 3, WRITE | DENYOOM | ADMIN, HYPERLOGLOG, &[at(2, RW | ACCESS)]).handled(Forbidden),
    cmd(
        "pfmerge",
        -2,
        WRITE | DENYOOM,
        HYPERLOGLOG,
        &[at(1, RW | ACCESS | INSERT), range(2, -1, 1, RO | ACCESS)],
    ),
    cmd("pfselftest", 1, ADMIN, HYPERLOGLOG, &[]).handled(Forbidden),
];
