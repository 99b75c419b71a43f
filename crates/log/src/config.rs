//! The configuration record of a log and every legal change of it.
//!
//! Every change is a pure function from one configuration to the next. It is committed by a transaction guarded by the
//! revision at which the record was read, so of two concurrent changes one fails and decides again.
//!
//! All changes keep these rules: the primary is always in the in-sync set, the set is never empty, and only the primary
//! adds to it, because only the primary can tell which copies are complete.

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::entry::{LogEpoch, Offset};
use crate::keys::HolderId;

/// Distinguishes a log from earlier, deleted logs of the same name. Later logs have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// The configuration of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// Distinguishes the log from earlier ones of the same name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub incarnation: Incarnation,
    /// The number of the primary's term.
    pub epoch: LogEpoch,
    /// The holder that assigns offsets in this epoch.
    pub primary: HolderId,
    /// The hosts that keep a copy, without the learner.
    pub holders: Vec<HolderId>,
    /// The holders that have every committed entry.
    pub in_sync: Vec<HolderId>,
    /// The host that is copying, to become a holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learner: Option<HolderId>,
    /// The holder whose copy is removed once there are enough without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<HolderId>,
    /// The number of copies below which nothing is committed.
    pub min_copies: usize,
    /// Every holder drops the entries before this offset.
    #[serde(default, skip_serializing_if = "is_default")]
    pub floor: Offset,
    /// The offset after the last entry, once the log is sealed and takes no more appends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Offset>,
    /// Fields that a newer version wrote.
    #[serde(flatten)]
    pub extra: Extra,
}
json_records!(LogConfig, Grave, Directory);

/// The tombstone of a deleted log, kept until every holder has deleted its copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grave {
    /// Copies of this incarnation and of earlier ones must be deleted.
    pub incarnation: Incarnation,
    /// The hosts that may still have a copy.
    pub holders: Vec<HolderId>,
    /// Fields that a newer version wrote.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Grave {
    /// The tombstone of a log, merged with an earlier one of the same name whose copies are not all deleted.
    #[must_use]
    pub fn of(config: &LogConfig, earlier: Option<&Grave>) -> Grave {
        let mut holders: Vec<HolderId> = config.members().cloned().collect();
        for other in earlier.iter().flat_map(|earlier| &earlier.holders) {
            if !holders.contains(other) {
                holders.push(other.clone());
            }
        }
        Grave { incarnation: config.incarnation, holders, extra: Extra::default() }
    }
}

/// The directory in which a holder keeps its logs. A holder that starts with another directory has lost its copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// The id assigned when the directory was created.
    pub id: String,
    /// The number of starts of the holder.
    pub starts: u64,
    /// Fields that a newer version wrote.
    #[serde(flatten)]
    pub extra: Extra,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A change that is unsafe or invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Only a copy that is known to be complete can be the primary.
    #[error("{0} is not in sync: it may lack committed entries")]
    NotInSync(HolderId),
    /// It is already a holder or the learner.
    #[error("{0} already holds the log")]
    HoldsAlready(HolderId),
    /// It has no copy.
    #[error("{0} does not hold the log")]
    NotAHolder(HolderId),
    /// At most one learner at a time, so that every intermediate state of a move is easy to verify.
    #[error("{0} is still learning")]
    LearnerBusy(HolderId),
    /// The primary cannot leave; another one must be elected first.
    #[error("{0} is the primary: elect another one first")]
    IsPrimary(HolderId),
    /// Fewer than `min_copies` complete copies would be left.
    #[error("only {left} complete copies would be left, and {needed} are needed")]
    TooFewCopies {
        /// How many would be left.
        left: usize,
        /// How many there must be.
        needed: usize,
    },
    /// It has lost entries, and no other copy is complete.
    #[error(
        "{0} has lost entries and is the only complete copy; bring another one back, or accept the loss (`capstan log \
         salvage --accept-loss`)"
    )]
    OnlyCopy(HolderId),
    /// The copy is still part of the log and must not be deleted.
    #[error("{0} still holds the log: take it out of the configuration first")]
    StillHeld(HolderId),
    /// A log that was sealed at one offset cannot be sealed at another.
    #[error("the log is sealed at offset {0}")]
    SealedAt(Offset),
    /// No holders, or more copies required than there are holders.
    #[error("{holders} holders cannot keep {min_copies} copies")]
    Impossible {
        /// How many holders.
        holders: usize,
        /// How many copies.
        min_copies: usize,
    },
}

impl LogConfig {
    /// A new log on these holders; the first is the primary. The log is empty, so all holders are in sync.
    pub fn new(holders: Vec<HolderId>, min_copies: usize) -> Result<LogConfig, Refused> {
        let impossible = Refused::Impossible { holders: holders.len(), min_copies };
        let Some(primary) = holders.first().cloned() else { return Err(impossible) };
        if min_copies == 0 || min_copies > holders.len() {
            return Err(impossible);
        }
        Ok(LogConfig {
            incarnation: Incarnation::default(),
            epoch: LogEpoch(1),
            primary,
            in_sync: holders.clone(),
            holders,
            learner: None,
            leaving: None,
            min_copies,
            floor: Offset::ZERO,
            sealed: None,
            extra: Extra::default(),
        })
    }

    /// Whether this holder is known to have every committed entry.
    #[must_use]
    pub fn is_in_sync(&self, holder: &HolderId) -> bool {
        self.in_sync.contains(holder)
    }

    /// Whether nothing was written yet: a primary begins its own epoch before it writes.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.epoch == LogEpoch(1)
    }

    /// Every holder and the learner.
    pub fn members(&self) -> impl Iterator<Item = &HolderId> {
        self.holders.iter().chain(&self.learner)
    }

    /// Begins a new epoch with this primary: after a failure, for a handover, or after a restart of the primary.
    pub fn elect(&self, primary: &HolderId) -> Result<LogConfig, Refused> {
        if !self.is_in_sync(primary) {
            return Err(Refused::NotInSync(primary.clone()));
        }
        Ok(LogConfig { epoch: self.epoch.next(), primary: primary.clone(), ..self.clone() })
    }

    /// Begins a new epoch with this primary and removes dead holders from the in-sync set as far as `min_copies`
    /// allows. One transaction for a failover, so that the new primary need not wait for the removal.
    pub fn fail_over(&self, primary: &HolderId, dead: &[HolderId]) -> Result<LogConfig, Refused> {
        let mut next = self.elect(primary)?;
        for holder in dead.iter().filter(|holder| *holder != primary) {
            if next.in_sync.len() > self.min_copies {
                next.in_sync.retain(|counted| counted != holder);
            }
        }
        Ok(next)
    }

    /// Adds a learner, which begins to copy.
    pub fn add_learner(&self, learner: &HolderId) -> Result<LogConfig, Refused> {
        if self.members().any(|member| member == learner) {
            return Err(Refused::HoldsAlready(learner.clone()));
        }
        match &self.learner {
            Some(busy) => Err(Refused::LearnerBusy(busy.clone())),
            None => Ok(LogConfig { learner: Some(learner.clone()), ..self.clone() }),
        }
    }

    /// Removes the learner.
    #[must_use]
    pub fn drop_learner(&self) -> LogConfig {
        LogConfig { learner: None, ..self.clone() }
    }

    /// Adds a complete copy to the in-sync set; a learner becomes a holder. For the primary only.
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

    /// Removes lagging copies from the in-sync set; they stay holders and may rejoin.
    pub fn shrink(&self, lagging: &[HolderId]) -> Result<LogConfig, Refused> {
        if lagging.contains(&self.primary) {
            return Err(Refused::IsPrimary(self.primary.clone()));
        }
        let mut next = self.clone();
        next.in_sync.retain(|holder| !lagging.contains(holder));
        let (left, needed) = (next.in_sync.len(), self.min_copies);
        if left < needed { Err(Refused::TooFewCopies { left, needed }) } else { Ok(next) }
    }

    /// Removes a holder that has lost acknowledged entries from the in-sync set until it has caught up. The set may
    /// fall below `min_copies`; then nothing is committed until then.
    ///
    /// Always begins a new epoch: acknowledgments that the holder sent before the loss are of an earlier epoch and no
    /// longer count, whether it was in the set or about to join.
    pub fn distrust(&self, holder: &HolderId) -> Result<LogConfig, Refused> {
        if !self.members().any(|member| member == holder) {
            return Ok(self.clone());
        }
        let other = self.in_sync.iter().find(|other| *other != holder);
        let Some(other) = other else { return Err(Refused::OnlyCopy(holder.clone())) };
        let primary = if self.primary == *holder { other } else { &self.primary };
        let mut next = self.elect(primary)?;
        next.in_sync.retain(|counted| counted != holder);
        Ok(next)
    }

    /// Lets every holder drop the entries before this offset. The floor never decreases.
    #[must_use]
    pub fn raise_floor(&self, floor: Offset) -> LogConfig {
        LogConfig { floor: self.floor.max(floor), ..self.clone() }
    }

    /// Seals the log at this end; it takes no more appends.
    pub fn seal(&self, end: Offset) -> Result<LogConfig, Refused> {
        match self.sealed {
            Some(sealed) if sealed != end => Err(Refused::SealedAt(sealed)),
            Some(_) | None => Ok(LogConfig { sealed: Some(end), ..self.clone() }),
        }
    }

    /// Cancels the removal of the leaving holder, after an undrain.
    #[must_use]
    pub fn keep_leaving(&self) -> LogConfig {
        LogConfig { leaving: None, ..self.clone() }
    }

    /// Marks a holder as leaving; its copy stays for now.
    pub fn mark_leaving(&self, holder: &HolderId) -> Result<LogConfig, Refused> {
        if !self.holders.contains(holder) {
            return Err(Refused::NotAHolder(holder.clone()));
        }
        Ok(LogConfig { leaving: Some(holder.clone()), ..self.clone() })
    }

    /// Removes the leaving holder, if enough complete copies remain without it.
    pub fn remove_leaving(&self) -> Result<LogConfig, Refused> {
        let Some(leaving) = &self.leaving else { return Ok(self.clone()) };
        let mut next = self.shrink(std::slice::from_ref(leaving))?;
        next.holders.retain(|holder| holder != leaving);
        next.leaving = None;
        Ok(next)
    }

    /// The holders that can be elected: complete copies, the present primary last.
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
        assert_eq!(config.distrust(&id("z")).unwrap(), config);
        let config = config.distrust(&id("c")).unwrap();
        assert_eq!((config.epoch, config.in_sync.len()), (LogEpoch(3), 1));
        assert_eq!(config.distrust(&id("b")), Err(Refused::OnlyCopy(id("b"))));
    }

    #[test]
    fn what_was_acknowledged_before_a_loss_belongs_to_an_earlier_epoch() {
        // One follower in the set, and one about to join: the primary may have acknowledgments of both.
        let lagging = three().shrink(&[id("c")]).unwrap();
        for (config, lost) in [(three(), "b"), (lagging, "c")] {
            let after = config.distrust(&id(lost)).unwrap();
            assert_eq!((after.epoch, &after.primary), (config.epoch.next(), &id("a")));
            assert!(!after.is_in_sync(&id(lost)));
        }
    }

    #[test]
    fn a_failover_removes_the_dead_as_far_as_enough_copies_are_left() {
        let config = three().fail_over(&id("b"), &[id("a")]).unwrap();
        assert_eq!((config.epoch, &config.primary), (LogEpoch(2), &id("b")));
        assert_eq!(config.in_sync, [id("b"), id("c")]);
        let config = config.fail_over(&id("c"), &[id("b"), id("a")]).unwrap();
        assert_eq!(config.in_sync, [id("b"), id("c")]);
        assert_eq!(config.fail_over(&id("a"), &[]), Err(Refused::NotInSync(id("a"))));
    }

    #[test]
    fn a_drain_can_be_taken_back_and_floors_and_seals_stay() {
        let config = three().mark_leaving(&id("c")).unwrap().keep_leaving();
        assert_eq!(config, three());
        let config = config.raise_floor(Offset(7)).raise_floor(Offset(3)).seal(Offset(9)).unwrap();
        assert_eq!((config.floor, config.sealed), (Offset(7), Some(Offset(9))));
        assert_eq!(config.seal(Offset(8)), Err(Refused::SealedAt(Offset(9))));
    }

    #[test]
    fn records_of_earlier_versions_are_read_and_written_as_they_were() {
        let text = r#"{"epoch":1,"primary":"a","holders":["a"],"in_sync":["a"],"min_copies":1}"#;
        let config: LogConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config, LogConfig::new(vec![id("a")], 1).unwrap());
        assert_eq!(serde_json::to_string(&config).unwrap(), text);
    }
}
