//! What does the updater know? Everything that a decision looks at, as it was at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::drain::{DrainAnswer, DrainRecord, DrainStatus, FailureUnit, status as drain_status};
use capstan_control::hosts::HostRecord;
use capstan_control::keys::{Answers, Drains, HostId, Hosts, ServiceName};
use capstan_meta::KeyRange;
use capstan_meta::record::{BadValue, Key, Listing, Prefix, Stored};
use capstan_meta::view::{Ranges, Snapshot};

use crate::check::repair;
use crate::encoding::{Moment, Nanos};
use crate::history::{HistoryRecord, Outcome};
use crate::keys::{GroupName, Tree};
use crate::lrn::{Lrn, Lrns};
use crate::plan::{Labels, Policies, RolloutPlan};
use crate::spec::{Orders, ReleaseRecord, Target};
use crate::status::{Desired, Holder, HostInfo, HostLease, HostStatus, Released, Request, Slots};

/// What the document says where it says it, and what the program that it describes does where it does not.
pub const DEFAULT_WORKER_TIMEOUT: Duration = Duration::from_secs(3_600);
/// How often the source is asked for a newer release unless an operator says otherwise.
pub const DEFAULT_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Where records are read from: a view's snapshot, or a simulated store.
pub trait Source {
    /// The record at a key.
    fn get<K: Key>(&self, key: &K) -> Result<Option<Arc<Stored<K::Record>>>, BadValue>;

    /// Everything under a prefix.
    fn list<P: Prefix>(&self, prefix: &P) -> Listing<P::Key>;

    /// The highest number in the keys under a prefix, whether or not their values can be read.
    fn numbers<P: Prefix>(&self, prefix: &P, number: impl Fn(P::Key) -> u64) -> u64 {
        let listing = self.list(prefix);
        let bad = listing.bad.iter().filter_map(|bad| P::Key::parse(&bad.key)).map(&number).max();
        let good = listing.entries.into_iter().map(|(key, _)| number(key)).max();
        bad.max(good).unwrap_or(0)
    }
}

impl Source for Snapshot {
    fn get<K: Key>(&self, key: &K) -> Result<Option<Arc<Stored<K::Record>>>, BadValue> {
        Snapshot::get(self, key)
    }

    fn list<P: Prefix>(&self, prefix: &P) -> Listing<P::Key> {
        Snapshot::list(self, prefix)
    }
}

/// Keys and their records.
type Entries<K> = Vec<(K, Seen<<K as Key>::Record>)>;

/// A record and what a guard needs to know about it.
pub type Seen<R> = Arc<Stored<R>>;

/// What operators have configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where events are told.
    pub slack: Option<String>,
    /// Through what the outside is reached.
    pub proxy: Option<String>,
    /// How often the source is asked.
    pub check_interval: Duration,
    /// How long workers may take.
    pub worker_timeout: Duration,
    /// Where releases are found.
    pub source: Option<String>,
    /// Whether newer releases are applied without an operator's word.
    pub auto_update: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            slack: None,
            proxy: None,
            check_interval: DEFAULT_CHECK_INTERVAL,
            worker_timeout: DEFAULT_WORKER_TIMEOUT,
            source: None,
            auto_update: true,
        }
    }
}

impl Settings {
    /// What is configured, as far as it can be read.
    pub fn read(source: &impl Source, tree: &Tree) -> Settings {
        Reader { source, unreadable: Vec::new(), problems: Vec::new() }.settings(tree)
    }
}

/// A drain, and where it stands.
#[derive(Clone, Debug)]
pub struct KnownDrain {
    /// As it is stored.
    pub stored: Seen<DrainRecord>,
    /// What its services say.
    pub status: DrainStatus,
    /// What must not be out of service on two hosts at the same time, as its services say: shards, logs.
    pub units: BTreeSet<FailureUnit>,
}

/// A value that could not be read: what it would have said is not known, so nothing new begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The key.
    pub key: String,
    /// What is wrong with its value.
    pub reason: String,
    /// The command that repairs it.
    pub repair: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read ({}); {}", self.key, self.reason, self.repair)
    }
}

/// Everything that a decision looks at.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The moment of the decision.
    pub now: Moment,
    /// The request.
    pub request: Option<Seen<Request>>,
    /// The step that hosts may run together.
    pub released: Option<Seen<Released>>,
    /// How far hosts are.
    pub statuses: BTreeMap<Lrn, Seen<HostStatus>>,
    /// The hosts of the fleet.
    pub registry: Lrns,
    /// What is known about hosts.
    pub infos: BTreeMap<Lrn, Seen<HostInfo>>,
    /// Whose worker is up.
    pub leases: BTreeMap<Lrn, Seen<HostLease>>,
    /// What is wanted of hosts.
    pub desired: BTreeMap<Lrn, Seen<Desired>>,
    /// The hosts that are out of service.
    pub slots: BTreeMap<GroupName, Seen<Slots>>,
    /// The rules of the groups.
    pub policies: Policies,
    /// The orders about the request.
    pub orders: Option<Seen<Orders>>,
    /// The plan of the request.
    pub plan: Option<Seen<RolloutPlan>>,
    /// What is noted about the request.
    pub history: Option<Seen<HistoryRecord>>,
    /// The highest generation that there ever was.
    pub last_generation: u64,
    /// The version of the last request that succeeded.
    pub last_success: Option<String>,
    /// The release that the fleet is to have.
    pub target: Option<Seen<Target>>,
    /// What is known of the releases.
    pub releases: BTreeMap<String, Seen<ReleaseRecord>>,
    /// Drains of hosts, by their names in the kernel.
    pub drains: BTreeMap<HostId, KnownDrain>,
    /// Hosts that are up, by their names in the kernel.
    pub hosts_up: BTreeMap<HostId, Seen<HostRecord>>,
    /// What operators have configured.
    pub settings: Settings,
    /// Messages that wait to be sent.
    pub waiting_notices: usize,
    /// Hosts whose services are not healthy, by their names in the kernel, and what is wrong.
    pub ailing: BTreeMap<HostId, String>,
    /// Values that could not be read and that a decision depends on: they hold the rollout.
    pub unreadable: Vec<Unreadable>,
    /// Values that could not be read and that no rollout depends on.
    pub problems: Vec<String>,
}

impl Facts {
    /// What a view for decisions has to cover.
    #[must_use]
    pub fn ranges(tree: &Tree) -> Ranges {
        Facts::key_ranges(tree).into_iter().fold(Ranges::new(), Ranges::with_range)
    }

    /// The same, one by one.
    #[must_use]
    pub fn key_ranges(tree: &Tree) -> Vec<KeyRange> {
        vec![
            Key::range(&tree.current()).keys,
            Key::range(&tree.released()).keys,
            Key::range(&tree.target()).keys,
            Prefix::range(&tree.host_statuses()),
            Prefix::range(&tree.boot_servers()),
            Prefix::range(&tree.host_infos()),
            Prefix::range(&tree.all_slots()),
            Prefix::range(&tree.policies()),
            Prefix::range(&tree.plans()),
            Prefix::range(&tree.all_orders()),
            Prefix::range(&tree.histories()),
            Prefix::range(&tree.releases()),
            Prefix::range(&tree.outbox()),
            Prefix::range(&tree.config()),
            Prefix::range(&tree.candidates()),
            Prefix::range(&Drains {}),
            Prefix::range(&Hosts {}),
        ]
    }

    /// Reads everything that a decision looks at.
    pub fn read(source: &impl Source, tree: &Tree, now: Moment) -> Facts {
        let mut reader = Reader { source, unreadable: Vec::new(), problems: Vec::new() };
        let request = reader.get(&tree.current());
        let generation = request.as_ref().map_or(0, |seen| seen.record.generation);
        let histories = reader.others(&tree.histories());
        let hosts_up = by(reader.list(&Hosts {}), |key| key.host);
        let leases = by(reader.list(&tree.host_leases()), |key| key.lrn);
        // A number is taken as soon as a key or a host has it, whether or not the rest can be read.
        let recorded = source.numbers(&tree.histories(), |key| key.generation);
        let worked = leases.values().map(|seen| seen.record.generation).max().unwrap_or(0);
        let last_success = histories
            .iter()
            .filter(|(_, seen)| seen.record.outcome == Some(Outcome::Succeeded))
            .max_by_key(|(key, _)| key.generation)
            .map(|(_, seen)| seen.record.version.clone());
        Facts {
            now,
            released: reader.get(&tree.released()),
            statuses: by(reader.list(&tree.host_statuses()), |key| key.lrn),
            registry: reader.list(&tree.boot_servers()).into_iter().map(|(key, _)| key.lrn).collect(),
            infos: by(reader.list(&tree.host_infos()), |key| key.lrn),
            leases,
            desired: by(reader.list(&tree.desireds()), |key| key.lrn),
            slots: by(reader.list(&tree.all_slots()), |key| key.group),
            policies: reader
                .list(&tree.policies())
                .into_iter()
                .map(|(key, seen)| (key.group, seen.record.clone()))
                .collect(),
            orders: reader.get(&tree.orders(generation)),
            plan: reader.get(&tree.plan(generation)),
            history: reader.get(&tree.history(generation)),
            last_generation: recorded.max(generation).max(worked),
            last_success,
            target: reader.get(&tree.target()),
            releases: by(reader.list(&tree.releases()), |key| key.version.as_str().to_owned()),
            drains: reader.drains(&hosts_up),
            hosts_up,
            settings: reader.settings(tree),
            waiting_notices: reader.others(&tree.outbox()).len(),
            ailing: BTreeMap::new(),
            unreadable: reader.unreadable,
            problems: reader.problems,
            request,
        }
    }

    /// The labels of every host.
    #[must_use]
    pub fn labels(&self) -> Labels {
        self.infos.iter().map(|(lrn, seen)| (*lrn, seen.record.labels.clone())).collect()
    }

    /// Whether a host named in the slots of a group still holds one. A slot of an earlier request is free, because what
    /// it was for is over, and so is that of a host that left and has stopped.
    #[must_use]
    pub fn still_holds(&self, name: &str, holder: &Holder) -> bool {
        let current = self.request.as_ref().map(|seen| seen.record.generation);
        let holds = |lrn: Lrn| self.registry.contains(&lrn) || self.is_leaving(lrn);
        match holder.generation {
            None => true,
            held => held == current && name.parse().is_ok_and(holds),
        }
    }

    /// Whether the request has ended: what follows is catching up.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.history.as_ref().is_some_and(|seen| seen.record.outcome.is_some())
    }

    /// Whether a host has left the fleet and its worker has not said yet that nothing of the request runs there.
    #[must_use]
    pub fn is_leaving(&self, lrn: Lrn) -> bool {
        let Some(request) = self.request.as_ref().map(|seen| &seen.record) else { return false };
        let took_part = !request.stop && !self.has_ended() && request.servers.contains(&lrn);
        // What is known of it is removed last: with that it is forgotten, whatever its worker says later.
        let known = self.infos.contains_key(&lrn) || self.desired.contains_key(&lrn);
        took_part
            && known
            && !self.registry.contains(&lrn)
            && self.leases.contains_key(&lrn)
            && !self.has_stopped(lrn)
    }

    /// Whether a host has confirmed that nothing of the request runs on it any more.
    #[must_use]
    pub fn has_stopped(&self, lrn: Lrn) -> bool {
        let Some(request) = self.request.as_ref().map(|seen| &seen.record) else { return true };
        let status = self.statuses.get(&lrn).map(|seen| &seen.record);
        status.is_some_and(|status| status.stopped && status.is_about(request))
    }

    /// What a host is called in the kernel.
    #[must_use]
    pub fn host_id(&self, lrn: Lrn) -> Option<&HostId> {
        self.infos.get(&lrn).and_then(|seen| seen.record.host.as_ref())
    }
}

fn by<K: Key, N: Ord>(entries: Entries<K>, name: impl Fn(K) -> N) -> BTreeMap<N, Seen<K::Record>> {
    entries.into_iter().map(|(key, seen)| (name(key), seen)).collect()
}

/// Reads records and collects what cannot be read.
struct Reader<'s, S> {
    source: &'s S,
    unreadable: Vec<Unreadable>,
    problems: Vec<String>,
}

impl<S: Source> Reader<'_, S> {
    fn get<K: Key>(&mut self, key: &K) -> Option<Seen<K::Record>> {
        self.source.get(key).unwrap_or_else(|bad| {
            self.hold(&bad);
            None
        })
    }

    fn list<P: Prefix>(&mut self, prefix: &P) -> Entries<P::Key> {
        let listing = self.source.list(prefix);
        listing.bad.iter().for_each(|bad| self.hold(bad));
        listing.entries
    }

    /// The same where no rollout depends on a value: old history, messages that wait.
    fn others<P: Prefix>(&mut self, prefix: &P) -> Entries<P::Key> {
        let listing = self.source.list(prefix);
        self.problems.extend(listing.bad.iter().map(BadValue::to_string));
        listing.entries
    }

    fn hold(&mut self, bad: &BadValue) {
        let unreadable =
            Unreadable { key: bad.key.clone(), reason: bad.reason.clone(), repair: repair(&bad.key) };
        self.unreadable.push(unreadable);
    }

    fn setting<K: Key>(&mut self, key: &K) -> Option<Seen<K::Record>> {
        self.source.get(key).unwrap_or_else(|bad| {
            self.problems.push(bad.to_string());
            None
        })
    }

    fn drains(&mut self, hosts: &BTreeMap<HostId, Seen<HostRecord>>) -> BTreeMap<HostId, KnownDrain> {
        let drains = self.list(&Drains {});
        if drains.is_empty() {
            return BTreeMap::new();
        }
        let mut answers: BTreeMap<HostId, Vec<(ServiceName, Seen<DrainAnswer>)>> = BTreeMap::new();
        for (key, seen) in self.list(&Answers {}) {
            answers.entry(key.host).or_default().push((key.service, seen));
        }
        let known = drains.into_iter().map(|(key, stored)| {
            let given: Vec<(ServiceName, &Stored<DrainAnswer>)> = answers
                .get(&key.host)
                .into_iter()
                .flatten()
                .map(|(service, seen)| (service.clone(), &**seen))
                .collect();
            let up = hosts.get(&key.host).map(|seen| &seen.record);
            let status = drain_status(&key.host, &stored, up, &given);
            // Whatever was answered last: until it has returned, a host may lack what it held.
            let units = given.iter().flat_map(|(_, answer)| answer.record.units.iter().cloned()).collect();
            (key.host, KnownDrain { stored, status, units })
        });
        known.collect()
    }

    fn settings(&mut self, tree: &Tree) -> Settings {
        let text = |seen: Option<Seen<String>>| {
            seen.map(|seen| seen.record.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let plain = Settings::default();
        let timeout = self.span(&tree.worker_timeout()).or_else(|| self.span(&tree.short_worker_timeout()));
        Settings {
            slack: text(self.setting(&tree.slack())),
            proxy: text(self.setting(&tree.proxy())),
            check_interval: self.span(&tree.check_interval()).unwrap_or(plain.check_interval),
            worker_timeout: timeout.unwrap_or(plain.worker_timeout),
            source: text(self.setting(&tree.source())),
            auto_update: self.switch(&tree.auto_update(), plain.auto_update),
        }
    }

    /// A switch. What is neither on nor off is a problem, and off: it was meant to say something.
    fn switch<K: Key<Record = String>>(&mut self, key: &K, unset: bool) -> bool {
        let Some(seen) = self.setting(key) else { return unset };
        match seen.record.trim() {
            "true" => true,
            "false" => false,
            other => {
                self.problems.push(format!(
                    "bad value at {key}: {other:?} is neither true nor false; it counts as false"
                ));
                false
            }
        }
    }

    /// A duration; one that cannot be waited for is a problem, and the default holds.
    fn span<K: Key<Record = Nanos>>(&mut self, key: &K) -> Option<Duration> {
        let nanos = self.setting(key)?.record;
        if nanos.positive().is_none() {
            self.problems.push(format!("bad value at {key}: {nanos} is not more than nothing"));
        }
        nanos.positive()
    }
}
