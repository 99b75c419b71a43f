//! What must never happen? The rules of a rollout, as code that watches one and says which rule was broken.
//!
//! The simulation tells it every fact; it knows the truth on all hosts, which no updater does.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::{HostMove, SlotChange};
use crate::facts::Facts;
use crate::lrn::{Lrn, Lrns};
use crate::release::StepKind;
use crate::spec::Policy;
use crate::status::Phase;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A host began a step that all run together while another had not done the one before.
    #[error("host {lrn} began barrier step {step} although host {other} has only done {done}")]
    Barrier {
        /// The host that began.
        lrn: Lrn,
        /// Which step.
        step: u32,
        /// The host that was missing.
        other: Lrn,
        /// What it had done.
        done: u32,
    },
    /// A host ran a step again, or left one out.
    #[error("host {lrn} began step {step} of request {generation} after step {before}")]
    Order {
        /// The host.
        lrn: Lrn,
        /// In which request.
        generation: u64,
        /// Which step.
        step: u32,
        /// The last one before it.
        before: u32,
    },
    /// More hosts of a failure domain were out of service than may be.
    #[error("{out} hosts of domain {domain:?} are out of service by the rollout: at most {limit}")]
    Unavailable {
        /// The domain.
        domain: String,
        /// How many.
        out: usize,
        /// How many may be.
        limit: usize,
    },
    /// A host was worked on while its services had work on it.
    #[error("host {0} runs a rolling step and is not drained")]
    NotDrained(Lrn),
    /// Two replicas of one shard were out of service by the rollout's doing.
    #[error("hosts {0} and {1} hold the same shard and are both out of service by the rollout")]
    Shard(Lrn, Lrn),
    /// A report of one request was written into another.
    #[error("host {lrn} reported about request {reported} while request {current} was there")]
    Generation {
        /// The host.
        lrn: Lrn,
        /// What it reported about.
        reported: u64,
        /// What was there.
        current: u64,
    },
    /// A host began something although it knew that the request was stopped.
    #[error("host {0} began step {1} after it had seen the stop")]
    AfterStop(Lrn, u32),
    /// A host was let begin although one of an earlier wave had finished and is gone, beyond what may fail.
    #[error("host {0} was let begin although host {1} of an earlier wave had finished and is gone")]
    Harm(Lrn, Lrn),
    /// A host confirmed a stop, or had the time to obey one, and its step runs on.
    #[error("a step runs on host {0} after its stop was confirmed or was due")]
    StillRuns(Lrn),
    /// A leader of the past changed something.
    #[error("a leader of term {0} changed something in term {1}")]
    Leader(i64, i64),
    /// A host said that it has a release which it does not have.
    #[error("host {lrn} reports {claims} and has {has}")]
    Untrue {
        /// The host.
        lrn: Lrn,
        /// What it says.
        claims: String,
        /// What it has.
        has: String,
    },
    /// Two hosts did what is done once, and neither of them had failed or gone.
    #[error("hosts {0} and {1} both did step {2}, which is done once")]
    Twice(Lrn, Lrn, u32),
}

/// The truth about one host.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// The request that it is in, and the last step that it has done there.
    pub done: (u64, u32),
    /// Whether others need not wait for it: its lease is gone, it failed, or it was skipped.
    pub excused: bool,
    /// Whether it is out of service because the rollout wanted it.
    pub out: bool,
    /// Whether its services have no work on it.
    pub empty: bool,
    /// Its failure domain.
    pub domain: String,
    /// The shards that it holds.
    pub shards: Vec<u32>,
}

/// A host begins a step.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The host.
    pub lrn: Lrn,
    /// In which request.
    pub generation: u64,
    /// Which step.
    pub step: u32,
    /// Of which kind.
    pub kind: StepKind,
    /// Whether it had begun it before and was interrupted.
    pub resumed: bool,
    /// Whether it has seen that the request is stopped.
    pub saw_stop: bool,
    /// Whether the updater let it catch up alone.
    pub alone: bool,
}

/// Watches over a rollout.
#[derive(Clone, Debug, Default)]
pub struct Safety {
    begun: BTreeMap<(Lrn, u64), u32>,
    /// Barriers at which all hosts were found to be there: a later host finds the same.
    met: BTreeSet<(u64, u32)>,
    once: BTreeMap<(u64, u32), BTreeSet<Lrn>>,
}

impl Safety {
    /// A host begins a step. `members` are those of its request.
    pub fn begins(
        &mut self,
        begun: Begun,
        members: &Lrns,
        hosts: &BTreeMap<Lrn, Truth>,
        policy: &Policy,
    ) -> Result<(), Violation> {
        let Begun { lrn, generation, step, kind, resumed, saw_stop, alone } = begun;
        if saw_stop {
            return Err(Violation::AfterStop(lrn, step));
        }
        let before = self.begun.insert((lrn, generation), step).unwrap_or(0);
        let repeated = step <= before && !(resumed && step == before);
        if repeated {
            return Err(Violation::Order { lrn, generation, step, before });
        }
        match kind {
            StepKind::Barrier if alone => Ok(()),
            StepKind::Barrier if self.met.contains(&(generation, step)) => Ok(()),
            StepKind::Barrier => {
                barrier(begun, members, hosts)?;
                self.met.insert((generation, step));
                Ok(())
            }
            StepKind::Once => self.once(begun, hosts),
            StepKind::Rolling => match hosts.get(&lrn) {
                Some(truth) if !truth.empty => Err(Violation::NotDrained(lrn)),
                Some(_) | None => availability(members, hosts, policy),
            },
            StepKind::SelfUpdate => Ok(()),
        }
    }

    /// A host left: one that joins under its number is another host.
    pub fn forget(&mut self, lrn: Lrn) {
        self.begun.retain(|(of, _), _| *of != lrn);
        self.once.values_mut().for_each(|did| {
            did.remove(&lrn);
        });
    }

    /// A host went back to the version before: its steps are undone, and it may run them again from the first one on.
    pub fn went_back(&mut self, lrn: Lrn, generation: u64) {
        self.begun.remove(&(lrn, generation));
    }

    fn once(&mut self, begun: Begun, hosts: &BTreeMap<Lrn, Truth>) -> Result<(), Violation> {
        let did = self.once.entry((begun.generation, begun.step)).or_default();
        let other = did
            .iter()
            .copied()
            .find(|other| *other != begun.lrn && hosts.get(other).is_some_and(|truth| !truth.excused));
        did.insert(begun.lrn);
        // A host that continues was judged when it began.
        let other = other.filter(|_| !begun.resumed);
        other.map_or(Ok(()), |other| Err(Violation::Twice(other, begun.lrn, begun.step)))
    }
}

/// No host runs step N of a barrier before all others that are there have done N - 1.
fn barrier(begun: Begun, members: &Lrns, hosts: &BTreeMap<Lrn, Truth>) -> Result<(), Violation> {
    for other in members {
        let Some(truth) = hosts.get(other) else { continue };
        let done = if truth.done.0 == begun.generation { truth.done.1 } else { 0 };
        if !truth.excused && done + 1 < begun.step {
            return Err(Violation::Barrier { lrn: begun.lrn, step: begun.step, other: *other, done });
        }
    }
    Ok(())
}

/// Never fewer of a domain, and never two replicas of a shard, by the rollout's doing.
pub fn availability(members: &Lrns, hosts: &BTreeMap<Lrn, Truth>, policy: &Policy) -> Result<(), Violation> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut out: BTreeMap<&str, usize> = BTreeMap::new();
    let mut shards: BTreeMap<u32, Lrn> = BTreeMap::new();
    for (lrn, truth) in hosts.iter().filter(|(lrn, _)| members.contains(lrn)) {
        *sizes.entry(&truth.domain).or_default() += 1;
        if !truth.out {
            continue;
        }
        *out.entry(&truth.domain).or_default() += 1;
        for shard in truth.shards.iter().filter(|_| truth.empty) {
            if let Some(other) = shards.insert(*shard, *lrn) {
                return Err(Violation::Shard(other, *lrn));
            }
        }
    }
    for (domain, out) in out {
        let limit = policy.unavailable(sizes.get(domain).copied().unwrap_or(0));
        if out > limit {
            return Err(Violation::Unavailable { domain: domain.to_owned(), out, limit });
        }
    }
    Ok(())
}

/// No host begins after a sign of harm: a host of an earlier wave had finished and is gone, and more of its group failed
/// or are gone than may.
pub fn granted(known: &Facts, moves: &[HostMove]) -> Result<(), Violation> {
    let (Some(request), Some(plan)) = (&known.request, &known.plan) else { return Ok(()) };
    let request = &request.record;
    let skipped = known.orders.as_ref().map(|seen| &seen.record.skip);
    let is_gone = |lrn: &Lrn| {
        let report =
            known.statuses.get(lrn).map(|seen| &seen.record).filter(|status| status.is_about(request));
        known.registry.contains(lrn)
            && !known.leases.contains_key(lrn)
            && report.is_some_and(|report| report.finished && !report.error)
            && known.desired.get(lrn).is_none_or(|seen| seen.record.failure.is_none())
            && !skipped.is_some_and(|skipped| skipped.contains_key(lrn))
    };
    let begins = moves.iter().filter(|host| host.slot == SlotChange::Take && !known.has_ended());
    for host in begins {
        let Some(group) = plan.record.groups.iter().find(|group| group.group == host.group) else { continue };
        let wave_of = |lrn: Lrn| group.waves.iter().position(|wave| wave.contains(&lrn));
        let goes_on = known.desired.get(&host.lrn).is_some_and(|seen| seen.record.phase == Phase::Gone);
        let gone: Vec<Lrn> = group.hosts().filter(is_gone).collect();
        let budget =
            known.policies.get(&host.group).map_or(0, |policy| policy.failure_budget.limit_of(group.len()));
        let earlier = gone.iter().find(|other| wave_of(**other) < wave_of(host.lrn));
        if let (false, true, Some(other)) = (goes_on, gone.len() > budget, earlier) {
            return Err(Violation::Harm(host.lrn, *other));
        }
    }
    Ok(())
}

/// A report counts only for the request that is there.
pub fn reported(lrn: Lrn, reported: u64, current: Option<u64>) -> Result<(), Violation> {
    match current {
        Some(current) if current == reported => Ok(()),
        current => Err(Violation::Generation { lrn, reported, current: current.unwrap_or(0) }),
    }
}

/// At most one leader's writes take effect per term.
pub fn led(term: i64, current: i64) -> Result<(), Violation> {
    if term == current { Ok(()) } else { Err(Violation::Leader(term, current)) }
}

/// What a host says it has it has.
pub fn truthful(lrn: Lrn, claims: &str, has: &str) -> Result<(), Violation> {
    match claims == has {
        true => Ok(()),
        false => Err(Violation::Untrue { lrn, claims: claims.to_owned(), has: has.to_owned() }),
    }
}
