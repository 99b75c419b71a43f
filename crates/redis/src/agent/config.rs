//! How is a redis-server configured at its start? The text of its configuration file.

use std::fmt::Write;
use std::path::Path;

use super::wanted::{Persistence, Wanted};

/// Connections to one node: the proxy's workers need few, its blocked clients one each.
const MAX_CLIENTS: u32 = 10_000;
/// The replication backlog: what a replica may miss before it needs a full sync.
const BACKLOG: &str = "16mb";
/// First version that can disable `DEBUG` and `MODULE`; older ones refuse to start with unknown settings.
const FIRST_WITH_COMMAND_SWITCHES: u32 = 7;

/// The server's major version; Valkey continues the numbering after Redis 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl Version {
    /// Parses `Redis server v=7.0.15 sha=...` or `Valkey server v=8.0.1 ...`.
    pub(super) fn parse(text: &str) -> Option<Version> {
        let number = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
        number.split('.').next()?.parse().ok().map(Version)
    }
}

/// The whole file. The process starts with the secret password `lock` until its data is checked: no client or
/// replica can mistake an emptied node for the real one.
pub(super) fn text(wanted: &Wanted, dir: &Path, lock: &str, version: Version) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} {value}");
    };
    line("bind", &quoted(wanted.node.host()));
    line("port", &wanted.node.port().to_string());
    line("protected-mode", "yes");
    line("requirepass", &quoted(lock));
    line("daemonize", "no");
    line("databases", "1");
    line("maxclients", &MAX_CLIENTS.to_string());
    // Its primary lists it under this address, wherever the connection comes from.
    line("replica-announce-ip", &quoted(wanted.node.host()));
    line("repl-backlog-size", BACKLOG);
    line("repl-diskless-sync", "yes");
    line("repl-diskless-sync-delay", "0");
    line("replica-serve-stale-data", "yes");
    line("rdb-del-sync-files", "yes");
    line("dir", &quoted(&dir.join("data").to_string_lossy()));
    line("logfile", &quoted(&dir.join("server.log").to_string_lossy()));
    for (name, value) in changeable(wanted) {
        line(name, &quoted(&value));
    }
    if version.0 >= FIRST_WITH_COMMAND_SWITCHES {
        line("enable-debug-command", "no");
        line("enable-module-command", "no");
    }
    text
}

/// Settings that can be changed while the process runs.
pub(super) fn changeable(wanted: &Wanted) -> Vec<(&'static str, String)> {
    let (append_only, save) = match wanted.persistence {
        Persistence::None => ("no", ""),
        Persistence::Aof => ("yes", ""),
        Persistence::Rdb => ("no", "300 1 60 10000"),
    };
    vec![
        ("maxmemory", wanted.max_memory.unwrap_or(0).to_string()),
        ("maxmemory-policy", (if wanted.eviction { "allkeys-lru" } else { "noeviction" }).to_owned()),
        ("appendonly", append_only.to_owned()),
        ("save", save.to_owned()),
        ("masterauth", wanted.password.clone().unwrap_or_default()),
    ]
}

/// A quoted value in the file's grammar.
fn quoted(value: &str) -> String {
    let mut text = String::from('"');
    for byte in value.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            // Writing to a string cannot fail.
            other => drop(write!(text, "\\x{other:02x}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(persistence: Persistence) -> Wanted {
        let node = "127.0.0.1:7001".parse().unwrap();
        Wanted {
            node,
            owner: None,
            max_memory: Some(64 << 20),
            eviction: false,
            persistence,
            former: super::super::wanted::Former::Erased,
            peers: Vec::new(),
            password: Some("a\"b\n".to_owned()),
            kind: super::super::wanted::Kind::Supervised,
        }
    }

    #[test]
    fn the_file_says_what_is_wanted() {
        let text = text(&wanted(Persistence::Aof), Path::new("/d"), "lock", Version(7));
        for line in [
            "bind \"127.0.0.1\"",
            "port 7001",
            "requirepass \"lock\"",
            "maxmemory \"67108864\"",
            "appendonly \"yes\"",
            "save \"\"",
            "masterauth \"a\\\"b\\x0a\"",
            "enable-debug-command no",
            "dir \"/d/data\"",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        let old = super::text(&wanted(Persistence::Rdb), Path::new("/d"), "lock", Version(6));
        assert!(!old.contains("enable-debug-command") && old.contains("save \"300 1 60 10000\""));
    }

    #[test]
    fn versions_are_read_from_both_servers() {
        assert_eq!(Version::parse("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc"), Some(Version(7)));
        assert_eq!(Version::parse("Valkey server v=8.1.1 sha=0"), Some(Version(8)));
        assert_eq!(Version::parse("nothing"), None);
    }
}
