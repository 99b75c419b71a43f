//! How is a user named by a signed token? As etcd does: a JSON Web Token with the user's name and the revision of users
//! and roles that it was made at.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::record::Refusal;
use super::sign::{Keys, Method};
use crate::clock;

/// How long a token is good when the setting does not say it; etcd's own default.
const DEFAULT_TTL: Duration = Duration::from_secs(300);

/// The keys that tokens are signed and checked with.
pub struct JwtKeys {
    method: Method,
    keys: Keys,
    ttl: Duration,
}

impl fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKeys").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Why a setting for tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// A part of the setting is wrong.
    #[error("{0}")]
    Setting(String),
    /// A key file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// A key does not fit the method.
    #[error("a key does not fit the sign-method {0}: {1}")]
    Key(&'static str, String),
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    typ: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    username: String,
    revision: u64,
    exp: u64,
}

/// The parts of a setting.
#[derive(Default)]
struct Parts<'a> {
    method: Option<Method>,
    public: Option<&'a Path>,
    private: Option<&'a Path>,
    ttl: Option<Duration>,
}

impl JwtKeys {
    /// Reads a setting in the form of etcd's `--auth-token`, without the `jwt,` that it begins with:
    /// `sign-method=RS256,pub-key=FILE,priv-key=FILE,ttl=10m`. An HMAC method has one file, `priv-key`. Without a private
    /// key tokens are checked and none are issued.
    pub fn from_setting(setting: &str) -> Result<JwtKeys, JwtError> {
        let parts = Parts::of(setting)?;
        let method = parts.method.ok_or_else(|| JwtError::Setting("sign-method is missing".into()))?;
        let read =
            |path: &Path| std::fs::read(path).map_err(|error| JwtError::Unreadable(path.to_owned(), error));
        let (public, private) = (parts.public.map(read).transpose()?, parts.private.map(read).transpose()?);
        let keys = Keys::read(method, public.as_deref(), private.as_deref());
        let keys = keys.map_err(|why| JwtError::Key(method.name(), why))?;
        Ok(JwtKeys { method, keys, ttl: parts.ttl.unwrap_or(DEFAULT_TTL) })
    }

    /// A token for a user at a revision of users and roles.
    pub(super) fn issue(&self, user: &str, revision: u64) -> Result<String, Refusal> {
        let exp = (clock::since_epoch() + self.ttl).as_secs();
        self.sign(&Claims { username: user.to_owned(), revision, exp })
    }

    fn sign(&self, claims: &Claims) -> Result<String, Refusal> {
        let header = Header { alg: self.method.name().into(), typ: Some("JWT".into()) };
        let failed = |why: String| {
            tracing::error!(%why, "cannot sign a token");
            Refusal::SignInFailed
        };
        let header = serde_json::to_vec(&header).map_err(|error| failed(error.to_string()))?;
        let claims = serde_json::to_vec(claims).map_err(|error| failed(error.to_string()))?;
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.keys.sign(message.as_bytes()).map_err(failed)?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The user that a token names, and the revision that it was made at.
    pub(super) fn read(&self, token: &str) -> Result<(String, u64), Refusal> {
        let claims = self.checked(token).ok_or(Refusal::InvalidToken)?;
        if claims.exp <= clock::since_epoch().as_secs() {
            return Err(Refusal::InvalidToken);
        }
        Ok((claims.username, claims.revision))
    }

    /// What a token says, if it is signed by us with the method of the setting and no other.
    fn checked(&self, token: &str) -> Option<Claims> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let header: Header = serde_json::from_slice(&decoded(header)?).ok()?;
        if header.alg != self.method.name() || !self.keys.verify(message.as_bytes(), &decoded(signature)?) {
            return None;
        }
        serde_json::from_slice(&decoded(claims)?).ok()
    }
}

impl Parts<'_> {
    fn of(setting: &str) -> Result<Parts<'_>, JwtError> {
        let mut parts = Parts::default();
        let wrong = |what: String| JwtError::Setting(what);
        for part in setting.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| wrong(format!("{part} has no value")))?;
            match name {
                "sign-method" => {
                    let method = Method::named(value);
                    parts.method = Some(method.ok_or_else(|| wrong(format!("unknown sign-method {value}")))?);
                }
                "pub-key" => parts.public = Some(Path::new(value)),
                "priv-key" => parts.private = Some(Path::new(value)),
                "ttl" => {
                    parts.ttl = Some(duration(value).ok_or_else(|| wrong(format!("{value} is not a ttl")))?)
                }
                other => return Err(wrong(format!("unknown option {other}"))),
            }
        }
        Ok(parts)
    }
}

/// Seconds, minutes or hours: `30s`, `10m`, `1h`.
fn duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return None,
    };
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(Duration::from_secs(number.checked_mul(seconds)?)).filter(|ttl| !ttl.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: &[u8]) -> JwtKeys {
        let method = Method::named("HS256").unwrap();
        JwtKeys { method, keys: Keys::read(method, None, Some(secret)).unwrap(), ttl: DEFAULT_TTL }
    }

    #[test]
    fn a_token_names_its_user_until_it_expires_and_only_with_the_right_key() {
        let (good, other) = (keys(b"one"), keys(b"two"));
        let token = good.issue("ann", 7).unwrap();
        assert_eq!(good.read(&token), Ok(("ann".into(), 7)));
        assert_eq!(other.read(&token), Err(Refusal::InvalidToken));
        for forged in ["nonsense", "", "a.b.c", "..", &token[..token.len() - 4]] {
            assert_eq!(good.read(forged), Err(Refusal::InvalidToken), "{forged}");
        }
        let claims = |exp: u64| Claims { username: "ann".into(), revision: 7, exp };
        let stale = good.sign(&claims(clock::since_epoch().as_secs())).unwrap();
        assert_eq!(good.read(&stale), Err(Refusal::InvalidToken));
    }

    #[test]
    fn a_token_without_a_signature_or_with_another_method_is_refused() {
        let good = keys(b"one");
        let token = good.issue("ann", 7).unwrap();
        let claims = token.split('.').nth(1).unwrap();
        let none = URL_SAFE_NO_PAD.encode(br#"{"alg":"none"}"#);
        assert_eq!(good.read(&format!("{none}.{claims}.")), Err(Refusal::InvalidToken));
        let method = Method::named("HS512").unwrap();
        let longer =
            JwtKeys { method, keys: Keys::read(method, None, Some(b"one")).unwrap(), ttl: DEFAULT_TTL };
        assert_eq!(good.read(&longer.issue("ann", 7).unwrap()), Err(Refusal::InvalidToken));
    }

    #[test]
    fn a_wrong_setting_is_refused() {
        for setting in ["", "sign-method=none", "sign-method=HS256", "ttl=5", "pub-key", "colour=red"] {
            assert!(JwtKeys::from_setting(setting).is_err(), "{setting}");
        }
        assert_eq!(duration("10m"), Some(Duration::from_secs(600)));
        assert_eq!(duration("0s"), None);
    }
}
