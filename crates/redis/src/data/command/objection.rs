//! What is wrong with a request, before any node sees it? In Redis's own words.

use super::Command;
use super::table::lookup;
use crate::data::resp::Request;

/// How much of a client's words an error repeats, in bytes.
const REPEATED: usize = 128;

/// An error line, with its code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// There is no such command.
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}")]
    UnknownCommand {
        /// As the client spelt it.
        name: String,
        /// The first of its arguments, quoted.
        arguments: String,
    },
    /// The command has no such subcommand.
    #[error("ERR unknown subcommand '{name}'. Try {} HELP.", container.to_uppercase())]
    UnknownSubcommand {
        /// As the client spelt it.
        name: String,
        /// The command.
        container: &'static str,
    },
    /// Too few arguments, or too many.
    #[error("ERR wrong number of arguments for '{0}' command")]
    WrongArity(&'static str),
    /// Nobody, or not this user.
    #[error("NOPERM this user has no permissions to run the '{0}' command")]
    NoPermission(&'static str),
    /// Not in a cluster.
    #[error("{0}")]
    NotInACluster(&'static str),
}

/// The command of a request, if there is one and the number of its arguments is right.
pub fn find(request: Request<'_>) -> Result<&'static Command, Objection> {
    let command = named(request)?;
    let arity = usize::from(command.arity.unsigned_abs());
    let right = if command.arity > 0 { request.len() == arity } else { request.len() >= arity };
    if right { Ok(command) } else { Err(Objection::WrongArity(command.name)) }
}

/// The command that a request names, whatever the number of its arguments.
pub fn named(request: Request<'_>) -> Result<&'static Command, Objection> {
    let Some(command) = lookup(request.argument(0)) else { return Err(unknown_command(request)) };
    if command.subcommands.is_empty() || request.len() == 1 {
        return Ok(command);
    }
    let name = request.argument(1);
    let unknown = || Objection::UnknownSubcommand { name: repeated(name), container: command.name };
    command.subcommand(name).ok_or_else(unknown)
}

fn unknown_command(request: Request<'_>) -> Objection {
    let mut arguments = String::new();
    for index in 1..request.len() {
        let Some(room) = REPEATED.checked_sub(arguments.len()).filter(|room| *room > 0) else { break };
        let argument = request.argument(index);
        let shown = String::from_utf8_lossy(&argument[..argument.len().min(room)]);
        arguments.push_str(&format!("'{shown}' "));
    }
    Objection::UnknownCommand { name: repeated(request.argument(0)), arguments }
}

fn repeated(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(REPEATED)]).into_owned()
}

impl Command {
    /// What a cluster refuses in a request that one Redis would serve: options that reach beyond the slot of its key.
    pub fn refuses(&self, request: Request<'_>) -> Option<Objection> {
        let refusal = match self.name {
            "sort" | "sort_ro" => sort_refusal(request)?,
            "copy" => copy_refusal(request)?,
            _ => return None,
        };
        Some(Objection::NotInACluster(refusal))
    }
}

fn sort_refusal(request: Request<'_>) -> Option<&'static str> {
    let mut index = 2;
    while index < request.len() {
        let word = request.argument(index);
        let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
        let value = request.argument(index + 1);
        if is("BY") && index + 1 < request.len() && memchr::memchr(b'*', value).is_some() {
            return Some("ERR BY option of SORT denied in Cluster mode.");
        }
        if is("GET") && index + 1 < request.len() {
            return Some("ERR GET option of SORT denied in Cluster mode.");
        }
        index += if is("LIMIT") {
            3
        } else if is("BY") || is("STORE") {
            2
        } else {
            1
        };
    }
    None
}

fn copy_refusal(request: Request<'_>) -> Option<&'static str> {
    let db = (3..request.len()).find(|index| request.argument(*index).eq_ignore_ascii_case(b"DB"))?;
    let other = matches!(request.argument(db + 1), number if !number.is_empty() && number != b"0");
    other.then_some("ERR Copying to another database is not allowed in cluster mode")
}
