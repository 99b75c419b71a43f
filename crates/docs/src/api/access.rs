//! Who may do what. A key opens one database, or all of them and the administration; so does a user.
//!
//! Until the first access key is made the store is open to every client that reaches it, as on a developer's machine;
//! from then on every request needs a key or a user.

use aws_lc_rs::{constant_time, digest, pbkdf2};
use axum::http::HeaderMap;
use base64::Engine as _;
use capstan_meta::clock;
use capstan_meta::view::Snapshot;

use crate::error::DocsError;
use crate::keys::{AccessId, AccessKeyKey, AccessKeys, DatabaseName, UserKey, UserName};

/// What stands for all databases in an access id.
pub(super) const ALL: &str = "all_";

/// Rounds of a password's hash.
const ROUNDS: u32 = 100_000;
const HASH_BYTES: usize = 32;

/// What a request may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything.
    All,
    /// One database.
    Database(String),
}

impl Access {
    pub(super) fn admits(&self, database: &DatabaseName) -> Result<(), DocsError> {
        match self {
            Access::All => Ok(()),
            Access::Database(own) if own == database.as_str() => Ok(()),
            Access::Database(_) => {
                Err(DocsError::Forbidden(format!("the key does not open database {database}")))
            }
        }
    }

    pub(super) fn administers(&self) -> Result<(), DocsError> {
        match self {
            Access::All => Ok(()),
            Access::Database(_) => {
                Err(DocsError::Forbidden("the key does not open the administration".to_owned()))
            }
        }
    }

    pub(super) fn sees(&self, database: &DatabaseName) -> bool {
        self.admits(database).is_ok()
    }
}

/// What a request may do, by its headers.
pub(super) fn access_of(headers: &HeaderMap, snapshot: &Snapshot) -> Result<Access, DocsError> {
    let refuse = || DocsError::Unauthorized("the access id and the access key are not valid".to_owned());
    let is_open = snapshot.list(&AccessKeys {}).iter().next().is_none();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(basic) = text("authorization").and_then(|value| value.strip_prefix("Basic ")) {
        return user_of(basic, snapshot).ok_or_else(refuse);
    }
    if is_open {
        return Ok(Access::All);
    }
    let (Some(id), Some(key)) = (text("accessid"), text("accesskey")) else {
        let missing = "an access id and an access key are needed (headers accessid and accesskey)";
        return Err(DocsError::Unauthorized(missing.to_owned()));
    };
    let (scope, id) = id.split_once('/').ok_or_else(refuse)?;
    let id = AccessId::new(id).map_err(|_| refuse())?;
    let found = snapshot.get(&AccessKeyKey { id }).map_err(|_| refuse())?.ok_or_else(refuse)?;
    let record = &found.record;
    let presented = hash_key(key);
    let is_right =
        constant_time::verify_slices_are_equal(presented.as_bytes(), record.hash.as_bytes()).is_ok();
    let is_live = record.expires_at.is_none_or(|end| end > clock::since_epoch().as_secs());
    let is_scope = scope == record.database.as_deref().unwrap_or(ALL);
    if !(is_right && is_live && is_scope) {
        return Err(refuse());
    }
    Ok(record.database.clone().map_or(Access::All, Access::Database))
}

fn user_of(basic: &str, snapshot: &Snapshot) -> Option<Access> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(basic.trim()).ok()?;
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    let found = snapshot.get(&UserKey { user: UserName::new(user).ok()? }).ok()??;
    if !is_password(&found.record.password, password) {
        return None;
    }
    let everything = found.record.admin || found.record.db == "*";
    Some(if everything { Access::All } else { Access::Database(found.record.db.clone()) })
}

/// The hash of a random key.
pub(super) fn hash_key(key: &str) -> String {
    hex(digest::digest(&digest::SHA256, key.as_bytes()).as_ref())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of a password: salt and hash in hex.
pub(super) fn hash_password(password: &str) -> String {
    let salt: [u8; 16] = rand::random();
    format!("{}${}", hex(&salt), hex(&derive(password, hex(&salt).as_bytes())))
}

fn derive(password: &str, salt: &[u8]) -> [u8; HASH_BYTES] {
    let mut out = [0; HASH_BYTES];
    let rounds = std::num::NonZeroU32::new(ROUNDS).unwrap_or(std::num::NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, password.as_bytes(), &mut out);
    out
}

fn is_password(hash: &str, password: &str) -> bool {
    let Some((salt, wanted)) = hash.split_once('$') else { return false };
    let presented = hex(&derive(password, salt.as_bytes()));
    constant_time::verify_slices_are_equal(presented.as_bytes(), wanted.as_bytes()).is_ok()
}

/// At least twelve characters, or eight with a letter and something that is not one.
pub(super) fn check_password(password: &str) -> Result<(), DocsError> {
    let length = password.chars().count();
    let letter = password.chars().any(char::is_alphabetic);
    let other = password.chars().any(|c| !c.is_alphabetic());
    if length >= 12 || (length >= 8 && letter && other) {
        return Ok(());
    }
    Err(DocsError::refused("the password is too weak: at least 12 characters, or 8 with letters and others"))
}
