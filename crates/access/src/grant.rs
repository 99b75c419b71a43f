//! What does a permission say? Verbs on an object pattern: `redis:cluster/cache-*:write`, `fleet:rollout:*`.
//!
//! The verbs are what follows the last colon: one, several separated by commas, or `*`. The pattern before it covers an
//! object and everything below it; `*` in a segment stands for any text without a slash, and `*` as the service stands
//! for every service.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::object::{Object, segments};

/// Longest grant in bytes.
const MAX_LEN: usize = 1_024;
/// Most wildcards of one segment: matching is linear in their number.
const MAX_WILDCARDS: usize = 8;

/// Text that is no grant, no verb or no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadGrant(pub String);

/// What a request wants to do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// See what it is and how it is: specification, status, findings. Never data of clients.
    View,
    /// Change what runs: create, scale, drain, pause, remove.
    Operate,
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// Publish messages.
    Produce,
    /// Receive and acknowledge messages.
    Consume,
    /// Manage identities, keys, roles and grants.
    Admin,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Verb; 7] =
        [Verb::View, Verb::Operate, Verb::Read, Verb::Write, Verb::Produce, Verb::Consume, Verb::Admin];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Verb::View => "view",
            Verb::Operate => "operate",
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::Produce => "produce",
            Verb::Consume => "consume",
            Verb::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << (self as u8)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Verb {
    type Err = BadGrant;

    fn from_str(text: &str) -> Result<Verb, BadGrant> {
        let found = Verb::ALL.into_iter().find(|verb| verb.word() == text);
        found.ok_or_else(|| {
            let words = Verb::ALL.map(Verb::word).join(", ");
            BadGrant(format!("{text:?} is not a verb; the verbs are {words}"))
        })
    }
}

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Segment {
    /// Exactly this text.
    Literal(Box<str>),
    /// Any text.
    Any,
    /// Texts in this order, with anything between them.
    Glob(Box<[Box<str>]>),
}

impl Segment {
    fn of(text: &str) -> Result<Segment, BadGrant> {
        if text == "*" {
            return Ok(Segment::Any);
        }
        if !text.contains('*') {
            return Ok(Segment::Literal(text.into()));
        }
        let parts: Box<[Box<str>]> = text.split('*').map(Into::into).collect();
        if parts.len() > MAX_WILDCARDS + 1 {
            return Err(BadGrant(format!("{text:?} has more than {MAX_WILDCARDS} wildcards")));
        }
        Ok(Segment::Glob(parts))
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Segment::Literal(literal) => **literal == *text,
            Segment::Any => true,
            Segment::Glob(parts) => glob(parts, text),
        }
    }
}

/// Whether a text begins with the first part, ends with the last one and has the others in between, in order.
fn glob(parts: &[Box<str>], text: &str) -> bool {
    let [first, middle @ .., last] = parts else { return false };
    let Some(rest) = text.strip_prefix(&**first) else { return false };
    let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
    for part in middle {
        match rest.find(&**part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// A permission: these verbs on what this pattern covers. Holds for an object and everything below it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Grant {
    text: Box<str>,
    service: Segment,
    path: Box<[Segment]>,
    verbs: u8,
}

impl Grant {
    /// Whether this permission allows the verb on the object.
    #[must_use]
    pub fn allows(&self, verb: Verb, object: &Object) -> bool {
        self.verbs & verb.bit() != 0 && self.covers(object)
    }

    /// Whether the pattern covers the object.
    #[must_use]
    pub fn covers(&self, object: &Object) -> bool {
        if self.path.len() > object.depth() || !self.service.matches(object.service_name()) {
            return false;
        }
        let mut wanted = self.path.iter().enumerate();
        wanted.all(|(at, wanted)| object.part(at).is_some_and(|part| wanted.matches(part)))
    }

    /// The text that it was made from.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn verbs(text: &str) -> Result<u8, BadGrant> {
    if text == "*" {
        return Ok(Verb::ALL.into_iter().fold(0, |set, verb| set | verb.bit()));
    }
    text.split(',').try_fold(0, |set, word| Ok(set | word.parse::<Verb>()?.bit()))
}

impl FromStr for Grant {
    type Err = BadGrant;

    fn from_str(text: &str) -> Result<Grant, BadGrant> {
        let wrong = |reason: &str| {
            BadGrant(format!(
                "{text:?} is not a grant: {reason}; write service:object:verb, such as redis:cluster/cache-*:write"
            ))
        };
        if text.len() > MAX_LEN || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(wrong("it is too long, or has white space in it"));
        }
        let (pattern, words) = text.rsplit_once(':').ok_or_else(|| wrong("it has no verb"))?;
        let (service, path) = pattern.split_once(':').unwrap_or((pattern, ""));
        let is_service = service.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if service.is_empty() || !(is_service || service == "*") {
            return Err(wrong("it has no service"));
        }
        let path: Vec<&str> = segments(path).collect();
        if path.iter().any(|segment| segment.is_empty()) {
            return Err(wrong("a part of the object is empty"));
        }
        Ok(Grant {
            text: text.into(),
            service: Segment::of(service)?,
            path: path.into_iter().map(Segment::of).collect::<Result<_, _>>()?,
            verbs: verbs(words)?,
        })
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({})", self.text)
    }
}

impl TryFrom<String> for Grant {
    type Error = BadGrant;

    fn try_from(text: String) -> Result<Grant, BadGrant> {
        text.parse()
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> String {
        grant.text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(grant: &str, verb: Verb, object: &str) -> bool {
        grant.parse::<Grant>().unwrap().allows(verb, &object.parse().unwrap())
    }

    #[test]
    fn a_grant_covers_its_object_and_what_is_below_it() {
        for (grant, verb, object, expected) in [
            ("redis:cluster/cache-*:write", Verb::Write, "redis:cluster/cache-1", true),
            ("redis:cluster/cache-*:write", Verb::Write, "redis:cluster/cache-1/slot/7", true),
            ("redis:cluster/cache-*:write", Verb::Write, "redis:cluster/main", false),
            ("redis:cluster/cache-*:write", Verb::Read, "redis:cluster/cache-1", false),
            ("redis:cluster/cache-*:write", Verb::Write, "redis:cluster", false),
            ("topics:namespace/orders:produce", Verb::Produce, "topics:namespace/orders/topic/new", true),
            ("topics:namespace/orders:produce", Verb::Produce, "topics:namespace/orders2", false),
            ("docs:database/shop:read", Verb::Read, "docs:database/shop", true),
            ("fleet:rollout:*", Verb::Operate, "fleet:rollout", true),
            ("fleet:rollout:*", Verb::Operate, "fleet:config/source", false),
            ("meta:/prefix:read", Verb::Read, "meta:/prefix/a/b", true),
            ("meta:/prefix:read", Verb::Read, "meta:/prefixed", false),
            ("meta:/a/127.0.0.1:7000:read", Verb::Read, "meta:/a/127.0.0.1:7000", true),
            ("*:view", Verb::View, "host:host/a", true),
            ("*:view", Verb::Operate, "host:host/a", false),
            ("docs:database/*/x:read,write", Verb::Write, "docs:database/shop/x", true),
            ("docs:database/a*b*c:read", Verb::Read, "docs:database/a-b-c", true),
            ("docs:database/a*b*c:read", Verb::Read, "docs:database/a-c-b", false),
            ("docs:database/ab*ba:read", Verb::Read, "docs:database/aba", false),
        ] {
            assert_eq!(allows(grant, verb, object), expected, "{grant} {verb} {object}");
        }
    }

    #[test]
    fn what_is_no_grant_is_refused() {
        for text in [
            "",
            "x",
            ":read",
            "redis:",
            "redis:a:fly",
            "redis:a b:read",
            "Redis:a:read",
            "redis:a//b:read",
            "r*:read",
        ] {
            assert!(text.parse::<Grant>().is_err(), "{text:?}");
        }
        assert!(format!("docs:{}:read", "*a".repeat(20)).parse::<Grant>().is_err());
        assert!(Object::within("redis", &["cluster", "a/b"]).is_err());
        assert!(Object::within("redis", &["cluster", ""]).is_err());
    }
}
