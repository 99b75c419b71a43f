//! How do hosts that speak FleetLock take the same slots? `pre-reboot` takes one, `steady-state` gives it back.

use serde::{Deserialize, Serialize};

use super::Fleet;
use crate::decide::lock::held;
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::keys::GroupName;
use crate::plan::group_of;
use crate::status::{Holder, Slots};

/// Longest name of a machine or a group: they become parts of keys and records.
pub const MAX_LOCK_NAME: usize = 255;

/// Marks machines that asked through FleetLock among the holders, which are numbers otherwise.
const MARK: &str = "lock:";

/// The client of a request, as in FleetLock's `client_params`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The machine.
    pub id: String,
    /// The group whose slots it takes.
    pub group: String,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LockAnswer {
    /// Yes; asking again is answered the same.
    Granted,
    /// Not now: these hold all slots.
    AllSlotsTaken {
        /// The current holders.
        holders: Vec<String>,
    },
    /// Not now: a pause, a window, a failure domain or a drain.
    Held {
        /// Which.
        why: String,
    },
}

impl Lock {
    fn holder(&self) -> Result<(GroupName, String), FleetError> {
        if self.id.is_empty() || self.id.len() > MAX_LOCK_NAME {
            return Err(FleetError::Invalid(format!("an id has 1 to {MAX_LOCK_NAME} bytes")));
        }
        Ok((GroupName::new(&self.group)?, format!("{MARK}{}", self.id)))
    }
}

impl Fleet {
    /// A machine wants to reboot. It holds its slot until [`Fleet::steady_state`]: FleetLock knows no time limit, and
    /// `status` shows the holders.
    pub async fn pre_reboot(&self, lock: &Lock) -> Result<LockAnswer, FleetError> {
        let (group, holder) = lock.holder()?;
        let facts = self.facts().await?;
        let none = std::collections::BTreeMap::new();
        let hosts = facts.registry.iter().filter(|lrn| {
            let labels = facts.infos.get(lrn).map_or(&none, |seen| &seen.record.labels);
            group_of(&facts.policies, labels) == group
        });
        let policy = facts.policies.get(&group).cloned().unwrap_or_default();
        let slots = policy.slots(hosts.count());
        let has_one = facts.slots.get(&group).is_some_and(|seen| seen.record.holders.contains_key(&holder));
        if let Some(why) = held(&facts, &group, &policy, &lock.id).filter(|_| !has_one) {
            return Ok(LockAnswer::Held { why });
        }
        let taken = std::sync::Mutex::new(None);
        self.change(&self.tree.slots(group), "the slots", |record| {
            let mut next: Slots = record.cloned().unwrap_or_default();
            next.holders.retain(|name, held| facts.still_holds(name, held));
            let free = next.holders.len() < slots;
            let mut answer = taken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if next.holders.contains_key(&holder) {
                *answer = None;
                return Ok(None);
            }
            if !free {
                *answer = Some(next.holders.keys().cloned().collect());
                return Ok(None);
            }
            *answer = None;
            next.holders.insert(holder.clone(), Holder { generation: None, since: Moment::now() });
            Ok(Some(next))
        })
        .await?;
        let taken = taken.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(taken.map_or(LockAnswer::Granted, |holders| LockAnswer::AllSlotsTaken { holders }))
    }

    /// A machine is back: its slot is free. Saying so twice changes nothing.
    pub async fn steady_state(&self, lock: &Lock) -> Result<(), FleetError> {
        let (group, holder) = lock.holder()?;
        self.change(&self.tree.slots(group), "the slots", |record| {
            let mut next: Slots = record.cloned().unwrap_or_default();
            Ok(next.holders.remove(&holder).map(|_| next))
        })
        .await
    }
}
