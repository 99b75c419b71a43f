//! Changes become guarded transactions.

use capstan_meta::Txn;
use capstan_meta::record::Key;

use crate::decide::Change;
use crate::facts::Facts;
use crate::keys::PlacementKey;
use crate::status::Placement;

/// The transaction that makes a change, if the placement is still what the decision was made from.
#[must_use]
pub fn txn(facts: &Facts, change: &Change) -> Txn {
    let key = PlacementKey { beacon: change.beacon.clone() };
    let seen = facts.placements.get(&change.beacon);
    let guarded = Txn::new().when(key.as_seen(seen.map(|seen| &**seen)));
    match &change.hosts {
        None => guarded.then(key.delete()),
        Some(hosts) => {
            let epoch = seen.map(|seen| seen.record.epoch).unwrap_or_default().next();
            guarded.then(key.put(&Placement { epoch, hosts: hosts.clone() }))
        }
    }
}
