//! `SLOWLOG`: which commands took long? The last ones, with as much of them as is needed to recognise them.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BufMut;

use crate::data::resp::{Request, Writer, decimal};

/// Commands that are remembered, as in Redis.
pub(super) const MAX_ENTRIES: usize = 128;
/// Arguments of a command that are remembered, as in Redis.
const MAX_ARGUMENTS: usize = 32;
/// Bytes of an argument that are remembered, as in Redis.
const MAX_ARGUMENT: usize = 128;
/// What `SLOWLOG GET` shows if nobody says how many.
const DEFAULT_COUNT: usize = 10;

/// A command that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    /// Counts up; never used twice.
    pub id: i64,
    /// When it was received, since 1970.
    pub at: Duration,
    /// How long it took until its reply was there.
    pub took: Duration,
    /// Its arguments, shortened.
    pub arguments: Vec<Vec<u8>>,
    /// Who sent it.
    pub client: String,
    /// The name of that client.
    pub client_name: String,
}

/// The last slow commands, the newest first.
#[derive(Clone, Debug, Default)]
pub struct SlowLog {
    entries: VecDeque<SlowEntry>,
    next: i64,
}

impl SlowLog {
    /// Remembers a command, and forgets the oldest if there are too many.
    pub fn note(
        &mut self,
        at: Duration,
        took: Duration,
        request: Request<'_>,
        client: &str,
        client_name: &str,
    ) {
        let id = self.next;
        self.next += 1;
        let (client, client_name) = (client.to_owned(), client_name.to_owned());
        self.entries.push_front(SlowEntry {
            id,
            at,
            took,
            arguments: shortened(request),
            client,
            client_name,
        });
        self.entries.truncate(MAX_ENTRIES);
    }

    /// The commands, the newest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &SlowEntry> {
        self.entries.iter()
    }

    /// Forgets them; numbers go on.
    pub fn reset(&mut self) {
        self.entries.clear();
    }
}

fn shortened(request: Request<'_>) -> Vec<Vec<u8>> {
    let shown = if request.len() > MAX_ARGUMENTS { MAX_ARGUMENTS - 1 } else { request.len() };
    let mut arguments: Vec<Vec<u8>> = request.from(0).take(shown).map(shortened_argument).collect();
    if shown < request.len() {
        arguments.push(format!("... ({} more arguments)", request.len() - shown).into_bytes());
    }
    arguments
}

fn shortened_argument(argument: &[u8]) -> Vec<u8> {
    match argument.split_at_checked(MAX_ARGUMENT) {
        Some((shown, rest)) if !rest.is_empty() => {
            [shown, format!("... ({} more bytes)", rest.len()).as_bytes()].concat()
        }
        _ => argument.to_vec(),
    }
}

pub(super) fn answer<B: BufMut>(sub: &str, request: Request<'_>, log: &SlowLog, out: &mut Writer<'_, B>) {
    if sub == "len" {
        return out.integer(log.entries.len() as i64);
    }
    let count = match (request.len(), decimal(request.argument(2))) {
        (2, _) => DEFAULT_COUNT,
        (3, Some(-1)) => usize::MAX,
        (3, Some(count)) if count >= 0 => count as usize,
        (3, _) => return out.error("ERR count should be greater than or equal to -1"),
        _ => return out.error("ERR wrong number of arguments for 'slowlog|get' command"),
    };
    write_slowlog(log.entries().take(count), out);
}

/// Writes slow commands as `SLOWLOG GET` does.
pub fn write_slowlog<'a, B: BufMut>(
    entries: impl ExactSizeIterator<Item = &'a SlowEntry>,
    out: &mut Writer<'_, B>,
) {
    out.array(entries.len());
    for entry in entries {
        out.array(6);
        out.integer(entry.id);
        out.integer(entry.at.as_secs() as i64);
        out.integer(entry.took.as_micros() as i64);
        out.array(entry.arguments.len());
        entry.arguments.iter().for_each(|argument| out.bulk(argument));
        out.bulk(&entry.client);
        out.bulk(&entry.client_name);
    }
}
