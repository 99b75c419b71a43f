//! What does one set of grants permit? Commands, keys and channels.

use super::{ChannelUse, Denied, channels};
use crate::command::{ALL_COMMANDS, Command, KeyNeeds, commands};
use crate::glob;
use crate::resp::Request;

/// Commands, keys and channels that are granted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selector {
    pub(super) commands: Commands,
    pub(super) keys: Patterns<KeyPattern>,
    pub(super) channels: Patterns<String>,
}

/// Granted patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Patterns<P> {
    /// Everything.
    All,
    /// What matches one of these.
    Some(Vec<P>),
}

/// Keys that may be accessed in some way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPattern {
    pub(super) pattern: String,
    /// Bytes of the pattern before the first one with a meaning: a key must begin with them.
    literal: usize,
    pub(super) read: bool,
    pub(super) write: bool,
}

impl KeyPattern {
    pub(super) fn new(pattern: &str, read: bool, write: bool) -> KeyPattern {
        let literal = pattern.find(['*', '?', '[', '\\']).unwrap_or(pattern.len());
        KeyPattern { pattern: pattern.to_owned(), literal, read, write }
    }

    /// One pattern must permit all that is needed, as in Redis.
    #[inline]
    fn permits(&self, key: &[u8], needs: KeyNeeds) -> bool {
        (self.read || !needs.read) && (self.write || !needs.write) && self.matches(key)
    }

    #[inline]
    fn matches(&self, key: &[u8]) -> bool {
        let (literal, rest) = self.pattern.as_bytes().split_at(self.literal);
        match key.strip_prefix(literal) {
            Some(_) if rest == b"*" => true,
            Some(key) => glob::matches(rest, key, false),
            None => false,
        }
    }
}

const WORDS: usize = ALL_COMMANDS.div_ceil(64);

/// The commands that are granted, one bit each, and the rules that granted them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commands {
    bits: [u64; WORDS],
    /// Whether the rules begin with all commands, or with none.
    pub(super) base: Grant,
    pub(super) rules: Vec<CommandRule>,
}

/// Whether a rule adds or removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    Allow,
    Deny,
}

impl Grant {
    pub(super) fn sign(self) -> char {
        match self {
            Grant::Allow => '+',
            Grant::Deny => '-',
        }
    }
}

/// A rule about commands after the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandRule {
    pub(super) grant: Grant,
    /// `get`, `config|get` or `@read`.
    pub(super) target: String,
}

impl Commands {
    fn of(base: Grant) -> Commands {
        let mut bits = [0; WORDS];
        if base == Grant::Allow {
            for id in 0..ALL_COMMANDS {
                bits[id / 64] |= 1 << (id % 64);
            }
        }
        Commands { bits, base, rules: Vec::new() }
    }

    #[inline]
    pub(super) fn contains(&self, command: &Command) -> bool {
        self.bits[command.id() / 64] & (1 << (command.id() % 64)) != 0
    }

    fn set(&mut self, grant: Grant, command: &Command) {
        let bit = 1 << (command.id() % 64);
        match grant {
            Grant::Allow => self.bits[command.id() / 64] |= bit,
            Grant::Deny => self.bits[command.id() / 64] &= !bit,
        }
        command.subcommands().iter().for_each(|sub| self.set(grant, sub));
    }

    /// `allcommands`, `nocommands`
    pub(super) fn reset(&mut self, base: Grant) {
        *self = Commands::of(base);
    }

    /// `+command`, `-command|sub`
    pub(super) fn change(&mut self, grant: Grant, command: &Command) {
        self.set(grant, command);
        let covered = |target: &str| {
            let rest = target.strip_prefix(command.name());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        };
        self.rules.retain(|rule| !covered(&rule.target));
        self.rules.push(CommandRule { grant, target: command.name().to_owned() });
    }

    /// `+@category`. The category of a container covers its subcommands, as in Redis.
    pub(super) fn change_category(&mut self, grant: Grant, category: &str) {
        for command in commands() {
            if command.is_in_category(category.as_bytes()) {
                self.set(grant, command);
            }
            for sub in command.subcommands() {
                if sub.is_in_category(category.as_bytes()) {
                    self.set(grant, sub);
                }
            }
        }
        let target = format!("@{}", category.to_ascii_lowercase());
        self.rules.retain(|rule| rule.target != target);
        self.rules.push(CommandRule { grant, target });
    }
}

impl Selector {
    /// No command, no key, no channel.
    pub(super) fn nothing() -> Selector {
        Selector {
            commands: Commands::of(Grant::Deny),
            keys: Patterns::Some(Vec::new()),
            channels: Patterns::Some(Vec::new()),
        }
    }

    pub(super) fn permits_everything(&self) -> bool {
        self.commands.bits == Commands::of(Grant::Allow).bits
            && self.keys == Patterns::All
            && self.channels == Patterns::All
    }

    /// Whether a rule grants this command by name.
    pub(super) fn names(&self, command: &Command) -> bool {
        let named = |rule: &CommandRule| rule.grant == Grant::Allow && rule.target == command.name();
        self.commands.contains(command) && self.commands.rules.iter().any(named)
    }

    #[inline]
    pub(super) fn check(&self, command: &'static Command, request: Request<'_>) -> Result<(), Denied> {
        if !self.commands.contains(command) && !command.before_auth() {
            return Err(Denied::Command(command.name()));
        }
        self.check_keys(command, request)?;
        self.check_channels(command, request)
    }

    #[inline]
    fn check_keys(&self, command: &'static Command, request: Request<'_>) -> Result<(), Denied> {
        let Patterns::Some(patterns) = &self.keys else { return Ok(()) };
        // Redis lets a request pass whose keys cannot be located, because it fails anyway. Here it is refused: what
        // the node makes of it is not known.
        let Ok(keys) = command.keys(request) else { return Err(Denied::Key(0)) };
        for key in keys.iter().filter(|key| key.is_key()) {
            let (name, needs) = (request.argument(key.index()), key.needs_in(command, request));
            if !patterns.iter().any(|pattern| pattern.permits(name, needs)) {
                return Err(Denied::Key(key.index()));
            }
        }
        if command.hides_keys(request) { Err(Denied::Key(0)) } else { Ok(()) }
    }

    #[inline]
    fn check_channels(&self, command: &'static Command, request: Request<'_>) -> Result<(), Denied> {
        let Some((mut range, usage)) = channels(command, request) else { return Ok(()) };
        match range.find(|index| !self.permits_channel(request.argument(*index), usage)) {
            Some(index) => Err(Denied::Channel(index)),
            None => Ok(()),
        }
    }

    /// A subscription to a pattern needs exactly this pattern.
    pub(super) fn permits_channel(&self, channel: &[u8], usage: ChannelUse) -> bool {
        match (&self.channels, usage) {
            (Patterns::All, _) => true,
            (Patterns::Some(patterns), ChannelUse::Named) => {
                patterns.iter().any(|pattern| glob::matches(pattern.as_bytes(), channel, false))
            }
            (Patterns::Some(patterns), ChannelUse::Pattern) => {
                patterns.iter().any(|pattern| pattern.as_bytes() == channel)
            }
        }
    }
}
