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
    /// The default value; empty: unset.
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
        "Where the metadata is stored: in this process, or in the etcd at `meta.endpoints`.",
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
        "Authority (PEM) that must have signed the certificates of clients of `meta.listen`; needs `meta.serve_cert`.",
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
        "Prefix of every key, so that several installations can share one etcd. Begins with `/` and does not end with `/`.",
    ),
    key("meta.user", Kind::Text, "", "User name at etcd; needs `meta.password`."),
    key("meta.password", Kind::Secret, "", "Password at etcd. Prefer the environment variable to the file."),
    key(
        "meta.tls_ca",
        Kind::Path,
        "",
        "Authority (PEM) that signed the certificates of `https://` endpoints.",
    ),
    key("meta.tls_cert", Kind::Path, "", "Client certificate (PEM) for the endpoints; needs `meta.tls_key`."),
    key("meta.tls_key", Kind::Path, "", "Private key (PEM) of `meta.tls_cert`."),
    key(
        "meta.history",
        Kind::Count,
        "100000",
        "How many revisions the embedded store keeps before it compacts automatically; 0 keeps everything.",
    ),
    key(
        "meta.quota_bytes",
        Kind::Count,
        "2147483648",
        "Bytes of keys, values and history that the embedded store takes before it refuses puts and raises etcd's alarm \
         NOSPACE; 0 sets no bound.",
    ),
    key(
        "meta.request_bytes",
        Kind::Count,
        "1572864",
        "Bytes of keys and values that one request to the embedded store may have; at most 10485760.",
    ),
    key(
        "meta.auth_token",
        Kind::Text,
        "simple",
        "What tokens of the embedded store's users are, as etcd's `--auth-token` says it: `simple`, or \
         `jwt,sign-method=RS256,pub-key=FILE,priv-key=FILE,ttl=10m`.",
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
        "Allow `http.listen` on an address that other machines reach without `tls.dir`, although credentials can be read on the way.",
    ),
    key(
        "tls.dir",
        Kind::Path,
        "",
        "Directory with the certificates of this host: ca.pem, host.pem and, where certificates are signed, ca.key. Set, \
         `http.listen`, `meta.listen`, `docs.listen`, `topics.listen` and the holders of `capstan host` are served over TLS, \
         and host.pem is renewed. Made by `capstan certs init` and `capstan join`.",
    ),
    key(
        "tls.life",
        Kind::Span,
        "168h",
        "How long the certificates are valid that this process signs with ca.key (10s to 8760h). Hosts renew them at half of it.",
    ),
    key(
        "tls.renew_every",
        Kind::Span,
        "0s",
        "How often this process has host.pem renewed, at the least; `0s`: at half of its life.",
    ),
    key(
        "access.anonymous",
        Kind::Choice(&["auto", "none", "viewer", "admin"]),
        "auto",
        "What requests over HTTP and of clients of topics may do without a credential: nothing, what the role `viewer` \
         may, or everything. `auto` is `admin` for `capstan up` on a loopback address and `none` for everything else.",
    ),
    key(
        "access.key",
        Kind::Secret,
        "",
        "The access key that commands show brokers of topics. Prefer the environment variable to the file. Unset: the one \
         of a `capstan up` in `meta.dir`, if that is where the metadata is.",
    ),
    key(
        "host.id",
        Kind::Text,
        "",
        "Name of this host in the metadata: letters, digits, `.`, `_`, `-`. Unset: the machine's host name.",
    ),
    key(
        "host.disk_reserve_mib",
        Kind::Count,
        "256",
        "MiB that must be free on the disks of this host: less is a finding, and less than a tenth of it a critical one.",
    ),
    key(
        "host.labels",
        Kind::Labels,
        "",
        "Properties of this host that placement may use, such as rack and zone.",
    ),
    key(
        "host.lease_ttl",
        Kind::Span,
        "10s",
        "How long the host counts as alive without renewing its lease (2s to 10m).",
    ),
    key(
        "host.roles",
        Kind::List,
        "",
        "The roles of `capstan host`: `fleet` (a worker updates its software), `redis` (it runs Redis nodes behind a \
         proxy), `topics` and `docs` (it serves them and keeps copies of their logs).",
    ),
    key(
        "host.stop_deadline",
        Kind::Span,
        "10s",
        "How long a shutdown waits for running tasks before it lists them and exits.",
    ),
    key(
        "fleet.prefix",
        Kind::Text,
        "/neco/",
        "Prefix of the fleet's keys. All processes of one fleet need the same value.",
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
        "The trust file (JSON): the keys whose signatures this host accepts on releases (role `fleet`).",
    ),
    key(
        "fleet.leader_ttl",
        Kind::Span,
        "60s",
        "How long a dead updater still counts as the leader (2s to 10m).",
    ),
    key(
        "up.hosts",
        Kind::Count,
        "3",
        "How many local hosts `capstan up` runs, each with its own root directory below `meta.dir`; at most 64.",
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
    key("redis.tls_cert", Kind::Path, "", "Certificate chain (PEM) of the proxy for clients that use TLS."),
    key("redis.tls_key", Kind::Path, "", "Key (PEM) of `redis.tls_cert`."),
    key(
        "redis.tls_client_ca",
        Kind::Path,
        "",
        "Authority (PEM) that must have signed the certificates of clients that use TLS.",
    ),
    key(
        "redis.tls_only",
        Kind::Flag,
        "false",
        "Refuse clients without TLS. Coordinators and other proxies, which log in as `admin`, are exempt.",
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
        "Port of this host's first redis-server; the others use the next ports, and so do further hosts of `capstan up`.",
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
        "Externally managed Redis servers, as `host:port`: `capstan host` offers them to clusters instead of starting \
         its own processes. Their data is removed before a cluster gets them. Each belongs to one host.",
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
        "Maximum number of clients of one proxy; also limited by the process's open files.",
    ),
    key(
        "redis.client_idle",
        Kind::Span,
        "0s",
        "Idle time after which a client is disconnected; `0s` means never.",
    ),
    key(
        "redis.secret",
        Kind::Secret,
        "",
        "The shared secret of coordinators and hosts: the password of user `admin` of every proxy; node passwords are \
         derived from it. `capstan up` generates one; `host` with the role redis and `controller` need it.",
    ),
    key(
        "redis.ping_every",
        Kind::Span,
        "500ms",
        "How often a coordinator contacts every proxy (50ms to 10s).",
    ),
    key(
        "redis.lease",
        Kind::Span,
        "1500ms",
        "How long a proxy serves after its last contact with a majority of the coordinators; at least twice \
         `redis.ping_every`.",
    ),
    key(
        "redis.move_rate",
        Kind::Count,
        "0",
        "Maximum keys per second that slot moves copy away from this host, over all moves; 0: no limit.",
    ),
    key(
        "holders.listen",
        Kind::Address,
        "127.0.0.1:0",
        "Where the holders of replicated logs on this host listen for other holders: one port per service (topics, \
         docs), counted from this one over the hosts of `capstan up`; port 0 picks free ones.",
    ),
    key(
        "holders.advertise",
        Kind::Text,
        "",
        "The ip:port that other holders are given, counted on over the services as `holders.listen` is. Unset: where they \
         listen.",
    ),
    key(
        "holders.allow_insecure",
        Kind::Flag,
        "false",
        "Allow `holders.listen` on an address that other machines reach although holders need no certificate.",
    ),
    key(
        "holders.tls_cert",
        Kind::Path,
        "",
        "Certificate chain (PEM) of this host's holders, for both sides of a connection. Its names must include each \
         holder's, such as `topics.HOST` and `docs.HOST`.",
    ),
    key("holders.tls_key", Kind::Path, "", "Private key (PEM) of `holders.tls_cert`."),
    key("holders.tls_ca", Kind::Path, "", "Authority (PEM) that signed the certificates of all holders."),
    key(
        "holders.dir",
        Kind::Path,
        "",
        "Where this host's copies of logs are kept, in one directory per service. Unset: `logs` in `meta.dir`.",
    ),
    key(
        "topics.listen",
        Kind::Address,
        "127.0.0.1:6650",
        "Where clients of topics connect; hosts of `capstan up` use this port and the next ones; port 0 picks free ones.",
    ),
    key(
        "topics.allow_insecure",
        Kind::Flag,
        "false",
        "Allow `topics.listen` on an address that other machines reach without TLS: access keys and messages can be read \
         on the way.",
    ),
    key(
        "topics.advertise",
        Kind::Text,
        "",
        "The host:port advertised to clients. Unset: the address of `topics.listen`.",
    ),
    key(
        "topics.tls_cert",
        Kind::Path,
        "",
        "Certificate chain (PEM) that brokers show; its names must include the host of `topics.advertise`. Unset: that in \
         `tls.dir`.",
    ),
    key("topics.tls_key", Kind::Path, "", "Private key (PEM) of `topics.tls_cert`."),
    key(
        "topics.tls_ca",
        Kind::Path,
        "",
        "Authority (PEM) that signed the certificates of all brokers: brokers and commands know brokers by it. Unset: that \
         in `tls.dir`.",
    ),
    key(
        "topics.cluster",
        Kind::Text,
        "capstan",
        "The name of the cluster of brokers, below `/cluster` in the metadata.",
    ),
    key(
        "topics.copies",
        Kind::Count,
        "0",
        "Copies of the messages of new topics; 0: three if there are three brokers, otherwise one, and one in \
         `capstan up`.",
    ),
    key(
        "topics.tier",
        Kind::Text,
        "",
        "Object storage that old messages are moved to: `file:///directory` or `s3://bucket/prefix`, with the credentials \
         in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. All brokers have the same. Unset: messages stay in the log.",
    ),
    key(
        "topics.tier_endpoint",
        Kind::Text,
        "",
        "The http:// or https:// address of a server that speaks S3. Unset: that of `topics.tier_region`.",
    ),
    key("topics.tier_region", Kind::Text, "us-east-1", "The region of the S3 bucket."),
    key(
        "topics.tier_local_bytes",
        Kind::Count,
        "268435456",
        "Bytes of closed files of each topic that stay in its log although they are in object storage.",
    ),
    key(
        "topics.tier_interval",
        Kind::Span,
        "30s",
        "How often a broker looks for closed files to move to object storage.",
    ),
    key(
        "docs.listen",
        Kind::Address,
        "127.0.0.1:7751",
        "Where this host's node of the document store serves its HTTP API, to clients and to other nodes; `capstan up` \
         counts on from this port over its hosts; port 0 takes any free one.",
    ),
    key(
        "docs.allow_insecure",
        Kind::Flag,
        "false",
        "Allow `docs.listen` on an address that other machines reach without `tls.dir`, although keys and documents can be \
         read on the way.",
    ),
    key("docs.dir", Kind::Path, "", "Where this host's documents are kept. Unset: `docs` in `meta.dir`."),
    key(
        "docs.backup_dir",
        Kind::Path,
        "",
        "Where this host keeps the backups that clients of the HTTP API or a schedule ask for. Unset: `backups` in \
         `docs.dir`.",
    ),
    key(
        "docs.copies",
        Kind::Count,
        "3",
        "Copies of each token, 1 to 5; a write is acknowledged when a majority of them is durable. Read by the first \
         node of a cluster.",
    ),
    key(
        "docs.token_digits",
        Kind::Count,
        "1",
        "Hex digits of a token's name, 1 to 4: there are 16 to the power of it. Read by the first node of a cluster.",
    ),
    key(
        "docs.auto_add",
        Kind::Flag,
        "true",
        "Whether a node that appears in a cluster with tokens gets its share of them by itself; otherwise it waits for \
         `capstan docs add`. Read by the first node of a cluster.",
    ),
    key("docs.cache_mib", Kind::Count, "64", "MiB of documents that a node keeps in memory."),
    key(
        "docs.move_bytes_per_second",
        Kind::Count,
        "0",
        "Maximum bytes per second of the copies of tokens that leave this host, over all moves, at least 1048576; 0: no \
         limit. What is written while a copy is made is not counted.",
    ),
    key(
        "docs.queue",
        Kind::Secret,
        "",
        "The RabbitMQ that new copies of tokens travel over, as `amqp://user:password@host:port/vhost`; the same on every \
         node. Unset: they travel directly. Prefer the environment variable to the file.",
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
