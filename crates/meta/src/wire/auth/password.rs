//! How is a password kept? As an argon2id hash with a salt of its own.
//!
//! Hashing takes tens of milliseconds and megabytes on purpose. So it runs on threads that may block, a few at a time, never
//! where the store writes; and calls beyond a bound are refused instead of queued.

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use tokio::sync::Semaphore;

use super::record::Refusal;

/// Hashes at one time.
const AT_ONCE: usize = 2;

/// Calls that may wait for their turn.
const WAITING: usize = 128;

/// The turns of callers whose passwords are hashed.
#[derive(Debug)]
pub(super) struct Hashing {
    turns: Semaphore,
    places: Semaphore,
}

impl Default for Hashing {
    fn default() -> Hashing {
        Hashing { turns: Semaphore::new(AT_ONCE), places: Semaphore::new(AT_ONCE + WAITING) }
    }
}

impl Hashing {
    /// The hash of a password.
    pub(super) async fn hash(&self, password: String) -> Result<String, Refusal> {
        self.run(move || hash(&password)).await?
    }

    /// Whether a password is the one that was hashed. Without a hash it takes as long and is not.
    pub(super) async fn verify(&self, password: String, stored: Option<String>) -> Result<bool, Refusal> {
        self.run(move || match stored {
            Some(stored) => verify(&password, &stored),
            None => hash(&password).is_err(),
        })
        .await
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
        let _place = self.places.try_acquire().map_err(|_| Refusal::TooMany)?;
        let _turn = self.turns.acquire().await.map_err(|_| Refusal::SignInFailed)?;
        tokio::task::spawn_blocking(work).await.map_err(|_| Refusal::SignInFailed)
    }
}

fn hash(password: &str) -> Result<String, Refusal> {
    let hashed = Argon2::default().hash_password(password.as_bytes());
    hashed.map(|hash| hash.to_string()).map_err(|error| {
        tracing::error!(%error, "cannot hash a password");
        Refusal::SignInFailed
    })
}

fn verify(password: &str, stored: &str) -> bool {
    let parsed = PasswordHash::new(stored);
    parsed.is_ok_and(|parsed| Argon2::default().verify_password(password.as_bytes(), &parsed).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_same_password_is_right() {
        let hashing = Hashing::default();
        let stored = hashing.hash("secret".into()).await.unwrap();
        assert!(stored.starts_with("$argon2id$"), "{stored}");
        assert_ne!(stored, hashing.hash("secret".into()).await.unwrap(), "each has a salt of its own");
        assert_eq!(hashing.verify("secret".into(), Some(stored.clone())).await, Ok(true));
        assert_eq!(hashing.verify("Secret".into(), Some(stored)).await, Ok(false));
        assert_eq!(hashing.verify("secret".into(), Some("damaged".into())).await, Ok(false));
        assert_eq!(hashing.verify("secret".into(), None).await, Ok(false));
    }
}
