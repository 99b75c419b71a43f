//! Access keys and users.

use capstan_meta::record::{Extra, Key as _};
use capstan_meta::settle::Next;
use capstan_meta::{Store, Txn, clock};
use serde::Serialize;

use super::access::{ALL, check_password, hash_key, hash_password, hex};
use crate::error::DocsError;
use crate::guarded::change;
use crate::keys::{AccessId, AccessKeyKey, AccessKeys, DatabaseName, UserKey, UserName, Users};
use crate::spec::{AccessKey, User};

/// What a key opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// One database.
    Database(DatabaseName),
    /// Every database, and the administration.
    All,
}

/// A key that was made. It is shown once.
#[derive(Clone, Debug, Serialize)]
pub struct KeyMade {
    /// The header `accessid`.
    #[serde(rename = "accessId")]
    pub access_id: String,
    /// The header `accesskey`.
    #[serde(rename = "accessKey")]
    pub access_key: String,
}

/// A change of a user.
pub(super) enum UserChange {
    /// Another password.
    Password(String),
    /// The database that it may use, and whether it administrates.
    Rights { db: String, admin: bool },
}

/// The access keys of a cluster.
#[derive(Clone, Debug)]
pub struct Keys(Store);

impl Keys {
    /// The keys in this store.
    #[must_use]
    pub fn new(store: Store) -> Keys {
        Keys(store)
    }

    /// Makes a key. From the first one on, every request needs a key.
    pub async fn make(
        &self,
        scope: &KeyScope,
        app: &str,
        expires_at: Option<u64>,
    ) -> Result<KeyMade, DocsError> {
        let (id, key): ([u8; 8], [u8; 20]) = (rand::random(), rand::random());
        let (id, secret) = (hex(&id), hex(&key));
        let database = match scope {
            KeyScope::Database(database) => Some(database.to_string()),
            KeyScope::All => None,
        };
        let record = AccessKey {
            database: database.clone(),
            app: app.to_owned(),
            hash: hash_key(&secret),
            created_at: clock::since_epoch().as_secs(),
            expires_at,
            extra: Extra::default(),
        };
        let key = AccessKeyKey { id: AccessId::new(&id)? };
        change(&self.0, &key, |seen, _| match seen {
            Some(_) => Ok(Next::Done(())),
            None => Ok(Next::Commit(Txn::new().when(key.absent()).then(key.put(&record)))),
        })
        .await?;
        let scope = database.as_deref().unwrap_or(ALL);
        Ok(KeyMade { access_id: format!("{scope}/{id}"), access_key: secret })
    }

    /// Every key, by id, without what would open something.
    pub async fn list(&self) -> Result<Vec<(AccessId, AccessKey)>, DocsError> {
        let listed = self.0.list(&AccessKeys {}).await?;
        Ok(listed.iter().map(|(key, found)| (key.id.clone(), found.record.clone())).collect())
    }

    /// Deletes a key; it opens nothing any more.
    pub async fn delete(&self, id: &AccessId) -> Result<(), DocsError> {
        let key = AccessKeyKey { id: id.clone() };
        change(&self.0, &key, |seen, progress| match seen {
            None if progress.maybe_ours() => Ok(Next::Done(())),
            None => Err(DocsError::NotFound(format!("there is no access key {id}"))),
            Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
        })
        .await
    }

    /// Deletes the keys of a database that was dropped: one of the same name may be another client's. If there are no
    /// other keys they stay, since a store without keys is open to everybody.
    pub(super) async fn delete_of(&self, database: &DatabaseName) -> Result<(), DocsError> {
        let (own, others): (Vec<_>, Vec<_>) = self
            .list()
            .await?
            .into_iter()
            .partition(|(_, key)| key.database.as_deref() == Some(database.as_str()));
        if others.is_empty() {
            return Ok(());
        }
        for (id, _) in own {
            match self.delete(&id).await {
                Ok(()) | Err(DocsError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) async fn put_user(&self, name: &str, password: &str, user: User) -> Result<(), DocsError> {
        check_password(password)?;
        let user = User { password: hash_password(password), ..user };
        let key = UserKey { user: UserName::new(name)? };
        change(&self.0, &key, |seen, progress| {
            if progress.committed > 0 {
                return Ok(Next::Done(()));
            }
            Ok(Next::Commit(Txn::new().when(key.as_seen(seen)).then(key.put(&user))))
        })
        .await
    }

    /// Changes a user that is there.
    pub(super) async fn change_user(&self, name: &str, what: UserChange) -> Result<(), DocsError> {
        let key = UserKey { user: UserName::new(name)? };
        let hash = match &what {
            UserChange::Password(password) => {
                check_password(password)?;
                hash_password(password)
            }
            UserChange::Rights { .. } => String::new(),
        };
        change(&self.0, &key, |seen, progress| {
            let seen = seen.ok_or_else(|| DocsError::NotFound(format!("there is no user {name}")))?;
            if progress.committed > 0 {
                return Ok(Next::Done(()));
            }
            let known = seen.record.clone();
            let next = match &what {
                UserChange::Password(_) => User { password: hash.clone(), ..known },
                UserChange::Rights { db, admin } => User { db: db.clone(), admin: *admin, ..known },
            };
            Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next))))
        })
        .await
    }

    pub(super) async fn users(&self) -> Result<Vec<(UserName, User)>, DocsError> {
        let listed = self.0.list(&Users {}).await?;
        Ok(listed.iter().map(|(key, found)| (key.user.clone(), found.record.clone())).collect())
    }

    pub(super) async fn delete_user(&self, name: &str) -> Result<(), DocsError> {
        let key = UserKey { user: UserName::new(name)? };
        change(&self.0, &key, |seen, _| match seen {
            None => Ok(Next::Done(())),
            Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
        })
        .await
    }
}
