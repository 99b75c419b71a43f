//! What may a user do? Redis's ACL rules: parsed, printed, and applied to a request.
//!
//! [`Rules`] is everything that `ACL SETUSER` sets of one user. A proxy holds them for each connection and asks
//! [`Rules::check`] before it sends a command anywhere.
//!
//! Deliberately absent: first arguments of commands without subcommands (`+select|0`), which Redis has
//! deprecated.

mod parse;
mod print;
mod selector;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use crate::command::{Channels, Command, printed};
use crate::nmctl::PasswordHash;
use crate::resp::Request;

pub use parse::{InvalidRule, MAX_TEXT};
pub use print::SelectorText;
use selector::Selector;

/// Passwords of one user: two while one is rotated, and room for mistakes.
pub const MAX_PASSWORDS: usize = 8;

/// The rules of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    state: State,
    login: Login,
    /// What the user may do without selectors.
    root: Selector,
    /// Further grants: a command passes if one of them, or the root, permits all of it.
    selectors: Vec<Selector>,
}

/// Whether a user may authenticate. Connections that have authenticated are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On,
    Off,
}

/// How a user authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Login {
    /// Any password is valid, and none is needed.
    NoPassword,
    /// One of these; none: the user cannot authenticate.
    Passwords(Vec<PasswordHash>),
}

/// What a connection does with a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelUse {
    /// It publishes or subscribes to this channel.
    Named,
    /// It subscribes to this pattern.
    Pattern,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The user may not run the command.
    Command(&'static str),
    /// The user may not access the key at this argument in this way.
    Key(usize),
    /// The user may not use the channel at this argument.
    Channel(usize),
    /// The command runs a script, which is not confined to what the user may do.
    Script(&'static str),
}

impl Denied {
    /// The error line, in Redis's words.
    #[must_use]
    pub fn line(self) -> String {
        match self {
            Denied::Command(name) => {
                format!("NOPERM this user has no permissions to run the '{name}' command")
            }
            Denied::Key(_) => {
                "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned()
            }
            Denied::Channel(_) => {
                "NOPERM this user has no permissions to access one of the channels used as arguments"
                    .to_owned()
            }
            Denied::Script(name) => format!("NOPERM {}", unconfined(name)),
        }
    }

    /// The reply of `ACL DRYRUN`. Bytes, because it quotes the request.
    #[must_use]
    pub fn dry_run(self, request: Request<'_>) -> Vec<u8> {
        let quoted = |index, what: &str| {
            let start = &b"This user has no permissions to access the '"[..];
            [start, printed(request.argument(index)), b"' ", what.as_bytes()].concat()
        };
        match self {
            Denied::Command(name) => {
                format!("This user has no permissions to run the '{name}' command").into_bytes()
            }
            Denied::Key(index) => quoted(index, "key"),
            Denied::Channel(index) => quoted(index, "channel"),
            Denied::Script(name) => unconfined(name).into_bytes(),
        }
    }

    /// The error that Redis reports if no selector permits a request: the one that came furthest.
    fn rank(self) -> (u8, usize) {
        match self {
            Denied::Command(_) => (0, 0),
            Denied::Key(index) => (1, index),
            Denied::Channel(index) => (2, index),
            Denied::Script(_) => (3, 0),
        }
    }
}

fn unconfined(name: &str) -> String {
    format!(
        "a script is not confined to the keys and commands of this user; '+{name}' by name in its rules permits it \
         nevertheless"
    )
}

/// Redis's own `default` user: no password, no restrictions.
const EVERYTHING: &str = "on nopass ~* &* +@all";

/// A user that may read everything, as `"commands": "read"` stores it: all commands without those that change
/// data. Scripts that are declared read-only cannot.
const READ_ONLY: &str = "on nopass ~* &* +@all -@write -eval -evalsha -fcall -script -function +function|list +function|dump \
                         +function|stats +function|help +script|help +eval_ro +evalsha_ro +fcall_ro";

/// The rules of a constant that a test parses; if it could not be parsed, nothing would be permitted.
fn constant(text: &str) -> Arc<Rules> {
    Arc::new(text.parse().unwrap_or_else(|_| Rules::new()))
}

impl Rules {
    /// A new user: it cannot authenticate, and may do nothing.
    #[must_use]
    pub fn new() -> Rules {
        Rules {
            state: State::Off,
            login: Login::Passwords(Vec::new()),
            root: Selector::nothing(),
            selectors: Vec::new(),
        }
    }

    /// A user that may read everything.
    #[must_use]
    pub fn read_only() -> Arc<Rules> {
        static RULES: LazyLock<Arc<Rules>> = LazyLock::new(|| constant(READ_ONLY));
        Arc::clone(&RULES)
    }

    /// A user that may do everything, without a password.
    #[must_use]
    pub fn everything() -> Arc<Rules> {
        static RULES: LazyLock<Arc<Rules>> = LazyLock::new(|| constant(EVERYTHING));
        Arc::clone(&RULES)
    }

    /// The same rules with more passwords, given as SHA-256 hashes.
    pub fn with_passwords(&self, hashes: &[impl std::fmt::Display]) -> Result<Rules, InvalidRule> {
        let mut rules = self.clone();
        hashes.iter().try_for_each(|hash| rules.apply(&format!("#{hash}")))?;
        Ok(rules)
    }

    /// Whether the user may authenticate with some password, or without one.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.state == State::On
    }

    /// Whether the user needs no password.
    #[must_use]
    pub fn needs_no_password(&self) -> bool {
        self.login == Login::NoPassword
    }

    /// The hashes of its passwords.
    #[must_use]
    pub fn passwords(&self) -> &[PasswordHash] {
        match &self.login {
            Login::NoPassword => &[],
            Login::Passwords(passwords) => passwords,
        }
    }

    /// Whether the user may authenticate with this password. Every hash is compared in full, so that timing
    /// reveals nothing.
    #[must_use]
    pub fn accepts(&self, password: &[u8]) -> bool {
        let given = PasswordHash::of(password);
        let right = self.passwords().iter().fold(false, |right, hash| right | hash.same_as(&given));
        self.is_on() && (right || self.needs_no_password())
    }

    /// Whether the user may do everything, so that nothing needs to be checked.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.root.permits_everything()
    }

    /// Whether the user may run a command with these arguments.
    pub fn check(&self, command: &'static Command, request: Request<'_>) -> Result<(), Denied> {
        let mut denied = match self.root.check(command, request) {
            Ok(()) => return self.check_script(command),
            Err(denied) => denied,
        };
        for selector in &self.selectors {
            match selector.check(command, request) {
                Ok(()) => return self.check_script(command),
                Err(other) if other.rank() > denied.rank() => denied = other,
                Err(_) => {}
            }
        }
        Err(denied)
    }

    /// A node executes scripts with all permissions: Redis would check each of their commands. So a user with
    /// any restriction needs the command that runs them by name; a category does not include it.
    #[inline]
    fn check_script(&self, command: &'static Command) -> Result<(), Denied> {
        if !command.runs_script() || self.is_unrestricted() {
            return Ok(());
        }
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        if all.any(|selector| selector.names(command)) { Ok(()) } else { Err(Denied::Script(command.name())) }
    }

    /// Whether the user may stay subscribed to a channel or a pattern.
    #[must_use]
    pub fn may_use_channel(&self, channel: &[u8], usage: ChannelUse) -> bool {
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        all.any(|selector| selector.permits_channel(channel, usage))
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::new()
    }
}

/// The arguments that are channels, and how they are used.
fn channels(command: &Command, request: Request<'_>) -> Option<(std::ops::Range<usize>, ChannelUse)> {
    match command.channels(request) {
        Channels::None => None,
        Channels::Named(range) => Some((range, ChannelUse::Named)),
        Channels::Patterns(range) => Some((range, ChannelUse::Pattern)),
    }
}
