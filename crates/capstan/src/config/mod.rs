//! The settings of a process: one TOML file, `CAPSTAN_*` variables over it, flags over both.
//!
//! A [`Config`] exists only if all of it is valid, and it is made before anything is opened or bound.

mod access;
mod docs;
mod fleet;
mod holders;
mod keys;
mod layers;
mod redis;
mod suggest;
mod tls;
mod topics;
mod value;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use access::Access;
pub(crate) use docs::Docs;
pub(crate) use fleet::{Fleet, HostRole};
pub(crate) use holders::{HolderTls, Holders};
pub(crate) use keys::{KEYS, Kind};
pub(crate) use layers::{Flag, Layers, Origin, Sources, shown};
pub(crate) use redis::Redis;
pub(crate) use tls::HostTls;
pub(crate) use topics::Topics;
pub(crate) use value::{Value, parse_span, span};

/// The settings of one process, all of them valid.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) meta: Meta,
    pub(crate) http_listen: SocketAddr,
    /// The certificates of this host, with which everything is served that other machines reach.
    pub(crate) tls: Option<HostTls>,
    pub(crate) access: Access,
    pub(crate) host: Host,
    pub(crate) fleet: Fleet,
    /// How many local hosts `capstan up` plays.
    pub(crate) up_hosts: u32,
    pub(crate) redis: Redis,
    pub(crate) holders: Holders,
    pub(crate) topics: Topics,
    pub(crate) docs: Docs,
}

/// Section `meta`.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    pub(crate) mode: Mode,
    pub(crate) dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) serve_tls: Option<ServeTls>,
    /// Where clients find the store; never empty.
    pub(crate) endpoints: Vec<String>,
    pub(crate) prefix: String,
    pub(crate) login: Option<Login>,
    pub(crate) tls: Tls,
    /// Revisions kept; `None`: all.
    pub(crate) history: Option<u64>,
    /// Bytes of keys, values and history; zero: any number.
    pub(crate) quota_bytes: u64,
    /// Bytes of one request.
    pub(crate) request_bytes: usize,
    /// What tokens of users are.
    pub(crate) auth_token: AuthToken,
}

/// What tokens of the embedded store's users are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthToken {
    Simple,
    /// Signed; what follows `jwt,` in the setting.
    Jwt(String),
}

/// More than this in one request would hold up every other one; etcd's own recommendation.
const MAX_REQUEST_BYTES: u64 = 10 << 20;

/// Where the metadata lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Embedded,
    Etcd,
}

/// User and password at etcd.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

/// Files for TLS towards etcd.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Files for TLS on `meta.listen`, or for clients on `redis.listen`.
#[derive(Clone, Debug)]
pub(crate) struct ServeTls {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

/// Section `host`.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) id: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) roles: Vec<HostRole>,
    pub(crate) lease_ttl: Duration,
    pub(crate) stop_deadline: Duration,
    /// Bytes that must be free on its disks.
    pub(crate) disk_reserve: u64,
}

/// Everything that is wrong with a configuration, at once.
#[derive(Debug, thiserror::Error)]
#[error("the configuration is not valid ({} problem{})\n  {}\nNothing was started. `capstan config show` prints every key with its value and where it came from.",
    .0.len(), if .0.len() == 1 { "" } else { "s" }, .0.join("\n  "))]
pub(crate) struct Invalid(pub(crate) Vec<String>);

impl Config {
    /// How `http.listen` is served.
    pub(crate) fn http_scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Reads and checks everything; on failure every mistake is named.
    pub(crate) fn of(layers: &Layers) -> Result<Config, Invalid> {
        let mut problems = layers.problems.clone();
        let config = Reader { layers, problems: &mut problems }.config();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            Some(_) | None => Err(Invalid(problems)),
        }
    }
}

/// The longest prefix of keys: keys are paid for by every request.
const PREFIX_MAX_BYTES: usize = 128;

/// Takes settings out of the layers and notes what contradicts what.
struct Reader<'a> {
    layers: &'a Layers,
    problems: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn config(&mut self) -> Option<Config> {
        let meta = self.meta();
        let http_listen = self.address("http.listen");
        let tls = self.host_tls();
        if let Some(address) = http_listen.filter(|_| tls.is_none()) {
            self.closed(address, "http.listen", "http.allow_insecure", "or set `tls.dir`, ");
        }
        let host = self.host();
        let fleet = self.fleet(host.as_ref().map(|host| host.roles.as_slice()).unwrap_or_default());
        let up_hosts = self.up_hosts();
        let (meta, host) = (meta?, host?);
        let redis = self.redis(&meta.dir, &host.roles);
        let (holders, topics) = (self.holders(&meta.dir), self.topics());
        let docs = self.docs(&meta.dir)?;
        let (http_listen, fleet, redis, holders, topics) = (http_listen?, fleet?, redis?, holders?, topics?);
        let access = self.access();
        Some(Config { meta, http_listen, tls, access, host, fleet, redis, holders, topics, docs, up_hosts })
    }

    fn meta(&mut self) -> Option<Meta> {
        let mode = if self.text("meta.mode") == "etcd" { Mode::Etcd } else { Mode::Embedded };
        let serve_tls = self.serve_tls();
        let guarded = serve_tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let listen = self.address("meta.listen")?;
        if !guarded {
            self.closed(
                listen,
                "meta.listen",
                "meta.allow_insecure",
                "or set `tls.dir`, or `meta.serve_cert`, `meta.serve_key` and `meta.serve_client_ca`, ",
            );
        }
        let history = self.count("meta.history");
        let endpoints = self.endpoints(mode, listen, serve_tls.is_some());
        Some(Meta {
            mode,
            dir: PathBuf::from(self.text("meta.dir")),
            listen,
            tls: self.tls(&endpoints),
            endpoints,
            serve_tls,
            prefix: self.prefix(),
            login: self.login(),
            history: (history > 0).then_some(history),
            quota_bytes: self.count("meta.quota_bytes"),
            request_bytes: self.request_bytes(),
            auth_token: self.auth_token(),
        })
    }

    fn request_bytes(&mut self) -> usize {
        let bytes = self.count("meta.request_bytes");
        if !(1..=MAX_REQUEST_BYTES).contains(&bytes) {
            self.problem("meta.request_bytes", &format!("{bytes} must be from 1 to {MAX_REQUEST_BYTES}"));
        }
        usize::try_from(bytes.min(MAX_REQUEST_BYTES)).unwrap_or(usize::MAX)
    }

    fn auth_token(&mut self) -> AuthToken {
        let setting = self.text("meta.auth_token");
        match setting.split_once(',') {
            None if setting == "simple" => AuthToken::Simple,
            Some(("jwt", keys)) => AuthToken::Jwt(keys.to_owned()),
            None | Some(_) => {
                let right = format!("\"{setting}\" must be `simple` or begin with `jwt,`");
                self.problem("meta.auth_token", &right);
                AuthToken::Simple
            }
        }
    }

    fn endpoints(&mut self, mode: Mode, listen: SocketAddr, tls: bool) -> Vec<String> {
        let with_tls = !self.text("meta.tls_ca").is_empty();
        let endpoints = self.list("meta.endpoints").into_iter();
        let endpoints: Vec<String> = endpoints.map(|endpoint| with_scheme(endpoint, with_tls)).collect();
        if endpoints.is_empty() && mode == Mode::Etcd {
            self.problem("meta.mode", "`etcd` needs `meta.endpoints`, such as [\"http://127.0.0.1:2379\"]");
        }
        for endpoint in &endpoints {
            if let Err(problem) = check_endpoint(endpoint) {
                self.problem("meta.endpoints", &problem);
            }
        }
        if endpoints.iter().any(|endpoint| endpoint.starts_with("https://"))
            && self.text("meta.tls_ca").is_empty()
            && self.text("tls.dir").is_empty()
        {
            self.problem("meta.endpoints", "`https://` needs `meta.tls_ca` or `tls.dir`");
        }
        let scheme = if tls { "https" } else { "http" };
        if endpoints.is_empty() { vec![format!("{scheme}://{listen}")] } else { endpoints }
    }

    fn prefix(&mut self) -> String {
        let prefix = self.text("meta.prefix");
        let shaped = prefix.is_empty() || (prefix.starts_with('/') && !prefix.ends_with('/'));
        if !shaped || prefix.len() > PREFIX_MAX_BYTES {
            let right = format!(
                "\"{prefix}\" must begin with /, must not end with / and has at most {PREFIX_MAX_BYTES} bytes"
            );
            self.problem("meta.prefix", &right);
        }
        prefix
    }

    fn login(&mut self) -> Option<Login> {
        let (user, password) = (self.text("meta.user"), self.text("meta.password"));
        match (user.is_empty(), password.is_empty()) {
            (true, true) => return None,
            (false, true) => self.problem("meta.user", "needs `meta.password` (CAPSTAN_META_PASSWORD)"),
            (true, false) => self.problem("meta.password", "needs `meta.user`"),
            (false, false) => {}
        }
        Some(Login { user, password })
    }

    /// The files for `https://` endpoints; what is not set is in the directory of the host's certificates.
    fn tls(&mut self, endpoints: &[String]) -> Tls {
        let ca = self.existing("meta.tls_ca");
        let identity = self.identity("meta.tls_cert", "meta.tls_key");
        let encrypted = endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
        let own = encrypted.then(|| self.own_certificates()).flatten();
        let (own_ca, own_identity) = own.map(|(ca, host)| (ca, (host.clone(), host))).unzip();
        Tls { ca: ca.or(own_ca), identity: identity.or(own_identity) }
    }

    fn serve_tls(&mut self) -> Option<ServeTls> {
        let identity = self.identity("meta.serve_cert", "meta.serve_key");
        let client_ca = self.existing("meta.serve_client_ca");
        if identity.is_none() && client_ca.is_some() {
            self.problem("meta.serve_client_ca", "needs `meta.serve_cert` and `meta.serve_key`");
        }
        let own = || self.own_certificates().map(|(ca, host)| (host.clone(), host, Some(ca)));
        let files = identity.map(|(cert, key)| (cert, key, client_ca)).or_else(own);
        files.map(|(cert, key, client_ca)| ServeTls { cert, key, client_ca })
    }

    /// A certificate and its key: both or neither.
    fn identity(&mut self, cert_path: &str, key_path: &str) -> Option<(PathBuf, PathBuf)> {
        match (self.existing(cert_path), self.existing(key_path)) {
            (Some(cert), Some(key)) => return Some((cert, key)),
            (Some(_), None) => self.problem(cert_path, &format!("needs `{key_path}`")),
            (None, Some(_)) => self.problem(key_path, &format!("needs `{cert_path}`")),
            (None, None) => {}
        }
        None
    }

    fn host(&mut self) -> Option<Host> {
        let named = self.text("host.id");
        let id = if named.is_empty() { machine_name() } else { named };
        if !is_name(&id) {
            self.problem("host.id", &format!("\"{id}\" must be 1 to 64 letters, digits, `.`, `_` or `-`"));
        }
        let lease_ttl = self.lease("host.lease_ttl");
        let Some(Value::Labels(labels)) = self.value("host.labels") else { return None };
        let roles = self.roles();
        let disk_reserve = self.count("host.disk_reserve_mib").saturating_mul(1024 * 1024);
        let stop_deadline = self.span("host.stop_deadline");
        Some(Host { id, labels, roles, lease_ttl, stop_deadline, disk_reserve })
    }

    /// A lease TTL: long enough not to flap, short enough to detect failures.
    fn lease(&mut self, path: &str) -> Duration {
        let ttl = self.span(path);
        if !(Duration::from_secs(2)..=Duration::from_secs(600)).contains(&ttl) {
            self.problem(path, "must be between 2s and 10m");
        }
        ttl
    }

    fn address(&mut self, path: &str) -> Option<SocketAddr> {
        if let Some(Value::Address(address)) = self.value(path) { Some(address) } else { None }
    }

    /// An address without authentication must be on loopback, or explicitly allowed.
    fn closed(&mut self, address: SocketAddr, path: &str, allow: &str, better: &str) {
        let allowed = self.value(allow) == Some(Value::Flag(true));
        if !address.ip().is_loopback() && !allowed {
            let problem = format!(
                "{address} can be reached from other machines without authentication; bind 127.0.0.1, {better}or set \
                 `{allow} = true` if the network is trusted"
            );
            self.problem(path, &problem);
        }
    }

    fn existing(&mut self, path: &str) -> Option<PathBuf> {
        let text = self.text(path);
        if text.is_empty() {
            return None;
        }
        if !Path::new(&text).is_file() {
            self.problem(path, &format!("there is no file {text}"));
        }
        Some(PathBuf::from(text))
    }

    fn value(&self, path: &str) -> Option<Value> {
        self.layers.settings.get(path).map(|setting| setting.value.clone())
    }

    fn text(&self, path: &str) -> String {
        if let Some(Value::Text(text)) = self.value(path) { text } else { String::new() }
    }

    fn list(&self, path: &str) -> Vec<String> {
        if let Some(Value::List(items)) = self.value(path) { items } else { Vec::new() }
    }

    fn count(&self, path: &str) -> u64 {
        if let Some(Value::Count(count)) = self.value(path) { count } else { 0 }
    }

    fn span(&self, path: &str) -> Duration {
        if let Some(Value::Span(span)) = self.value(path) { span } else { Duration::ZERO }
    }

    fn problem(&mut self, path: &str, problem: &str) {
        let origin =
            self.layers.settings.get(path).map(|setting| setting.origin.to_string()).unwrap_or_default();
        self.problems.push(format!("{origin}: {path}: {problem}"));
    }
}

/// Whether the text is an endpoint of the metadata store; the error says what one looks like.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let port = rest.and_then(|rest| rest.rsplit_once(':')).filter(|(host, _)| !host.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(_) => Ok(()),
        None => {
            Err(format!("\"{endpoint}\" is not an endpoint: write http://host:port or https://host:port"))
        }
    }
}

/// Names that can stand in a key: no slash, no blank, not too long.
fn is_name(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&text.len()) && text.chars().all(legal)
}

/// The machine's own name, or `localhost` if it has none.
fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if is_name(name) { name.to_owned() } else { "localhost".to_owned() }
}

/// `host:port` alone is enough: the scheme follows from whether TLS is set up.
fn with_scheme(endpoint: String, tls: bool) -> String {
    let port = endpoint.rsplit_once(':').map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        Some(_) if !endpoint.contains("://") => format!("http{}://{endpoint}", if tls { "s" } else { "" }),
        Some(_) | None => endpoint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, Vec<String>> {
        let file = Some((PathBuf::from("c.toml"), text.to_owned()));
        Config::of(&Layers::of(&Sources { file, ..Sources::default() })).map_err(|invalid| invalid.0)
    }

    #[test]
    fn an_endpoint_needs_no_scheme() {
        let with = |endpoint: &str, tls| with_scheme(endpoint.to_owned(), tls);
        assert_eq!(with("127.0.0.1:7701", false), "http://127.0.0.1:7701");
        assert_eq!(with("etcd-1:2379", true), "https://etcd-1:2379");
        assert_eq!(with("http://h:1", true), "http://h:1");
        assert_eq!(with("localhost", false), "localhost");
    }

    #[test]
    fn an_empty_file_is_a_whole_configuration_on_loopback() {
        let config = config("").unwrap();
        assert_eq!(config.meta.mode, Mode::Embedded);
        assert!(config.meta.listen.ip().is_loopback() && config.http_listen.ip().is_loopback());
        assert_eq!(config.meta.endpoints, ["http://127.0.0.1:7701"]);
    }

    #[test]
    fn an_open_address_needs_to_be_allowed() {
        let refused = config("[http]\nlisten = '0.0.0.0:80'").unwrap_err();
        assert!(refused[0].starts_with("c.toml:2:1: http.listen: 0.0.0.0:80 can be reached"), "{refused:?}");
        assert!(config("[http]\nlisten = '0.0.0.0:80'\nallow_insecure = true").is_ok());
    }

    #[test]
    fn contradictions_are_all_reported_at_once() {
        let problems = config(
            "[meta]\nmode = 'etcd'\nuser = 'u'\nprefix = 'x/'\ntls_key = '/nowhere'\n[host]\nid = 'a/b'\nlease_ttl = '1s'",
        );
        assert_eq!(problems.unwrap_err().len(), 7);
    }

    #[test]
    fn endpoints_have_a_scheme_and_a_port() {
        assert!(check_endpoint("http://127.0.0.1:2379").is_ok());
        for wrong in ["127.0.0.1:2379", "http://host", "http://:1", "https://host:x", ""] {
            assert!(check_endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
