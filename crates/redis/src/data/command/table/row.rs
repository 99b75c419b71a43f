//! The words that a line of the table is written with.

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

/// Name, number of arguments (at least so many if negative), flags, categories beyond those that follow from the
/// flags, keys. A command with keys goes to the node that has them unless the line says otherwise.
pub(super) const fn cmd(
    name: &'static str,
    arity: i8,
    flags: u32,
    categories: u32,
    keys: &'static [KeySpec],
) -> Command {
    Command {
        name,
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

    /// What clients of a cluster should know about it, in Redis's words.
    pub(super) const fn tips(self, tips: &'static [&'static str]) -> Command {
        Command { tips, ..self }
    }

    pub(super) const fn with(self, subcommands: &'static [Command]) -> Command {
        Command { subcommands, ..self }
    }

    /// Came after Redis 7.0.
    pub(super) const fn newer(self) -> Command {
        Command { newer: true, ..self }
    }
}
