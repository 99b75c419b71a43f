//! Who holds a log? The configuration record, and the only ways in which it may change.
//!
//! Every change is a pure function from one configuration to the next. It is written by a transaction that is guarded
//! by the revision it was read at, so that of two people who want to change it one is told to look again.
//!
//! What the changes have in common: a primary is always taken from the in-sync set, the set is never emptied, and
//! nobody but the primary adds to it, because only the primary knows who has everything.

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::entry::LogEpoch;
use crate::keys::HolderId;

/// The configuration of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// Numbers the primaries.
    pub epoch: LogEpoch,
    /// Who gives offsets in this epoch.
    pub primary: HolderId,
    /// Who keeps a copy, the learner excluded.
    pub holders: Vec<HolderId>,
    /// Who has everything that is committed.
    pub in_sync: Vec<HolderId>,
    /// Who is copying, to become a holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learner: Option<HolderId>,
    /// Who is to lose its copy once there are enough without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<HolderId>,
    /// Nothing is committed on fewer copies than this.
    pub min_copies: usize,
    /// Fields that a newer version wrote.
    #[serde(flatten)]
    pub extra: Extra,
}
json_records!(LogConfig);

/// A change that would not be safe, or makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Only a copy that is known to be complete can lead.
    #[error("{0} is not in sync: it may lack committed entries")]
    NotInSync(HolderId),
    /// It is a holder, or the learner, already.
    #[error("{0} holds the log already")]
    HoldsAlready(HolderId),
    /// It has no copy.
    #[error("{0} does not hold the log")]
    NotAHolder(HolderId),
    /// One learner at a time, so that every prefix of a move is easy to see through.
    #[error("{0} is still learning")]
    LearnerBusy(HolderId),
    /// The primary cannot leave; another one has to be named first.
    #[error("{0} is the primary: name another one first")]
    IsPrimary(HolderId),
    /// Fewer than `min_copies` complete copies would be left.
    #[error("only {left} complete copies would be left, and {needed} are needed")]
    TooFewCopies {
        /// How many would be left.
        left: usize,
        /// How many there must be.
        needed: usize,
    },
    /// It has lost entries, and nobody else has them.
    #[error(
        "{0} has lost entries and is the only complete copy; bring another one back, or accept the loss (`capstan log \
         salvage --accept-loss`)"
    )]
    OnlyCopy(HolderId),
    /// A configuration without holders, or that asks for more copies than there are holders.
    #[error("{holders} holders cannot keep {min_copies} copies")]
    Impossible {
        /// How many holders.
        holders: usize,
        /// How many copies.
        min_copies: usize,
    },
}

impl LogConfig {
    /// A new log on these holders, the first of which is the primary. Nothing is written yet, so all are in sync.
    pub fn new(holders: Vec<HolderId>, min_copies: usize) -> Result<LogConfig, Refused> {
        let impossible = Refused::Impossible { holders: holders.len(), min_copies };
        let Some(primary) = holders.first().cloned() else { return Err(impossible) };
        if min_copies == 0 || min_copies > holders.len() {
            return Err(impossible);
        }
        Ok(LogConfig {
            epoch: LogEpoch(1),
            primary,
            in_sync: holders.clone(),
            holders,
            learner: None,
            leaving: None,
            min_copies,
            extra: Extra::default(),
        })
    }

    /// Whether this holder is known to have everything committed.
    #[must_use]
    pub fn is_in_sync(&self, holder: &HolderId) -> bool {
        self.in_sync.contains(holder)
    }

    /// Whether nobody has written anything yet: a primary begins an epoch of its own before it does.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.epoch == LogEpoch(1)
    }

    /// Everyone who keeps or builds a copy.
    pub fn members(&self) -> impl Iterator<Item = &HolderId> {
        self.holders.iter().chain(&self.learner)
    }

    /// A new epoch with this primary: after a failure, for a handover, or for a primary that was restarted.
    pub fn elect(&self, primary: &HolderId) -> Result<LogConfig, Refused> {
        if !self.is_in_sync(primary) {
            return Err(Refused::NotInSync(primary.clone()));
        }
        Ok(LogConfig { epoch: self.epoch.next(), primary: primary.clone(), ..self.clone() })
    }

    /// A new holder begins to copy.
    pub fn add_learner(&self, learner: &HolderId) -> Result<LogConfig, Refused> {
        if self.members().any(|member| member == learner) {
            return Err(Refused::HoldsAlready(learner.clone()));
        }
        match &self.learner {
            Some(busy) => Err(Refused::LearnerBusy(busy.clone())),
            None => Ok(LogConfig { learner: Some(learner.clone()), ..self.clone() }),
        }
    }

    /// The learner gives up.
    #[must_use]
    pub fn drop_learner(&self) -> LogConfig {
        LogConfig { learner: None, ..self.clone() }
    }

    /// A complete copy counts from now on; a learner becomes a holder. For the primary only.
    pub fn grow(&self, complete: &HolderId) -> Result<LogConfig, Refused> {
        if !self.members().any(|member| member == complete) {
            return Err(Refused::NotAHolder(complete.clone()));
        }
        let mut next = self.clone();
        if next.learner.as_ref() == Some(complete) {
            next.learner = None;
            next.holders.push(complete.clone());
        }
        if !next.is_in_sync(complete) {
            next.in_sync.push(complete.clone());
        }
        Ok(next)
    }

    /// Copies that lag do not count any more; they stay holders and may come back.
    pub fn shrink(&self, lagging: &[HolderId]) -> Result<LogConfig, Refused> {
        if lagging.contains(&self.primary) {
            return Err(Refused::IsPrimary(self.primary.clone()));
        }
        let mut next = self.clone();
        next.in_sync.retain(|holder| !lagging.contains(holder));
        let (left, needed) = (next.in_sync.len(), self.min_copies);
        if left < needed { Err(Refused::TooFewCopies { left, needed }) } else { Ok(next) }
    }

    /// A holder has lost entries that were acknowledged: it neither leads nor counts until it has everything again. The
    /// set may fall below `min_copies` by this; then nothing is committed until it has caught up.
    pub fn distrust(&self, holder: &HolderId) -> Result<LogConfig, Refused> {
        if !self.is_in_sync(holder) {
            return Ok(self.clone());
        }
        let Some(other) = self.in_sync.iter().find(|other| *other != holder) else {
            return Err(Refused::OnlyCopy(holder.clone()));
        };
        let mut next = if self.primary == *holder { self.elect(other)? } else { self.clone() };
        next.in_sync.retain(|counted| counted != holder);
        Ok(next)
    }

    /// Says that a holder is to leave; nothing is taken away yet.
    pub fn mark_leaving(&self, holder: &HolderId) -> Result<LogConfig, Refused> {
        if !self.holders.contains(holder) {
            return Err(Refused::NotAHolder(holder.clone()));
        }
        Ok(LogConfig { leaving: Some(holder.clone()), ..self.clone() })
    }

    /// Takes the leaving holder out, if enough complete copies are left without it.
    pub fn remove_leaving(&self) -> Result<LogConfig, Refused> {
        let Some(leaving) = &self.leaving else { return Ok(self.clone()) };
        let mut next = self.shrink(std::slice::from_ref(leaving))?;
        next.holders.retain(|holder| holder != leaving);
        next.leaving = None;
        Ok(next)
    }

    /// Who could lead: complete copies, the present primary last.
    pub fn candidates(&self) -> impl Iterator<Item = &HolderId> {
        let others = self.in_sync.iter().filter(|holder| **holder != self.primary);
        others.chain(self.in_sync.iter().filter(|holder| **holder == self.primary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> HolderId {
        name.parse().unwrap()
    }

    fn three() -> LogConfig {
        LogConfig::new(vec![id("a"), id("b"), id("c")], 2).unwrap()
    }

    #[test]
    fn a_move_keeps_all_copies_until_the_new_one_is_complete() {
        let config = three().add_learner(&id("d")).unwrap();
        assert_eq!(config.in_sync.len(), 3);
        assert_eq!(config.add_learner(&id("e")), Err(Refused::LearnerBusy(id("d"))));
        let config = config.grow(&id("d")).unwrap().mark_leaving(&id("a")).unwrap();
        assert_eq!(config.remove_leaving(), Err(Refused::IsPrimary(id("a"))));
        let config = config.elect(&id("d")).unwrap().remove_leaving().unwrap();
        assert_eq!((config.epoch, config.primary), (LogEpoch(2), id("d")));
        assert_eq!(config.holders, [id("b"), id("c"), id("d")]);
    }

    #[test]
    fn only_complete_copies_lead_and_enough_of_them_stay() {
        let config = three().shrink(&[id("c")]).unwrap();
        assert_eq!(config.elect(&id("c")), Err(Refused::NotInSync(id("c"))));
        assert_eq!(config.shrink(&[id("b")]), Err(Refused::TooFewCopies { left: 1, needed: 2 }));
        assert_eq!(config.grow(&id("z")), Err(Refused::NotAHolder(id("z"))));
        assert!(LogConfig::new(vec![id("a")], 2).is_err());
    }

    #[test]
    fn a_copy_that_lost_entries_neither_leads_nor_counts() {
        let config = three().distrust(&id("a")).unwrap();
        assert_eq!((config.epoch, &config.primary), (LogEpoch(2), &id("b")));
        assert_eq!(config.in_sync, [id("b"), id("c")]);
        assert_eq!(config.distrust(&id("a")).unwrap(), config);
        let config = config.distrust(&id("c")).unwrap();
        assert_eq!((config.epoch, config.in_sync.len()), (LogEpoch(2), 1));
        assert_eq!(config.distrust(&id("b")), Err(Refused::OnlyCopy(id("b"))));
    }
}
