//! Which keys vouch for a manifest: ed25519 signatures over its exact bytes, kept in a file beside it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::artifact::digest_of;

/// More signers are not needed, and each costs the time of a verification.
const MAX_SIGNATURES: usize = 32;
/// The signatures of a manifest are read before anything is known about them.
pub const MAX_SIGNATURE_BYTES: usize = 16 * 1024;
/// The first bytes of a secret key's file, so that it is not taken for something else.
const SECRET_LABEL: &str = "capstan-release-secret-key";

/// Why a key or a signature cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not hexadecimal, or not of the right length.
    #[error("{what} is not {bytes} bytes in hexadecimal digits")]
    Hex {
        /// What it should be.
        what: &'static str,
        /// How long it should be.
        bytes: usize,
    },
    /// The file of a secret key that is none.
    #[error("this is not a secret key: it should be one line, {SECRET_LABEL} and 64 hexadecimal digits")]
    NotSecret,
    /// A file of signatures that is none.
    #[error("the signatures cannot be read: {0}")]
    Malformed(String),
    /// The system gave no random numbers.
    #[error("no key can be made: the system gives no random numbers")]
    NoRandom,
}

/// Names a key: the first half of the digest of the public key, so that it cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(String);

impl FromStr for KeyId {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        hex::<16>("a key id", text).map(|bytes| KeyId(to_hex(&bytes)))
    }
}

impl TryFrom<String> for KeyId {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> String {
        id.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// What it is called.
    #[must_use]
    pub fn id(&self) -> KeyId {
        KeyId(digest_of(&self.0).hex()[..32].to_owned())
    }

    /// Whether the signature over these bytes was made with its secret half.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(bytes, signature).is_ok()
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        hex("a public key", text).map(PublicKey)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_string()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

/// A secret key. It never shows itself in logs.
pub struct SecretKey {
    seed: [u8; 32],
    pair: Ed25519KeyPair,
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public().id())
    }
}

impl SecretKey {
    /// A new key.
    pub fn generate() -> Result<SecretKey, KeyError> {
        let mut seed = [0; 32];
        aws_lc_rs::rand::fill(&mut seed).map_err(|_| KeyError::NoRandom)?;
        SecretKey::from_seed(seed)
    }

    /// From the text of its file.
    pub fn from_text(text: &str) -> Result<SecretKey, KeyError> {
        let mut words = text.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(SECRET_LABEL), Some(seed), None) => {
                SecretKey::from_seed(hex("a secret key", seed).map_err(|_| KeyError::NotSecret)?)
            }
            _ => Err(KeyError::NotSecret),
        }
    }

    /// The text of its file.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{SECRET_LABEL} {}\n", to_hex(&self.seed))
    }

    fn from_seed(seed: [u8; 32]) -> Result<SecretKey, KeyError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| KeyError::NotSecret)?;
        Ok(SecretKey { seed, pair })
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey(bytes)
    }

    /// Signs bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> Signature {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.pair.sign(bytes).as_ref());
        Signature { key: self.public().id(), signature: SignatureBytes(signature) }
    }
}

/// One signature and the key that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The key that made it.
    pub key: KeyId,
    /// The signature.
    pub signature: SignatureBytes,
}

/// The 64 bytes of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SignatureBytes(pub [u8; 64]);

impl TryFrom<String> for SignatureBytes {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        hex("a signature", &text).map(SignatureBytes)
    }
}

impl From<SignatureBytes> for String {
    fn from(signature: SignatureBytes) -> String {
        to_hex(&signature.0)
    }
}

/// All signatures of a manifest: the file beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signatures {
    /// In the order in which they were made.
    pub signatures: Vec<Signature>,
}

impl Signatures {
    /// Reads the file.
    pub fn parse(bytes: &[u8]) -> Result<Signatures, KeyError> {
        let longest = KeyError::Malformed(format!("they are longer than {MAX_SIGNATURE_BYTES} bytes"));
        if bytes.len() > MAX_SIGNATURE_BYTES {
            return Err(longest);
        }
        let parsed: Signatures =
            serde_json::from_slice(bytes).map_err(|e| KeyError::Malformed(e.to_string()))?;
        if parsed.signatures.len() > MAX_SIGNATURES {
            return Err(KeyError::Malformed(format!("there are more than {MAX_SIGNATURES}")));
        }
        Ok(parsed)
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, KeyError> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|e| KeyError::Malformed(e.to_string()))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Adds a signature, in the place of an earlier one by the same key.
    pub fn add(&mut self, signature: Signature) {
        self.signatures.retain(|old| old.key != signature.key);
        self.signatures.push(signature);
    }
}

fn hex<const N: usize>(what: &'static str, text: &str) -> Result<[u8; N], KeyError> {
    let wrong = || KeyError::Hex { what, bytes: N };
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_signs_and_only_its_own_public_half_agrees() {
        let (key, other) = (SecretKey::generate().unwrap(), SecretKey::generate().unwrap());
        let signature = key.sign(b"bytes");
        assert!(key.public().verifies(b"bytes", &signature.signature.0));
        assert!(!key.public().verifies(b"bites", &signature.signature.0));
        assert!(!other.public().verifies(b"bytes", &signature.signature.0));
    }

    /// The first test of RFC 8032, section 7.1: what we call ed25519 is what others call so.
    #[test]
    fn a_published_signature_is_ours() {
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let key = SecretKey::from_text(&format!("{SECRET_LABEL} {seed}")).unwrap();
        assert_eq!(
            key.public().to_string(),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        let signature = String::from(key.sign(b"").signature);
        assert!(signature.starts_with("e5564300c360ac729086e2cc806e828a"), "{signature}");
    }

    #[test]
    fn keys_and_signatures_survive_their_files() {
        let key = SecretKey::generate().unwrap();
        assert_eq!(SecretKey::from_text(&key.to_text()).unwrap().public(), key.public());
        let mut signatures = Signatures::default();
        signatures.add(key.sign(b"a"));
        signatures.add(key.sign(b"b"));
        assert_eq!(signatures.signatures, [key.sign(b"b")]);
        assert_eq!(Signatures::parse(&signatures.to_bytes().unwrap()), Ok(signatures));
        assert_eq!(format!("{key:?}"), format!("SecretKey({})", key.public().id()));
    }

    #[test]
    fn other_files_are_no_keys() {
        for text in ["", "ssh-ed25519 AAAA", "capstan-release-secret-key", "capstan-release-secret-key zz"] {
            assert_eq!(SecretKey::from_text(text).unwrap_err(), KeyError::NotSecret, "{text:?}");
        }
        assert!("ä".repeat(32).parse::<PublicKey>().is_err());
    }
}
