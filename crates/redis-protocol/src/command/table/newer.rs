//! Commands added after Redis 7.0, which are sent to the node even if it may not support them; and `NMCTL`.

use super::row::*;

pub(super) const TABLE: &[Command] = &[
    cmd("hexpire", -6, WRITE | DENYOOM | FAST, HASH, &[at(1, RW | UPDATE)]).newer(),
    cmd("hexpireat", -6, WRITE | DENYOOM | FAST, HASH, &[at(1, RW | UPDATE)]).newer(),
    cmd("hexpiretime", -5, READONLY | FAST, HASH, &[at(1, RO | ACCESS)]).newer(),
    cmd("hgetdel", -5, WRITE | FAST, HASH, &[at(1, RW | ACCESS | DELETE)]).newer(),
    cmd("hgetex", -5, WRITE | FAST, HASH, &[at(1, RW | ACCESS | UPDATE)]).newer(),
    cmd("hpersist", -5, WRITE | FAST, HASH, &[at(1, RW | UPDATE)]).newer(),
    cmd("hpexpire", -6, WRITE | DENYOOM | FAST, HASH, &[at(1, RW | UPDATE)]).newer(),
    cmd("hpexpireat", -6, WRITE | DENYOOM | FAST, HASH, &[at(1, RW | UPDATE)]).newer(),
    cmd("hpexpiretime", -5, READONLY | FAST, HASH, &[at(1, RO | ACCESS)]).newer(),
    cmd("hpttl", -5, READONLY | FAST, HASH, &[at(1, RO | ACCESS)]).newer(),
    cmd("hsetex", -6, WRITE | DENYOOM | FAST, HASH, &[at(1, RW | UPDATE)]).newer(),
    cmd("httl", -5, READONLY | FAST, HASH, &[at(1, RO | ACCESS)]).newer(),
    cmd("waitaof", 4, NOSCRIPT | BLOCKING, CONNECTION, &[])
        .handled(Wait)
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .newer(),
    cmd("nmctl", -2, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI, NONE, &[]).handled(Admin).newer(),
];
