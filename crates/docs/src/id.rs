//! Ids of documents, and the token that each belongs to.

use std::fmt;
use std::str::FromStr;

use bson::{Bson, Document};
use capstan_log::LogName;
use sha2::{Digest as _, Sha256};

use crate::language::{Path, Refusal, sort_key};

/// The longest name of a token: 16^4 of them.
pub const MAX_DIGITS: u8 = 4;

/// One part of the documents' key space, given by the first hex digits of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    digits: u8,
    number: u16,
}

impl Token {
    /// All tokens of so many digits, in order.
    pub fn all(digits: u8) -> impl Iterator<Item = Token> {
        let last = (1_u32 << (4 * u32::from(digits))) - 1;
        (0..=last).map(move |number| Token { digits, number: u16::try_from(number).unwrap_or(u16::MAX) })
    }

    /// The token with this number.
    pub(crate) fn numbered(digits: u8, number: u16) -> Token {
        Token { digits, number }
    }

    /// The token of an id: its first digits if it is a text that begins with so many hex digits, otherwise the first
    /// digits of a hash. Ids that are numerically equal have the same token.
    #[must_use]
    pub fn of(id: &Bson, digits: u8) -> Token {
        if let Bson::String(text) | Bson::Symbol(text) = id
            && is_hex(text)
            && let Some(first) = text.get(..usize::from(digits))
            && let Ok(number) = u16::from_str_radix(first, 16)
        {
            return Token { digits, number };
        }
        Token::of_hash(&sort_key(id), digits)
    }

    /// The token that owns what has this hash.
    #[must_use]
    pub fn of_hash(bytes: &[u8], digits: u8) -> Token {
        let hash = Sha256::digest(bytes);
        let first = u16::from_be_bytes([hash[0], hash[1]]);
        Token { digits, number: first >> (16 - 4 * u16::from(digits)) }
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.number
    }

    /// The log that its changes are in.
    pub fn log(self) -> Result<LogName, capstan_meta::record::InvalidName> {
        LogName::new(format!("{LOG_PREFIX}{self}"))
    }

    /// The token of a log of this service.
    #[must_use]
    pub fn of_log(log: &LogName) -> Option<Token> {
        log.as_str().strip_prefix(LOG_PREFIX)?.parse().ok()
    }
}

const LOG_PREFIX: &str = "docs-";

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$x}", self.number, width = usize::from(self.digits))
    }
}

impl FromStr for Token {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Token, Refusal> {
        let refuse = || Refusal::new(format!("`{text}` is not a token: 1 to 4 hex digits"));
        let digits = u8::try_from(text.len()).ok().filter(|digits| (1..=MAX_DIGITS).contains(digits));
        let number = u16::from_str_radix(text, 16).map_err(|_| refuse())?;
        Ok(Token { digits: digits.ok_or_else(refuse)?, number })
    }
}

/// Whether an id has the form of those that are made here: only such ids are accepted in a path of the API.
#[must_use]
pub fn is_hex(text: &str) -> bool {
    text.len() >= usize::from(MAX_DIGITS)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The id of a document whose collection has a primary key: a hash of its fields `name:value,name:value`.
pub fn of_key(document: &Document, key: &[String]) -> Result<Bson, Refusal> {
    let mut parts = Vec::with_capacity(key.len());
    for field in key {
        let value = Path::parse(field)?.get(document).cloned();
        let text = value.as_ref().and_then(text_of);
        let text = text.ok_or_else(|| {
            Refusal::new(format!(
                "field `{field}` of the primary key is missing or is no text, number or boolean"
            ))
        })?;
        parts.push(format!("{field}:{text}"));
    }
    Ok(Bson::String(fold(&parts.join(","))))
}

/// The text of a value in a primary key, as JavaScript would print it.
fn text_of(value: &Bson) -> Option<String> {
    match value {
        Bson::String(text) | Bson::Symbol(text) => Some(text.clone()),
        Bson::Int32(number) => Some(number.to_string()),
        Bson::Int64(number) => Some(number.to_string()),
        Bson::Double(number) => Some(number.to_string()),
        Bson::Boolean(flag) => Some(flag.to_string()),
        Bson::ObjectId(id) => Some(id.to_hex()),
        Bson::DateTime(date) => Some(date.timestamp_millis().to_string()),
        _ => None,
    }
}

/// 32 hex digits of a SHA-256: each is the sum of two, modulo 16.
fn fold(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    let digit = |at: usize| {
        let byte = hash[at / 2];
        if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
    };
    (0..32)
        .map(|at| char::from_digit(u32::from((digit(at) + digit(at + 32)) % 16), 16).unwrap_or('0'))
        .collect()
}

/// A new id: 24 random hex digits.
#[must_use]
pub fn random() -> Bson {
    let bytes: [u8; 12] = rand::random();
    Bson::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use bson::{bson, doc};

    use super::*;

    #[test]
    fn a_primary_key_is_hashed_as_other_systems_do() {
        let id = of_key(&doc! { "xy": "k1" }, &["xy".to_owned()]).unwrap();
        assert_eq!(id, bson!("8b55e6116cb02b0e8f70799e13a8b15f"));
        assert!(of_key(&doc! { "x": 1 }, &["xy".to_owned()]).is_err());
    }

    #[test]
    fn tokens_are_the_first_digits_and_equal_ids_have_equal_tokens() {
        assert_eq!(Token::of(&bson!("8b55"), 1).to_string(), "8");
        assert_eq!(Token::of(&bson!("8b55"), 4).to_string(), "8b55");
        assert_eq!(Token::of(&bson!(7), 2), Token::of(&bson!(7.0), 2));
        assert_eq!(Token::all(1).count(), 16);
        assert_eq!(Token::all(4).last().unwrap().to_string(), "ffff");
        assert_eq!(Token::of_log(&Token::all(2).nth(17).unwrap().log().unwrap()).unwrap().number(), 17);
    }
}
