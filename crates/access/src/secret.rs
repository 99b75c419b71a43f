//! Secrets in memory: texts that no log, error or debug output shows, and the tokens made of random ones.

use std::fmt;

use aws_lc_rs::{constant_time, digest};

/// Random bytes of a token's secret part; guessing one is hopeless, so a fast hash of it is enough.
const SECRET_BYTES: usize = 32;
/// Random bytes of a token's public part.
const ID_BYTES: usize = 8;

/// A text that is never shown. Reading it takes a call that can be searched for.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being shown.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one output that is meant to have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// What a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An access key: until it expires or is revoked.
    AccessKey,
    /// A session: for hours.
    Session,
    /// The first certificate of a host: once.
    Join,
}

impl TokenKind {
    const fn prefix(self) -> &'static str {
        match self {
            TokenKind::AccessKey => "csk_",
            TokenKind::Session => "cst_",
            TokenKind::Join => "cjt_",
        }
    }
}

/// A token: a kind, a public id by which its record is found, and a secret of which the record has the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it opens.
    pub kind: TokenKind,
    /// The public part.
    pub id: String,
    secret: Secret,
}

impl Token {
    /// A new token, from the system's random numbers.
    #[must_use]
    pub fn generate(kind: TokenKind) -> Token {
        let (id, secret): ([u8; ID_BYTES], [u8; SECRET_BYTES]) = (rand::random(), rand::random());
        Token { kind, id: hex(&id), secret: Secret::new(hex(&secret)) }
    }

    /// The token that this text is, if it is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Token> {
        let kinds = [TokenKind::AccessKey, TokenKind::Session, TokenKind::Join];
        let (kind, rest) =
            kinds.into_iter().find_map(|kind| Some((kind, text.strip_prefix(kind.prefix())?)))?;
        let (id, secret) = rest.split_once('_')?;
        let is_hex = |text: &str, bytes: usize| {
            text.len() == bytes * 2 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        (is_hex(id, ID_BYTES) && is_hex(secret, SECRET_BYTES)).then(|| Token {
            kind,
            id: id.to_owned(),
            secret: Secret::new(secret),
        })
    }

    /// The token itself, shown once, to the caller that created it.
    #[must_use]
    pub fn text(&self) -> Secret {
        Secret::new(format!("{}{}_{}", self.kind.prefix(), self.id, self.secret.reveal()))
    }

    /// What is stored.
    #[must_use]
    pub fn hash(&self) -> String {
        sha256(self.secret.reveal())
    }

    /// Whether the stored hash is that of this token, in a time that does not depend on where they differ.
    #[must_use]
    pub fn has_hash(&self, stored: &str) -> bool {
        constant_time::verify_slices_are_equal(self.hash().as_bytes(), stored.as_bytes()).is_ok()
    }

    /// What a page must repeat in a header to change something with this token as its cookie. A page of another site
    /// can have the cookie sent, and can neither read it nor compute this.
    #[must_use]
    pub fn csrf(&self) -> String {
        sha256(&format!("csrf:{}", self.secret.reveal()))
    }
}

fn sha256(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_again_by_its_text_and_shown_nowhere_else() {
        let token = Token::generate(TokenKind::AccessKey);
        let again = Token::parse(token.text().reveal()).unwrap();
        assert!(again.has_hash(&token.hash()) && again.csrf() == token.csrf());
        let other = Token::generate(TokenKind::AccessKey);
        assert!(!other.has_hash(&token.hash()));
        let secret = token.text().reveal().rsplit('_').next().unwrap().to_owned();
        assert!(!format!("{token:?}").contains(&secret));
        assert!(!token.hash().contains(&secret) && !token.csrf().contains(&secret));
        for wrong in ["", "csk_", "csk_a_b", &secret, &format!("xyz_{secret}")] {
            assert!(Token::parse(wrong).is_none(), "{wrong}");
        }
    }
}
