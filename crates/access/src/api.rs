//! What `capstan access` and the HTTP API call. Every change is one guarded transaction with its event.

mod first;
mod key;
mod list;

use capstan_control::events::Event;
use capstan_meta::record::{Extra, Key, Stored};
use capstan_meta::settle::{Next, Progress, settle};
use capstan_meta::{Store, Txn, clock};

pub use first::{FIRST_ADMIN, first_admin, local_key};
pub use key::{IssuedKey, NewKey, key_create, key_revoke, key_rotate};
pub use list::{IdentityLine, KeyLine, Listed, RoleLine, list};

use crate::error::AccessError;
use crate::grant::Grant;
use crate::keys::{AccessKeys, IdentityKey, IdentityName, LastUseKey, RoleKey, RoleName, Sessions};
use crate::password;
use crate::policy::BUILT_IN;
use crate::secret::Secret;
use crate::spec::{Hash, IdentityKind, IdentityRecord, RoleRecord};

/// Most roles and most grants of one identity, and most grants of one role: a decision looks at all of them.
pub const MAX_GRANTS: usize = 256;

/// An identity that is to be.
#[derive(Clone, Debug)]
pub struct NewIdentity {
    /// Its name.
    pub name: IdentityName,
    /// What it is.
    pub kind: IdentityKind,
    /// The password of a user that signs in with one.
    pub password: Option<Secret>,
    /// Its roles.
    pub roles: Vec<RoleName>,
    /// Its own grants.
    pub grants: Vec<Grant>,
}

/// Creates a user or a service account.
pub async fn identity_create(store: &Store, new: &NewIdentity, actor: &str) -> Result<(), AccessError> {
    if new.kind == IdentityKind::Account && new.password.is_some() {
        return Err(AccessError::Invalid("an account has no password; give it an access key".to_owned()));
    }
    let record = IdentityRecord {
        kind: new.kind,
        password: hashed(new.password.clone()).await?,
        roles: new.roles.clone(),
        grants: new.grants.clone(),
        disabled: false,
        created_at: clock::since_epoch().as_secs(),
        extra: Extra::default(),
    };
    check_identity(store, &record).await?;
    let key = IdentityKey { identity: new.name.clone() };
    let event = event(actor, "created", format!("{} {}", new.kind, new.name));
    let txn = Txn::new().when(key.absent()).then(key.put(&record)).then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(()),
        false => Err(AccessError::Exists(format!("a user or account {}", new.name))),
    }
}

async fn hashed(password: Option<Secret>) -> Result<Option<Hash>, AccessError> {
    let Some(password) = password else { return Ok(None) };
    let hashing = tokio::task::spawn_blocking(move || password::hash(&password)).await;
    let hash = hashing.map_err(|_| AccessError::Invalid("the password could not be hashed".to_owned()))??;
    Ok(Some(Hash(hash)))
}

/// Whether a role exists, built in or made.
async fn role_exists(store: &Store, role: &RoleName) -> Result<bool, AccessError> {
    let built_in = BUILT_IN.iter().any(|(name, _)| *name == role.as_str());
    Ok(built_in || store.read(&RoleKey { role: role.clone() }).await?.is_some())
}

async fn check_identity(store: &Store, record: &IdentityRecord) -> Result<(), AccessError> {
    if record.roles.len() > MAX_GRANTS || record.grants.len() > MAX_GRANTS {
        return Err(AccessError::Invalid(format!("more than {MAX_GRANTS} roles or grants; make a role")));
    }
    for role in &record.roles {
        if !role_exists(store, role).await? {
            return Err(AccessError::NotFound(format!("role {role}")));
        }
    }
    Ok(())
}

/// A change of one identity.
#[derive(Clone, Debug)]
pub enum Change {
    /// Give it a role.
    AddRole(RoleName),
    /// Take a role from it.
    RemoveRole(RoleName),
    /// Give it a grant.
    AddGrant(Grant),
    /// Take a grant from it.
    RemoveGrant(Grant),
    /// Refuse it, or accept it again.
    SetDisabled(bool),
    /// Set its password.
    SetPassword(Secret),
}

impl Change {
    /// What it is called in the event record. A password is not part of it.
    fn sentence(&self) -> String {
        match self {
            Change::AddRole(role) => format!("gave role {role} to"),
            Change::RemoveRole(role) => format!("took role {role} from"),
            Change::AddGrant(grant) => format!("granted {grant} to"),
            Change::RemoveGrant(grant) => format!("took {grant} from"),
            Change::SetDisabled(true) => "disabled".to_owned(),
            Change::SetDisabled(false) => "enabled".to_owned(),
            Change::SetPassword(_) => "set the password of".to_owned(),
        }
    }

    /// The record after it.
    fn apply(&self, mut record: IdentityRecord, hash: Option<&Hash>) -> Result<IdentityRecord, AccessError> {
        match self {
            Change::AddRole(role) => add(&mut record.roles, role),
            Change::RemoveRole(role) => remove(&mut record.roles, role, "role")?,
            Change::AddGrant(grant) => add(&mut record.grants, grant),
            Change::RemoveGrant(grant) => remove(&mut record.grants, grant, "grant")?,
            Change::SetDisabled(disabled) => record.disabled = *disabled,
            Change::SetPassword(_) if record.kind == IdentityKind::Account => {
                let text = "an account has no password; give it an access key";
                return Err(AccessError::Invalid(text.to_owned()));
            }
            Change::SetPassword(_) => record.password = hash.cloned(),
        }
        Ok(record)
    }
}

fn add<T: Clone + PartialEq>(list: &mut Vec<T>, item: &T) {
    if !list.contains(item) {
        list.push(item.clone());
    }
}

fn remove<T: PartialEq + std::fmt::Display>(
    list: &mut Vec<T>,
    item: &T,
    what: &str,
) -> Result<(), AccessError> {
    let before = list.len();
    list.retain(|held| held != item);
    match list.len() == before {
        true => Err(AccessError::Invalid(format!("it does not have the {what} {item}"))),
        false => Ok(()),
    }
}

/// Changes an identity.
pub async fn identity_change(
    store: &Store,
    name: &IdentityName,
    change: &Change,
    actor: &str,
) -> Result<(), AccessError> {
    let hash = match change {
        Change::SetPassword(password) => hashed(Some(password.clone())).await?,
        Change::AddRole(role) if !role_exists(store, role).await? => {
            return Err(AccessError::NotFound(format!("role {role}")));
        }
        Change::AddRole(_)
        | Change::RemoveRole(_)
        | Change::AddGrant(_)
        | Change::RemoveGrant(_)
        | Change::SetDisabled(_) => None,
    };
    let key = IdentityKey { identity: name.clone() };
    let what = format!("identity {name}");
    let event = event(actor, &change.sentence(), what.clone());
    let decide = |seen: &Option<Stored<IdentityRecord>>, progress: Progress| {
        let seen = seen.as_ref().ok_or_else(|| AccessError::NotFound(what.clone()))?;
        if progress.committed > 0 {
            return Ok(Next::Done(()));
        }
        let after = change.apply(seen.record.clone(), hash.as_ref())?;
        if after.roles.len() > MAX_GRANTS || after.grants.len() > MAX_GRANTS {
            return Err(AccessError::Invalid(format!("more than {MAX_GRANTS} roles or grants; make a role")));
        }
        if after == seen.record {
            return Ok(Next::Done(()));
        }
        Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.put(&after)).then(event.put())))
    };
    settle(store, &what, || read(store, &key), decide).await
}

/// Removes an identity with its keys and sessions.
pub async fn identity_remove(store: &Store, name: &IdentityName, actor: &str) -> Result<(), AccessError> {
    let key = IdentityKey { identity: name.clone() };
    let seen = store.read(&key).await?.ok_or_else(|| AccessError::NotFound(format!("identity {name}")))?;
    let event = event(actor, "removed", format!("{} {name}", seen.record.kind));
    // The identity goes first: from then on its keys and sessions stand for nothing.
    let txn = Txn::new().when(key.present()).then(key.delete()).then(event.put());
    if !store.commit(txn).await?.succeeded {
        return Err(AccessError::NotFound(format!("identity {name}")));
    }
    for (key, stored) in store.list(&AccessKeys {}).await?.iter() {
        if stored.record.identity == *name {
            let last = LastUseKey { id: key.id.clone() };
            store.commit(Txn::new().then(key.delete()).then(last.delete())).await?;
        }
    }
    for (key, stored) in store.list(&Sessions {}).await?.iter() {
        if stored.record.identity == *name {
            store.delete(key.delete()).await?;
        }
    }
    Ok(())
}

/// Makes a role, or changes what it allows.
pub async fn role_set(
    store: &Store,
    role: &RoleName,
    grants: &[Grant],
    actor: &str,
) -> Result<(), AccessError> {
    if BUILT_IN.iter().any(|(name, _)| *name == role.as_str()) {
        return Err(AccessError::Invalid(format!("role {role} is built in; choose another name")));
    }
    if grants.is_empty() || grants.len() > MAX_GRANTS {
        return Err(AccessError::Invalid(format!("a role has 1 to {MAX_GRANTS} grants")));
    }
    let key = RoleKey { role: role.clone() };
    let record = RoleRecord { grants: grants.to_vec(), extra: Extra::default() };
    let event = event(actor, "set", format!("role {role}"));
    store.commit(Txn::new().then(key.put(&record)).then(event.put())).await?;
    Ok(())
}

/// Removes a role. Identities that have it lose what it allowed.
pub async fn role_remove(store: &Store, role: &RoleName, actor: &str) -> Result<(), AccessError> {
    let key = RoleKey { role: role.clone() };
    let event = event(actor, "removed", format!("role {role}"));
    let txn = Txn::new().when(key.present()).then(key.delete()).then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(()),
        false => Err(AccessError::NotFound(format!("role {role}"))),
    }
}

async fn read<K: Key>(store: &Store, key: &K) -> Result<Option<Stored<K::Record>>, AccessError> {
    Ok(store.read(key).await?)
}

pub(crate) fn event(actor: &str, action: &str, object: String) -> Event {
    Event::new(clock::since_epoch(), actor, action, object, "")
}
