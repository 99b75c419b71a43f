//! The functions that a line of the table is written with.

pub(super) use super::super::flags::*;
pub(super) use super::super::handling::Handling::{
    Admin, AllNodes, AnyNode, Blocking, Forbidden, Local, PubSub, Refused, Split, Transaction, Wait,
};
pub(super) use super::super::handling::refusals::*;
pub(super) use super::super::handling::{Handling, Merge, Timeout};
pub(super) use super::super::keyspec::{
    after, at, counted, range, rest_after, sort_patterns, sort_store, streams,
};
pub(super) use super::super::{Command, keyspec::KeySpec};

pub(super) const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];
pub(super) const NONDETERMINISTIC_ORDER: &[&str] = &["nondeterministic_output_order"];

/// Name, arity (a minimum if negative), flags, categories beyond those implied by the flags, keys. A command
/// with keys is served by the node that owns them unless the line specifies otherwise.
pub(super) const fn cmd(
    name: &'static str,
    arity: i8,
    flags: u32,
    categories: u32,
    keys: &'static [KeySpec],
) -> Command {
    Command {
        name,
        id: 0,
        first_subcommand: 0,
        arity,
        flags,
        categories,
        keys,
        tips: &[],
        handling: Handling::Key,
        subcommands: &[],
        newer: false,
    }
}

impl Command {
    pub(super) const fn handled(self, handling: Handling) -> Command {
        Command { handling, ..self }
    }

    /// Hints for cluster clients, in Redis's terms.
    pub(super) const fn tips(self, tips: &'static [&'static str]) -> Command {
        Command { tips, ..self }
    }

    pub(super) const fn with(self, subcommands: &'static [Command]) -> Command {
        Command { subcommands, ..self }
    }

    /// Marks a command added after Redis 7.0.
    pub(super) const fn newer(self) -> Command {
        Command { newer: true, ..self }
    }
}
