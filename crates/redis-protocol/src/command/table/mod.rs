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

/// Commands without a container.
const COMMANDS: usize = count(Counted::Commands);
/// Commands and subcommands.
pub const ALL_COMMANDS: usize = COMMANDS + count(Counted::Subcommands);

/// All commands in one array, subcommands behind the others. The position of a command is its id.
static ALL: [Command; ALL_COMMANDS] = joined();

/// Every command, without subcommands.
#[must_use]
pub fn commands() -> &'static [Command] {
    &ALL[..COMMANDS]
}

/// The subcommands of a command.
#[inline]
pub(super) fn subcommands(of: &Command) -> &'static [Command] {
    let first = usize::from(of.first_subcommand);
    &ALL[first..first + of.subcommands.len()]
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
        let command = commands().get(usize::from(INDEX[bucket]))?;
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

enum Counted {
    Commands,
    Subcommands,
}

const fn count(what: Counted) -> usize {
    let (mut total, mut table) = (0, 0);
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            total += match what {
                Counted::Commands => 1,
                Counted::Subcommands => TABLES[table][row].subcommands.len(),
            };
            row += 1;
        }
        table += 1;
    }
    total
}

const fn joined() -> [Command; ALL_COMMANDS] {
    let mut all = [TABLES[0][0]; ALL_COMMANDS];
    let (mut at, mut behind, mut table) = (0, COMMANDS, 0);
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            let command = TABLES[table][row];
            all[at] = Command { id: at as u16, first_subcommand: behind as u16, ..command };
            let mut sub = 0;
            while sub < command.subcommands.len() {
                all[behind] = Command { id: behind as u16, ..command.subcommands[sub] };
                (behind, sub) = (behind + 1, sub + 1);
            }
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
    while at < COMMANDS {
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
