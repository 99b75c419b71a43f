//! What is known at one revision: every log, holder and drain, with names turned into positions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use capstan_control::drain::Intent;
use capstan_control::keys::{Drains, HostId, Hosts};
use capstan_log::keys::{LogKey, LogKeys};
use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::record::{Listing, RecordError, Stored};
use capstan_meta::view::{Ranges, Snapshot};
use capstan_meta::{MetaError, Store};
use smallvec::SmallVec;

use crate::keys::{Alive, AliveKey, HandoverKey, Handovers, HolderKey, Holders, Wanted, WantedKey};
use crate::spec::{Handover, HolderRecord, Policy, WantedLog};
use crate::status::HolderStatus;

/// Attempts to read at a revision that is compacted meanwhile.
const READ_ATTEMPTS: u32 = 5;

/// The position of a holder in [`Facts::holders`].
pub type Seat = u32;

/// The records that facts are assembled from, each kind in key order.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// The record of every log.
    pub logs: Vec<(LogName, Arc<Stored<LogConfig>>)>,
    /// The specs of services.
    pub wanted: Vec<(LogName, Arc<Stored<WantedLog>>)>,
    /// The requested handovers.
    pub handovers: Vec<(LogName, Arc<Stored<Handover>>)>,
    /// Every holder.
    pub holders: Vec<(HolderId, Arc<Stored<HolderRecord>>)>,
    /// Every live holder.
    pub alive: Vec<(HolderId, Arc<Stored<HolderStatus>>)>,
    /// Hosts that are draining or drained.
    pub draining: BTreeSet<HostId>,
    /// Records that cannot be parsed.
    pub bad: Vec<String>,
}

impl Records {
    /// The ranges that a view must cover.
    #[must_use]
    pub fn ranges() -> Ranges {
        Ranges::new()
            .with(&LogKeys {})
            .with(&Wanted {})
            .with(&Handovers {})
            .with(&Holders {})
            .with(&Alive {})
            .with(&Drains {})
            .with(&Hosts {})
    }

    /// The records of a snapshot that covers [`Records::ranges`].
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Records {
        let mut bad = Vec::new();
        let drains = snapshot.list(&Drains {});
        let draining = drains.iter().filter(|(_, drain)| drain.record.intent == Intent::Drain);
        let draining = draining.map(|(key, _)| key.host.clone()).collect();
        bad.extend(drains.bad.iter().map(ToString::to_string));
        Records {
            logs: entries(snapshot.list(&LogKeys {}), |key: LogKey| key.log, &mut bad),
            wanted: entries(snapshot.list(&Wanted {}), |key: WantedKey| key.log, &mut bad),
            handovers: entries(snapshot.list(&Handovers {}), |key: HandoverKey| key.log, &mut bad),
            holders: entries(snapshot.list(&Holders {}), |key: HolderKey| key.holder, &mut bad),
            alive: entries(snapshot.list(&Alive {}), |key: AliveKey| key.holder, &mut bad),
            draining,
            bad,
        }
    }
}

impl Records {
    /// The records as the store has them now, at one revision.
    pub async fn read(store: &Store) -> Result<Records, RecordError> {
        let mut attempt = 1;
        loop {
            match Records::read_once(store).await {
                Err(RecordError::Store(MetaError::Compacted { .. })) if attempt < READ_ATTEMPTS => {
                    attempt += 1
                }
                read => return read,
            }
        }
    }

    async fn read_once(store: &Store) -> Result<Records, RecordError> {
        let drains = store.list(&Drains {}).await?;
        let at = drains.revision;
        let (logs, wanted, handovers, holders, alive) = tokio::try_join!(
            store.list_at(&LogKeys {}, at),
            store.list_at(&Wanted {}, at),
            store.list_at(&Handovers {}, at),
            store.list_at(&Holders {}, at),
            store.list_at(&Alive {}, at),
        )?;
        let mut bad: Vec<String> = drains.bad.iter().map(ToString::to_string).collect();
        let draining = drains.iter().filter(|(_, drain)| drain.record.intent == Intent::Drain);
        Ok(Records {
            draining: draining.map(|(key, _)| key.host.clone()).collect(),
            logs: entries(logs, |key: LogKey| key.log, &mut bad),
            wanted: entries(wanted, |key: WantedKey| key.log, &mut bad),
            handovers: entries(handovers, |key: HandoverKey| key.log, &mut bad),
            holders: entries(holders, |key: HolderKey| key.holder, &mut bad),
            alive: entries(alive, |key: AliveKey| key.holder, &mut bad),
            bad,
        })
    }
}

fn entries<K: capstan_meta::record::Key, N>(
    listing: Listing<K>,
    name: impl Fn(K) -> N,
    bad: &mut Vec<String>,
) -> Vec<(N, Arc<Stored<K::Record>>)> {
    bad.extend(listing.bad.iter().map(ToString::to_string));
    listing.entries.into_iter().map(|(key, stored)| (name(key), stored)).collect()
}

/// A holder and its copies.
#[derive(Clone, Debug)]
pub struct HolderFact {
    /// Its name.
    pub id: HolderId,
    /// Its record; `None` for a name that only logs mention.
    pub record: Option<Arc<Stored<HolderRecord>>>,
    /// Its report; `None` while it is down.
    pub status: Option<Arc<Stored<HolderStatus>>>,
    /// Whether its host is draining or drained.
    pub draining: bool,
    /// The numbers of its host, failure domain and service, for comparison.
    pub host: u32,
    /// See `host`.
    pub domain: u32,
    /// See `host`.
    pub service: u32,
    /// Copies that it has, or will have when all moves in progress are done.
    pub load: usize,
    /// Copies that it has now, complete or not.
    pub copies: usize,
    /// Logs that it leads.
    pub leads: usize,
}

impl HolderFact {
    /// Whether it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.status.is_some()
    }

    /// Whether it is to have no copies: it is being retired, or was not added yet.
    #[must_use]
    pub fn is_retiring(&self) -> bool {
        self.record.as_ref().is_some_and(|seen| seen.record.retiring || seen.record.waiting)
    }

    /// Whether it was not added yet.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.record.as_ref().is_some_and(|seen| seen.record.waiting)
    }

    /// Since when it is down.
    #[must_use]
    pub fn down_since(&self) -> Option<u64> {
        self.record.as_ref().and_then(|seen| seen.record.down_since).filter(|_| !self.is_up())
    }

    /// Whether it has been down for this long. A holder without a record counts as down forever.
    #[must_use]
    pub fn is_down_for(&self, seconds: u64, now: u64) -> bool {
        match (&self.record, &self.status) {
            (_, Some(_)) => false,
            (None, None) => true,
            (Some(seen), None) => {
                seen.record.down_since.is_some_and(|since| since.saturating_add(seconds) <= now)
            }
        }
    }

    /// Whether its copies count as lost: it has been down for too long, and not on purpose.
    #[must_use]
    pub fn is_lost(&self, policy: &Policy, now: u64) -> bool {
        !self.draining && self.is_down_for(policy.repair_after, now)
    }

    /// Whether it can get copies.
    #[must_use]
    pub fn takes_copies(&self, policy: &Policy) -> bool {
        let room = self.status.as_ref().is_some_and(|seen| seen.record.free_bytes >= policy.reserve_bytes);
        room && self.record.is_some() && !self.is_retiring() && !self.draining
    }

    /// Whether it reports this holder as unreachable.
    #[must_use]
    pub fn cannot_reach(&self, other: &HolderId) -> bool {
        self.status.as_ref().is_some_and(|seen| seen.record.unreachable.contains(other))
    }
}

/// A log, with its holders by position.
#[derive(Clone, Debug)]
pub struct LogFact {
    /// Its position in [`Facts::logs`].
    pub at: usize,
    /// Its name.
    pub name: LogName,
    /// Its record.
    pub config: Arc<Stored<LogConfig>>,
    /// The service's spec; `None` for a log that was created by hand.
    pub wanted: Option<Arc<Stored<WantedLog>>>,
    /// The requested handover.
    pub handover: Option<Arc<Stored<Handover>>>,
    /// Its primary.
    pub primary: Seat,
    /// Its holders, without the learner.
    pub holders: SmallVec<[Seat; 4]>,
    /// The in-sync holders.
    pub in_sync: SmallVec<[Seat; 4]>,
    /// The learner.
    pub learner: Option<Seat>,
    /// The leaving holder.
    pub leaving: Option<Seat>,
}

impl LogFact {
    /// The requested number of copies.
    #[must_use]
    pub fn copies(&self) -> usize {
        self.wanted.as_ref().map_or(self.holders.len(), |seen| seen.record.copies)
    }

    /// The minimum number of copies of a committed entry.
    #[must_use]
    pub fn min_copies(&self) -> usize {
        self.config.record.min_copies
    }

    /// Every holder and the learner.
    pub fn members(&self) -> impl Iterator<Item = Seat> {
        self.holders.iter().copied().chain(self.learner)
    }
}

/// Everything known at one revision.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Every holder; those with a record come first.
    pub holders: Vec<HolderFact>,
    /// Every log, by name.
    pub logs: Vec<LogFact>,
    /// Logs with a spec and without a record.
    pub unmade: Vec<LogName>,
    /// Handovers of logs that do not exist.
    pub strays: Vec<(LogName, Arc<Stored<Handover>>)>,
    /// Records that cannot be parsed.
    pub bad: Vec<String>,
    /// The number of hosts, for tables by [`HolderFact::host`].
    pub hosts: usize,
    /// The number of services, for tables by [`HolderFact::service`].
    pub services: usize,
    /// The time, in seconds since 1970.
    pub now: u64,
    seats: HashMap<HolderId, Seat>,
    service_names: BTreeMap<String, u32>,
}

impl Facts {
    /// The facts of a snapshot that covers [`Records::ranges`], at this time.
    #[must_use]
    pub fn of(snapshot: &Snapshot, now: u64) -> Facts {
        Facts::new(Records::of(snapshot), now)
    }

    /// The facts of these records at this time.
    #[must_use]
    pub fn new(records: Records, now: u64) -> Facts {
        let mut facts = Facts { now, bad: records.bad, ..Facts::default() };
        let mut names = Names::default();
        let mut alive: HashMap<HolderId, _> = records.alive.into_iter().collect();
        for (id, record) in records.holders {
            let draining = records.draining.contains(&record.record.host);
            let status = alive.remove(&id);
            facts.seat_known(&mut names, id, record, status, draining);
        }
        facts.hosts = names.hosts.len();
        facts.services = names.services.len();
        facts.service_names = names.services;
        facts.logs.reserve(records.logs.len());
        let mut wanted = records.wanted.into_iter().peekable();
        let mut handovers = records.handovers.into_iter().peekable();
        for (name, config) in records.logs {
            while let Some((unmade, _)) = wanted.next_if(|(other, _)| *other < name) {
                facts.unmade.push(unmade);
            }
            while let Some(stray) = handovers.next_if(|(other, _)| *other < name) {
                facts.strays.push(stray);
            }
            let wanted = wanted.next_if(|(other, _)| *other == name).map(|(_, seen)| seen);
            let handover = handovers.next_if(|(other, _)| *other == name).map(|(_, seen)| seen);
            let log = facts.locate(name, config, wanted, handover);
            facts.tally(&log);
            facts.logs.push(log);
        }
        facts.unmade.extend(wanted.map(|(name, _)| name));
        facts.strays.extend(handovers);
        facts
    }

    /// The holder at a position.
    #[must_use]
    pub fn holder(&self, seat: Seat) -> &HolderFact {
        &self.holders[seat as usize]
    }

    /// The position of a holder.
    #[must_use]
    pub fn seat(&self, id: &HolderId) -> Option<Seat> {
        self.seats.get(id).copied()
    }

    /// The position of a service, if any holder belongs to it.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<u32> {
        self.service_names.get(name).copied()
    }

    /// The log of this name.
    #[must_use]
    pub fn log(&self, name: &LogName) -> Option<&LogFact> {
        let at = self.logs.binary_search_by(|log| log.name.cmp(name)).ok()?;
        self.logs.get(at)
    }

    fn seat_known(
        &mut self,
        names: &mut Names,
        id: HolderId,
        record: Arc<Stored<HolderRecord>>,
        status: Option<Arc<Stored<HolderStatus>>>,
        draining: bool,
    ) {
        let host = number(&mut names.hosts, record.record.host.as_str());
        let domain = number(&mut names.domains, record.record.domain());
        let service = number(&mut names.services, record.record.service.as_str());
        self.sit(HolderFact {
            id,
            record: Some(record),
            status,
            draining,
            host,
            domain,
            service,
            load: 0,
            copies: 0,
            leads: 0,
        });
    }

    fn sit(&mut self, holder: HolderFact) -> Seat {
        let seat = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        self.seats.insert(holder.id.clone(), seat);
        self.holders.push(holder);
        seat
    }

    /// The position of a holder that a log mentions; one without a record has its own host and domain.
    fn find(&mut self, id: &HolderId) -> Seat {
        if let Some(seat) = self.seats.get(id) {
            return *seat;
        }
        let own = u32::try_from(self.hosts).unwrap_or(u32::MAX);
        self.hosts += 1;
        self.sit(HolderFact {
            id: id.clone(),
            record: None,
            status: None,
            draining: false,
            host: own,
            domain: u32::MAX - own,
            service: u32::MAX,
            load: 0,
            copies: 0,
            leads: 0,
        })
    }

    fn locate(
        &mut self,
        name: LogName,
        config: Arc<Stored<LogConfig>>,
        wanted: Option<Arc<Stored<WantedLog>>>,
        handover: Option<Arc<Stored<Handover>>>,
    ) -> LogFact {
        let record = &config.record;
        let holders: SmallVec<[Seat; 4]> = record.holders.iter().map(|id| self.find(id)).collect();
        // In-sync members are holders: comparing with three names is cheaper than a lookup.
        let mut among = |id: &HolderId| match record.holders.iter().position(|other| other == id) {
            Some(at) => holders[at],
            None => self.find(id),
        };
        let in_sync = record.in_sync.iter().map(&mut among).collect();
        let primary = among(&record.primary);
        let leaving = record.leaving.as_ref().map(&mut among);
        let learner = record.learner.as_ref().map(|id| self.find(id));
        LogFact {
            at: self.logs.len(),
            name,
            wanted,
            handover,
            primary,
            holders,
            in_sync,
            learner,
            leaving,
            config,
        }
    }

    fn tally(&mut self, log: &LogFact) {
        for seat in log.members() {
            let holder = &mut self.holders[seat as usize];
            holder.copies += 1;
            holder.load += 1;
        }
        if let Some(leaving) = log.leaving {
            let holder = &mut self.holders[leaving as usize];
            holder.load = holder.load.saturating_sub(1);
        }
        self.holders[log.primary as usize].leads += 1;
    }
}

/// Numbers for names that are only compared.
#[derive(Default)]
struct Names {
    hosts: BTreeMap<String, u32>,
    domains: BTreeMap<String, u32>,
    services: BTreeMap<String, u32>,
}

fn number(names: &mut BTreeMap<String, u32>, name: &str) -> u32 {
    let next = u32::try_from(names.len()).unwrap_or(u32::MAX);
    match names.get(name) {
        Some(number) => *number,
        None => *names.entry(name.to_owned()).or_insert(next),
    }
}
