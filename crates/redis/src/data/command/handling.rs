//! What does the proxy do with a command?

/// How a command is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// By the node that has its keys; all of them in one slot. Without keys (a script that declares none): any node.
    Key,
    /// As `Key`; where the database allows it, keys of several slots are asked for in parts.
    Split(Merge),
    /// By every primary: those behind this proxy in cluster mode (the client asks the other proxies itself), those of
    /// the whole database in single mode.
    AllNodes(Merge),
    /// By whichever node.
    AnyNode,
    /// As `Key`, but it may wait in the node ([`blocks`](super::Command::blocks)): on a connection of its own.
    Blocking(Timeout),
    /// `WAIT`, `WAITAOF`: on connections of its own to every primary, each after a `PING`, since Redis waits for what was written
    /// before the last command of the same connection. The least of the answers.
    Wait,
    /// Subscribes, or publishes.
    PubSub,
    /// Begins or ends a transaction, or watches keys for one.
    Transaction,
    /// By the proxy itself.
    Local,
    /// Steers the proxy itself; for those who may.
    Admin,
    /// With this error.
    Refused(&'static str),
    /// Nobody may: it would harm the node or everyone who shares it.
    Forbidden,
}

/// How the answers of several nodes, or of several parts, become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Numbers, added.
    Sum,
    /// The first answer if none is an error, else the first error.
    AllOk,
    /// Arrays, one after the other.
    Concatenation,
    /// Arrays with one value a key, in the order in which the client named the keys.
    Values,
    /// One that is neither an error nor null, if there is one.
    Any,
    /// Arrays of 0 and 1, place by place the least.
    Every,
    /// Arrays of entries with a number and a time, the newest first (`SLOWLOG GET`).
    Newest,
    /// Maps of commands and how long they took, added up (`LATENCY HISTOGRAM`).
    Histograms,
    /// `SCAN`: one node after the other, which one being part of the cursor.
    Scan,
}

/// Where a blocking command says how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// `BLPOP key ... timeout`
    Last,
    /// `BLMPOP timeout ...`
    First,
    /// `XREAD ... BLOCK milliseconds ...`; without it, it does not wait.
    Option,
}

/// What Redis says in cluster mode.
pub(super) mod refusals {
    pub(in super::super) const MOVE: &str = "ERR MOVE is not allowed in cluster mode";
    pub(in super::super) const SWAPDB: &str = "ERR SWAPDB is not allowed in cluster mode";
    pub(in super::super) const REPLICAOF: &str = "ERR REPLICAOF not allowed in cluster mode.";
    pub(in super::super) const FAILOVER: &str =
        "ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.";
    pub(in super::super) const DEBUG: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is \
        set to \"local\", you can run it from a local connection, otherwise you need to set this option in the \
        configuration file, and then restart the server.";
    pub(in super::super) const MODULE: &str = "ERR MODULE command not allowed. If the enable-module-command option \
        is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the \
        configuration file, and then restart the server.";
}
