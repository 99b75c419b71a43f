//! Where are the keys of a command?

use smallvec::SmallVec;

use super::Command;
use super::flags::{
    ACCESS, ACCESS_WORDS, DELETE, INCOMPLETE, INSERT, NOT_KEY, OW, RO, RW, UPDATE, VARIABLE, words,
};
use crate::resp::{Request, decimal};

/// Keys that need no allocation.
const FEW_KEYS: usize = 4;

/// Where some of a command's keys are, and how they are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub(super) begin: Begin,
    pub(super) find: Find,
    pub(super) access: u32,
}

/// Where the keys begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At this argument.
    Index(i32),
    /// After this word, searched from this argument on (negative: backwards from the end).
    Keyword(&'static str, i32),
    /// The pattern options of `SORT`: their keys depend on the data.
    SortPatterns,
    /// After the last `STORE` option of `SORT`.
    SortStore,
}

/// Which arguments from there on are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// Up to `last` (relative to the first key; negative: from the end of the arguments), every `step`.
    /// `limit` 2: only the first half of the remaining arguments.
    Range { last: i32, step: i32, limit: i32 },
    /// A number, followed by that many keys.
    Counted,
    /// Cannot be determined from the arguments.
    Unknown,
}

/// One key at the given argument.
pub(super) const fn at(index: i32, access: u32) -> KeySpec {
    range(index, 0, 1, access)
}

/// Keys from one argument to another.
pub(super) const fn range(index: i32, last: i32, step: i32, access: u32) -> KeySpec {
    KeySpec { begin: Begin::Index(index), find: Find::Range { last, step, limit: 0 }, access }
}

/// A number of keys at the given argument, followed by the keys.
pub(super) const fn counted(index: i32, access: u32) -> KeySpec {
    KeySpec { begin: Begin::Index(index), find: Find::Counted, access }
}

/// The first half of what follows `STREAMS`.
pub(super) const fn streams(from: i32, access: u32) -> KeySpec {
    let find = Find::Range { last: -1, step: 1, limit: 2 };
    KeySpec { begin: Begin::Keyword("STREAMS", from), find, access }
}

/// One key after a keyword.
pub(super) const fn after(word: &'static str, from: i32, access: u32) -> KeySpec {
    let find = Find::Range { last: 0, step: 1, limit: 0 };
    KeySpec { begin: Begin::Keyword(word, from), find, access }
}

/// All arguments after a keyword.
pub(super) const fn rest_after(word: &'static str, from: i32, access: u32) -> KeySpec {
    let find = Find::Range { last: -1, step: 1, limit: 0 };
    KeySpec { begin: Begin::Keyword(word, from), find, access }
}

pub(super) const fn sort_patterns(access: u32) -> KeySpec {
    KeySpec { begin: Begin::SortPatterns, find: Find::Unknown, access }
}

pub(super) const fn sort_store(access: u32) -> KeySpec {
    KeySpec { begin: Begin::SortStore, find: Find::Unknown, access }
}

/// The position of a key among the arguments of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPosition {
    index: u32,
    access: u32,
}

impl KeyPosition {
    /// The index of the argument.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Whether it is a key, as opposed to a channel that is routed like one.
    #[must_use]
    pub fn is_key(self) -> bool {
        self.access & NOT_KEY == 0
    }

    /// How this request accesses the key, in Redis's terms.
    pub fn access_in(
        self,
        command: &Command,
        request: Request<'_>,
    ) -> impl Iterator<Item = &'static str> + Clone {
        words(ACCESS_WORDS, self.bits_in(command, request))
    }

    /// What an ACL must permit for the key in this request.
    #[must_use]
    #[inline]
    pub fn needs_in(self, command: &Command, request: Request<'_>) -> KeyNeeds {
        let access = if self.access & VARIABLE == 0 { self.access } else { self.bits_in(command, request) };
        KeyNeeds { read: access & ACCESS != 0, write: access & (INSERT | DELETE | UPDATE) != 0 }
    }

    fn bits_in(self, command: &Command, request: Request<'_>) -> u32 {
        let has =
            |word: &str, from| request.from(from).any(|other| other.eq_ignore_ascii_case(word.as_bytes()));
        match command.name() {
            // The second argument is the value.
            "set" if has("GET", 3) => RW | ACCESS | UPDATE,
            "set" => OW | UPDATE,
            "bitfield" if has("SET", 2) || has("INCRBY", 2) => RW | ACCESS | UPDATE,
            "bitfield" => RO | ACCESS,
            _ => self.access,
        }
    }

    /// How the command accesses the key in general, in Redis's terms.
    pub fn access(self) -> impl Iterator<Item = &'static str> + Clone {
        words(ACCESS_WORDS, self.access)
    }
}

/// What an ACL must permit for a key. Neither is needed by commands that show only whether it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyNeeds {
    /// The command returns data of the key.
    pub read: bool,
    /// The command changes the key.
    pub write: bool,
}

/// The keys of a request, in the order of the table.
pub type KeyPositions = SmallVec<[KeyPosition; FEW_KEYS]>;

/// The arguments that locate the keys are invalid. The node reports the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ERR Invalid arguments specified for command")]
pub struct InvalidKeys;

/// The keys of a request, for all key specifications of its command.
pub(super) fn positions(specs: &[KeySpec], request: Request<'_>) -> Result<KeyPositions, InvalidKeys> {
    let mut found = KeyPositions::new();
    for spec in specs {
        let first_of_spec = found.len();
        spec.collect(request, &mut found)?;
        // `MIGRATE ... "" ... KEYS a b`: the keys are at the end, and the argument for a single key is empty.
        if spec.access & INCOMPLETE != 0 && found.len() > first_of_spec {
            if found.iter().take(first_of_spec).any(|key| !request.argument(key.index()).is_empty()) {
                return Err(InvalidKeys);
            }
            found.drain(..first_of_spec);
        }
    }
    Ok(found)
}

/// Whether all keys that the table specifies are present. If one is missing, as in `PFMERGE destination`,
/// Redis reports no keys at all; for routing, the present ones are enough.
pub(super) fn are_complete(specs: &[KeySpec], request: Request<'_>) -> bool {
    specs.iter().all(|spec| match spec.bounds(request) {
        Ok(Some((first, last, _))) => first <= last && last < request.len(),
        Ok(None) => true,
        Err(InvalidKeys) => false,
    })
}

impl KeySpec {
    fn collect(&self, request: Request<'_>, found: &mut KeyPositions) -> Result<(), InvalidKeys> {
        let Some((first, last, step)) = self.bounds(request)? else { return Ok(()) };
        for index in (first..=last.min(request.len().saturating_sub(1))).step_by(step) {
            found.push(KeyPosition { index: index as u32, access: self.access });
        }
        Ok(())
    }

    /// First key, last key and step; they may lie beyond the last argument.
    fn bounds(&self, request: Request<'_>) -> Result<Option<(usize, usize, usize)>, InvalidKeys> {
        let Some(first) = self.first(request) else { return Ok(None) };
        let count = request.len();
        Ok(Some(match self.find {
            Find::Unknown => (first, first, 1),
            Find::Counted => {
                let keys = decimal(request.argument(first)).ok_or(InvalidKeys)?;
                let keys = usize::try_from(keys).map_err(|_| InvalidKeys)?;
                let last = first.checked_add(keys).filter(|last| *last < count).ok_or(InvalidKeys)?;
                (first + 1, last, 1)
            }
            Find::Range { last, step, limit } => {
                let last = match limit {
                    _ if last >= 0 => first as i64 + i64::from(last),
                    0 => count as i64 + i64::from(last),
                    limit => {
                        let part = count.saturating_sub(first) / limit as usize;
                        first as i64 + part as i64 + i64::from(last)
                    }
                };
                (first, usize::try_from(last).unwrap_or(0), step as usize)
            }
        }))
    }

    /// The argument where the search begins, if present.
    fn first(&self, request: Request<'_>) -> Option<usize> {
        match self.begin {
            Begin::Index(index) => usize::try_from(index).ok(),
            Begin::Keyword(word, from) => {
                let is_word = |index: &usize| request.argument(*index).eq_ignore_ascii_case(word.as_bytes());
                let found = match usize::try_from(from) {
                    Ok(from) => (from..request.len().saturating_sub(1)).find(is_word),
                    // Only `MIGRATE`: its options begin after five arguments. Redis searches for the
                    // keyword in two ways, and the first one does not find it as the last argument.
                    Err(_) if !(2..request.len().saturating_sub(1)).any(|index| is_word(&index)) => None,
                    Err(_) => (6..request.len()).find(is_word),
                };
                found.map(|index| index + 1)
            }
            Begin::SortPatterns => None,
            Begin::SortStore => sort_stores_to(request),
        }
    }
}

/// The destination of `SORT`: the last `STORE` counts; words that are values of other options do not.
fn sort_stores_to(request: Request<'_>) -> Option<usize> {
    let mut found = None;
    let mut index = 2;
    while index < request.len() {
        let word = request.argument(index);
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        index += if is("LIMIT") {
            3
        } else if is("GET") || is("BY") {
            2
        } else if is("STORE") && index + 1 < request.len() {
            found = Some(index + 1);
            2
        } else {
            1
        };
    }
    found
}
