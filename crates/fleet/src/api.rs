//! What the command line and the console ask of the fleet: plain calls, plain serialisable answers.
//!
//! Whatever steers a rollout is a record that the updater obeys, so that it works from any machine, and the same
//! whichever updater leads.

mod config;
mod fleetlock;
mod members;
mod steer;
mod vault;
mod view;

use capstan_meta::Store;
use capstan_meta::record::{Key, Stored};
use capstan_meta::{Remedy, Txn};

use crate::encoding::Moment;
use crate::error::FleetError;
use crate::keys::Tree;
use crate::records::fetch;
use crate::world::World;

pub use config::{ConfigKey, ConfigLine};
pub use fleetlock::{Lock, LockAnswer, MAX_LOCK_NAME};
pub use members::{Init, Member};
pub use vault::{Secret, Unsealed, VaultSecret};
pub use view::{FleetState, FleetStatus, HistoryLine, HostLine, HostList, WaveProgress};

/// How often a change is tried again when others change the same record; each attempt begins with a fresh read.
const ATTEMPTS: usize = 16;

/// Who wants something, and why: what the history and `why` show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    store: Store,
    tree: Tree,
}

impl Fleet {
    /// The fleet with these keys in this store.
    #[must_use]
    pub fn new(store: Store, tree: Tree) -> Fleet {
        Fleet { store, tree }
    }

    /// Its keys.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Everything that the updater knows, as it is now.
    pub async fn world(&self) -> Result<World, FleetError> {
        let records = fetch(&self.store, &self.tree).await?;
        Ok(World::read(&records, &self.tree, Moment::now()))
    }

    /// Reads a record, decides, commits; again after a conflict or an unknown outcome.
    async fn change<K: Key>(
        &self,
        key: &K,
        what: &'static str,
        decide: impl Fn(Option<&K::Record>) -> Result<Option<K::Record>, FleetError>,
    ) -> Result<(), FleetError> {
        self.change_if(key, what, Txn::new(), decide).await
    }

    /// The same, only under the conditions of a transaction, and together with its operations.
    async fn change_if<K: Key>(
        &self,
        key: &K,
        what: &'static str,
        along: Txn,
        decide: impl Fn(Option<&K::Record>) -> Result<Option<K::Record>, FleetError>,
    ) -> Result<(), FleetError> {
        for _ in 0..ATTEMPTS {
            let seen: Option<Stored<K::Record>> = self.store.read(key).await?;
            let Some(next) = decide(seen.as_ref().map(|seen| &seen.record))? else { return Ok(()) };
            let txn = along.clone().when(key.as_seen(seen.as_ref())).then(key.put(&next));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(FleetError::Contended(what))
    }

    /// Commits; `false` if a guard did not hold, or nobody knows whether it happened.
    async fn commit(&self, txn: Txn) -> Result<bool, FleetError> {
        match self.store.commit(txn).await {
            Ok(result) => Ok(result.succeeded),
            Err(error) if error.remedy() == Remedy::Refresh => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
