//! Commands about the server and the cluster.

use super::row::*;

pub(super) const TABLE: &[Command] = &[
    cmd("acl", -2, NONE, NONE, &[]).with(&[
        cmd("acl|cat", -2, NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("acl|deluser", -3, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Refused(ACL_DELUSER)),
        cmd("acl|dryrun", -4, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("acl|genpass", -2, NOSCRIPT | LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("acl|getuser", 3, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("acl|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("acl|list", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("acl|load", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Refused(ACL_FILE)),
        cmd("acl|log", -2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Forbidden),
        cmd("acl|save", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Refused(ACL_FILE)),
        cmd("acl|setuser", -3, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Refused(ACL_SETUSER)),
        cmd("acl|users", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("acl|whoami", 2, NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
    ]),
    cmd("bgrewriteaof", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
    cmd("bgsave", -1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
    cmd("command", -1, LOADING | STALE, CONNECTION, &[]).handled(Local).tips(NONDETERMINISTIC_ORDER).with(&[
        cmd("command|count", 2, LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("command|docs", -2, LOADING | STALE, CONNECTION, &[])
            .handled(AnyNode)
            .tips(NONDETERMINISTIC_ORDER),
        cmd("command|getkeys", -4, LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("command|getkeysandflags", -4, LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("command|help", 2, LOADING | STALE, CONNECTION, &[]).handled(AnyNode),
        cmd("command|info", -2, LOADING | STALE, CONNECTION, &[]).handled(Local).tips(NONDETERMINISTIC_ORDER),
        cmd("command|list", -2, LOADING | STALE, CONNECTION, &[]).handled(Local).tips(NONDETERMINISTIC_ORDER),
    ]),
    cmd("config", -2, NONE, NONE, &[]).with(&[
        cmd("config|get", -3, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("config|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("config|resetstat", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
        cmd("config|rewrite", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Forbidden),
        cmd("config|set", -4, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[])
            .handled(Forbidden)
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]),
    cmd("dbsize", 1, READONLY | FAST, KEYSPACE, &[])
        .handled(AllNodes(Merge::Sum))
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"]),
    cmd("debug", -2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Refused(DEBUG)),
    cmd("failover", -1, ADMIN | NOSCRIPT | STALE, NONE, &[]).handled(Refused(FAILOVER)),
    cmd("flushall", -1, WRITE, KEYSPACE | DANGEROUS, &[])
        .handled(AllNodes(Merge::AllOk))
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    cmd("flushdb", -1, WRITE, KEYSPACE | DANGEROUS, &[])
        .handled(AllNodes(Merge::AllOk))
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    cmd("info", -1, LOADING | STALE, DANGEROUS, &[]).handled(Local).tips(&[
        "nondeterministic_output",
        "request_policy:all_shards",
        "response_policy:special",
    ]),
    cmd("lastsave", 1, LOADING | STALE | FAST, ADMINISTRATION | DANGEROUS, &[])
        .handled(AnyNode)
        .tips(NONDETERMINISTIC),
    cmd("latency", -2, NONE, NONE, &[]).with(&[
        cmd("latency|doctor", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(AnyNode).tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
        cmd("latency|graph", 3, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(AnyNode).tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ]),
        cmd("latency|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("latency|histogram", -2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[])
            .handled(AllNodes(Merge::Histograms))
            .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
        cmd("latency|history", 3, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[])
            .handled(AllNodes(Merge::Concatenation))
            .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
        cmd("latency|latest", 2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[])
            .handled(AllNodes(Merge::Concatenation))
            .tips(&["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"]),
        cmd("latency|reset", -2, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[])
            .handled(AllNodes(Merge::Sum))
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]),
    cmd("lolwut", -1, READONLY | FAST, NONE, &[]).handled(Local),
    cmd("memory", -2, NONE, NONE, &[]).with(&[
        cmd("memory|doctor", 2, NONE, NONE, &[]).handled(AnyNode).tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ]),
        cmd("memory|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("memory|malloc-stats", 2, NONE, NONE, &[]).handled(AnyNode).tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ]),
        cmd("memory|purge", 2, NONE, NONE, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
        cmd("memory|stats", 2, NONE, NONE, &[]).handled(AnyNode).tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ]),
        cmd("memory|usage", -3, READONLY, NONE, &[at(2, RO)]),
    ]),
    cmd("module", -2, NONE, NONE, &[]).with(&[
        cmd("module|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("module|list", 2, ADMIN | NOSCRIPT, NONE, &[]).handled(Local).tips(NONDETERMINISTIC_ORDER),
        cmd("module|load", -3, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NONE, &[]).handled(Refused(MODULE)),
        cmd("module|loadex", -3, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NONE, &[]).handled(Refused(MODULE)),
        cmd("module|unload", 3, ADMIN | NOSCRIPT | NO_ASYNC_LOADING, NONE, &[]).handled(Refused(MODULE)),
    ]),
    cmd("monitor", 1, ADMIN | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(Local),
    cmd("psync", -3, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, NONE, &[]).handled(Forbidden),
    cmd("replconf", -1, ADMIN | NOSCRIPT | LOADING | STALE | ALLOW_BUSY, NONE, &[]).handled(Forbidden),
    cmd("replicaof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Refused(REPLICAOF)),
    cmd("restore-asking", -4, WRITE | DENYOOM | ASKING, KEYSPACE | DANGEROUS, &[at(1, OW | UPDATE)])
        .handled(Forbidden),
    cmd("role", 1, NOSCRIPT | LOADING | STALE | FAST, ADMINISTRATION | DANGEROUS, &[]).handled(Local),
    cmd("save", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, NONE, &[]).handled(Forbidden),
    cmd("shutdown", -1, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY, NONE, &[])
        .handled(Forbidden),
    cmd("slaveof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Refused(REPLICAOF)),
    cmd("slowlog", -2, NONE, NONE, &[]).with(&[
        cmd("slowlog|get", -2, ADMIN | LOADING | STALE, NONE, &[])
            .handled(AllNodes(Merge::Newest))
            .tips(&["request_policy:all_nodes", "nondeterministic_output"]),
        cmd("slowlog|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("slowlog|len", 2, ADMIN | LOADING | STALE, NONE, &[]).handled(AllNodes(Merge::Sum)).tips(&[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ]),
        cmd("slowlog|reset", 2, ADMIN | LOADING | STALE, NONE, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]),
    cmd("swapdb", 3, WRITE | FAST, KEYSPACE | DANGEROUS, &[]).handled(Refused(SWAPDB)),
    cmd("sync", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI, NONE, &[]).handled(Forbidden),
    cmd("time", 1, LOADING | STALE | FAST, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
    cmd("asking", 1, FAST, CONNECTION, &[]).handled(Local),
    cmd("cluster", -2, NONE, NONE, &[]).handled(Local).with(&[
        cmd("cluster|addslots", -3, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|addslotsrange", -4, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|bumpepoch", 2, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[])
            .handled(Forbidden)
            .tips(NONDETERMINISTIC),
        cmd("cluster|count-failure-reports", 3, ADMIN | STALE, NONE, &[])
            .handled(Local)
            .tips(NONDETERMINISTIC),
        cmd("cluster|countkeysinslot", 3, STALE, NONE, &[]).handled(Local),
        cmd("cluster|delslots", -3, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|delslotsrange", -4, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|failover", -2, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|flushslots", 2, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|forget", 3, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|getkeysinslot", 4, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|help", 2, LOADING | STALE, NONE, &[]).handled(Local),
        cmd("cluster|info", 2, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|keyslot", 3, STALE, NONE, &[]).handled(Local),
        cmd("cluster|links", 2, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|meet", -4, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|myid", 2, STALE, NONE, &[]).handled(Local),
        cmd("cluster|myshardid", 2, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC).newer(),
        cmd("cluster|nodes", 2, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|replicas", 3, ADMIN | STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|replicate", 3, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|reset", -2, ADMIN | NOSCRIPT | STALE, NONE, &[]).handled(Forbidden),
        cmd("cluster|saveconfig", 2, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|set-config-epoch", 3, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|setslot", -4, ADMIN | STALE | NO_ASYNC_LOADING, NONE, &[]).handled(Forbidden),
        cmd("cluster|shards", 2, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|slaves", 3, ADMIN | STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
        cmd("cluster|slots", 2, STALE, NONE, &[]).handled(Local).tips(NONDETERMINISTIC),
    ]),
    cmd("readonly", 1, LOADING | STALE | FAST, CONNECTION, &[]).handled(Local),
    cmd("readwrite", 1, LOADING | STALE | FAST, CONNECTION, &[]).handled(Local),
];
