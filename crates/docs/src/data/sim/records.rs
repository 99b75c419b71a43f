//! The metadata of a simulated cluster: records with revisions, and the steward that changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::record::Stored;
use capstan_meta::{LeaseId, Revision};
use capstan_steward::decide::Action;
use capstan_steward::facts::Records as StewardRecords;
use capstan_steward::spec::Handover;
use capstan_steward::{Facts, HolderRecord, HolderStatus, Policy, WantedLog, decide};

use crate::node::SERVICE;

/// One record with its revision.
type Seen<R> = Arc<Stored<R>>;

const COPIES: usize = 3;
const GIB: u64 = 1 << 30;

/// Everything that the store has.
pub(super) struct Records {
    pub(super) now: u64,
    revision: i64,
    logs: BTreeMap<LogName, Seen<LogConfig>>,
    wanted: BTreeMap<LogName, Seen<WantedLog>>,
    handovers: BTreeMap<LogName, Seen<Handover>>,
    pub(super) holders: BTreeMap<HolderId, Seen<HolderRecord>>,
    alive: BTreeMap<HolderId, Seen<HolderStatus>>,
}

impl Records {
    pub(super) fn new() -> Records {
        Records {
            now: 1_700_000_000,
            revision: 0,
            logs: BTreeMap::new(),
            wanted: BTreeMap::new(),
            handovers: BTreeMap::new(),
            holders: BTreeMap::new(),
            alive: BTreeMap::new(),
        }
    }

    fn store<R>(&mut self, record: R) -> Seen<R> {
        self.revision += 1;
        let at = Revision(self.revision);
        Arc::new(Stored { record, create_revision: at, mod_revision: at, lease: LeaseId::NONE })
    }

    pub(super) fn add_holder(&mut self, holder: &HolderId) {
        let host = holder.as_str().trim_start_matches("docs.").parse().unwrap();
        let record = self.store(HolderRecord::new(host, SERVICE.parse().unwrap()));
        self.holders.insert(holder.clone(), record);
        self.start(holder);
    }

    pub(super) fn start(&mut self, holder: &HolderId) {
        let status = HolderStatus::new("127.0.0.1:1".parse().unwrap(), 100 * GIB, 200 * GIB);
        let status = self.store(status);
        self.alive.insert(holder.clone(), status);
    }

    pub(super) fn stop(&mut self, holder: &HolderId) {
        self.alive.remove(holder);
    }

    pub(super) fn is_up(&self, holder: &HolderId) -> bool {
        self.alive.contains_key(holder)
    }

    pub(super) fn retire(&mut self, holder: &HolderId) {
        let record = HolderRecord { retiring: true, ..self.holders[holder].record.clone() };
        let record = self.store(record);
        self.holders.insert(holder.clone(), record);
    }

    pub(super) fn is_retiring(&self, holder: &HolderId) -> bool {
        self.holders.get(holder).is_some_and(|seen| seen.record.retiring)
    }

    pub(super) fn add_log(&mut self, log: LogName, holders: Vec<HolderId>) {
        let wanted = WantedLog::new(SERVICE.parse().unwrap(), COPIES);
        let config = LogConfig::new(holders, wanted.min_copies).unwrap();
        let (config, wanted) = (self.store(config), self.store(wanted));
        self.logs.insert(log.clone(), config);
        self.wanted.insert(log, wanted);
    }

    pub(super) fn config(&self, log: &LogName) -> &LogConfig {
        &self.logs[log].record
    }

    pub(super) fn set(&mut self, log: &LogName, config: LogConfig) {
        let config = self.store(config);
        self.logs.insert(log.clone(), config);
    }

    /// Hands over where that was asked for, if every copy can take part.
    pub(super) fn hand_over(&mut self, log: &LogName) {
        let config = self.config(log).clone();
        let Some(asked) = self.handovers.get(log).map(|seen| seen.record.clone()) else { return };
        if asked.epoch == config.epoch
            && config.in_sync.iter().all(|holder| self.is_up(holder))
            && let Ok(next) = config.elect(&asked.to)
        {
            self.set(log, next);
        }
    }

    /// One decision of the steward; how many changes it made.
    pub(super) fn steward(&mut self) -> usize {
        fn all<N: Clone, R>(map: &BTreeMap<N, Seen<R>>) -> Vec<(N, Seen<R>)> {
            map.iter().map(|(name, seen)| (name.clone(), seen.clone())).collect()
        }
        let records = StewardRecords {
            logs: all(&self.logs),
            wanted: all(&self.wanted),
            handovers: all(&self.handovers),
            holders: all(&self.holders),
            alive: all(&self.alive),
            draining: Default::default(),
            bad: Vec::new(),
        };
        let policy = Policy { repair_after: 20, slack_percent: 0, reserve_bytes: 0, ..Policy::default() };
        let decision = decide(&Facts::new(records, self.now), &policy);
        for action in &decision.actions {
            self.apply(action);
        }
        decision.actions.len()
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::Reconfigure { log, next, .. } => self.set(log, (**next).clone()),
            Action::AskHandover { log, handover, .. } => {
                let handover = self.store(handover.clone());
                self.handovers.insert(log.clone(), handover);
            }
            Action::ClearHandover { log, .. } => drop(self.handovers.remove(log)),
            Action::MarkDown { holder, since, .. } => self.mark(holder, Some(*since)),
            Action::MarkUp { holder, .. } => self.mark(holder, None),
            Action::Forget { holder, .. } => drop(self.holders.remove(holder)),
        }
    }

    fn mark(&mut self, holder: &HolderId, down_since: Option<u64>) {
        let record = HolderRecord { down_since, ..self.holders[holder].record.clone() };
        let record = self.store(record);
        self.holders.insert(holder.clone(), record);
    }
}
