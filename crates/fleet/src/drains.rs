//! How does the fleet ask for a host to be emptied? Through the kernel's drain records, marked as its own.

use capstan_control::drain::{Ask, DrainPhase, DrainRecord, Intent, wish_to_drain, wish_to_return};
use capstan_control::keys::DrainKey;
use capstan_meta::record::Key;
use capstan_meta::{Compare, Put};

use crate::lrn::Lrn;
use crate::world::World;

/// Who the fleet's drains are asked by. A drain of somebody else is neither taken over nor taken back.
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
    /// Nobody has asked.
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
pub fn emptiness(world: &World, lrn: Lrn) -> Emptiness {
    let Some(host) = world.host_id(lrn) else { return Emptiness::Nothing };
    match world.drains.get(host) {
        Some(drain) => match drain.status.phase {
            DrainPhase::Draining => Emptiness::Draining(drain.status.waiting()),
            DrainPhase::Drained => Emptiness::Empty,
            DrainPhase::Returning => Emptiness::Returning(drain.status.waiting()),
            DrainPhase::Returned => Emptiness::Returning(Vec::new()),
        },
        None if world.hosts_up.get(host).is_some_and(|up| !up.record.services.is_empty()) => {
            Emptiness::Unasked
        }
        None => Emptiness::Nothing,
    }
}

/// Whether the fleet has asked for the host to be drained and not taken it back.
#[must_use]
pub fn is_ours(world: &World, lrn: Lrn) -> bool {
    let drain = world.host_id(lrn).and_then(|host| world.drains.get(host));
    drain.is_some_and(|drain| {
        drain.stored.record.asked_by == OWNER && drain.stored.record.intent == Intent::Drain
    })
}

/// The guard and the write with which a wish is recorded; nothing if it is recorded already, or there is nobody to ask.
#[must_use]
pub fn wish(world: &World, lrn: Lrn, wish: DrainWish, reason: &str) -> Option<(Compare, Put)> {
    let host = world.host_id(lrn)?;
    let seen = world.drains.get(host).map(|drain| &*drain.stored);
    let ask = Ask {
        asked_by: OWNER.to_owned(),
        reason: reason.to_owned(),
        asked_at: world.now.as_epoch().as_secs(),
        services: Vec::new(),
    };
    let up = world.hosts_up.get(host).map(|up| &up.record);
    let record = match wish {
        DrainWish::Ask => wish_to_drain(host, up, seen.map(|seen| &seen.record), &ask).ok()?.ok()?,
        DrainWish::Return if is_ours(world, lrn) => {
            wish_to_return(seen.map(|seen| &seen.record), &ask).ok()?
        }
        DrainWish::Return => return None,
    };
    let key = DrainKey { host: host.clone() };
    Some((key.as_seen(seen), put(&key, seen, &record)))
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
