//! What does a node report about itself? The fields of its INFO that supervision needs.

use std::time::Duration;

use crate::address::Address;
use capstan_redis_protocol::resp::View;
use capstan_redis_proxy::conversation::{Conversation, TalkError};

/// The reply timeout of a node. A node that saves or runs a long script is slow, not dead.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The observed state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its process id.
    pub pid: i32,
    /// The server's run id.
    pub run_id: String,
    /// Whether it is loading its data.
    pub loading: bool,
    /// Its primary, if it is a replica.
    pub replica_of: Option<Address>,
    /// Whether a replica is linked to its primary; true for a primary.
    pub linked: bool,
    /// Its replication offset.
    pub offset: u64,
    /// The number of keys.
    pub keys: u64,
    /// The memory used by its data, in bytes.
    pub used_memory: u64,
    /// Whether a replica is in a full sync.
    pub syncing: bool,
    /// How much it has loaded or received so far: a number that grows.
    pub progress: u64,
    /// Whether its append-only file is on and complete: not before its first rewrite, where a running process turns it on.
    pub appends: bool,
}

/// Queries a node for everything in one request.
pub(super) async fn look(talk: &mut Conversation) -> Result<Seen, TalkError> {
    let reply = talk.ask(&["INFO"]).await?;
    let text = View::of(&reply).and_then(View::bytes).ok_or_else(|| talk.unexpected("INFO"))?;
    Ok(read(&String::from_utf8_lossy(text)))
}

/// Parses INFO. Missing fields stay empty: the caller compares run and process ids and finds them wrong.
fn read(info: &str) -> Seen {
    let mut seen = Seen { linked: true, ..Seen::default() };
    let (mut primary_host, mut primary_port) = (String::new(), String::new());
    let (mut append_only, mut rewriting) = (false, false);
    for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
        match name {
            "process_id" => seen.pid = value.parse().unwrap_or_default(),
            "run_id" => value.clone_into(&mut seen.run_id),
            "loading" => seen.loading = value == "1",
            "master_host" => value.clone_into(&mut primary_host),
            "master_port" => value.clone_into(&mut primary_port),
            "master_link_status" => seen.linked = value == "up",
            "master_repl_offset" => seen.offset = value.parse().unwrap_or_default(),
            "used_memory" => seen.used_memory = value.parse().unwrap_or_default(),
            "master_sync_in_progress" => seen.syncing = value == "1",
            "loading_loaded_bytes" | "master_sync_read_bytes" => {
                seen.progress += value.parse::<u64>().unwrap_or_default();
            }
            "aof_enabled" => append_only = value == "1",
            "aof_rewrite_in_progress" | "aof_rewrite_scheduled" => rewriting |= value == "1",
            "aof_last_bgrewrite_status" => rewriting |= value != "ok",
            "db0" => seen.keys = keys(value),
            _ => {}
        }
    }
    let host = if primary_host.contains(':') { format!("[{primary_host}]") } else { primary_host };
    seen.replica_of = format!("{host}:{primary_port}").parse().ok();
    seen.appends = append_only && !rewriting;
    seen
}

/// `keys=12,expires=0,avg_ttl=0`
fn keys(value: &str) -> u64 {
    let count = value.split(',').find_map(|part| part.strip_prefix("keys="));
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read() {
        let seen = read(
            "# Server\r\nprocess_id:42\r\nrun_id:abc\r\nloading:0\r\nrole:slave\r\nmaster_host:127.0.0.1\r\n\
             master_port:7001\r\nmaster_link_status:down\r\nmaster_sync_in_progress:1\r\n\
             master_sync_read_bytes:12\r\nmaster_repl_offset:99\r\nused_memory:7\r\n\
             db0:keys=3,expires=1,avg_ttl=0\r\n",
        );
        let replica_of = Some("127.0.0.1:7001".parse().unwrap());
        let expected = Seen {
            pid: 42,
            run_id: "abc".to_owned(),
            loading: false,
            replica_of,
            linked: false,
            offset: 99,
            keys: 3,
            used_memory: 7,
            syncing: true,
            progress: 12,
            appends: false,
        };
        assert_eq!(seen, expected);
        assert_eq!(read(""), Seen { linked: true, ..Seen::default() });
    }

    #[test]
    fn an_append_only_file_is_complete_after_its_first_rewrite() {
        let appends = |enabled, rewriting, scheduled, status| {
            let info = format!(
                "aof_enabled:{enabled}\r\naof_rewrite_in_progress:{rewriting}\r\n\
                 aof_rewrite_scheduled:{scheduled}\r\naof_last_bgrewrite_status:{status}\r\n"
            );
            read(&info).appends
        };
        assert!(appends(1, 0, 0, "ok"));
        assert!(!appends(0, 0, 0, "ok") && !appends(1, 1, 0, "ok"));
        assert!(!appends(1, 0, 1, "ok") && !appends(1, 0, 0, "err"));
    }
}
