//! How are rules read? As `ACL SETUSER` reads them: each word changes what the words before it have set.

use std::str::FromStr;

use super::selector::{Commands, Grant, KeyPattern, Patterns, Selector};
use super::{Login, MAX_PASSWORDS, Rules, State};
use crate::command::{category_names, lookup};
use crate::nmctl::PasswordHash;

/// Longest rules of one user, printed, in bytes: those of all users of a cluster are in one message to a proxy.
pub const MAX_TEXT: usize = 8 << 10;

/// A rule that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule '{rule}': {why}")]
pub struct InvalidRule {
    /// The rule; of a password only the sign.
    pub rule: String,
    /// What is wrong.
    pub why: &'static str,
}

const UNKNOWN_RULE: &str = "not a rule; see `ACL SETUSER` in the documentation of Redis";
const UNKNOWN_COMMAND: &str = "no such command or category";
const NO_PASSWORD: &str = "the user has no such password";
const BAD_HASH: &str = "a hash is written as 64 lowercase hexadecimal digits (SHA-256)";
const AFTER_ALL: &str = "has no effect after '*'; begin again with resetkeys or resetchannels";

impl FromStr for Rules {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Rules, InvalidRule> {
        let mut rules = Rules::new();
        rules.apply(text)?;
        Ok(rules)
    }
}

impl Rules {
    /// Applies rules separated by spaces. Nothing changes if one of them is invalid.
    pub fn apply(&mut self, text: &str) -> Result<(), InvalidRule> {
        let mut changed = self.clone();
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            match word.strip_prefix('(') {
                Some(first) => changed.selectors.push(selector(first, &mut words)?),
                None => changed.apply_word(word).map_err(|why| invalid(word, why))?,
            }
        }
        if changed.to_string().len() > MAX_TEXT {
            return Err(invalid("...", "the rules of the user are too long; the limit is 8 KiB"));
        }
        *self = changed;
        Ok(())
    }

    fn apply_word(&mut self, word: &str) -> Result<(), &'static str> {
        match word.to_ascii_lowercase().as_str() {
            "on" => self.state = State::On,
            "off" => self.state = State::Off,
            "nopass" => self.login = Login::NoPassword,
            "resetpass" => self.login = Login::Passwords(Vec::new()),
            "clearselectors" => self.selectors.clear(),
            "reset" => *self = Rules::new(),
            // Nodes do not verify the payload of RESTORE for any user.
            "sanitize-payload" | "skip-sanitize-payload" => {}
            _ => match word.split_at_checked(1) {
                Some((">", "")) => return Err("the password is empty"),
                Some((">", password)) => return self.add_password(PasswordHash::of(password.as_bytes())),
                Some(("<", password)) => return self.remove_password(&PasswordHash::of(password.as_bytes())),
                Some(("#", hash)) => return self.add_password(parse_hash(hash)?),
                Some(("!", hash)) => return self.remove_password(&parse_hash(hash)?),
                _ => return self.root.apply_word(word),
            },
        }
        Ok(())
    }

    fn add_password(&mut self, hash: PasswordHash) -> Result<(), &'static str> {
        let mut passwords = self.passwords().to_vec();
        if !passwords.contains(&hash) {
            passwords.push(hash);
        }
        if passwords.len() > MAX_PASSWORDS {
            return Err("the user has 8 passwords already; remove one first");
        }
        self.login = Login::Passwords(passwords);
        Ok(())
    }

    fn remove_password(&mut self, hash: &PasswordHash) -> Result<(), &'static str> {
        let Login::Passwords(passwords) = &mut self.login else { return Err(NO_PASSWORD) };
        let before = passwords.len();
        passwords.retain(|known| known != hash);
        if passwords.len() < before { Ok(()) } else { Err(NO_PASSWORD) }
    }
}

fn parse_hash(text: &str) -> Result<PasswordHash, &'static str> {
    let lowercase = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    text.parse().ok().filter(|_| lowercase).ok_or(BAD_HASH)
}

/// Passwords are not repeated in errors.
fn invalid(word: &str, why: &'static str) -> InvalidRule {
    let rule = match word.chars().next() {
        Some(sign @ ('>' | '<' | '#' | '!')) => format!("{sign}..."),
        _ => word.to_owned(),
    };
    InvalidRule { rule, why }
}

/// The rules up to a closing parenthesis.
fn selector<'t>(first: &'t str, words: &mut impl Iterator<Item = &'t str>) -> Result<Selector, InvalidRule> {
    let mut selector = Selector::nothing();
    let mut word = first;
    loop {
        let (rule, last) = match word.strip_suffix(')') {
            Some(rule) => (rule, true),
            None => (word, false),
        };
        if !rule.is_empty() {
            selector.apply_word(rule).map_err(|why| invalid(rule, why))?;
        }
        if last {
            return Ok(selector);
        }
        word = words.next().ok_or_else(|| invalid(first, "the parenthesis is not closed"))?;
    }
}

impl Selector {
    fn apply_word(&mut self, word: &str) -> Result<(), &'static str> {
        match word.to_ascii_lowercase().as_str() {
            "allkeys" | "~*" => self.keys = Patterns::All,
            "resetkeys" => self.keys = Patterns::Some(Vec::new()),
            "allchannels" | "&*" => self.channels = Patterns::All,
            "resetchannels" => self.channels = Patterns::Some(Vec::new()),
            "allcommands" | "+@all" => self.commands.reset(Grant::Allow),
            "nocommands" | "-@all" => self.commands.reset(Grant::Deny),
            _ => match word.split_at_checked(1) {
                Some(("~", pattern)) => return self.add_key(pattern, true, true),
                Some(("%", rest)) => {
                    let (pattern, read, write) = key_permissions(rest)?;
                    return self.add_key(pattern, read, write);
                }
                Some(("&", pattern)) => return self.add_channel(pattern),
                Some(("+", target)) => return self.commands.apply(Grant::Allow, target),
                Some(("-", target)) => return self.commands.apply(Grant::Deny, target),
                _ => return Err(UNKNOWN_RULE),
            },
        }
        Ok(())
    }

    fn add_key(&mut self, pattern: &str, read: bool, write: bool) -> Result<(), &'static str> {
        let Patterns::Some(known) = &mut self.keys else { return Err(AFTER_ALL) };
        match known.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => (known.read, known.write) = (known.read | read, known.write | write),
            None => known.push(KeyPattern::new(pattern, read, write)),
        }
        Ok(())
    }

    fn add_channel(&mut self, pattern: &str) -> Result<(), &'static str> {
        let Patterns::Some(known) = &mut self.channels else { return Err(AFTER_ALL) };
        if !known.iter().any(|known| known == pattern) {
            known.push(pattern.to_owned());
        }
        Ok(())
    }
}

/// `R~pattern`, `W~pattern`, `RW~pattern`
fn key_permissions(rest: &str) -> Result<(&str, bool, bool), &'static str> {
    let (permissions, pattern) = rest.split_once('~').ok_or(UNKNOWN_RULE)?;
    match permissions.to_ascii_uppercase().as_str() {
        "R" => Ok((pattern, true, false)),
        "W" => Ok((pattern, false, true)),
        "RW" | "WR" => Ok((pattern, true, true)),
        _ => Err("the permissions of a key are R, W or RW"),
    }
}

impl Commands {
    fn apply(&mut self, grant: Grant, target: &str) -> Result<(), &'static str> {
        if let Some(category) = target.strip_prefix('@') {
            let known = category_names().any(|known| known.eq_ignore_ascii_case(category));
            if !known {
                return Err(UNKNOWN_COMMAND);
            }
            self.change_category(grant, category);
            return Ok(());
        }
        let (name, sub) = match target.split_once('|') {
            Some((name, sub)) => (name, Some(sub)),
            None => (target, None),
        };
        let command = lookup(name.as_bytes()).ok_or(UNKNOWN_COMMAND)?;
        let command = match sub {
            None => command,
            Some(_) if command.subcommands().is_empty() => {
                return Err("the command has no subcommands; rules for its first argument are not supported");
            }
            Some(sub) => command.subcommand(sub.as_bytes()).ok_or(UNKNOWN_COMMAND)?,
        };
        self.change(grant, command);
        Ok(())
    }
}
