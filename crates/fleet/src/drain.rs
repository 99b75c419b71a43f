//! How does the fleet ask for a host to be emptied? Through the kernel's drain records, marked as its own.

use std::collections::BTreeSet;

use capstan_control::drain::{Ask, DrainPhase, DrainRecord, Intent, wish_to_drain, wish_to_return};
use capstan_control::keys::{DrainKey, HostId};
use capstan_meta::record::Key;
use capstan_meta::{Compare, Put};

use crate::facts::Facts;
use crate::lrn::Lrn;

/// The requester of the fleet's drains. Drains of others are neither taken over nor taken back.
pub const OWNER: &str = "fleet";

/// What is asked of the services of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainWish {
    /// To move their work away.
    Ask,
    /// To take up work again.
    Return,
}

/// Where the emptying of a host stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Emptiness {
    /// Nothing runs there that could be drained.
    Nothing,
    /// No drain is requested.
    Unasked,
    /// Some service is not done, and this is why.
    Draining(Vec<String>),
    /// The host is empty.
    Empty,
    /// The fleet asked for its return, and these are not back.
    Returning(Vec<String>),
}

/// Where the emptying of a host stands.
#[must_use]
pub fn emptiness(facts: &Facts, lrn: Lrn) -> Emptiness {
    let Some(host) = facts.host_id(lrn) else { return Emptiness::Nothing };
    match facts.drains.get(host) {
        Some(drain) => match drain.status.phase {
            DrainPhase::Draining => Emptiness::Draining(drain.status.waiting()),
            DrainPhase::Drained => Emptiness::Empty,
            DrainPhase::Returning => Emptiness::Returning(drain.status.waiting()),
            DrainPhase::Returned => Emptiness::Returning(Vec::new()),
        },
        None if facts.hosts_up.get(host).is_some_and(|up| !up.record.services.is_empty()) => {
            Emptiness::Unasked
        }
        None => Emptiness::Nothing,
    }
}

/// Whether the fleet has asked for the host to be drained and not taken it back.
#[must_use]
pub fn is_ours(facts: &Facts, lrn: Lrn) -> bool {
    let drain = facts.host_id(lrn).and_then(|host| facts.drains.get(host));
    drain.is_some_and(|drain| asked_by_us(&drain.stored.record))
}

fn asked_by_us(drain: &DrainRecord) -> bool {
    drain.asked_by == OWNER && drain.intent == Intent::Drain
}

/// Hosts that the fleet keeps drained although the request is not about them: they left meanwhile, or left and joined
/// again, or a request was cleared away. Nothing else would ever take these drains back, and a replica that is missing
/// for ever keeps its peers from being drained.
#[must_use]
pub fn strays(facts: &Facts) -> Vec<HostId> {
    let ours = facts.drains.iter().filter(|(_, drain)| asked_by_us(&drain.stored.record));
    let ours: Vec<&HostId> = ours.map(|(host, _)| host).collect();
    if ours.is_empty() {
        return Vec::new();
    }
    let members = facts.request.iter().flat_map(|seen| &seen.record.servers);
    let members: BTreeSet<&HostId> = members.filter_map(|lrn| facts.host_id(*lrn)).collect();
    ours.into_iter().filter(|host| !members.contains(host)).cloned().collect()
}

/// The guard and the write with which a drain is taken back; nothing if it is not the fleet's.
#[must_use]
pub fn take_back(facts: &Facts, host: &HostId) -> Option<(Compare, Put)> {
    let seen = &*facts.drains.get(host).filter(|drain| asked_by_us(&drain.stored.record))?.stored;
    let record =
        wish_to_return(Some(&seen.record), &ask(facts, "the request is not about this host")).ok()?;
    let key = DrainKey { host: host.clone() };
    Some((key.unchanged(seen), key.replace(seen, &record)))
}

/// The guard and the write with which a wish is recorded; nothing if it is recorded already, or there is nobody to ask.
#[must_use]
pub fn wish(facts: &Facts, lrn: Lrn, wish: DrainWish, reason: &str) -> Option<(Compare, Put)> {
    let host = facts.host_id(lrn)?;
    let seen = facts.drains.get(host).map(|drain| &*drain.stored);
    let ask = ask(facts, reason);
    let up = facts.hosts_up.get(host).map(|up| &up.record);
    let record = match wish {
        DrainWish::Ask => wish_to_drain(host, up, seen.map(|seen| &seen.record), &ask).ok()?.ok()?,
        DrainWish::Return if is_ours(facts, lrn) => {
            wish_to_return(seen.map(|seen| &seen.record), &ask).ok()?
        }
        DrainWish::Return => return None,
    };
    let key = DrainKey { host: host.clone() };
    Some((key.as_seen(seen), put(&key, seen, &record)))
}

fn ask(facts: &Facts, reason: &str) -> Ask {
    Ask {
        asked_by: OWNER.to_owned(),
        reason: reason.to_owned(),
        asked_at: facts.now.as_epoch().as_secs(),
        services: Vec::new(),
    }
}

fn put(
    key: &DrainKey,
    seen: Option<&capstan_meta::record::Stored<DrainRecord>>,
    record: &DrainRecord,
) -> Put {
    match seen {
        Some(seen) => key.replace(seen, record),
        None => key.put(record),
    }
}
