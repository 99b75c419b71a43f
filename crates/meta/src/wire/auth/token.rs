//! Which user does a token name? Simple tokens are random names that this process remembers; they do not survive it.
//!
//! Pure: time is handed in.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

use super::jwt::JwtKeys;

/// A simple token that is not used for this long is forgotten; etcd's own default.
const SIMPLE_TTL: Duration = Duration::from_secs(300);

/// Simple tokens at one time; the one that would be forgotten first makes room for one more.
const MAX_TOKENS: usize = 10_000;

/// A token is remembered anew only if this share of its time has passed, so that a busy client costs a lookup.
const EXTEND_AFTER: u32 = 10;

/// Letters of a simple token: 91 bits.
const LETTERS: usize = 16;

/// What tokens are.
#[derive(Clone, Debug)]
pub enum TokenKind {
    /// Names that the server remembers for a time after their last use.
    Simple {
        /// That time.
        ttl: Duration,
    },
    /// Signed statements, good until they expire or users and roles change.
    Jwt(Arc<JwtKeys>),
}

impl Default for TokenKind {
    fn default() -> TokenKind {
        TokenKind::Simple { ttl: SIMPLE_TTL }
    }
}

/// All simple tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    ttl: Duration,
    entries: HashMap<String, Entry>,
    /// The same by time of expiry.
    queue: BTreeSet<(Instant, String)>,
    issued: u64,
}

#[derive(Debug)]
struct Entry {
    user: String,
    expires: Instant,
}

impl Tokens {
    pub(super) fn new(ttl: Duration) -> Tokens {
        Tokens { ttl, entries: HashMap::new(), queue: BTreeSet::new(), issued: 0 }
    }

    /// A new token for a user.
    pub(super) fn issue(&mut self, user: &str, now: Instant) -> String {
        self.forget_expired(now);
        while self.entries.len() >= MAX_TOKENS
            && let Some((_, oldest)) = self.queue.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.issued += 1;
        let letters: String = (0..LETTERS).map(|_| letter(rand::rng().random_range(0..52))).collect();
        let token = format!("{letters}.{}", self.issued);
        let expires = now + self.ttl;
        self.entries.insert(token.clone(), Entry { user: user.to_owned(), expires });
        self.queue.insert((expires, token.clone()));
        token
    }

    /// The user that a token names, and a longer life for the token.
    pub(super) fn user(&mut self, token: &str, now: Instant) -> Option<&str> {
        let entry = self.entries.get_mut(token).filter(|entry| entry.expires > now)?;
        let expires = now + self.ttl;
        if expires.duration_since(entry.expires) > self.ttl / EXTEND_AFTER {
            self.queue.remove(&(entry.expires, token.to_owned()));
            entry.expires = expires;
            self.queue.insert((expires, token.to_owned()));
        }
        Some(&entry.user)
    }

    /// Forgets all tokens of a user.
    pub(super) fn revoke(&mut self, user: &str) {
        let Tokens { entries, queue, .. } = self;
        entries.retain(|token, entry| {
            let keep = entry.user != user;
            if !keep {
                queue.remove(&(entry.expires, token.clone()));
            }
            keep
        });
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.queue.clear();
    }

    fn forget_expired(&mut self, now: Instant) {
        while let Some((_, token)) = self.queue.first().filter(|(expires, _)| *expires <= now).cloned() {
            self.entries.remove(&token);
            self.queue.pop_first();
        }
    }
}

fn letter(number: u8) -> char {
    char::from(if number < 26 { b'a' + number } else { b'A' + number - 26 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_as_long_as_it_is_used() {
        let (mut now, second) = (Instant::now(), Duration::from_secs(1));
        let mut tokens = Tokens::new(10 * second);
        let token = tokens.issue("ann", now);
        for _ in 0..5 {
            now += 9 * second;
            assert_eq!(tokens.user(&token, now), Some("ann"));
        }
        assert_eq!(tokens.user(&token, now + 10 * second), None);
        assert_eq!(tokens.user("other", now), None);
        tokens.issue("bob", now + 20 * second);
        assert_eq!(tokens.entries.len(), 1, "what expired is forgotten");
    }

    #[test]
    fn tokens_are_bounded_and_revoked_by_user() {
        let now = Instant::now();
        let mut tokens = Tokens::new(SIMPLE_TTL);
        let first = tokens.issue("ann", now);
        for _ in 0..MAX_TOKENS {
            tokens.issue("bob", now + Duration::from_secs(1));
        }
        assert_eq!((tokens.entries.len(), tokens.queue.len()), (MAX_TOKENS, MAX_TOKENS));
        assert_eq!(tokens.user(&first, now), None, "the oldest made room");
        let ann = tokens.issue("ann", now + Duration::from_secs(1));
        tokens.revoke("bob");
        assert_eq!((tokens.entries.len(), tokens.queue.len()), (1, 1));
        assert_eq!(tokens.user(&ann, now), Some("ann"));
        tokens.clear();
        assert_eq!(tokens.user(&ann, now), None);
    }
}
