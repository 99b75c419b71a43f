//! What does a fenced proxy report? The ranges it holds at that moment, in the form in which they were
//! pushed.

use super::{Announcement, Claim, Entry, Message};
use crate::slots::SlotRange;

/// What a proxy holds. Until it receives a `SETDB` at the epoch of the fence or later, it holds nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The last `SETDB` that it accepted; epoch 0 if there was none.
    pub own: Announcement,
    /// The released part of it: the proxy does not serve these ranges.
    pub released: Vec<Entry>,
}

impl Holding {
    /// Two lines: `SETDB epoch NOFLAG ...` and `RELEASING epoch NOFLAG ...`.
    #[must_use]
    pub fn lines(&self) -> [String; 2] {
        let released = Announcement { entries: self.released.clone(), ..self.own.clone() };
        [Message::SetDb(self.own.clone()), Message::Releasing(released)]
            .map(|message| message.words().split_off(1).join(" "))
    }

    /// Parses the lines.
    #[must_use]
    pub fn parse(text: &str) -> Option<Holding> {
        let mut lines = text.lines();
        let (own, released) = (lines.next()?, lines.next()?);
        if own.starts_with("SETDB 0 ") {
            return Some(Holding::default());
        }
        let read = |line: &str| Message::parse(line.split(' ').map(str::as_bytes)).ok();
        match (read(own)?, read(released)?) {
            (Message::SetDb(own), Message::Releasing(releasing)) => {
                Some(Holding { own, released: releasing.entries })
            }
            _ => None,
        }
    }

    /// The ranges that it serves.
    pub fn serves(&self) -> impl Iterator<Item = &Entry> {
        let let_go = |entry: &Entry| {
            let same = |released: &&Entry| {
                released.db == entry.db && covers(released.claim.range(), entry.claim.range())
            };
            matches!(entry.claim, Claim::Migrating { .. }) && self.released.iter().any(|one| same(&one))
        };
        self.own.entries.iter().filter(move |entry| entry.claim.owns() && !let_go(entry))
    }
}

fn covers(one: SlotRange, other: SlotRange) -> bool {
    one.first() <= other.first() && other.last() <= one.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_said_and_read_again() {
        let line = "SETDB 7 NOFLAG db h:1 0-9 db h:1 migrating p:2 10-19 db h:1 migrating p:2 20-29";
        let Ok(Message::SetDb(own)) = Message::parse(line.split(' ').map(str::as_bytes)) else { panic!() };
        let released = own.entries[1..2].to_vec();
        let holding = Holding { own, released };
        let text = holding.lines().join("\n");
        assert_eq!(Holding::parse(&text), Some(holding.clone()));
        let serves: Vec<String> = holding.serves().map(|entry| entry.claim.range().to_string()).collect();
        assert_eq!(serves, ["0-9", "20-29"]);
        let nothing = Holding::default();
        assert_eq!(Holding::parse(&nothing.lines().join("\n")), Some(nothing));
        assert_eq!(Holding::parse("PONG"), None);
    }
}
