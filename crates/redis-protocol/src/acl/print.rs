//! How are rules written? As `ACL LIST` writes them: applied to a new user they give the same rules again.

use std::fmt;

use super::selector::{Commands, KeyPattern, Patterns, Selector};
use super::{Login, Rules};

/// The parts of a selector, as `ACL GETUSER` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorText {
    /// `-@all +get`
    pub commands: String,
    /// `~a:* %R~b:*`
    pub keys: String,
    /// `&news:*`
    pub channels: String,
}

impl Rules {
    /// The flags as `ACL GETUSER` shows them.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + Clone {
        let state = if self.is_on() { "on" } else { "off" };
        std::iter::once(state).chain(self.needs_no_password().then_some("nopass"))
    }

    /// What the user may do without selectors.
    #[must_use]
    pub fn root(&self) -> SelectorText {
        self.root.text()
    }

    /// Its selectors.
    pub fn selectors(&self) -> impl ExactSizeIterator<Item = SelectorText> {
        self.selectors.iter().map(Selector::text)
    }
}

impl Selector {
    fn text(&self) -> SelectorText {
        let channels = match &self.channels {
            Patterns::All => "&*".to_owned(),
            Patterns::Some(patterns) => joined(patterns.iter().map(|pattern| format!("&{pattern}"))),
        };
        SelectorText { commands: self.commands.to_string(), keys: self.keys.to_string(), channels }
    }
}

fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "on" } else { "off" })?;
        match &self.login {
            Login::NoPassword => f.write_str(" nopass")?,
            Login::Passwords(passwords) => passwords.iter().try_for_each(|hash| write!(f, " #{hash}"))?,
        }
        write!(f, " {}", self.root)?;
        self.selectors.iter().try_for_each(|selector| write!(f, " ({selector})"))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SelectorText { commands, keys, channels } = self.text();
        let reset = match &self.channels {
            Patterns::All => "",
            Patterns::Some(_) => "resetchannels",
        };
        let words = [keys.as_str(), reset, channels.as_str(), commands.as_str()];
        f.write_str(&joined(words.into_iter().filter(|word| !word.is_empty()).map(str::to_owned)))
    }
}

impl fmt::Display for Patterns<KeyPattern> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Patterns::All => f.write_str("~*"),
            Patterns::Some(patterns) => f.write_str(&joined(patterns.iter().map(KeyPattern::to_string))),
        }
    }
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match (self.read, self.write) {
            (true, false) => "%R~",
            (false, true) => "%W~",
            // A pattern has at least one permission. The word `~*` would be all keys.
            (true | false, _) if self.pattern == "*" => "%RW~",
            (true | false, _) => "~",
        };
        write!(f, "{sign}{}", self.pattern)
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@all", self.base.sign())?;
        self.rules.iter().try_for_each(|rule| write!(f, " {}{}", rule.grant.sign(), rule.target))
    }
}
