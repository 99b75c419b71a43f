//! Which of two versions is newer? Debian's order, because packages are compared by it on every host and because it
//! orders both `1.2.3-1` and `2021.04.19-13965` as people expect.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A version is part of file names, of keys and of lines on a screen.
const MAX_CHARS: usize = 128;

/// A version, `[epoch:]upstream[-revision]`.
///
/// Equality is that of the order: `1.0` and `1.0-0` are the same version. For the exact text compare
/// [`Version::as_str`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version(String);

/// Why a text is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a version: {why}")]
pub struct VersionError {
    /// What was given, cut to a length that fits into a message.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Version {
    /// The version as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> (u64, &str, &str) {
        let (epoch, rest) = self.0.split_once(':').unwrap_or(("0", &self.0));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        (epoch.parse().unwrap_or(u64::MAX), upstream, revision)
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        match fault(text) {
            None => Ok(Version(text.to_owned())),
            Some(why) => Err(VersionError { text: text.chars().take(MAX_CHARS).collect(), why }),
        }
    }
}

fn fault(text: &str) -> Option<&'static str> {
    let (epoch, rest) = text.split_once(':').map_or((None, text), |(epoch, rest)| (Some(epoch), rest));
    let (upstream, revision) = rest.rsplit_once('-').map_or((rest, None), |(up, rev)| (up, Some(rev)));
    if text.len() > MAX_CHARS {
        return Some("it is longer than 128 characters");
    }
    if epoch.is_some_and(|epoch| !epoch.bytes().all(|b| b.is_ascii_digit()) || epoch.parse::<i32>().is_err())
    {
        return Some("what stands before the colon is not a number");
    }
    if !upstream.starts_with(|c: char| c.is_ascii_digit()) {
        return Some("it does not begin with a digit");
    }
    if !upstream.chars().all(|c| c.is_ascii_alphanumeric() || ".+-~".contains(c)) {
        return Some("only letters, digits and . + - ~ may stand in it");
    }
    if revision
        .is_some_and(|r| r.is_empty() || !r.chars().all(|c| c.is_ascii_alphanumeric() || ".+~".contains(c)))
    {
        return Some(
            "the revision behind the last hyphen is empty or holds other than letters, digits and . + ~",
        );
    }
    None
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.parts(), other.parts());
        a.0.cmp(&b.0).then_with(|| compare_part(a.1, b.1)).then_with(|| compare_part(a.2, b.2))
    }
}

/// Alternately compares what is not a number (letters before the rest, `~` before everything, even the end) and what
/// is one.
fn compare_part<'a>(mut a: &'a str, mut b: &'a str) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        let (words, numbers);
        (words, (a, b)) = compare_words(a, b);
        (numbers, (a, b)) = compare_numbers(a, b);
        let order = words.then(numbers);
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

fn compare_words<'a>(a: &'a str, b: &'a str) -> (Ordering, (&'a str, &'a str)) {
    let ((word_a, rest_a), (word_b, rest_b)) =
        (split(a, |b| !b.is_ascii_digit()), split(b, |b| !b.is_ascii_digit()));
    let weights = |word: &str| word.bytes().map(weight).chain([0]).collect::<Vec<i32>>();
    (weights(word_a).cmp(&weights(word_b)), (rest_a, rest_b))
}

fn compare_numbers<'a>(a: &'a str, b: &'a str) -> (Ordering, (&'a str, &'a str)) {
    let ((digits_a, rest_a), (digits_b, rest_b)) =
        (split(a, |b| b.is_ascii_digit()), split(b, |b| b.is_ascii_digit()));
    let (a, b) = (digits_a.trim_start_matches('0'), digits_b.trim_start_matches('0'));
    (a.len().cmp(&b.len()).then_with(|| a.cmp(b)), (rest_a, rest_b))
}

fn split(text: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !belongs(b)).unwrap_or(text.len()))
}

/// The end of a word weighs zero: `~` sorts before it, letters behind it, everything else behind the letters.
fn weight(byte: u8) -> i32 {
    match byte {
        b'~' => -1,
        b if b.is_ascii_alphabetic() => i32::from(b),
        b => i32::from(b) + 256,
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Version {
    type Error = VersionError;

    fn try_from(text: String) -> Result<Self, VersionError> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> String {
        version.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_people_and_dpkg_order_them() {
        let ascending = [
            "0.9~rc1",
            "0.9",
            "1.2.3-1",
            "1.2.3-2",
            "1.2.10-1",
            "1.2.10+b1",
            "2021.04.19-9999",
            "2021.04.19-13965",
            "2021.05.01-1",
            "1:0.1",
        ];
        for pair in ascending.windows(2) {
            let (older, newer): (Version, Version) = (pair[0].parse().unwrap(), pair[1].parse().unwrap());
            assert!(older < newer, "{older} must be older than {newer}");
            assert!(newer > older);
        }
        assert_eq!("1.0".parse::<Version>(), "1.0-0".parse());
        assert_eq!("1.00".parse::<Version>(), "0:1.0".parse());
    }

    #[test]
    fn what_is_no_version_says_why() {
        for (text, why) in [
            ("", "it does not begin with a digit"),
            ("v1.0", "it does not begin with a digit"),
            ("../1", "it does not begin with a digit"),
            ("1/2", "only letters, digits and . + - ~ may stand in it"),
            (
                "1.0-",
                "the revision behind the last hyphen is empty or holds other than letters, digits and . + ~",
            ),
            ("x:1", "what stands before the colon is not a number"),
            (":1", "what stands before the colon is not a number"),
        ] {
            assert_eq!(text.parse::<Version>().unwrap_err().why, why, "{text:?}");
        }
        assert!("1".repeat(129).parse::<Version>().is_err());
    }
}
