//! How is a database served? The part of its settings that proxies evaluate, as sent in `SETCONF`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::acl::{InvalidRule, Rules};

/// How a database is served; a database without settings gets the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What a client gets for a key of another proxy.
    #[serde(default)]
    pub mode: Mode,
    /// Whether `MGET`, `MSET`, `DEL`, `EXISTS`, `UNLINK` and `TOUCH` over several slots are served in parts.
    #[serde(default)]
    pub split: bool,
    /// Which nodes must have a write before it is acknowledged.
    #[serde(default)]
    pub acks: Acks,
    /// The users that may connect; empty: no authentication is required.
    #[serde(default)]
    pub users: Vec<User>,
    /// Whether clients that name no database use this one if the proxy serves several.
    #[serde(default)]
    pub default: bool,
    /// Settings for other components, or for newer proxies.
    #[serde(flatten)]
    pub others: serde_json::Map<String, serde_json::Value>,
}

impl Settings {
    /// Settings that admit no user: for a database whose own settings cannot be parsed.
    #[must_use]
    pub fn closed() -> Settings {
        // No password with this hash is known. Which access the unreadable settings restricted is unknown
        // too.
        let nobody = User {
            name: "default".to_owned(),
            password_sha256: vec![PasswordHash([0; 32])],
            commands: Rights::Read,
        };
        Settings { users: vec![nobody], ..Settings::default() }
    }
}

/// What a client gets for a key of another proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `MOVED`, for cluster clients.
    #[default]
    Cluster,
    /// The reply itself: the proxy forwards, for clients without cluster support.
    Single,
}

/// Which nodes must have a write before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Acks {
    /// The primary: writes that no replica has yet are lost with it.
    #[default]
    Primary,
    /// A replica too: a failover loses no acknowledged write.
    Replica,
}

/// A user that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// As in `AUTH name password`.
    pub name: String,
    /// Any of these passwords is valid; empty: no password is needed. Not used if there are rules: they have
    /// passwords of their own.
    #[serde(default)]
    pub password_sha256: Vec<PasswordHash>,
    /// What the user may do.
    #[serde(default)]
    pub commands: Rights,
}

impl User {
    /// Whether the password is valid. Every hash is compared in full, so that timing reveals nothing.
    #[must_use]
    pub fn accepts(&self, password: &[u8]) -> bool {
        if let Rights::Rules(rules) = &self.commands {
            return rules.accepts(password);
        }
        let given = PasswordHash::of(password);
        let right = self.password_sha256.iter().fold(false, |right, hash| right | hash.same_as(&given));
        right || self.password_sha256.is_empty()
    }

    /// Whether the user needs no password.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match &self.commands {
            Rights::All | Rights::Read => self.password_sha256.is_empty(),
            Rights::Rules(rules) => rules.is_on() && rules.needs_no_password(),
        }
    }

    /// What must be checked for each of its commands; `None` if the user may do everything.
    #[must_use]
    pub fn restrictions(&self) -> Option<Arc<Rules>> {
        match &self.commands {
            Rights::All => None,
            Rights::Read => Some(Rules::read_only()),
            Rights::Rules(rules) => (!rules.is_unrestricted()).then(|| Arc::clone(rules)),
        }
    }

    /// All its rules, as `ACL LIST` shows them.
    pub fn rules(&self) -> Result<Rules, InvalidRule> {
        match &self.commands {
            Rights::Rules(rules) => Ok(Rules::clone(rules)),
            Rights::All => Rules::everything().with_passwords(&self.password_sha256),
            Rights::Read => Rules::read_only().with_passwords(&self.password_sha256),
        }
    }
}

/// What a user may do. Stored as `all`, `read`, or ACL rules: a reader that has no rules refuses the record instead
/// of granting everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rights {
    /// Everything that clients may do.
    #[default]
    All,
    /// Read-only commands.
    Read,
    /// What the rules permit.
    Rules(Arc<Rules>),
}

impl TryFrom<String> for Rights {
    type Error = InvalidRule;

    fn try_from(text: String) -> Result<Rights, InvalidRule> {
        match text.as_str() {
            "all" => Ok(Rights::All),
            "read" => Ok(Rights::Read),
            rules => Ok(Rights::Rules(Arc::new(rules.parse()?))),
        }
    }
}

impl From<Rights> for String {
    fn from(rights: Rights) -> String {
        match rights {
            Rights::All => "all".to_owned(),
            Rights::Read => "read".to_owned(),
            Rights::Rules(rules) => rules.to_string(),
        }
    }
}

/// SHA-256 of a password; hexadecimal as text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PasswordHash([u8; 32]);

/// Text that is not a SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a password is given as its SHA-256: 64 hex digits")]
pub struct InvalidHash;

impl PasswordHash {
    /// The hash of a password.
    #[must_use]
    pub fn of(password: &[u8]) -> PasswordHash {
        PasswordHash(Sha256::digest(password).into())
    }

    /// Compares without stopping at the first difference.
    #[must_use]
    pub fn same_as(&self, other: &PasswordHash) -> bool {
        self.0.iter().zip(&other.0).fold(0, |different, (one, two)| different | (one ^ two)) == 0
    }
}

impl FromStr for PasswordHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<PasswordHash, InvalidHash> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        let digits = digits.filter(|digits| digits.len() == 64).ok_or(InvalidHash)?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(PasswordHash(hash))
    }
}

impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

impl TryFrom<String> for PasswordHash {
    type Error = InvalidHash;

    fn try_from(text: String) -> Result<PasswordHash, InvalidHash> {
        text.parse()
    }
}

impl From<PasswordHash> for String {
    fn from(hash: PasswordHash) -> String {
        hash.to_string()
    }
}
