//! What must a proxy remember of its moves over a restart? The released ranges, and the leftovers not yet
//! removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::names::Held;
use crate::state::Move;

/// The ledger of a proxy, one small file that is replaced atomically.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    path: PathBuf,
    pages: Pages,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pages {
    /// Released moves, each with the name of the target's session that has the data.
    #[serde(with = "pairs")]
    released: BTreeMap<Move, String>,
    /// Ranges that moved away or whose import did not finish: their keys on this host are not served.
    leftovers: BTreeSet<Held>,
}

/// Maps with structured keys, as lists of pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Move;

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<Move, String>, to: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Move, String>, D::Error> {
        Ok(Vec::<(Move, String)>::deserialize(from)?.into_iter().collect())
    }
}

impl Ledger {
    /// Reads the ledger; a new host has none. An unreadable one is an error: a released range must never be
    /// served again by mistake.
    pub(super) fn open(path: PathBuf) -> io::Result<Ledger> {
        let pages = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Pages::default(),
            Err(e) => return Err(e),
        };
        Ok(Ledger { path, pages })
    }

    pub(super) fn is_released(&self, id: &Move) -> bool {
        self.pages.released.contains_key(id)
    }

    pub(super) fn leftovers(&self) -> impl Iterator<Item = &Held> {
        self.pages.leftovers.iter()
    }

    pub(super) fn is_leftover(&self, held: &Held) -> bool {
        self.pages.leftovers.contains(held)
    }

    /// Records a release. The range is released only if this succeeds.
    pub(super) fn release(&mut self, id: &Move, session: &str) -> io::Result<()> {
        self.change(|pages| drop(pages.released.insert(id.clone(), session.to_owned())))
    }

    /// Records the end of a move, and its leftover if there is one.
    pub(super) fn over(&mut self, id: &Move, leftover: Option<Held>) -> io::Result<()> {
        self.change(|pages| {
            pages.released.remove(id);
            pages.leftovers.extend(leftover);
        })
    }

    pub(super) fn add_leftover(&mut self, held: Held) -> io::Result<()> {
        self.change(|pages| pages.leftovers.extend([held]))
    }

    pub(super) fn drop_leftovers(&mut self, is_gone: impl Fn(&Held) -> bool) -> io::Result<()> {
        self.change(|pages| pages.leftovers.retain(|held| !is_gone(held)))
    }

    fn change(&mut self, change: impl FnOnce(&mut Pages)) -> io::Result<()> {
        let mut pages = self.pages.clone();
        change(&mut pages);
        if pages != self.pages {
            self.write(&pages)?;
            self.pages = pages;
        }
        Ok(())
    }

    fn write(&self, pages: &Pages) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        let mut file = File::create(&draft)?;
        file.write_all(&serde_json::to_vec(pages)?)?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)?;
        match self.path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use capstan_control::epoch::Epoch;

    use super::*;
    use capstan_redis_protocol::slots::SlotRange;

    #[test]
    fn what_was_let_go_stays_so() {
        let dir = capstan_testkit::TempDir::new("ledger").unwrap();
        let path = dir.path().join("moves.json");
        let range = SlotRange::new(0, 9).unwrap();
        let (db, node, to) = ("demo".parse().unwrap(), "h:1".parse().unwrap(), "h:2".parse().unwrap());
        let id = Move { db, node, to, range, pairing: Some(Epoch(3)) };
        let held = Held { db: id.db.clone(), node: id.node.clone(), range };
        let mut ledger = Ledger::open(path.clone()).unwrap();
        assert!(!ledger.is_released(&id));
        ledger.release(&id, "session").unwrap();
        let mut ledger = Ledger::open(path.clone()).unwrap();
        assert!(ledger.is_released(&id));
        // The same slots between the same proxies with another pairing: another copy.
        assert!(!ledger.is_released(&Move { pairing: Some(Epoch(4)), ..id.clone() }));
        ledger.over(&id, Some(held.clone())).unwrap();
        let mut ledger = Ledger::open(path.clone()).unwrap();
        assert!(!ledger.is_released(&id) && ledger.is_leftover(&held));
        ledger.drop_leftovers(|it| *it == held).unwrap();
        assert_eq!(Ledger::open(path.clone()).unwrap().leftovers().count(), 0);
        fs::write(&path, "{").unwrap();
        assert!(Ledger::open(path).is_err());
    }
}
