//! Commands about connections, channels, scripts and transactions.

use super::row::*;

pub(super) const TABLE: &[Command] = &[
    cmd("auth", -2, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY, CONNECTION, &[]).handled(Local),
    cmd("client", -2, NONE, NONE, &[]).handled(Local).with(&[
        cmd("client|caching", 3, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|getname", 2, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|getredir", 2, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|help", 2, LOADING | STALE, CONNECTION, &[]).handled(AnyNode),
        cmd("client|id", 2, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|info", 2, NOSCRIPT | LOADING | STALE, CONNECTION, &[])
            .handled(Local)
            .tips(NONDETERMINISTIC),
        cmd("client|kill", -3, ADMIN | NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|list", -2, ADMIN | NOSCRIPT | LOADING | STALE, CONNECTION, &[])
            .handled(Local)
            .tips(NONDETERMINISTIC),
        cmd("client|no-evict", 3, ADMIN | NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|no-touch", 3, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local).newer(),
        cmd("client|pause", -3, ADMIN | NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|reply", 3, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|setinfo", 4, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local).newer(),
        cmd("client|setname", 3, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|tracking", -3, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|trackinginfo", 2, NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|unblock", -3, ADMIN | NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
        cmd("client|unpause", 2, ADMIN | NOSCRIPT | LOADING | STALE, CONNECTION, &[]).handled(Local),
    ]),
    cmd("echo", 2, LOADING | STALE | FAST, CONNECTION, &[]).handled(Local),
    cmd("hello", -1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY, CONNECTION, &[])
        .handled(Local),
    cmd("ping", -1, FAST, CONNECTION, &[])
        .handled(Local)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    cmd("quit", -1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY, CONNECTION, &[]).handled(Local),
    cmd("reset", 1, NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY, CONNECTION, &[]).handled(Local),
    cmd("select", 2, LOADING | STALE | FAST, CONNECTION, &[]).handled(Local),
    cmd("psubscribe", -2, PUBSUB | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(PubSub),
    cmd("publish", 3, PUBSUB | LOADING | STALE | FAST, NONE, &[]).handled(PubSub),
    cmd("pubsub", -2, NONE, NONE, &[]).handled(PubSub).with(&[
        cmd("pubsub|channels", -2, PUBSUB | LOADING | STALE, NONE, &[]).handled(PubSub),
        cmd("pubsub|help", 2, LOADING | STALE, NONE, &[]).handled(AnyNode),
        cmd("pubsub|numpat", 2, PUBSUB | LOADING | STALE, NONE, &[]).handled(PubSub),
        cmd("pubsub|numsub", -2, PUBSUB | LOADING | STALE, NONE, &[]).handled(PubSub),
        cmd("pubsub|shardchannels", -2, PUBSUB | LOADING | STALE, NONE, &[]).handled(PubSub),
        cmd("pubsub|shardnumsub", -2, PUBSUB | LOADING | STALE, NONE, &[]).handled(PubSub),
    ]),
    cmd("punsubscribe", -1, PUBSUB | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(PubSub),
    cmd("spublish", 3, PUBSUB | LOADING | STALE | FAST, NONE, &[at(1, NOT_KEY)]).handled(PubSub),
    cmd("ssubscribe", -2, PUBSUB | NOSCRIPT | LOADING | STALE, NONE, &[range(1, -1, 1, NOT_KEY)])
        .handled(PubSub),
    cmd("subscribe", -2, PUBSUB | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(PubSub),
    cmd("sunsubscribe", -1, PUBSUB | NOSCRIPT | LOADING | STALE, NONE, &[range(1, -1, 1, NOT_KEY)])
        .handled(PubSub),
    cmd("unsubscribe", -1, PUBSUB | NOSCRIPT | LOADING | STALE, NONE, &[]).handled(PubSub),
    cmd(
        "eval",
        -3,
        NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLE_KEYS,
        SCRIPTING,
        &[counted(2, RW | ACCESS | UPDATE)],
    ),
    cmd(
        "eval_ro",
        -3,
        READONLY | NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLE_KEYS,
        SCRIPTING,
        &[counted(2, RO | ACCESS)],
    ),
    cmd(
        "evalsha",
        -3,
        NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLE_KEYS,
        SCRIPTING,
        &[counted(2, RW | ACCESS | UPDATE)],
    ),
    cmd(
        "evalsha_ro",
        -3,
        READONLY | NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLE_KEYS,
        SCRIPTING,
        &[counted(2, RO | ACCESS)],
    ),
    cmd(
        "fcall",
        -3,
        NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLE_KEYS,
        SCRIPTING,
        &[counted(2, RW | ACCESS | UPDATE)],
    ),
    cmd(
        "fcall_ro",
        -3,
        READONLY | NOSCRIPT | STALE | SKIP_MONITOR | NO_MANDATORY_KEYS | MOVABLE_KEYS,
        SCRIPTING,
        &[counted(2, RO | ACCESS)],
    ),
    cmd("function", -2, NONE, NONE, &[]).with(&[
        cmd("function|delete", 3, WRITE | NOSCRIPT, SCRIPTING, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
        cmd("function|dump", 2, NOSCRIPT, SCRIPTING, &[]).handled(AnyNode),
        cmd("function|flush", -2, WRITE | NOSCRIPT, SCRIPTING, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
        cmd("function|help", 2, LOADING | STALE, SCRIPTING, &[]).handled(AnyNode),
        cmd("function|kill", 2, NOSCRIPT | ALLOW_BUSY, SCRIPTING, &[])
            .handled(AllNodes(Merge::Any))
            .tips(&["request_policy:all_shards", "response_policy:one_succeeded"]),
        cmd("function|list", -2, NOSCRIPT, SCRIPTING, &[]).handled(AnyNode).tips(NONDETERMINISTIC_ORDER),
        cmd("function|load", -3, WRITE | DENYOOM | NOSCRIPT, SCRIPTING, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
        cmd("function|restore", -3, WRITE | DENYOOM | NOSCRIPT, SCRIPTING, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
        cmd("function|stats", 2, NOSCRIPT | ALLOW_BUSY, SCRIPTING, &[]).handled(AnyNode).tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ]),
    ]),
    cmd("script", -2, NONE, NONE, &[]).with(&[
        cmd("script|debug", 3, NOSCRIPT, SCRIPTING, &[]).handled(Forbidden),
        cmd("script|exists", -3, NOSCRIPT, SCRIPTING, &[])
            .handled(AllNodes(Merge::Every))
            .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"]),
        cmd("script|flush", -2, NOSCRIPT, SCRIPTING, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
        cmd("script|help", 2, LOADING | STALE, SCRIPTING, &[]).handled(AnyNode),
        cmd("script|kill", 2, NOSCRIPT | ALLOW_BUSY, SCRIPTING, &[])
            .handled(AllNodes(Merge::Any))
            .tips(&["request_policy:all_shards", "response_policy:one_succeeded"]),
        cmd("script|load", 3, NOSCRIPT | STALE, SCRIPTING, &[])
            .handled(AllNodes(Merge::AllOk))
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]),
    cmd("discard", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, TRANSACTION, &[]).handled(Transaction),
    cmd("exec", 1, NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG, TRANSACTION, &[]).handled(Transaction),
    cmd("multi", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, TRANSACTION, &[]).handled(Transaction),
    cmd("unwatch", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, TRANSACTION, &[]).handled(Transaction),
    cmd("watch", -2, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY, TRANSACTION, &[range(1, -1, 1, RO)])
        .handled(Transaction),
];
