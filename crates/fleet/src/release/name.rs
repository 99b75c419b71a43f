//! The names that stand in a manifest: each validates, because each becomes a part of a path, a key or an argument.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Names become file names together with a version; this leaves room for both.
const MAX_NAME: usize = 100;

/// Why a text is not the name that it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}: {rule}")]
pub struct NameError {
    /// What was given, cut to a length that fits into a message.
    pub text: String,
    /// What it should be.
    pub what: &'static str,
    /// What such a name looks like.
    pub rule: &'static str,
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    return Ok(Self(text.to_owned()));
                }
                Err(NameError { text: text.chars().take(MAX_NAME).collect(), what: $what, rule: $rule })
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_type! {
    /// The name of a package or of an image, such as `etcd`.
    ArtifactName, "an artifact name",
    "2 to 100 of a-z 0-9 . + -, beginning with a letter or digit",
    |text| (2..=MAX_NAME).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".+-".contains(c))
}

text_type! {
    /// The tag of an image, such as `3.5.1`.
    Tag, "an image tag",
    "1 to 128 of a-z A-Z 0-9 _ . -, beginning with a letter, digit or underscore",
    |text| (1..=128).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

text_type! {
    /// The name of a step, such as `stop-vault`: for people and journals.
    StepName, "a step name",
    "1 to 100 of a-z A-Z 0-9 _ . -, beginning with a letter or digit",
    |text| (1..=MAX_NAME).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

text_type! {
    /// The SHA-256 of some bytes, written `sha256:` and 64 hexadecimal digits.
    Digest, "a digest",
    "sha256: and 64 lowercase hexadecimal digits",
    |text| text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

impl Digest {
    /// The hexadecimal digits alone, as in file names.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0["sha256:".len()..]
    }

    /// From the 32 bytes of a SHA-256.
    #[must_use]
    pub fn from_sha256(bytes: [u8; 32]) -> Digest {
        use std::fmt::Write;
        let mut text = String::from("sha256:");
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Digest(text)
    }
}

/// The number of a step; the first is 1, as in the statuses that hosts report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct StepNumber(u32);

impl TryFrom<u32> for StepNumber {
    type Error = NameError;

    fn try_from(number: u32) -> Result<Self, NameError> {
        let rule = "steps are counted from 1";
        StepNumber::new(number).ok_or(NameError {
            text: number.to_string(),
            what: "the number of a step",
            rule,
        })
    }
}

impl From<StepNumber> for u32 {
    fn from(number: StepNumber) -> u32 {
        number.0
    }
}

impl StepNumber {
    /// The first step.
    pub const FIRST: StepNumber = StepNumber(1);

    /// A step's number; none is zero.
    #[must_use]
    pub fn new(number: u32) -> Option<StepNumber> {
        (number > 0).then_some(StepNumber(number))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The step behind this one.
    #[must_use]
    pub fn next(self) -> StepNumber {
        StepNumber(self.0.saturating_add(1))
    }

    /// Where it stands in a list of steps.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize - 1
    }
}

impl fmt::Display for StepNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_paths_or_options_are_none() {
        for text in ["..", "../etc", "a/b", "-force", ".hidden", "a", "A-b", "a b", "a\0b", "", "ä-b"] {
            assert!(text.parse::<ArtifactName>().is_err(), "{text:?}");
        }
        for text in ["etcd", "lib32gcc-s1", "g++", "0ad"] {
            assert_eq!(text.parse::<ArtifactName>().unwrap().as_str(), text);
        }
        let error = "../x".parse::<ArtifactName>().unwrap_err();
        assert_eq!(
            error.to_string(),
            r#""../x" is not an artifact name: 2 to 100 of a-z 0-9 . + -, beginning with a letter or digit"#
        );
    }

    #[test]
    fn digests_are_exact() {
        let digest = Digest::from_sha256([0xab; 32]);
        assert_eq!(digest.hex(), "ab".repeat(32));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for text in
            ["ab".repeat(32), format!("sha256:{}", "AB".repeat(32)), format!("sha256:{}", "ab".repeat(31))]
        {
            assert!(text.parse::<Digest>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn steps_count_from_one() {
        assert_eq!(StepNumber::new(0), None);
        assert_eq!(StepNumber::FIRST.next(), StepNumber::new(2).unwrap());
        assert_eq!(StepNumber::FIRST.index(), 0);
    }
}
