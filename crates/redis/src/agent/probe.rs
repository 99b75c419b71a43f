//! What does a node say about itself? The fields of its INFO that supervision needs.

use std::time::Duration;

use crate::address::Address;
use crate::data::conversation::{Conversation, TalkError};
use crate::data::resp::View;

/// How long a node may take to answer. A node that saves or runs a long script is slow, not dead.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// What a node said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub pid: i32,
    pub run_id: String,
    pub loading: bool,
    pub replica_of: Option<Address>,
    /// Whether a replica hears its primary; true for a primary.
    pub linked: bool,
    pub offset: u64,
    pub keys: u64,
    pub used_memory: u64,
}

/// Asks a node for everything in one request.
pub(super) async fn look(talk: &mut Conversation) -> Result<Seen, TalkError> {
    let reply = talk.ask(&["INFO"]).await?;
    let text = View::of(&reply).and_then(View::bytes).ok_or_else(|| talk.unexpected("INFO"))?;
    Ok(read(&String::from_utf8_lossy(text)))
}

/// Reads INFO. Fields that are missing stay empty: the caller compares run and process ids and finds them wrong.
fn read(info: &str) -> Seen {
    let mut seen = Seen { linked: true, ..Seen::default() };
    let (mut primary_host, mut primary_port) = (String::new(), String::new());
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
            "db0" => seen.keys = keys(value),
            _ => {}
        }
    }
    let host = if primary_host.contains(':') { format!("[{primary_host}]") } else { primary_host };
    seen.replica_of = format!("{host}:{primary_port}").parse().ok();
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
             master_port:7001\r\nmaster_link_status:down\r\nmaster_repl_offset:99\r\nused_memory:7\r\n\
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
        };
        assert_eq!(seen, expected);
        assert_eq!(read(""), Seen { linked: true, ..Seen::default() });
    }
}
