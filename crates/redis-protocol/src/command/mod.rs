//! The properties of each command: where its keys are, whether it writes, how a cluster serves it.
//!
//! [`find`] returns the [`Command`] of a request; [`Handling`] is how it is served.

mod channels;
mod flags;
mod handling;
mod keyspec;
mod objection;
mod table;
#[cfg(test)]
mod tests;

pub use channels::Channels;
pub use handling::{Handling, Merge, Timeout};
pub use keyspec::{InvalidKeys, KeyNeeds, KeyPosition, KeyPositions, KeySpec};
pub use objection::{Objection, find, named, printed};
pub use table::{ALL_COMMANDS, commands, lookup};

use crate::resp::{Request, Writer};
use bytes::BufMut;
use flags::{
    ACCESS_WORDS, CATEGORY_WORDS, FLAG_WORDS, NO_AUTH, NO_MULTI, READONLY, SCRIPTING, WRITE, categories,
    words,
};
use keyspec::{Begin, Find};

/// A Redis command or subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    name: &'static str,
    /// Its position in the table.
    id: u16,
    /// The position of its first subcommand in the table.
    first_subcommand: u16,
    arity: i8,
    flags: u32,
    categories: u32,
    keys: &'static [KeySpec],
    tips: &'static [&'static str],
    handling: Handling,
    /// As the table was written; the rows of the table itself are found by [`subcommands`](Command::subcommands).
    subcommands: &'static [Command],
    newer: bool,
}

impl Command {
    /// Its name in lower case: `get`, or `object|encoding`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its number, below [`ALL_COMMANDS`].
    #[must_use]
    #[inline]
    pub fn id(&self) -> usize {
        usize::from(self.id)
    }

    /// How it is served.
    #[must_use]
    #[inline]
    pub fn handling(&self) -> Handling {
        self.handling
    }

    /// The argument that is its only key, independent of the other arguments; most commands have one.
    #[must_use]
    #[inline]
    pub fn only_key(&self) -> Option<usize> {
        match self.keys {
            [KeySpec { begin: Begin::Index(index), find: Find::Range { last: 0, .. }, .. }] => {
                Some(*index as usize)
            }
            _ => None,
        }
    }

    /// Its keys, and channels that are routed like keys.
    pub fn keys(&self, request: Request<'_>) -> Result<KeyPositions, InvalidKeys> {
        keyspec::positions(self.keys, request)
    }

    /// Whether all keys that the table specifies are present; Redis requires this before it reports any.
    #[must_use]
    pub fn keys_are_complete(&self, request: Request<'_>) -> bool {
        keyspec::are_complete(self.keys, request)
    }

    /// Whether it may modify its keys. Scripts may, unless they are declared read-only.
    #[must_use]
    #[inline]
    pub fn writes(&self) -> bool {
        self.flags & WRITE != 0 || (self.categories & SCRIPTING != 0 && self.flags & READONLY == 0)
    }

    /// Whether it runs a script or a function, which may block its node for long.
    #[must_use]
    #[inline]
    pub fn runs_script(&self) -> bool {
        self.categories & SCRIPTING != 0 && matches!(self.handling, Handling::Key)
    }

    /// Whether it controls a running script: a busy node still accepts it.
    #[must_use]
    #[inline]
    pub fn concerns_running_script(&self) -> bool {
        self.categories & SCRIPTING != 0 && self.flags & flags::ALLOW_BUSY != 0
    }

    /// Whether it is read-only, so that a replica may serve it.
    #[must_use]
    #[inline]
    pub fn reads_only(&self) -> bool {
        self.flags & READONLY != 0
    }

    /// Whether a client may send it before it authenticates.
    #[must_use]
    pub fn before_auth(&self) -> bool {
        self.flags & NO_AUTH != 0
    }

    /// Whether it is disabled by default in servers (`enable-debug-command`, `enable-module-command`).
    #[must_use]
    pub fn is_switched_off(&self) -> bool {
        self.name == "debug" || self.name.starts_with("module|")
    }

    /// Whether it concerns the server and not data: `MONITOR` does not show it.
    #[must_use]
    pub fn is_administrative(&self) -> bool {
        self.flags & flags::ADMIN != 0
    }

    /// Whether it is not allowed in a transaction.
    #[must_use]
    pub fn outside_transactions(&self) -> bool {
        self.flags & NO_MULTI != 0
    }

    /// Whether a RESP2 client with subscriptions may send it.
    #[must_use]
    pub fn while_subscribed(&self) -> bool {
        let subscribing = self.handling == Handling::PubSub && self.name.ends_with("subscribe");
        subscribing || matches!(self.name, "ping" | "quit" | "reset")
    }

    /// Whether it was added after Redis 7.0.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        self.newer
    }

    /// Whether this request may block in the node.
    #[must_use]
    pub fn blocks(&self, request: Request<'_>) -> bool {
        match self.handling {
            Handling::Blocking(Timeout::Last | Timeout::First) => true,
            Handling::Blocking(Timeout::Option) => {
                let is =
                    |index: usize, word: &str| request.argument(index).eq_ignore_ascii_case(word.as_bytes());
                let options = (1..request.len()).take_while(|index| !is(*index, "STREAMS"));
                options.into_iter().any(|index| is(index, "BLOCK"))
            }
            Handling::Key
            | Handling::Split(_)
            | Handling::AllNodes(_)
            | Handling::AnyNode
            | Handling::Wait
            | Handling::PubSub
            | Handling::Transaction
            | Handling::Local
            | Handling::Admin
            | Handling::Refused(_)
            | Handling::Forbidden => false,
        }
    }

    /// Its subcommands.
    #[must_use]
    pub fn subcommands(&self) -> &'static [Command] {
        table::subcommands(self)
    }

    /// The subcommand with this name.
    #[must_use]
    pub fn subcommand(&self, word: &[u8]) -> Option<&'static Command> {
        let prefix = self.name.len() + 1;
        self.subcommands().iter().find(|sub| sub.name.as_bytes()[prefix..].eq_ignore_ascii_case(word))
    }

    /// Whether its keys are optional, as those of a script are.
    #[must_use]
    pub fn keys_are_optional(&self) -> bool {
        self.flags & flags::NO_MANDATORY_KEYS != 0
    }

    /// Whether it takes any key or channel.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.keys.iter().any(|spec| spec.access & flags::NOT_KEY == 0)
    }

    /// Whether it is in an ACL category, such as `read` or `dangerous`.
    #[must_use]
    pub fn is_in_category(&self, category: &[u8]) -> bool {
        let categories = categories(self.flags, self.categories);
        words(CATEGORY_WORDS, categories).any(|word| word.as_bytes()[1..].eq_ignore_ascii_case(category))
    }

    /// Whether an option that names a key is repeated in a request. Redis uses the last one, and the table
    /// finds the first.
    #[must_use]
    pub fn hides_keys(&self, request: Request<'_>) -> bool {
        let options = self.keys.iter().filter_map(|spec| match (spec.begin, spec.find) {
            (Begin::Keyword(word, from), Find::Range { last: 0, .. }) => Some((word, from)),
            _ => None,
        });
        options.into_iter().any(|(word, from)| {
            let from = usize::try_from(from).unwrap_or(1);
            request.from(from).filter(|other| other.eq_ignore_ascii_case(word.as_bytes())).count() > 1
        })
    }

    /// Writes its entry of the `COMMAND` reply.
    pub fn describe<B: BufMut>(&self, out: &mut Writer<'_, B>) {
        out.array(10);
        out.bulk(self.name);
        out.integer(i64::from(self.arity));
        let set = |out: &mut Writer<'_, B>, of, bits| {
            let words = words(of, bits);
            out.set(words.clone().count());
            words.for_each(|word| out.simple(word));
        };
        set(out, FLAG_WORDS, self.flags);
        let (first, last, step) = self.key_range();
        [first, last, step].into_iter().for_each(|number| out.integer(i64::from(number)));
        set(out, CATEGORY_WORDS, categories(self.flags, self.categories));
        out.set(self.tips.len());
        self.tips.iter().for_each(|tip| out.bulk(tip));
        out.set(self.keys.len());
        self.keys.iter().for_each(|spec| spec.describe(out));
        // As in Redis: a list, or an empty set if there are none.
        match self.subcommands.len() {
            0 => out.set(0),
            count => out.array(count),
        }
        self.subcommands().iter().for_each(|sub| sub.describe(out));
    }

    /// First key, last key and step, for clients that do not read key specifications.
    fn key_range(&self) -> (i32, i32, i32) {
        let simple = |spec: &KeySpec| match (spec.begin, spec.find) {
            (Begin::Index(index), Find::Range { last, step, .. }) => {
                Some((index, if last < 0 { last } else { index + last }, step))
            }
            _ => None,
        };
        if let [only] = self.keys {
            return simple(only).unwrap_or_default();
        }
        let ranges = self.keys.iter().filter_map(simple).filter(|(_, _, step)| *step == 1);
        // A negative position is relative to the end, and so lies behind every position relative to the
        // beginning.
        let joined = ranges.reduce(|(first, last, step), (index, other, _)| {
            (first.min(index), if last < 0 || (other >= 0 && other < last) { last } else { other }, step)
        });
        joined.unwrap_or_default()
    }
}

impl KeySpec {
    /// Writes its entry of the `COMMAND` reply.
    fn describe<B: BufMut>(&self, out: &mut Writer<'_, B>) {
        out.map(3);
        out.bulk("flags");
        let access = words(ACCESS_WORDS, self.access);
        out.set(access.clone().count());
        access.for_each(|word| out.simple(word));
        out.bulk("begin_search");
        self.describe_begin(out);
        out.bulk("find_keys");
        self.describe_find(out);
    }

    fn describe_begin<B: BufMut>(&self, out: &mut Writer<'_, B>) {
        match self.begin {
            Begin::Index(index) => describe_step(out, "index", &[("index", Fact::Number(index))]),
            Begin::Keyword(word, from) => {
                let facts = [("keyword", Fact::Word(word)), ("startfrom", Fact::Number(from))];
                describe_step(out, "keyword", &facts);
            }
            Begin::SortPatterns | Begin::SortStore => describe_step(out, "unknown", &[]),
        }
    }

    fn describe_find<B: BufMut>(&self, out: &mut Writer<'_, B>) {
        match self.find {
            Find::Range { last, step, limit } => {
                let facts = [("lastkey", last), ("keystep", step), ("limit", limit)];
                describe_step(out, "range", &facts.map(|(name, number)| (name, Fact::Number(number))));
            }
            Find::Counted => {
                let facts = [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)];
                describe_step(out, "keynum", &facts.map(|(name, number)| (name, Fact::Number(number))));
            }
            Find::Unknown => describe_step(out, "unknown", &[]),
        }
    }
}

enum Fact {
    Word(&'static str),
    Number(i32),
}

fn describe_step<B: BufMut>(out: &mut Writer<'_, B>, kind: &str, facts: &[(&str, Fact)]) {
    out.map(2);
    out.bulk("type");
    out.bulk(kind);
    out.bulk("spec");
    out.map(facts.len());
    for (name, fact) in facts {
        out.bulk(name);
        match fact {
            Fact::Word(word) => out.bulk(word),
            Fact::Number(number) => out.integer(i64::from(*number)),
        }
    }
}

/// The names of all ACL categories, in Redis's order.
pub fn category_names() -> impl Iterator<Item = &'static str> {
    CATEGORY_WORDS.iter().map(|(_, word)| &word[1..])
}
