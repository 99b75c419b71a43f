//! How does access begin? The first start of a cluster makes an admin; `capstan up` keeps a key for its own user.

use capstan_meta::record::{Extra, Key as _};
use capstan_meta::{Store, Txn, clock};

use super::key::{IssuedKey, NewKey, draft, key_create};
use super::{IdentityKind, NewIdentity, event, identity_create};
use crate::error::AccessError;
use crate::keys::{AccessKeyKey, Identities, IdentityKey, IdentityName, KeyId, RoleName};
use crate::secret::{Secret, Token};
use crate::spec::IdentityRecord;

/// The name of the admin that the first start makes.
pub const FIRST_ADMIN: &str = "admin";
/// The name of the account that stands for the user who runs `capstan up`.
const LOCAL: &str = "local";

/// Makes the first admin, with an access key, if there is no identity yet. Of several processes that start at the same
/// time one does it.
pub async fn first_admin(store: &Store, actor: &str) -> Result<Option<IssuedKey>, AccessError> {
    let found = store.list(&Identities {}).await?;
    if !found.entries.is_empty() || !found.bad.is_empty() {
        return Ok(None);
    }
    let identity = IdentityName::new(FIRST_ADMIN)?;
    let new = NewKey { identity: identity.clone(), note: "first start".to_owned(), scope: None, ttl: None };
    let (issued, key_record) = draft(&new, None)?;
    let record = IdentityRecord {
        kind: IdentityKind::User,
        password: None,
        roles: vec![RoleName::new("admin")?],
        grants: Vec::new(),
        disabled: false,
        created_at: clock::since_epoch().as_secs(),
        extra: Extra::default(),
    };
    let (owner, key) = (IdentityKey { identity }, AccessKeyKey { id: issued.id.clone() });
    let event = event(actor, "created", format!("user {FIRST_ADMIN} at the first start"));
    let txn =
        Txn::new().when(owner.absent()).then(owner.put(&record)).then(key.put(&key_record)).then(event.put());
    Ok(store.commit(txn).await?.succeeded.then_some(issued))
}

/// The access key of the local user: the one that is there, if it is still valid, else a new one.
pub async fn local_key(store: &Store, present: Option<&Secret>) -> Result<Secret, AccessError> {
    if let Some(text) = present
        && let Some(token) = Token::parse(text.reveal())
    {
        let key = AccessKeyKey { id: KeyId::new(&token.id)? };
        let known = store.read(&key).await?;
        if known.is_some_and(|known| token.has_hash(&known.record.hash.0)) {
            return Ok(text.clone());
        }
    }
    let name = IdentityName::new(LOCAL)?;
    let new = NewIdentity {
        name: name.clone(),
        kind: IdentityKind::Account,
        password: None,
        roles: vec![RoleName::new("admin")?],
        grants: Vec::new(),
    };
    match identity_create(store, &new, "capstan up").await {
        Ok(()) | Err(AccessError::Exists(_)) => {}
        Err(error) => return Err(error),
    }
    let new = NewKey { identity: name, note: "local user".to_owned(), scope: None, ttl: None };
    Ok(key_create(store, &new, "capstan up").await?.text)
}
