//! What does the proxy do with a command?

/// How a command is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// By the node that owns its keys, all in one slot. Without keys (a script that declares none): by any
    /// node.
    Key,
    /// As `Key`; if the database allows it, keys in several slots are served in parts.
    Split(Merge),
    /// By every primary: those behind this proxy in cluster mode (clients query the other proxies
    /// themselves), those of the whole database in single mode.
    AllNodes(Merge),
    /// By any one node.
    AnyNode,
    /// As `Key`, but it may block in the node ([`blocks`](super::Command::blocks)), so it gets a dedicated
    /// connection.
    Blocking(Timeout),
    /// `WAIT`, `WAITAOF`: on dedicated connections to every primary, each after a `PING`, because Redis waits
    /// for the writes before the last command of the same connection. The reply is the smallest one.
    Wait,
    /// Subscribes, or publishes.
    PubSub,
    /// Begins or ends a transaction, or watches keys for one.
    Transaction,
    /// By the proxy itself.
    Local,
    /// Controls the proxy itself; requires admin permission.
    Admin,
    /// Always refused with this error.
    Refused(&'static str),
    /// Denied to every user: it would harm the node or the clients that share it.
    Forbidden,
}

/// How the replies of several nodes, or of several parts, are merged into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Integers are summed.
    Sum,
    /// The first error, else the first reply.
    AllOk,
    /// Arrays are concatenated.
    Concatenation,
    /// Arrays with one value per key, in the order of the keys in the request.
    Values,
    /// Any reply that is neither an error nor null, if there is one.
    Any,
    /// Arrays of 0 and 1: the minimum of each element.
    Every,
    /// Arrays of entries with a number and a time, the newest first (`SLOWLOG GET`).
    Newest,
    /// Maps of commands to latency histograms, summed (`LATENCY HISTOGRAM`).
    Histograms,
    /// `SCAN`: one node after another; the cursor encodes the node.
    Scan,
}

/// Where a blocking command has its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// `BLPOP key ... timeout`
    Last,
    /// `BLMPOP timeout ...`
    First,
    /// `XREAD ... BLOCK milliseconds ...`; without the option it does not block.
    Option,
}

/// Redis's own error texts in cluster mode; and which command of Capstan changes users.
pub(super) mod refusals {
    pub(in super::super) const ACL_SETUSER: &str = "NOPERM users are part of the cluster's settings; change them with \
        `capstan redis user set CLUSTER NAME RULES...`";
    pub(in super::super) const ACL_DELUSER: &str = "NOPERM users are part of the cluster's settings; delete one with \
        `capstan redis user delete CLUSTER NAME`";
    pub(in super::super) const ACL_FILE: &str = "NOPERM there is no ACL file: users are part of the cluster's \
        settings; change them with `capstan redis user set CLUSTER NAME RULES...`";
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
