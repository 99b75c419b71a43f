//! What the command line and the console ask of the fleet: plain calls, plain serialisable answers.
//!
//! Whatever steers a rollout is a record that the updater obeys, so that it works from any machine, and the same
//! whichever updater leads.

mod config;
mod fleetlock;
mod members;
mod releases;
mod steer;
mod stop;
mod vault;
mod view;

use capstan_meta::Store;
use capstan_meta::record::{Key, Stored};
use capstan_meta::settle::{Next, settle};
use capstan_meta::{Remedy, Txn};

use crate::encoding::Moment;
use crate::error::FleetError;
use crate::facts::Facts;
use crate::keys::Tree;
use crate::records::fetch;
use crate::release::Trust;

pub use config::{ConfigKey, ConfigLine};
pub use fleetlock::{Lock, LockAnswer, MAX_LOCK_NAME};
pub use members::{Init, Member};
pub use stop::{CONFIRM_WITHIN, Stopped};
pub use vault::{Secret, Unsealed, VaultSecret};
pub use view::{FleetState, FleetStatus, HistoryLine, HostLine, HostList, WaveProgress};

/// The origin of an operator's request, and its reason: shown by the history and `why`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// The operator or program.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    store: Store,
    tree: Tree,
    trust: Option<Trust>,
}

impl Fleet {
    /// The fleet with these keys in this store.
    #[must_use]
    pub fn new(store: Store, tree: Tree) -> Fleet {
        Fleet { store, tree, trust: None }
    }

    /// The same, with the keys that releases must be signed by before the fleet is aimed at them.
    #[must_use]
    pub fn trusting(self, trust: Option<Trust>) -> Fleet {
        Fleet { trust, ..self }
    }

    fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
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
    pub async fn facts(&self) -> Result<Facts, FleetError> {
        let records = fetch(&self.store, &self.tree).await?;
        Ok(Facts::read(&records, &self.tree, Moment::now()))
    }

    /// Changes one record as `decide` says; `None` leaves it as it is.
    async fn change<K: Key>(
        &self,
        key: &K,
        what: &'static str,
        decide: impl Fn(Option<&K::Record>) -> Result<Option<K::Record>, FleetError>,
    ) -> Result<(), FleetError> {
        let read = || async { Ok(self.store.read(key).await?) };
        settle(&self.store, what, read, |seen: &Option<Stored<K::Record>>, progress| {
            if progress.committed > 0 {
                return Ok(Next::Done(()));
            }
            let next = decide(seen.as_ref().map(|seen| &seen.record))?;
            Ok(next.map_or(Next::Done(()), |next| {
                Next::Commit(Txn::new().when(key.as_seen(seen.as_ref())).then(key.put(&next)))
            }))
        })
        .await
    }

    /// Commits; `false` if a guard failed or the outcome is unknown.
    async fn commit(&self, txn: Txn) -> Result<bool, FleetError> {
        match self.store.commit(txn).await {
            Ok(result) => Ok(result.succeeded),
            Err(error) if error.remedy() == Remedy::Refresh => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
