//! Databases, collections and indexes: guarded changes of their records, made known to every token.

use capstan_meta::record::{Extra, Key as _};
use capstan_meta::settle::{Next, Progress};
use capstan_meta::{Store, Txn, clock};
use serde_json::Value;

use super::unique;
use crate::data::command::{Command, Target, Write};
use crate::error::DocsError;
use crate::guarded::change;
use crate::keys::{
    CollectionKey, CollectionKeyId, CollectionName, CollectionsOf, DatabaseKey, DatabaseName, Databases,
    DroppingAll, DroppingKey,
};
use crate::language::Path;
use crate::node::Node;
use crate::router::{Renewals, Router};
use crate::spec::{CollectionId, CollectionSpec, DatabaseSpec, IndexSpec};
use crate::status::Dropping;

/// The longest name of a database or a collection.
const MAX_NAME: usize = 64;
/// Indexes of one collection.
const MAX_INDEXES: usize = 64;
/// Not a database of clients.
const RESERVED: &str = "admin";

/// The databases and collections of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Catalogue<'n>(pub(super) &'n Node);

/// Whether something was created or was there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    Now,
    Before,
}

impl Created {
    fn of(progress: Progress) -> Created {
        if progress.maybe_ours() { Created::Now } else { Created::Before }
    }
}

/// Letters, digits, `_` and `-`.
fn check(kind: &str, name: &str) -> Result<(), DocsError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(legal) {
        return Ok(());
    }
    Err(DocsError::refused(format!("the name of a {kind} has 1 to {MAX_NAME} letters, digits, `_` or `-`")))
}

pub(super) fn database_name(name: &str) -> Result<DatabaseName, DocsError> {
    check("database", name)?;
    if name == RESERVED {
        return Err(DocsError::refused(format!("`{RESERVED}` is reserved")));
    }
    Ok(DatabaseName::new(name)?)
}

pub(super) fn collection_name(name: &str) -> Result<CollectionName, DocsError> {
    check("collection", name)?;
    Ok(CollectionName::new(name)?)
}

impl<'n> Catalogue<'n> {
    /// The catalogue, through this node.
    #[must_use]
    pub fn of(node: &'n Node) -> Catalogue<'n> {
        Catalogue(node)
    }

    fn router(&self) -> &Router {
        &self.0.inner.router
    }

    fn store(&self) -> &Store {
        &self.router().store
    }

    /// Every database, by name.
    pub async fn databases(&self) -> Result<Vec<DatabaseName>, DocsError> {
        let snapshot = self.router().refresh().await?;
        Ok(snapshot.list(&Databases {}).iter().map(|(key, _)| key.database.clone()).collect())
    }

    /// Every collection of a database, by name.
    pub async fn collections(&self, database: &DatabaseName) -> Result<Vec<CollectionName>, DocsError> {
        let snapshot = self.router().refresh().await?;
        let known = snapshot.get(&DatabaseKey { database: database.clone() });
        if matches!(known, Ok(None)) {
            return Err(DocsError::NotFound(format!("DB \"{database}\" not found")));
        }
        let prefix = CollectionsOf { database: database.clone() };
        Ok(snapshot.list(&prefix).iter().map(|(key, _)| key.collection.clone()).collect())
    }

    pub(super) async fn create_database(&self, database: &DatabaseName) -> Result<Created, DocsError> {
        let key = DatabaseKey { database: database.clone() };
        let record = DatabaseSpec { created_at: clock::since_epoch().as_secs(), extra: Extra::default() };
        change(self.store(), &key, |seen, progress| match seen {
            Some(_) => Ok(Next::Done(Created::of(progress))),
            None => Ok(Next::Commit(Txn::new().when(key.absent()).then(key.put(&record)))),
        })
        .await
    }

    /// Drops a database with everything in it.
    pub async fn drop_database(&self, database: &DatabaseName) -> Result<(), DocsError> {
        for collection in self.collections(database).await? {
            match self.drop_collection(database, &collection).await {
                Ok(()) | Err(DocsError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let key = DatabaseKey { database: database.clone() };
        change(self.store(), &key, |seen, _| match seen {
            None => Ok(Next::Done(())),
            Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
        })
        .await
    }

    pub(super) async fn create_collection(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
        primary_key: Vec<String>,
    ) -> Result<Created, DocsError> {
        for field in &primary_key {
            Path::parse(field)?;
        }
        let key = CollectionKey { database: database.clone(), collection: collection.clone() };
        let parent = DatabaseKey { database: database.clone() };
        let spec = CollectionSpec::new(CollectionId(rand::random()), primary_key);
        if self.store().read(&parent).await?.is_none() {
            return Err(DocsError::NotFound(format!("DB \"{database}\" not found")));
        }
        change(self.store(), &key, |seen, progress| match seen {
            Some(_) => Ok(Next::Done(Created::of(progress))),
            None => {
                let txn = Txn::new().when(key.absent()).when(parent.present()).then(key.put(&spec));
                Ok(Next::Commit(txn))
            }
        })
        .await
    }

    /// Drops a collection. From then on no token serves it.
    pub async fn drop_collection(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
    ) -> Result<(), DocsError> {
        let target = self.router().target(database, collection).await?;
        let key = CollectionKey { database: database.clone(), collection: collection.clone() };
        change(self.store(), &key, |seen, _| match seen {
            None => Ok(Next::Done(())),
            Some(seen) => {
                let gone = dropping_key(seen.record.id)?;
                let record = Dropping {
                    database: database.to_string(),
                    collection: collection.to_string(),
                    version: u64::try_from(seen.mod_revision.0).unwrap_or(0),
                };
                let txn = Txn::new().when(key.unchanged(seen)).then(key.delete()).then(gone.put(&record));
                Ok(Next::Commit(txn))
            }
        })
        .await?;
        self.finish_drop(target).await
    }

    /// Has every token drop the documents, then forgets the collection.
    async fn finish_drop(&self, target: Target) -> Result<(), DocsError> {
        let router = self.router();
        router.ask_all(&Command::Write(target.clone(), Write::Drop)).await?;
        let key = dropping_key(target.spec.id)?;
        change(self.store(), &key, |seen, _| match seen {
            None => Ok(Next::Done(())),
            Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
        })
        .await
    }

    /// Completes drops that a node began and did not finish.
    pub(crate) async fn finish_drops(&self) -> Result<(), DocsError> {
        let snapshot = self.router().view.snapshot();
        let pending: Vec<_> = snapshot
            .list(&DroppingAll {})
            .iter()
            .map(|(key, found)| (key.id.clone(), found.record.clone()))
            .collect();
        for (id, record) in pending {
            let id: CollectionId = id.as_str().parse().map_err(DocsError::Broken)?;
            let spec = CollectionSpec::new(id, vec!["_id".to_owned()]);
            let version = i64::try_from(record.version).unwrap_or(i64::MAX);
            self.finish_drop(Target { version, spec }).await?;
        }
        Ok(())
    }

    /// Creates an index, or changes its options. Tokens build it in the background.
    pub(super) async fn create_index(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
        field: &str,
        options: &Value,
    ) -> Result<(), DocsError> {
        Path::parse(field)?;
        let wanted = index_spec(options)?;
        self.change_spec(database, collection, |spec| {
            let mut next = spec.clone();
            if spec.indexes.get(field).is_some_and(|known| known.options == wanted.options) {
                return Ok(next);
            }
            if next.indexes.len() >= MAX_INDEXES {
                return Err(DocsError::refused(format!("a collection has at most {MAX_INDEXES} indexes")));
            }
            let number = next.next_index;
            next.next_index += 1;
            next.indexes.insert(field.to_owned(), IndexSpec { number, ..wanted.clone() });
            Ok(next)
        })
        .await?;
        if wanted.unique
            && let Err(error) = unique::reserve_existing(self.router(), database, collection, field).await
        {
            self.drop_index(database, collection, field).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Drops an index.
    pub(super) async fn drop_index(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
        field: &str,
    ) -> Result<(), DocsError> {
        self.change_spec(database, collection, |spec| {
            let mut next = spec.clone();
            match next.indexes.remove(field) {
                Some(_) => Ok(next),
                None => Err(DocsError::NotFound(format!("there is no index on `{field}`"))),
            }
        })
        .await
    }

    /// Changes the record of a collection and has every token take note of it.
    async fn change_spec(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
        next_spec: impl Fn(&CollectionSpec) -> Result<CollectionSpec, DocsError>,
    ) -> Result<(), DocsError> {
        let key = CollectionKey { database: database.clone(), collection: collection.clone() };
        change(self.store(), &key, |seen, progress| {
            let Some(seen) = seen else {
                return Err(DocsError::NotFound(format!("Collection \"{collection}\" not found")));
            };
            if progress.committed > 0 {
                return Ok(Next::Done(()));
            }
            let next = next_spec(&seen.record)?;
            if next == seen.record {
                return Ok(Next::Done(()));
            }
            Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next))))
        })
        .await?;
        let router = self.router();
        router.refresh().await?;
        let mut renewals = Renewals::default();
        loop {
            let target = router.target(database, collection).await?;
            match router.ask_all(&Command::Write(target, Write::Define)).await {
                Err(DocsError::Stale) => renewals.renew(router).await?,
                done => return done.map(drop),
            }
        }
    }
}

fn dropping_key(id: CollectionId) -> Result<DroppingKey, DocsError> {
    Ok(DroppingKey { id: CollectionKeyId::new(id.to_string())? })
}

/// Reads the options of an index. What is not understood is kept for listings and has no effect.
fn index_spec(options: &Value) -> Result<IndexSpec, DocsError> {
    let flag = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(DocsError::refused(format!("index option {name} is true or false"))),
    };
    let seconds = ["expiresAfterSeconds", "expireAfterSeconds"].iter().find_map(|name| options.get(name));
    let expires_after_seconds = match seconds {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_u64().ok_or_else(|| {
            DocsError::refused("index option expiresAfterSeconds is a whole number of seconds")
        })?),
    };
    let options = if options.is_object() { options.clone() } else { serde_json::json!({}) };
    Ok(IndexSpec {
        number: 0,
        unique: flag("unique")?,
        expires_after_seconds,
        expires_at: flag("expiresAt")? || flag("expireAt")?,
        options,
    })
}
