//! A cluster without processes: records, holders that are up or down, and simulated primaries. The steward's actions
//! are applied as its transactions would be, including guards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_control::keys::HostId;
use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::record::Stored;
use capstan_meta::{LeaseId, Revision};
use capstan_steward::decide::{Action, Decision, Reason};
use capstan_steward::facts::Records;
use capstan_steward::spec::Handover;
use capstan_steward::{Facts, HolderRecord, HolderStatus, Policy, WantedLog, decide};

pub const GIB: u64 = 1 << 30;

/// One record with its revision.
type Seen<R> = Arc<Stored<R>>;

#[derive(Default)]
pub struct World {
    pub now: u64,
    revision: i64,
    pub logs: BTreeMap<LogName, Seen<LogConfig>>,
    pub wanted: BTreeMap<LogName, Seen<WantedLog>>,
    pub handovers: BTreeMap<LogName, Seen<Handover>>,
    pub holders: BTreeMap<HolderId, Seen<HolderRecord>>,
    pub alive: BTreeMap<HolderId, Seen<HolderStatus>>,
    pub draining: BTreeSet<HostId>,
    pub policy: Policy,
    /// Nothing is appended to settled logs: for worlds with very many of them.
    pub skips_idle: bool,
    /// The entries of each copy in the model.
    pub entries: BTreeMap<(LogName, HolderId), u64>,
    /// The acknowledged entries.
    pub committed: BTreeMap<LogName, u64>,
    /// Copies begun so far.
    pub begun: usize,
    /// Copies removed so far.
    pub removed: usize,
}

impl World {
    pub fn new(policy: Policy) -> World {
        World { now: 1_700_000_000, policy, ..World::default() }
    }

    fn store<R>(&mut self, record: R) -> Seen<R> {
        self.revision += 1;
        let at = Revision(self.revision);
        Arc::new(Stored { record, create_revision: at, mod_revision: at, lease: LeaseId::NONE })
    }

    pub fn add_holder(&mut self, name: &str, domain: Option<&str>) {
        let mut record = HolderRecord::new(name.parse().unwrap(), "topics".parse().unwrap());
        record.domain = domain.map(str::to_owned);
        let record = self.store(record);
        self.holders.insert(name.parse().unwrap(), record);
        self.start(&name.parse().unwrap());
    }

    pub fn start(&mut self, holder: &HolderId) {
        let status = HolderStatus::new("127.0.0.1:1".parse().unwrap(), 100 * GIB, 200 * GIB);
        let status = self.store(status);
        self.alive.insert(holder.clone(), status);
    }

    pub fn kill(&mut self, holder: &HolderId) {
        self.alive.remove(holder);
    }

    /// Makes a holder report that it cannot reach these.
    pub fn cut(&mut self, holder: &HolderId, from: &[HolderId]) {
        let mut status = self.alive[holder].record.clone();
        status.unreachable = from.to_vec();
        let status = self.store(status);
        self.alive.insert(holder.clone(), status);
    }

    pub fn retire(&mut self, holder: &HolderId) {
        let record = HolderRecord { retiring: true, ..self.holders[holder].record.clone() };
        let record = self.store(record);
        self.holders.insert(holder.clone(), record);
    }

    pub fn add_log(&mut self, name: &str, holders: &[&str], wanted: WantedLog) {
        let holders: Vec<HolderId> = holders.iter().map(|holder| holder.parse().unwrap()).collect();
        let config = LogConfig::new(holders, wanted.min_copies).unwrap();
        let name: LogName = name.parse().unwrap();
        let (config, wanted) = (self.store(config), self.store(wanted));
        self.logs.insert(name.clone(), config);
        self.wanted.insert(name, wanted);
    }

    pub fn set(&mut self, name: &LogName, config: LogConfig) {
        let config = self.store(config);
        self.logs.insert(name.clone(), config);
    }

    pub fn want(&mut self, name: &LogName, wanted: WantedLog) {
        let wanted = self.store(wanted);
        self.wanted.insert(name.clone(), wanted);
    }

    pub fn config(&self, name: &str) -> &LogConfig {
        &self.logs[&name.parse::<LogName>().unwrap()].record
    }

    pub fn facts(&self) -> Facts {
        fn all<N: Clone, R>(map: &BTreeMap<N, Seen<R>>) -> Vec<(N, Seen<R>)> {
            map.iter().map(|(name, seen)| (name.clone(), seen.clone())).collect()
        }
        let records = Records {
            logs: all(&self.logs),
            wanted: all(&self.wanted),
            handovers: all(&self.handovers),
            holders: all(&self.holders),
            alive: all(&self.alive),
            draining: self.draining.clone(),
            bad: Vec::new(),
        };
        Facts::new(records, self.now)
    }

    /// Performs one decision of the steward.
    pub fn steward(&mut self) -> Decision {
        let decision = decide(&self.facts(), &self.policy);
        for action in &decision.actions {
            self.apply(action);
        }
        self.check_limits();
        decision
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::Reconfigure { log, seen, next, reason } => {
                assert_eq!(self.logs[log].mod_revision, seen.mod_revision, "two changes of {log} at once");
                self.judge(log, &seen.record, next, reason);
                let config = self.store((**next).clone());
                self.logs.insert(log.clone(), config);
            }
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

    /// The rules that every change must keep.
    fn judge(&mut self, log: &LogName, old: &LogConfig, new: &LogConfig, reason: &Reason) {
        let committed = self.committed.get(log).copied().unwrap_or(0);
        if new.epoch != old.epoch {
            assert_eq!(new.epoch, old.epoch.next());
            assert!(old.in_sync.contains(&new.primary), "{log}: elected outside of the in-sync set");
            assert!(self.alive.contains_key(&new.primary), "{log}: elected a holder that is down");
            assert_eq!(self.has(log, &new.primary), committed, "{log}: {reason} lost entries");
        } else {
            assert_eq!(new.primary, old.primary);
        }
        assert!(!new.in_sync.is_empty());
        for holder in &new.in_sync {
            assert!(old.in_sync.contains(holder), "only the primary adds to the in-sync set");
        }
        if let Reason::Remove { holder } = reason {
            let wanted = self.wanted[log].record.copies;
            let left = new.in_sync.iter().filter(|other| self.alive.contains_key(*other)).count();
            assert!(left >= wanted, "{log}: {left} copies are left of {wanted}");
            assert!(!new.holders.contains(holder));
            self.removed += 1;
        }
        if new.learner.is_some() && old.learner.is_none() {
            self.begun += 1;
        }
    }

    fn check_limits(&self) {
        let (mut into, mut out) = (BTreeMap::new(), BTreeMap::new());
        for seen in self.logs.values().filter(|seen| seen.record.learner.is_some()) {
            *into.entry(seen.record.learner.clone().unwrap()).or_insert(0) += 1;
            *out.entry(seen.record.primary.clone()).or_insert(0) += 1;
        }
        let all: usize = into.values().sum();
        assert!(all <= self.policy.copies_in_all, "{all} copies at once");
        // Leads move while copies are made, so what a host sends can grow; what it starts to send is limited.
        assert!(into.values().all(|copies| *copies <= self.policy.copies_into_host), "{into:?}");
    }

    fn has(&self, log: &LogName, holder: &HolderId) -> u64 {
        self.entries.get(&(log.clone(), holder.clone())).copied().unwrap_or(0)
    }

    /// Simulates the primaries: entries are replicated, lagging copies leave the set, complete ones join, and requested
    /// handovers happen.
    pub fn primaries(&mut self) {
        let idle = |config: &LogConfig| {
            config.learner.is_none()
                && config.in_sync.len() == config.holders.len()
                && config.holders.iter().all(|holder| self.alive.contains_key(holder))
        };
        let moving = |name: &LogName, config: &LogConfig| {
            !self.skips_idle || !idle(config) || self.handovers.contains_key(name)
        };
        let names: Vec<LogName> = self
            .logs
            .iter()
            .filter(|(name, seen)| moving(name, &seen.record))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let config = self.logs[&name].record.clone();
            if self.alive.contains_key(&config.primary) {
                self.primary(&name, config);
            }
        }
    }

    fn primary(&mut self, name: &LogName, mut config: LogConfig) {
        let before = config.clone();
        let primary = config.primary.clone();
        let cut = self.alive[&primary].record.unreachable.clone();
        let reaches = |world: &World, holder: &HolderId| {
            *holder == primary || world.alive.contains_key(holder) && !cut.contains(holder)
        };
        let lagging: Vec<HolderId> =
            config.in_sync.iter().filter(|holder| !reaches(self, holder)).cloned().collect();
        if !lagging.is_empty()
            && let Ok(shrunk) = config.shrink(&lagging)
        {
            config = shrunk;
        }
        if let Some(asked) = self.handovers.get(name).map(|seen| seen.record.clone())
            && asked.epoch == config.epoch
            && config.in_sync.iter().all(|holder| reaches(self, holder))
            && let Ok(elected) = config.elect(&asked.to)
        {
            self.set(name, elected);
            return;
        }
        let members: Vec<HolderId> =
            config.members().filter(|holder| reaches(self, holder)).cloned().collect();
        for holder in &members {
            let all = self.has(name, &primary);
            self.entries.insert((name.clone(), holder.clone()), all);
            config = config.grow(holder).unwrap();
        }
        if config.in_sync.len() >= config.min_copies
            && config.in_sync.iter().all(|holder| reaches(self, holder))
        {
            let next = self.has(name, &primary) + 1;
            for holder in &config.in_sync {
                self.entries.insert((name.clone(), holder.clone()), next);
            }
            self.committed.insert(name.clone(), next);
        }
        if config != before {
            self.set(name, config);
        }
    }

    /// Lets steward and primaries act until the steward has no actions.
    pub fn settle(&mut self) {
        for _ in 0..2_000 {
            self.primaries();
            let decision = self.steward();
            self.primaries();
            if decision.actions.is_empty() && decide(&self.facts(), &self.policy).actions.is_empty() {
                return;
            }
            self.now += 1;
        }
        let left = decide(&self.facts(), &self.policy);
        panic!("never settles: {:?}", left.actions.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
}
