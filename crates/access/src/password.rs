//! How is a password kept? As an argon2id hash with a salt of its own, in the PHC string format.

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};

use crate::error::AccessError;
use crate::secret::Secret;

/// Fewest characters of a password. Length is what counts; no rule about kinds of characters.
pub const MIN_CHARS: usize = 10;
/// Most bytes of a password: hashing is not a place to keep a client's megabytes.
pub const MAX_BYTES: usize = 1_024;

/// The hash of a password, with a new salt. Takes tens of milliseconds: call it off the runtime's threads.
pub fn hash(password: &Secret) -> Result<String, AccessError> {
    let text = password.reveal();
    if text.chars().count() < MIN_CHARS || text.len() > MAX_BYTES {
        return Err(AccessError::Invalid(format!(
            "a password has at least {MIN_CHARS} characters and at most {MAX_BYTES} bytes"
        )));
    }
    let hashed = Argon2::default().hash_password(text.as_bytes());
    hashed.map(|hash| hash.to_string()).map_err(|error| AccessError::Invalid(format!("no hash: {error}")))
}

/// Whether a password has this hash. A hash that cannot be read is that of no password.
#[must_use]
pub fn verify(password: &Secret, stored: &str) -> bool {
    let text = password.reveal().as_bytes();
    let Ok(parsed) = PasswordHash::new(stored) else { return false };
    text.len() <= MAX_BYTES && Argon2::default().verify_password(text, &parsed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_verified_by_its_argon2id_hash() {
        let password = Secret::new("correct horse battery");
        let stored = hash(&password).unwrap();
        assert!(stored.starts_with("$argon2id$v=19$m="), "{stored}");
        assert!(verify(&password, &stored));
        assert!(!verify(&Secret::new("correct horse batterz"), &stored));
        assert!(!verify(&password, "") && !verify(&password, "$argon2id$nonsense"));
        assert_ne!(hash(&password).unwrap(), stored, "every hash has a salt of its own");
        assert!(hash(&Secret::new("short")).is_err());
    }
}
