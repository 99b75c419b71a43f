//! Which commands exist? One line each, found by name without an allocation.

mod collections;
mod keyspace;
mod newer;
mod row;
mod server;
mod sessions;
mod strings;

use super::Command;

const TABLES: [&[Command]; 6] =
    [strings::TABLE, collections::TABLE, keyspace::TABLE, sessions::TABLE, server::TABLE, newer::TABLE];

/// Buckets of the index; about a quarter is used, so that most names are found at the first probe.
const BUCKETS: usize = 1024;
/// The longest command name.
const MAX_NAME: usize = 24;
/// An unused bucket.
const EMPTY: u16 = u16::MAX;

/// The index of each command, by the hash of its name; collisions go to the next bucket.
static INDEX: [u16; BUCKETS] = index();

/// All commands in one array.
static COMMANDS: [Command; count()] = joined();

/// Every command, without subcommands.
#[must_use]
pub fn commands() -> &'static [Command] {
    &COMMANDS
}

/// The command with this name, case-insensitive. Subcommands are found through their container.
#[must_use]
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    if name.len() > MAX_NAME {
        return None;
    }
    let mut bucket = hash(name);
    loop {
        let command = COMMANDS.get(usize::from(INDEX[bucket]))?;
        if command.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(command);
        }
        bucket = (bucket + 1) % BUCKETS;
    }
}

/// FNV-1a over the lower-case name.
const fn hash(name: &[u8]) -> usize {
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ (name[at] | 0x20) as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    (hash ^ (hash >> 15)) as usize % BUCKETS
}

const fn count() -> usize {
    let (mut total, mut table) = (0, 0);
    while table < TABLES.len() {
        total += TABLES[table].len();
        table += 1;
    }
    total
}

const fn joined() -> [Command; count()] {
    let mut all = [TABLES[0][0]; count()];
    let (mut at, mut table) = (0, 0);
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            all[at] = TABLES[table][row];
            (at, row) = (at + 1, row + 1);
        }
        table += 1;
    }
    all
}

const fn index() -> [u16; BUCKETS] {
    let commands = joined();
    let mut index = [EMPTY; BUCKETS];
    let mut at = 0;
    while at < commands.len() {
        let name = commands[at].name.as_bytes();
        assert!(name.len() <= MAX_NAME);
        let mut bucket = hash(name);
        while index[bucket] != EMPTY {
            bucket = (bucket + 1) % BUCKETS;
        }
        index[bucket] = at as u16;
        at += 1;
    }
    index
}
