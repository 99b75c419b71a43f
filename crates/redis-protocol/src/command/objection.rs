//! What is wrong with a request, before any node sees it? With Redis's own error texts.

use super::Command;
use super::table::lookup;
use crate::resp::{Request, decimal};

/// How much of the client's input an error quotes, in bytes.
const REPEATED: usize = 128;

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// There is no such command.
    UnknownCommand {
        /// As the client spelled it.
        name: Vec<u8>,
        /// The first of its arguments, quoted.
        arguments: Vec<u8>,
    },
    /// The command has no such subcommand.
    UnknownSubcommand {
        /// As the client spelled it.
        name: Vec<u8>,
        /// The command.
        container: &'static str,
    },
    /// The subcommand has no such form, or another number of arguments.
    WrongForm {
        /// As the client spelled it.
        name: Vec<u8>,
        /// The command.
        container: &'static str,
    },
    /// Too few arguments, or too many.
    WrongArity(&'static str),
    /// Denied to every user, or to this one.
    NoPermission(&'static str),
    /// Not supported in a cluster.
    NotInACluster(&'static str),
}

impl Objection {
    /// The error line with its code. Bytes, because it quotes the client's input.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        let help = |container: &str| format!("'. Try {} HELP.", container.to_uppercase());
        match self {
            Objection::UnknownCommand { name, arguments } => {
                [&b"ERR unknown command '"[..], name, b"', with args beginning with: ", arguments].concat()
            }
            Objection::UnknownSubcommand { name, container } => {
                [&b"ERR unknown subcommand '"[..], name, help(container).as_bytes()].concat()
            }
            Objection::WrongForm { name, container } => [
                &b"ERR unknown subcommand or wrong number of arguments for '"[..],
                name,
                help(container).as_bytes(),
            ]
            .concat(),
            Objection::WrongArity(name) => {
                format!("ERR wrong number of arguments for '{name}' command").into_bytes()
            }
            Objection::NoPermission(name) => {
                format!("NOPERM this user has no permissions to run the '{name}' command").into_bytes()
            }
            Objection::NotInACluster(text) => text.as_bytes().to_vec(),
        }
    }

    /// The objection to a subcommand with the wrong form.
    #[must_use]
    pub fn wrong_form(request: Request<'_>, container: &'static str) -> Objection {
        Objection::WrongForm { name: repeated(request.argument(1), REPEATED), container }
    }
}

/// The command of a request, if it exists and the number of arguments is valid.
pub fn find(request: Request<'_>) -> Result<&'static Command, Objection> {
    let command = named(request)?;
    let arity = usize::from(command.arity.unsigned_abs());
    let right = if command.arity > 0 { request.len() == arity } else { request.len() >= arity };
    if right { Ok(command) } else { Err(Objection::WrongArity(command.name)) }
}

/// The command of a request, without a check of the number of arguments.
pub fn named(request: Request<'_>) -> Result<&'static Command, Objection> {
    let Some(command) = lookup(request.argument(0)) else { return Err(unknown_command(request)) };
    if command.subcommands().is_empty() || request.len() == 1 {
        return Ok(command);
    }
    let name = request.argument(1);
    let unknown = || Objection::UnknownSubcommand { name: repeated(name, REPEATED), container: command.name };
    command.subcommand(name).ok_or_else(unknown)
}

fn unknown_command(request: Request<'_>) -> Objection {
    let mut arguments = Vec::new();
    for index in 1..request.len() {
        let Some(room) = REPEATED.checked_sub(arguments.len()).filter(|room| *room > 0) else { break };
        arguments.push(b'\'');
        arguments.extend(repeated(request.argument(index), room));
        arguments.extend_from_slice(b"' ");
    }
    Objection::UnknownCommand { name: repeated(request.argument(0), REPEATED), arguments }
}

/// Input as an error quotes it: Redis prints it as a C string, which ends at a zero byte.
#[must_use]
pub fn printed(word: &[u8]) -> &[u8] {
    &word[..memchr::memchr(0, word).unwrap_or(word.len())]
}

fn repeated(word: &[u8], most: usize) -> Vec<u8> {
    let word = printed(word);
    word[..word.len().min(most)].to_vec()
}

impl Command {
    /// The objection to a request that a single Redis would serve and a cluster does not: options that reach
    /// beyond the slot of its key.
    pub fn refuses(&self, request: Request<'_>) -> Option<Objection> {
        let refusal = match self.name {
            "sort" | "sort_ro" => sort_refusal(request, self.writes())?,
            "copy" => copy_refusal(request)?,
            _ => return None,
        };
        Some(Objection::NotInACluster(refusal))
    }
}

fn sort_refusal(request: Request<'_>, stores: bool) -> Option<&'static str> {
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
        let number = |at: usize| decimal(request.argument(at)).is_some();
        index += if is("LIMIT") && number(index + 1) && number(index + 2) {
            3
        } else if is("BY") || is("STORE") && stores {
            2
        } else if is("ASC") || is("DESC") || is("ALPHA") {
            1
        } else {
            // The node reports this mistake before it evaluates the remaining options.
            return None;
        };
    }
    None
}

fn copy_refusal(request: Request<'_>) -> Option<&'static str> {
    let db = (3..request.len()).find(|index| request.argument(*index).eq_ignore_ascii_case(b"DB"))?;
    let other = matches!(request.argument(db + 1), number if !number.is_empty() && number != b"0");
    other.then_some("ERR Copying to another database is not allowed in cluster mode")
}
