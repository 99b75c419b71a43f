//! Who belongs to the fleet?

use std::collections::BTreeMap;

use capstan_control::drain::{Ask, undrain};
use capstan_control::keys::HostId;
use capstan_meta::Txn;
use capstan_meta::record::{Empty, Extra, Key, Prefix};

use super::{Asker, ConfigKey, Fleet};
use crate::drains::is_ours;
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::lrn::Lrn;
use crate::status::HostInfo;

/// Hosts that one `init` takes; each is two operations of a transaction, which holds 128.
const MAX_INIT: usize = 50;

/// A host that joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub lrn: Lrn,
    /// Its name in the kernel, where its services register.
    pub host: Option<HostId>,
    /// What its operator says about it.
    pub labels: BTreeMap<String, String>,
}

/// A new fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// Its first hosts.
    pub members: Vec<Member>,
    /// Its configuration.
    pub config: Vec<(ConfigKey, String)>,
}

impl Fleet {
    /// Makes a fleet of these hosts with this configuration, in one transaction; refused if it has hosts already.
    pub async fn init(&self, init: &Init) -> Result<(), FleetError> {
        if init.members.len() > MAX_INIT {
            return Err(FleetError::Invalid(format!(
                "at most {MAX_INIT} hosts at once; let the others `join`"
            )));
        }
        let none = capstan_meta::Compare {
            keys: Prefix::range(&self.tree.boot_servers()),
            target: capstan_meta::CompareTarget::CreateRevision(capstan_meta::Revision::ZERO),
            relation: capstan_meta::Relation::Equal,
        };
        let mut txn = Txn::new().when(none);
        for member in &init.members {
            txn = self.enter(txn, member);
        }
        for (key, value) in &init.config {
            txn = txn.then(key.put(&self.tree, value)?);
        }
        match self.store.commit(txn).await?.succeeded {
            true => Ok(()),
            false => Err(FleetError::Refused("the fleet has hosts already; others `join` it".to_owned())),
        }
    }

    /// A host belongs to the fleet from now on; saying so twice changes nothing but what is known about it.
    pub async fn join(&self, member: &Member) -> Result<(), FleetError> {
        self.store.commit(self.enter(Txn::new(), member)).await?;
        Ok(())
    }

    fn enter(&self, txn: Txn, member: &Member) -> Txn {
        let info =
            HostInfo { host: member.host.clone(), labels: member.labels.clone(), extra: Extra::default() };
        txn.then(self.tree.boot_server(member.lrn).put(&Empty))
            .then(self.tree.host_info(member.lrn).put(&info))
    }

    /// A host leaves: the registry forgets it together with what was installed on it, and its drain is taken back.
    pub async fn leave(&self, lrn: Lrn, asker: &Asker) -> Result<(), FleetError> {
        let world = self.world().await?;
        let key = self.tree.boot_server(lrn);
        let txn = Txn::new()
            .when(key.present())
            .then(key.delete())
            .then(self.tree.installed_on(lrn).delete_all())
            .then(self.tree.host_keys(lrn).delete_all())
            // Another machine may join under this number: it has not done what this one did.
            .then(self.tree.host_status(lrn).delete());
        if !self.store.commit(txn).await?.succeeded {
            return Err(FleetError::UnknownHost(lrn));
        }
        if let Some(host) = world.host_id(lrn).filter(|_| is_ours(&world, lrn)) {
            let ask = Ask {
                asked_by: asker.by.clone(),
                reason: "the host left the fleet".to_owned(),
                asked_at: Moment::now().as_epoch().as_secs(),
                services: Vec::new(),
            };
            undrain(&self.store, host, &ask).await?;
        }
        Ok(())
    }
}
