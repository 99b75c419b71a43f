//! What does a message contain? Its grammar, and what is refused although the grammar allows it.

use std::collections::HashSet;
use std::iter::Peekable;
use std::str::FromStr;

use capstan_control::epoch::Epoch;

use super::{
    Announcement, Basis, Claim, Entry, Flags, Import, InSync, LeaseGrant, MAX_ENTRIES, Message, NodeRole,
    SetConf, SetRepl, SetSync, Standing,
};
use crate::ClusterName;
use crate::slots::{SLOTS, SlotRange};

/// The prefix of the word with the pairing of a move.
pub(super) const PAIRING: &str = "pairing=";
/// How much of an invalid word an error quotes.
const REPEATED: usize = 64;
/// Most words among the flags; two of them have a meaning.
const MAX_FLAGS: usize = 16;
/// Longest name of a coordinator: it is an address or similar.
const MAX_COORDINATOR: usize = 256;
/// Longest lease. A proxy with a longer one could not be replaced after losing contact.
const MAX_TTL_MS: u64 = 60 * 60 * 1000;
/// Most coordinators that a lease may need.
const MAX_NEEDED: u32 = 1000;
/// Longest clock reading of a proxy.
const MAX_CLOCK: usize = 64;
/// The word for no members.
pub(super) const NO_MEMBERS: &str = "none";
/// Most replicas of one primary.
const MAX_MEMBERS: usize = 1000;
/// Longest settings of a database, in bytes.
const MAX_SETTINGS: usize = 1 << 20;

/// A message that is refused because of its content. The text is an error line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongMessage {
    /// No such message.
    #[error(
        "ERR unknown NMCTL subcommand '{0}'. Known: SETDB, SETPEER, SETREPL, SETCONF, SETSYNC, RELEASING, IMPORT, FENCE, LEASE, LISTDB, CLEARDB, MOVES, EPOCH, INFO"
    )]
    Unknown(String),
    /// The message is too short.
    #[error("ERR NMCTL {message}: {expected} is missing")]
    Missing {
        /// Which message.
        message: &'static str,
        /// What is expected there.
        expected: &'static str,
    },
    /// A word that is not valid there.
    #[error("ERR NMCTL {message}: '{word}' is not {expected}")]
    Wrong {
        /// Which message.
        message: &'static str,
        /// The word.
        word: String,
        /// What is expected there.
        expected: &'static str,
    },
    /// Words after the end of the message.
    #[error("ERR NMCTL {message} takes no further arguments")]
    TooLong {
        /// Which message.
        message: &'static str,
    },
    /// More entries than any cluster needs.
    #[error("ERR NMCTL {message}: more than {MAX_ENTRIES} entries")]
    TooMany {
        /// Which message.
        message: &'static str,
    },
    /// Two claims to one slot.
    #[error("ERR NMCTL {message}: slot {slot} of {db} is claimed by {one} and by {other}")]
    ClaimedTwice {
        /// Which message.
        message: &'static str,
        /// Which slot.
        slot: u16,
        /// Of which database.
        db: ClusterName,
        /// One claim.
        one: String,
        /// The other claim.
        other: String,
    },
    /// A node or database that is described twice.
    #[error("ERR NMCTL {message}: {what} is described twice")]
    Twice {
        /// Which message.
        message: &'static str,
        /// What.
        what: String,
    },
}

impl Message {
    /// Parses the words after `NMCTL`.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Result<Message, WrongMessage> {
        let mut words = words.into_iter().peekable();
        let name = words.next().unwrap_or_default();
        let mut rest = Words { message: "", words };
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let message = if is("SETDB") {
            rest.message = "SETDB";
            Message::SetDb(rest.announcement()?)
        } else if is("SETPEER") {
            rest.message = "SETPEER";
            Message::SetPeer(rest.peers()?)
        } else if is("SETREPL") {
            rest.message = "SETREPL";
            Message::SetRepl(rest.roles()?)
        } else if is("SETCONF") {
            rest.message = "SETCONF";
            Message::SetConf(rest.settings()?)
        } else if is("SETSYNC") {
            rest.message = "SETSYNC";
            Message::SetSync(rest.in_sync()?)
        } else if is("RELEASING") {
            rest.message = "RELEASING";
            Message::Releasing(rest.announcement()?)
        } else if is("IMPORT") {
            rest.message = "IMPORT";
            Message::Import(rest.import()?)
        } else if is("FENCE") {
            rest.message = "FENCE";
            Message::Fence(rest.epoch()?)
        } else if is("LEASE") {
            rest.message = "LEASE";
            Message::Lease(rest.lease()?)
        } else {
            let questions = [
                ("LISTDB", Message::ListDb),
                ("CLEARDB", Message::ClearDb),
                ("MOVES", Message::Moves),
                ("EPOCH", Message::Epoch),
                ("INFO", Message::Info),
            ];
            let known = questions.into_iter().find(|(known, _)| is(known));
            let (message, question) = known.ok_or_else(|| WrongMessage::Unknown(shown(name)))?;
            rest.message = message;
            question
        };
        rest.end()?;
        Ok(message)
    }
}

/// The remaining words of a message.
struct Words<'a, W: Iterator<Item = &'a [u8]>> {
    message: &'static str,
    words: Peekable<W>,
}

impl<'a, W: Iterator<Item = &'a [u8]>> Words<'a, W> {
    fn announcement(&mut self) -> Result<Announcement, WrongMessage> {
        let (epoch, flags) = (self.epoch()?, self.flags()?);
        let mut entries = Vec::new();
        while let Some(db) = self.database(entries.len())? {
            let address = self.read("an address")?;
            entries.push(Entry { db, address, claim: self.claim()? });
        }
        self.no_slot_twice(&entries)?;
        Ok(Announcement { epoch, flags, entries })
    }

    /// As an announcement, but with plain ranges: a peer's moves concern only its source and target.
    fn peers(&mut self) -> Result<Announcement, WrongMessage> {
        let announcement = self.announcement()?;
        let tagged = announcement.entries.iter().find(|entry| !matches!(entry.claim, Claim::Stable(_)));
        match tagged {
            None => Ok(announcement),
            Some(entry) => {
                let tag = if entry.claim.owns() { "migrating" } else { "importing" };
                Err(self.wrong(tag.as_bytes(), "a range of slots such as 0-1000"))
            }
        }
    }

    fn claim(&mut self) -> Result<Claim, WrongMessage> {
        let word = self.word("a range of slots")?;
        if word.eq_ignore_ascii_case(b"migrating") {
            let (to, range) = (self.read("an address")?, self.range()?);
            Ok(Claim::Migrating { to, range, pairing: self.pairing()? })
        } else if word.eq_ignore_ascii_case(b"importing") {
            let (from, range) = (self.read("an address")?, self.range()?);
            Ok(Claim::Importing { from, range, pairing: self.pairing()? })
        } else {
            Ok(Claim::Stable(self.range_of(word)?))
        }
    }

    /// The pairing of a move, if the next word is one.
    fn pairing(&mut self) -> Result<Option<Epoch>, WrongMessage> {
        let is_pairing = |word: &&[u8]| {
            word.get(..PAIRING.len()).is_some_and(|start| start.eq_ignore_ascii_case(PAIRING.as_bytes()))
        };
        let Some(word) = self.words.next_if(is_pairing) else { return Ok(None) };
        let epoch = std::str::from_utf8(&word[PAIRING.len()..]).ok().and_then(|text| text.parse().ok());
        let epoch = epoch.map(Epoch).filter(|epoch| epoch.is_told());
        epoch.map(Some).ok_or_else(|| self.wrong(word, "a pairing such as pairing=1"))
    }

    fn roles(&mut self) -> Result<SetRepl, WrongMessage> {
        let (epoch, flags) = (self.epoch()?, self.flags()?);
        let (mut nodes, mut seen) = (Vec::new(), HashSet::new());
        while let Some(db) = self.database(nodes.len())? {
            let node = self.read::<crate::Address>("the address of a node")?;
            let proxy = self.read("the address of a proxy")?;
            let role = self.word("primary or replica-of")?;
            let replica_of = if role.eq_ignore_ascii_case(b"primary") {
                None
            } else if role.eq_ignore_ascii_case(b"replica-of") {
                Some(self.read("the address of a primary")?)
            } else {
                return Err(self.wrong(role, "primary or replica-of"));
            };
            if !seen.insert(node.clone()) {
                return Err(WrongMessage::Twice { message: self.message, what: format!("node {node}") });
            }
            nodes.push(NodeRole { db, node, proxy, replica_of });
        }
        Ok(SetRepl { epoch, flags, nodes })
    }

    fn settings(&mut self) -> Result<SetConf, WrongMessage> {
        let (epoch, flags) = (self.epoch()?, self.flags()?);
        let mut databases: Vec<(ClusterName, _)> = Vec::new();
        while let Some(db) = self.database(databases.len())? {
            let json = self.word("settings")?;
            let settings = Some(json).filter(|json| json.len() <= MAX_SETTINGS);
            let settings = settings.and_then(|json| serde_json::from_slice(json).ok());
            let settings = settings.ok_or_else(|| self.wrong(json, "the settings of a database as JSON"))?;
            if databases.iter().any(|(known, _)| *known == db) {
                return Err(WrongMessage::Twice { message: self.message, what: format!("database {db}") });
            }
            databases.push((db, settings));
        }
        Ok(SetConf { epoch, flags, databases })
    }

    fn in_sync(&mut self) -> Result<SetSync, WrongMessage> {
        let (epoch, flags) = (self.epoch()?, self.flags()?);
        let mut shards: Vec<InSync> = Vec::new();
        while let Some(db) = self.database(shards.len())? {
            let node: crate::Address = self.read("the address of a node")?;
            let revision = self.number("a revision", 0..=u64::MAX)?;
            let members = self.members()?;
            if shards.iter().any(|known| known.node == node) {
                return Err(WrongMessage::Twice { message: self.message, what: format!("node {node}") });
            }
            shards.push(InSync { db, node, revision, members });
        }
        Ok(SetSync { epoch, flags, shards })
    }

    fn members(&mut self) -> Result<Vec<crate::Address>, WrongMessage> {
        let expected = "none, or addresses of nodes separated by commas";
        let word = self.word(expected)?;
        if word.eq_ignore_ascii_case(NO_MEMBERS.as_bytes()) {
            return Ok(Vec::new());
        }
        let members: Vec<&[u8]> = word.split(|byte| *byte == b',').collect();
        if members.len() > MAX_MEMBERS {
            return Err(self.wrong(word, expected));
        }
        members.into_iter().map(|member| self.read_word(member, expected)).collect()
    }

    fn import(&mut self) -> Result<Import, WrongMessage> {
        Ok(Import {
            epoch: self.epoch()?,
            db: self.read("the name of a database")?,
            from: self.read("an address")?,
            range: self.range()?,
            pairing: self.pairing()?,
            session: self.words.next().map(|name| String::from_utf8_lossy(name).into_owned()),
        })
    }

    fn lease(&mut self) -> Result<LeaseGrant, WrongMessage> {
        let coordinator = self.word("the name of a coordinator")?;
        let sound = coordinator.iter().all(u8::is_ascii_graphic);
        if coordinator.is_empty() || coordinator.len() > MAX_COORDINATOR || !sound {
            return Err(self.wrong(coordinator, "the name of a coordinator"));
        }
        let coordinator = String::from_utf8_lossy(coordinator).into_owned();
        let needed = self.number("a number of coordinators, at least 1", 1..=u64::from(MAX_NEEDED))?;
        let ttl_ms = self.number("a time in milliseconds, at most an hour", 1..=MAX_TTL_MS)?;
        Ok(LeaseGrant { coordinator, needed: needed as u32, ttl_ms, basis: self.basis()? })
    }

    fn basis(&mut self) -> Result<Option<Basis>, WrongMessage> {
        let Some(word) = self.words.next() else { return Ok(None) };
        let expected = "an epoch, at least 1";
        let epoch = self.read_word::<u64>(word, expected)?;
        if epoch == 0 {
            return Err(self.wrong(word, expected));
        }
        let clock = self.word("a reading of the proxy's clock")?;
        if clock.is_empty() || clock.len() > MAX_CLOCK || !clock.iter().all(u8::is_ascii_graphic) {
            return Err(self.wrong(clock, "a reading of the proxy's clock"));
        }
        let clock = String::from_utf8_lossy(clock).into_owned();
        Ok(Some(Basis { epoch: Epoch(epoch), clock, standing: self.standing()? }))
    }

    fn standing(&mut self) -> Result<Standing, WrongMessage> {
        let Some(word) = self.words.next() else { return Ok(Standing::Unstated) };
        if word.eq_ignore_ascii_case(b"DETACHED") {
            return Ok(Standing::Detached);
        }
        if !word.eq_ignore_ascii_case(b"REGISTERED") {
            return Err(self.wrong(word, "REGISTERED or DETACHED"));
        }
        let expected = "names of coordinators, separated by commas";
        let list = self.word(expected)?;
        let sound = |name: &[u8]| {
            !name.is_empty() && name.len() <= MAX_COORDINATOR && name.iter().all(u8::is_ascii_graphic)
        };
        let names: Vec<&[u8]> = list.split(|byte| *byte == b',').collect();
        if names.len() > MAX_NEEDED as usize || !names.iter().all(|name| sound(name)) {
            return Err(self.wrong(list, expected));
        }
        let names = names.into_iter().map(|name| String::from_utf8_lossy(name).into_owned());
        Ok(Standing::Registered(names.collect()))
    }

    fn epoch(&mut self) -> Result<Epoch, WrongMessage> {
        self.number("an epoch, at least 1", 1..=u64::MAX).map(Epoch)
    }

    fn flags(&mut self) -> Result<Flags, WrongMessage> {
        let word = self.word("flags")?;
        let text =
            std::str::from_utf8(word).ok().filter(|text| !text.is_empty() && text.len() <= MAX_SETTINGS);
        let mut flags = Flags::default();
        for flag in text.ok_or_else(|| self.wrong(word, "a list of flags"))?.split(',') {
            let sound = flag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '='));
            if flag.is_empty() || !sound || flags.others.len() == MAX_FLAGS {
                return Err(self.wrong(word, "a list of flags such as NOFLAG or FORCE"));
            }
            if flag.eq_ignore_ascii_case("FORCE") {
                flags.force = true;
            } else if flag.eq_ignore_ascii_case("HANDOVER") {
                flags.handover = true;
            } else if !flag.eq_ignore_ascii_case("NOFLAG") {
                flags.others.push(flag.to_owned());
            }
        }
        Ok(flags)
    }

    /// The database of the next entry, if there is one.
    fn database(&mut self, entries: usize) -> Result<Option<ClusterName>, WrongMessage> {
        let Some(word) = self.words.next() else { return Ok(None) };
        if entries == MAX_ENTRIES {
            return Err(WrongMessage::TooMany { message: self.message });
        }
        self.read_word(word, "the name of a database").map(Some)
    }

    fn range(&mut self) -> Result<SlotRange, WrongMessage> {
        let word = self.word("a range of slots")?;
        self.range_of(word)
    }

    fn range_of(&self, word: &[u8]) -> Result<SlotRange, WrongMessage> {
        let text = std::str::from_utf8(word).unwrap_or_default();
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number =
            |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let ends = number(first).zip(number(last));
        let range = ends.and_then(|(first, last)| SlotRange::new(first, last).ok());
        range.ok_or_else(|| self.wrong(word, "a range of slots within 0-16383"))
    }

    fn number(
        &mut self,
        expected: &'static str,
        within: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, WrongMessage> {
        let word = self.word(expected)?;
        let text = std::str::from_utf8(word).unwrap_or_default();
        let number = text.parse().ok().filter(|number| within.contains(number));
        number.ok_or_else(|| self.wrong(word, expected))
    }

    fn read<T: FromStr>(&mut self, expected: &'static str) -> Result<T, WrongMessage> {
        let word = self.word(expected)?;
        self.read_word(word, expected)
    }

    fn read_word<T: FromStr>(&self, word: &[u8], expected: &'static str) -> Result<T, WrongMessage> {
        let read = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
        read.ok_or_else(|| self.wrong(word, expected))
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a [u8], WrongMessage> {
        self.words.next().ok_or(WrongMessage::Missing { message: self.message, expected })
    }

    fn end(&mut self) -> Result<(), WrongMessage> {
        match self.words.next() {
            None => Ok(()),
            Some(_) => Err(WrongMessage::TooLong { message: self.message }),
        }
    }

    fn wrong(&self, word: &[u8], expected: &'static str) -> WrongMessage {
        WrongMessage::Wrong { message: self.message, word: shown(word), expected }
    }

    /// A slot has one owner and at most one receiver.
    fn no_slot_twice(&self, entries: &[Entry]) -> Result<(), WrongMessage> {
        let mut taken: HashSet<(&ClusterName, bool)> = HashSet::new();
        for entry in entries {
            taken.insert((&entry.db, entry.claim.owns()));
        }
        for (db, owns) in taken {
            let mut by_slot: Vec<Option<&Entry>> = vec![None; usize::from(SLOTS)];
            for entry in entries.iter().filter(|entry| entry.db == *db && entry.claim.owns() == owns) {
                let range = entry.claim.range();
                for slot in range.first()..=range.last() {
                    if let Some(other) = by_slot[usize::from(slot)].replace(entry) {
                        let (one, other) = (other.address.to_string(), entry.address.to_string());
                        let (message, db) = (self.message, db.clone());
                        return Err(WrongMessage::ClaimedTwice { message, slot, db, one, other });
                    }
                }
            }
        }
        Ok(())
    }
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(REPEATED)]).into_owned()
}
