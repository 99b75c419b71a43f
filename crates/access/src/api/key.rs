//! How are access keys issued, rotated and revoked?

use std::time::Duration;

use capstan_meta::record::{Extra, Key as _};
use capstan_meta::{Store, Txn, clock};

use super::event;
use crate::error::AccessError;
use crate::grant::Grant;
use crate::keys::{AccessKeyKey, IdentityKey, IdentityName, KeyId, LastUseKey};
use crate::secret::{Secret, Token, TokenKind};
use crate::spec::{Hash, KeyRecord};

/// An access key that is to be.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The identity that it stands for.
    pub identity: IdentityName,
    /// What it is for.
    pub note: String,
    /// Where present, the key may do only what these allow and its identity may do.
    pub scope: Option<Vec<Grant>>,
    /// For how long it is valid.
    pub ttl: Option<Duration>,
}

/// A key that was made. Its text exists here and nowhere else.
#[derive(Clone, Debug)]
pub struct IssuedKey {
    /// Its public part.
    pub id: KeyId,
    /// The whole key, to be shown once.
    pub text: Secret,
    /// When it ends, in seconds since 1970.
    pub expires_at: Option<u64>,
}

/// Issues a key.
pub async fn key_create(store: &Store, new: &NewKey, actor: &str) -> Result<IssuedKey, AccessError> {
    let expires_at = new.ttl.map(|ttl| (clock::since_epoch() + ttl).as_secs());
    let (issued, record) = draft(new, expires_at)?;
    let key = AccessKeyKey { id: issued.id.clone() };
    let owner = IdentityKey { identity: new.identity.clone() };
    let event = event(actor, "issued", format!("access key {} of {}", issued.id, new.identity));
    let txn = Txn::new().when(owner.present()).when(key.absent()).then(key.put(&record)).then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(issued),
        false => Err(AccessError::NotFound(format!("identity {}", new.identity))),
    }
}

pub(super) fn draft(new: &NewKey, expires_at: Option<u64>) -> Result<(IssuedKey, KeyRecord), AccessError> {
    let token = Token::generate(TokenKind::AccessKey);
    let issued = IssuedKey { id: KeyId::new(&token.id)?, text: token.text(), expires_at };
    let record = KeyRecord {
        identity: new.identity.clone(),
        hash: Hash(token.hash()),
        note: new.note.clone(),
        scope: new.scope.clone(),
        created_at: clock::since_epoch().as_secs(),
        expires_at,
        replaced_by: None,
        extra: Extra::default(),
    };
    Ok((issued, record))
}

/// Issues a key in place of another one, which stays valid for the overlap. The new key has the life of the old one.
pub async fn key_rotate(
    store: &Store,
    id: &KeyId,
    overlap: Duration,
    actor: &str,
) -> Result<IssuedKey, AccessError> {
    let old = AccessKeyKey { id: id.clone() };
    let missing = || AccessError::NotFound(format!("access key {id}"));
    let seen = store.read(&old).await?.ok_or_else(missing)?;
    if let Some(successor) = &seen.record.replaced_by {
        return Err(AccessError::Invalid(format!("access key {id} was rotated already, to {successor}")));
    }
    let now = clock::since_epoch().as_secs();
    let life = seen.record.expires_at.map(|end| end.saturating_sub(seen.record.created_at));
    let new = NewKey {
        identity: seen.record.identity.clone(),
        note: seen.record.note.clone(),
        scope: seen.record.scope.clone(),
        ttl: None,
    };
    let (issued, record) = draft(&new, life.map(|life| now.saturating_add(life)))?;
    let mut ending = seen.record.clone();
    let end = now.saturating_add(overlap.as_secs());
    ending.expires_at = Some(ending.expires_at.map_or(end, |planned| planned.min(end)));
    ending.replaced_by = Some(issued.id.clone());
    let key = AccessKeyKey { id: issued.id.clone() };
    let event = event(actor, "rotated", format!("access key {id} of {} to {}", new.identity, issued.id));
    let txn = Txn::new()
        .when(old.unchanged(&seen))
        .when(IdentityKey { identity: new.identity.clone() }.present())
        .then(old.put(&ending))
        .then(key.put(&record))
        .then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(issued),
        false => Err(missing()),
    }
}

/// Revokes a key. Sessions that were opened with it end.
pub async fn key_revoke(store: &Store, id: &KeyId, actor: &str) -> Result<(), AccessError> {
    let (key, last) = (AccessKeyKey { id: id.clone() }, LastUseKey { id: id.clone() });
    let event = event(actor, "revoked", format!("access key {id}"));
    let txn = Txn::new().when(key.present()).then(key.delete()).then(last.delete()).then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(()),
        false => Err(AccessError::NotFound(format!("access key {id}"))),
    }
}
