//! Which hosts belong to the fleet?

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_control::drain::{Ask, undrain};
use capstan_control::keys::HostId;
use capstan_meta::Txn;
use capstan_meta::record::{Empty, Key, Prefix, RecordError};
use tokio::time::{Instant, sleep};

use super::{Asker, CONFIRM_WITHIN, ConfigKey, Fleet};
use crate::drain::is_ours;
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::lrn::Lrn;
use crate::status::HostInfo;

/// Hosts that one `init` takes; each is two operations of a transaction, which holds 128.
const MAX_INIT: usize = 50;

/// Between two looks at a host that leaves.
const LOOK_EVERY: Duration = Duration::from_millis(150);

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
            txn = self.enter(txn, member).await?;
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
        self.store.commit(self.enter(Txn::new(), member).await?).await?;
        Ok(())
    }

    /// Which machine works under the number stays as it is: a host that leaves gives its number up.
    async fn enter(&self, txn: Txn, member: &Member) -> Result<Txn, FleetError> {
        let known = match self.store.read(&self.tree.host_info(member.lrn)).await {
            Ok(known) => known.map(|seen| seen.record.machine).unwrap_or_default(),
            // What cannot be read is written anew.
            Err(RecordError::BadValue(_)) => String::new(),
            Err(RecordError::Store(error)) => return Err(error.into()),
        };
        let info = HostInfo {
            host: member.host.clone(),
            labels: member.labels.clone(),
            machine: known,
            ..HostInfo::default()
        };
        Ok(txn
            .then(self.tree.boot_server(member.lrn).put(&Empty))
            .then(self.tree.host_info(member.lrn).put(&info)))
    }

    /// A host leaves. Its worker ends what it is doing by itself; until it has confirmed that, the host keeps its slot and
    /// its drain. Then the registry forgets it together with what was installed on it, and its drain is taken back.
    pub async fn leave(&self, lrn: Lrn, asker: &Asker) -> Result<(), FleetError> {
        let facts = self.facts().await?;
        if !facts.registry.contains(&lrn) && !facts.infos.contains_key(&lrn) {
            return Err(FleetError::UnknownHost(lrn));
        }
        self.store.delete(self.tree.boot_server(lrn).delete()).await?;
        self.until_stopped(lrn).await?;
        let txn = Txn::new()
            .when(self.tree.boot_server(lrn).absent())
            .then(self.tree.installed_on(lrn).delete_all())
            .then(self.tree.host_keys(lrn).delete_all())
            // Another machine may join under this number: it has not done what this one did.
            .then(self.tree.host_status(lrn).delete());
        if !self.store.commit(txn).await?.succeeded {
            return Err(FleetError::contended("the registry"));
        }
        if let Some(host) = facts.host_id(lrn).filter(|_| is_ours(&facts, lrn)) {
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

    /// Waits until nothing of the request runs on a host that left, or its worker is gone.
    async fn until_stopped(&self, lrn: Lrn) -> Result<(), FleetError> {
        let until = Instant::now() + CONFIRM_WITHIN;
        while self.facts().await?.is_leaving(lrn) {
            if Instant::now() >= until {
                return Err(FleetError::StillRunning(lrn));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}
