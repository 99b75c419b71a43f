//! How is a message written?

use capstan_control::epoch::Epoch;

use super::parse::{NO_MEMBERS, PAIRING};
use super::{Announcement, Basis, Claim, Entry, Flags, InSync, Message, NodeRole, Standing};
use crate::resp::write_request;
use crate::slots::SlotRange;

impl Message {
    /// The words of the request, `NMCTL` first.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["NMCTL".to_owned(), self.name().to_owned()];
        match self {
            Message::SetDb(message) | Message::SetPeer(message) | Message::Releasing(message) => {
                message.print(&mut words)
            }
            Message::SetRepl(message) => {
                words.extend([message.epoch.to_string(), message.flags.to_string()]);
                message.nodes.iter().for_each(|node| node.print(&mut words));
            }
            Message::SetConf(message) => {
                words.extend([message.epoch.to_string(), message.flags.to_string()]);
                for (db, settings) in &message.databases {
                    // Strings, numbers and lists of them: serialization to JSON cannot fail.
                    words.extend([db.to_string(), serde_json::to_string(settings).unwrap_or_default()]);
                }
            }
            Message::SetSync(message) => {
                words.extend([message.epoch.to_string(), message.flags.to_string()]);
                message.shards.iter().for_each(|shard| shard.print(&mut words));
            }
            Message::Import(message) => {
                words.extend([message.epoch.to_string(), message.db.to_string()]);
                words.extend([message.from.to_string(), slots(message.range)]);
                words.extend(pairing_word(message.pairing).into_iter().chain(message.session.clone()));
            }
            Message::Lease(message) => {
                words.extend([
                    message.coordinator.clone(),
                    message.needed.to_string(),
                    message.ttl_ms.to_string(),
                ]);
                if let Some(Basis { epoch, clock, standing }) = &message.basis {
                    words.extend([epoch.to_string(), clock.clone()]);
                    match standing {
                        Standing::Unstated => {}
                        Standing::Registered(names) => {
                            words.extend(["REGISTERED".to_owned(), names.join(",")])
                        }
                        Standing::Detached => words.push("DETACHED".to_owned()),
                    }
                }
            }
            Message::Fence(epoch) => words.push(epoch.to_string()),
            Message::ListDb | Message::ClearDb | Message::Moves | Message::Epoch | Message::Info => {}
        }
        words
    }

    /// The request as bytes.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_request(&mut out, &self.words());
        out
    }

    /// The word after `NMCTL`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Message::SetDb(_) => "SETDB",
            Message::SetPeer(_) => "SETPEER",
            Message::SetRepl(_) => "SETREPL",
            Message::SetConf(_) => "SETCONF",
            Message::SetSync(_) => "SETSYNC",
            Message::Releasing(_) => "RELEASING",
            Message::Import(_) => "IMPORT",
            Message::Fence(_) => "FENCE",
            Message::Lease(_) => "LEASE",
            Message::ListDb => "LISTDB",
            Message::ClearDb => "CLEARDB",
            Message::Moves => "MOVES",
            Message::Epoch => "EPOCH",
            Message::Info => "INFO",
        }
    }
}

impl Announcement {
    fn print(&self, words: &mut Vec<String>) {
        words.extend([self.epoch.to_string(), self.flags.to_string()]);
        self.entries.iter().for_each(|entry| entry.print(words));
    }
}

impl Entry {
    fn print(&self, words: &mut Vec<String>) {
        words.extend([self.db.to_string(), self.address.to_string()]);
        match &self.claim {
            Claim::Stable(range) => words.push(slots(*range)),
            Claim::Migrating { to, range, pairing } => {
                words.extend(["migrating".to_owned(), to.to_string(), slots(*range)]);
                words.extend(pairing_word(*pairing));
            }
            Claim::Importing { from, range, pairing } => {
                words.extend(["importing".to_owned(), from.to_string(), slots(*range)]);
                words.extend(pairing_word(*pairing));
            }
        }
    }
}

impl std::fmt::Display for Entry {
    /// Writes it as in a message.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut words = Vec::new();
        self.print(&mut words);
        f.write_str(&words.join(" "))
    }
}

impl NodeRole {
    fn print(&self, words: &mut Vec<String>) {
        words.extend([self.db.to_string(), self.node.to_string(), self.proxy.to_string()]);
        match &self.replica_of {
            None => words.push("primary".to_owned()),
            Some(primary) => words.extend(["replica-of".to_owned(), primary.to_string()]),
        }
    }
}

impl InSync {
    fn print(&self, words: &mut Vec<String>) {
        let members: Vec<&str> = self.members.iter().map(crate::Address::as_str).collect();
        let members = if members.is_empty() { NO_MEMBERS.to_owned() } else { members.join(",") };
        words.extend([self.db.to_string(), self.node.to_string(), self.revision.to_string(), members]);
    }
}

impl std::fmt::Display for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = [self.force.then_some("FORCE"), self.handover.then_some("HANDOVER")];
        let known = known.into_iter().flatten();
        let words: Vec<&str> = known.chain(self.others.iter().map(String::as_str)).collect();
        if words.is_empty() { f.write_str("NOFLAG") } else { f.write_str(&words.join(",")) }
    }
}

fn pairing_word(pairing: Option<Epoch>) -> Option<String> {
    pairing.map(|epoch| format!("{PAIRING}{epoch}"))
}

/// Always two numbers, as in the specification.
fn slots(range: SlotRange) -> String {
    format!("{}-{}", range.first(), range.last())
}
