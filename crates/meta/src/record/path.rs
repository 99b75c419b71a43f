//! How does a key become text and text a key? Patterns such as `/capstan/hosts/{host}` and what may stand in them.
//!
//! A placeholder is a whole path segment. Only a leading `{root}` may span several: everything behind it has a fixed
//! number of segments, so text still parses in one way only.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use smallvec::SmallVec;

use crate::kv::LeaseId;

/// What may stand in for a placeholder. Its text is never empty and never holds a slash (except for [`Root`]), so a
/// value can neither leave its place in the path nor swallow another.
pub trait Segment: FromStr + fmt::Display + Clone + fmt::Debug + Ord + Send + Sync + 'static {}

impl Segment for u16 {}
impl Segment for u32 {}
impl Segment for u64 {}
impl Segment for i64 {}
impl Segment for std::net::SocketAddr {}

/// Longest name in bytes; keys are compared and kept in memory everywhere, so names stay short.
pub const MAX_NAME_LEN: usize = 255;

/// A name that cannot stand in a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {reason}")]
pub struct InvalidName {
    /// The type that was wanted.
    pub kind: &'static str,
    /// The text that was given, shortened.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Checks the text of a name declared with [`names!`](crate::names).
pub fn check_name(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    let reason = if text.is_empty() {
        "it is empty"
    } else if text.len() > MAX_NAME_LEN {
        "it is longer than 255 bytes"
    } else if text.contains('/') {
        "it contains a slash"
    } else if text.chars().any(char::is_control) {
        "it contains a control character"
    } else if text.trim() != text {
        "it begins or ends with white space"
    } else {
        return Ok(());
    };
    Err(InvalidName { kind, text: text.chars().take(64).collect(), reason })
}

/// Where a service's keys begin, for services whose documents let an operator choose it (`/neco/`).
///
/// Held without the trailing slash; empty is the root of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Root(String);

impl Segment for Root {}

impl FromStr for Root {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Root, InvalidName> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        if trimmed.is_empty() {
            return Ok(Root::default());
        }
        let segments = trimmed.strip_prefix('/').ok_or_else(|| InvalidName {
            kind: "Root",
            text: text.chars().take(64).collect(),
            reason: "it does not begin with a slash",
        })?;
        segments.split('/').try_for_each(|segment| check_name("Root", segment))?;
        Ok(Root(trimmed.to_owned()))
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lease as etcd's election recipe writes it into a key: hex without leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseHex(pub LeaseId);

impl Segment for LeaseHex {}

impl FromStr for LeaseHex {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<LeaseHex, Self::Err> {
        i64::from_str_radix(text, 16).map(|id| LeaseHex(LeaseId(id)))
    }
}

impl fmt::Display for LeaseHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0.0)
    }
}

/// Writes a pattern with its placeholders filled in, in order.
pub fn fill(pattern: &str, params: &[&dyn fmt::Display], out: &mut dyn fmt::Write) -> fmt::Result {
    let mut params = params.iter();
    let mut rest = pattern;
    while let Some((literal, placeholder)) = rest.split_once('{') {
        out.write_str(literal)?;
        if let Some(param) = params.next() {
            write!(out, "{param}")?;
        }
        rest = placeholder.split_once('}').map_or("", |(_, behind)| behind);
    }
    out.write_str(rest)
}

/// The texts that stand for a pattern's placeholders in a path, if the path has that shape.
#[must_use]
pub fn captures<'p>(pattern: &str, path: &'p str) -> Option<SmallVec<[&'p str; 4]>> {
    // Prefixes hold keys of several shapes, which mostly differ in their last words: nothing more is looked at then.
    let end = pattern.rsplit_once('}').map_or(pattern, |(_, literal)| literal);
    if !path.ends_with(end) {
        return None;
    }
    let mut found = SmallVec::new();
    let (pattern, path) = match pattern.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        None => (pattern, path),
        Some((_, tail)) => {
            let depth = tail.matches('/').count();
            let cut = path.rmatch_indices('/').nth(depth.checked_sub(1)?)?.0;
            found.push(&path[..cut]);
            (tail, &path[cut..])
        }
    };
    let mut wanted = pattern.split('/');
    let mut given = path.split('/');
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(found),
            (Some(hole), Some(text)) if hole.starts_with('{') && !text.is_empty() => found.push(text),
            (Some(literal), Some(text)) if literal == text => {}
            _ => return None,
        }
    }
}

/// Parses one captured text; only the spelling that [`Segment`]'s `Display` writes is accepted (`7`, not `007`), so
/// that a key has one path.
#[must_use]
pub fn segment<S: Segment>(text: &str) -> Option<S> {
    let parsed = text.parse::<S>().ok()?;
    let mut rest = Remainder(text);
    (write!(rest, "{parsed}").is_ok() && rest.0.is_empty()).then_some(parsed)
}

/// What is left of an expected text while it is being written.
struct Remainder<'t>(&'t str);

impl fmt::Write for Remainder<'_> {
    fn write_str(&mut self, written: &str) -> fmt::Result {
        self.0 = self.0.strip_prefix(written).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// Fails the build unless `pattern` is the path of a single key with exactly these placeholders in this order.
pub const fn check_key(pattern: &str, fields: &[&str]) {
    check_pattern(pattern.as_bytes(), fields);
    assert!(pattern.as_bytes()[pattern.len() - 1] != b'/', "a key does not end in a slash");
}

/// Fails the build unless `pattern` is a prefix that ends in a slash, with exactly these placeholders in this order.
pub const fn check_prefix(pattern: &str, fields: &[&str]) {
    check_pattern(pattern.as_bytes(), fields);
    assert!(pattern.as_bytes()[pattern.len() - 1] == b'/', "a prefix ends in a slash");
}

const fn check_pattern(pattern: &[u8], fields: &[&str]) {
    assert!(!pattern.is_empty(), "a pattern is not empty");
    assert!(pattern[0] == b'/' || pattern[0] == b'{', "a pattern begins with a slash or with a root");
    let mut at = 0;
    let mut field = 0;
    while at < pattern.len() {
        if pattern[at] == b'/' {
            // One is allowed: etcd's Go library appends a slash to election prefixes that end in one.
            let empty = at + 2 < pattern.len() && pattern[at + 1] == b'/' && pattern[at + 2] == b'/';
            assert!(!empty, "a pattern has no two empty segments in a row");
        }
        assert!(pattern[at] != b'}', "a brace is closed that was not opened");
        if pattern[at] == b'{' {
            assert!(at == 0 || pattern[at - 1] == b'/', "a placeholder is a whole segment");
            assert!(field < fields.len(), "a placeholder has no field");
            at = check_placeholder(pattern, at + 1, fields[field].as_bytes());
            field += 1;
        }
        at += 1;
    }
    assert!(field == fields.len(), "a field has no placeholder");
}

/// Where the placeholder that begins at `start` is closed.
const fn check_placeholder(pattern: &[u8], start: usize, name: &[u8]) -> usize {
    let mut at = 0;
    while at < name.len() {
        assert!(
            start + at < pattern.len() && pattern[start + at] == name[at],
            "placeholder and field differ"
        );
        at += 1;
    }
    let close = start + at;
    assert!(close < pattern.len() && pattern[close] == b'}', "placeholder and field differ");
    assert!(close + 1 == pattern.len() || pattern[close + 1] == b'/', "a placeholder is a whole segment");
    close
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_parses_in_one_way_only() {
        assert_eq!(captures("/a/{x}/c", "/a/b/c").as_deref(), Some(&["b"][..]));
        for wrong in ["/a//c", "/a/b/c/", "/a/b", "a/b/c", "/a/b/d", "/a/b/c/d", ""] {
            assert_eq!(captures("/a/{x}/c", wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_root_may_span_segments() {
        let pattern = "{root}/bootservers/{lrn}";
        assert_eq!(captures(pattern, "/neco/bootservers/3").as_deref(), Some(&["/neco", "3"][..]));
        assert_eq!(captures(pattern, "/x/y/bootservers/3").as_deref(), Some(&["/x/y", "3"][..]));
        assert_eq!(captures(pattern, "/bootservers/3").as_deref(), Some(&["", "3"][..]));
        assert_eq!(captures(pattern, "/neco/status/3"), None);
        assert_eq!("/neco/".parse::<Root>().unwrap().to_string(), "/neco");
        assert_eq!("/".parse::<Root>().unwrap(), Root::default());
        assert!("neco".parse::<Root>().is_err() && "/a//b".parse::<Root>().is_err());
    }

    #[test]
    fn only_the_canonical_spelling_is_a_key() {
        assert_eq!(segment::<u64>("7"), Some(7));
        assert_eq!(segment::<u64>("007"), None);
        assert_eq!(segment::<u64>("+7"), None);
        assert_eq!(segment::<LeaseHex>("1f"), Some(LeaseHex(LeaseId(31))));
        assert_eq!(segment::<LeaseHex>("1F"), None);
    }

    #[test]
    fn names_that_would_leave_their_place_are_refused() {
        for wrong in ["", "a/b", " a", "a\n", "\0"] {
            assert!(check_name("Name", wrong).is_err(), "{wrong:?}");
        }
        assert!(check_name("Name", &"x".repeat(256)).is_err());
        assert!(check_name("Name", "127.0.0.1:6379").is_ok());
    }
}
