//! Since when does the proxy hold a slot? A coordinator's grant covers what the proxy held when that
//! coordinator last checked, and nothing gained since.

use capstan_control::epoch::Epoch;

use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::nmctl::Announcement;
use capstan_redis_protocol::slots::SlotRange;
use capstan_redis_protocol::slots::overlap;

/// The epoch since which each slot is held without interruption. Not persisted: after a restart everything is
/// held since the last message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// Disjoint within a database.
    held: Vec<(ClusterName, SlotRange, Epoch)>,
}

impl Tenure {
    /// The tenure after a message: ranges that stay keep their epoch.
    #[must_use]
    pub fn after(&self, message: &Announcement) -> Tenure {
        let mut held = Vec::new();
        for entry in message.entries.iter().filter(|entry| entry.claim.owns()) {
            let pieces = self.pieces(&entry.db, entry.claim.range());
            let since = |known: Option<Epoch>| known.unwrap_or(message.epoch).min(message.epoch);
            held.extend(pieces.into_iter().map(|(piece, known)| (entry.db.clone(), piece, since(known))));
        }
        Tenure { held }
    }

    /// A range, split where its tenure differs; a piece without an epoch is not held.
    #[must_use]
    pub fn pieces(&self, db: &ClusterName, range: SlotRange) -> Vec<(SlotRange, Option<Epoch>)> {
        let shared = |(of, held, since): &(ClusterName, SlotRange, Epoch)| {
            overlap(*held, range).filter(|_| of == db).map(|piece| (piece, *since))
        };
        let mut known: Vec<(SlotRange, Epoch)> = self.held.iter().filter_map(shared).collect();
        known.sort();
        let mut pieces = Vec::new();
        let mut next = u32::from(range.first());
        for (piece, since) in known {
            pieces.extend(gap(next, u32::from(piece.first())));
            pieces.push((piece, Some(since)));
            next = u32::from(piece.last()) + 1;
        }
        pieces.extend(gap(next, u32::from(range.last()) + 1));
        pieces
    }
}

/// The slots from `first` up to, without, `end`, as a piece that is not held.
fn gap(first: u32, end: u32) -> Option<(SlotRange, Option<Epoch>)> {
    SlotRange::new(first, end.checked_sub(1)?).ok().map(|range| (range, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use capstan_redis_protocol::nmctl::Message;

    fn set_db(line: &str) -> Announcement {
        match Message::parse(line.split(' ').map(str::as_bytes)) {
            Ok(Message::SetDb(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    fn since(tenure: &Tenure) -> Vec<String> {
        let db = "db".parse().unwrap();
        let pieces = tenure.pieces(&db, SlotRange::new(0, 99).unwrap());
        let shown = |(range, since): (SlotRange, Option<Epoch>)| {
            since.map_or(format!("{range}"), |since| format!("{range}@{since}"))
        };
        pieces.into_iter().map(shown).collect()
    }

    #[test]
    fn a_slot_is_held_since_it_was_last_gained() {
        let tenure = Tenure::default().after(&set_db("SETDB 3 NOFLAG db h:1 10-49 other h:2 0-99"));
        assert_eq!(since(&tenure), ["0-9", "10-49@3", "50-99"]);
        let tenure = tenure.after(&set_db("SETDB 5 NOFLAG db h:1 0-29 db h:3 migrating p:1 30-99"));
        assert_eq!(since(&tenure), ["0-9@5", "10-29@3", "30-49@3", "50-99@5"]);
        let tenure = tenure.after(&set_db("SETDB 6 NOFLAG db h:1 importing p:1 0-99"));
        assert_eq!(since(&tenure), ["0-99"]);
        assert_eq!(since(&tenure.after(&set_db("SETDB 9 NOFLAG db h:1 0-99"))), ["0-99@9"]);
    }
}
