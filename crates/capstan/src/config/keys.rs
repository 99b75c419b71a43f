//! Which settings exist: name, kind, default and meaning of every one, declared once.
//!
//! The file's grammar, the environment variables, `config show` and the reference in `docs/operate.md` all come from
//! this table. A setting is added here only together with the code that reads it.

/// What a setting holds, and therefore how its text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// Text that is never printed.
    Secret,
    /// A file or directory.
    Path,
    /// `ip:port`.
    Address,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count,
    /// A time span with its unit: `500ms`, `10s`, `5m`.
    Span,
    /// Several texts: an array in the file, separated by commas elsewhere.
    List,
    /// Names and values: a table in the file, `name=value,name=value` elsewhere.
    Labels,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// `section.name`.
    pub(crate) path: &'static str,
    /// How its value is read.
    pub(crate) kind: Kind,
    /// The value if nobody sets it; empty: unset.
    pub(crate) default: &'static str,
    /// One sentence for the reference.
    pub(crate) about: &'static str,
}

impl Key {
    /// The environment variable that sets it: `meta.listen` is `CAPSTAN_META_LISTEN`.
    pub(crate) fn variable(&self) -> String {
        format!("CAPSTAN_{}", self.path.replace('.', "_").to_uppercase())
    }
}

const fn key(path: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key { path, kind, default, about }
}

/// Every setting there is, in the order in which they are shown.
pub(crate) const KEYS: &[Key] = &[
    key(
        "meta.mode",
        Kind::Choice(&["embedded", "etcd"]),
        "embedded",
        "Where the metadata lives: in this process, or in an etcd that is reached through `meta.endpoints`.",
    ),
    key(
        "meta.dir",
        Kind::Path,
        "data",
        "Data directory of the embedded store. One process at a time may open it.",
    ),
    key("meta.listen", Kind::Address, "127.0.0.1:7701", "Where the embedded store serves the etcd v3 wire."),
    key(
        "meta.allow_insecure",
        Kind::Flag,
        "false",
        "Allow `meta.listen` on an address that other machines reach although clients need no certificate.",
    ),
    key(
        "meta.serve_cert",
        Kind::Path,
        "",
        "Certificate chain (PEM) with which `meta.listen` is served over TLS.",
    ),
    key("meta.serve_key", Kind::Path, "", "Private key (PEM) of `meta.serve_cert`."),
    key(
        "meta.serve_client_ca",
        Kind::Path,
        "",
        "Authority (PEM) whose certificates clients of `meta.listen` must show; needs `meta.serve_cert`.",
    ),
    key(
        "meta.endpoints",
        Kind::List,
        "",
        "Endpoints of the metadata store for `host`, `controller` and the operator commands: `http://` or \
         `https://`, host and port. Unset: the embedded store's address.",
    ),
    key(
        "meta.prefix",
        Kind::Text,
        "",
        "Put before every key, so that several installations share one etcd. Begins with `/`, has no `/` at the end.",
    ),
    key("meta.user", Kind::Text, "", "User name at etcd; needs `meta.password`."),
    key("meta.password", Kind::Secret, "", "Password at etcd. Better set by environment than by file."),
    key(
        "meta.tls_ca",
        Kind::Path,
        "",
        "Authority (PEM) that signed the certificates of `https://` endpoints.",
    ),
    key("meta.tls_cert", Kind::Path, "", "Certificate (PEM) shown to the endpoints; needs `meta.tls_key`."),
    key("meta.tls_key", Kind::Path, "", "Private key (PEM) of `meta.tls_cert`."),
    key(
        "meta.history",
        Kind::Count,
        "100000",
        "How many revisions the embedded store keeps before it compacts by itself; 0 keeps everything.",
    ),
    key(
        "http.listen",
        Kind::Address,
        "127.0.0.1:7700",
        "Where the console, the JSON API and the metrics are served.",
    ),
    key(
        "http.allow_insecure",
        Kind::Flag,
        "false",
        "Allow `http.listen` on an address that other machines reach, although HTTP has neither TLS nor passwords.",
    ),
    key(
        "host.id",
        Kind::Text,
        "",
        "Name of this host in the metadata: letters, digits, `.`, `_`, `-`. Unset: the machine's host name.",
    ),
    key(
        "host.labels",
        Kind::Labels,
        "",
        "Facts about this host that placement may use, such as rack and zone.",
    ),
    key(
        "host.lease_ttl",
        Kind::Span,
        "10s",
        "For how long the host counts as alive after it was last heard of (2s to 10m).",
    ),
    key(
        "host.roles",
        Kind::List,
        "",
        "What `capstan host` does beside being a host: `fleet` (its software is updated by the fleet's worker), `redis` \
         (it runs Redis nodes behind a proxy).",
    ),
    key(
        "host.stop_deadline",
        Kind::Span,
        "10s",
        "How long a stop waits for what is still running before it names it and gives up.",
    ),
    key(
        "fleet.prefix",
        Kind::Text,
        "/neco/",
        "Where the keys of the fleet begin. Everyone who has to do with one fleet sets the same.",
    ),
    key("fleet.lrn", Kind::Text, "", "Number of this host in the fleet (role `fleet`)."),
    key(
        "fleet.root",
        Kind::Path,
        "/",
        "Root directory into which packages are installed. Maintainer scripts run outside of a root that is not `/`, \
         with `DPKG_ROOT` set.",
    ),
    key(
        "fleet.dir",
        Kind::Path,
        "data/fleet",
        "The worker's own directory: journal, fetched artifacts, images. One worker at a time may open it.",
    ),
    key(
        "fleet.source",
        Kind::Text,
        "",
        "Where this host fetches releases unless the fleet's own setting `source` says otherwise: a directory, an \
         `http://` or `https://` address, or `github:owner/name#tag-prefix`.",
    ),
    key(
        "fleet.trust",
        Kind::Path,
        "",
        "The trust file (JSON): whose signatures make a release one that this host installs (role `fleet`).",
    ),
    key(
        "fleet.leader_ttl",
        Kind::Span,
        "60s",
        "For how long an updater that died still counts as the leader (2s to 10m).",
    ),
    key(
        "up.hosts",
        Kind::Count,
        "3",
        "How many local hosts `capstan up` plays, each with a root directory of its own below `meta.dir`; at most 64.",
    ),
    key(
        "redis.listen",
        Kind::Address,
        "127.0.0.1:7711",
        "Where the Redis proxy of this host serves clients and coordinators. Hosts of `capstan up` take this port and \
         the next ones.",
    ),
    key(
        "redis.allow_insecure",
        Kind::Flag,
        "false",
        "Allow `redis.listen` on an address that other machines reach, although coordinators and proxies speak plainly \
         there, and clients too unless `redis.tls_only` is set.",
    ),
    key(
        "redis.tls_cert",
        Kind::Path,
        "",
        "Certificate chain (PEM) with which the proxy answers clients that speak TLS.",
    ),
    key("redis.tls_key", Kind::Path, "", "Key (PEM) of `redis.tls_cert`."),
    key(
        "redis.tls_client_ca",
        Kind::Path,
        "",
        "Clients that speak TLS must show a certificate that this authority (PEM) has signed.",
    ),
    key(
        "redis.tls_only",
        Kind::Flag,
        "false",
        "Refuse clients that do not speak TLS. Coordinators and other proxies, who log in as `admin`, still may.",
    ),
    key(
        "redis.nodes",
        Kind::Count,
        "2",
        "How many redis-server processes this host offers to clusters (1 to 60).",
    ),
    key(
        "redis.first_node_port",
        Kind::Count,
        "7721",
        "Port of this host's first redis-server; the others follow. Hosts of `capstan up` go on counting.",
    ),
    key(
        "redis.dir",
        Kind::Path,
        "",
        "Where the proxy's state and the nodes' data are kept. Unset: `redis` in `meta.dir`.",
    ),
    key(
        "redis.server",
        Kind::Path,
        "",
        "The server program of the nodes. Unset: redis-server, else valkey-server, from the PATH.",
    ),
    key(
        "redis.external_nodes",
        Kind::List,
        "",
        "Redis servers that somebody else runs, as `host:port`: `capstan host` offers them to clusters instead of \
         starting processes of its own. Their data is removed before a cluster gets them. Each belongs to one host.",
    ),
    key(
        "redis.external_password",
        Kind::Secret,
        "",
        "The password of `redis.external_nodes`, if they have one.",
    ),
    key(
        "redis.workers",
        Kind::Count,
        "1",
        "Threads of the proxy, each with its own connections to every node (1 to 256).",
    ),
    key(
        "redis.max_clients",
        Kind::Count,
        "10000",
        "Clients of one proxy; one more is refused. Fewer where the system allows the process fewer open files.",
    ),
    key(
        "redis.client_idle",
        Kind::Span,
        "0s",
        "A client that sends nothing for so long is disconnected; `0s` means never.",
    ),
    key(
        "redis.secret",
        Kind::Secret,
        "",
        "What coordinators and hosts share: the password of user `admin` of every proxy, and what the passwords of \
         nodes are made from. `capstan up` makes one; `host` with the role redis and `controller` need it.",
    ),
    key(
        "redis.ping_every",
        Kind::Span,
        "500ms",
        "How often a coordinator speaks to every proxy (50ms to 10s).",
    ),
    key(
        "redis.lease",
        Kind::Span,
        "1500ms",
        "For how long a proxy serves after it last heard from a majority of the coordinators; at least twice \
         `redis.ping_every`.",
    ),
    key(
        "redis.move_rate",
        Kind::Count,
        "0",
        "Most keys a second that slots which move away from this host take with them, over all moves; 0: as many as \
         possible.",
    ),
    key("log.format", Kind::Choice(&["text", "json"]), "text", "Form of the log lines on stderr."),
    key(
        "log.level",
        Kind::Text,
        "info",
        "What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,capstan_meta=debug`.",
    ),
];

/// The setting with this name.
pub(crate) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The sections, in the order in which they are shown.
pub(crate) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().filter_map(|key| key.path.split('.').next()).collect();
    sections.dedup();
    sections
}
