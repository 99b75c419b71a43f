//! How are commands served that concern more than one node? In parts, whose replies are merged.

use capstan_control::epoch::Epoch;

use crate::gate::Admission;
use crate::state::Place;
use capstan_redis_protocol::command::{Command, Merge as Merging, Objection};
use capstan_redis_protocol::resp::{Request, View, decimal, write_request};
use capstan_redis_protocol::slots::Slot;

use super::cursor::Cursor;
use super::dispatch::{CROSS_SLOT, unless_drained};
use super::gathering::Part;
use super::link::Remote;
use super::merge::Merge;
use super::route::{Hold, Route};
use super::session::{Session, Standing};
use super::waiter::{Pass, Waiter, Wrote};
use super::worker::{Taken, Worker};

impl Worker {
    /// `MGET`, `DEL` and the like: whole if one place has all keys, else in parts if the database allows it.
    pub(super) fn split(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
        how: Merging,
    ) -> Taken {
        let slot = match self.slot_of(command, request) {
            Ok(Some(slot)) => return self.send_split(session, command, request, &[(slot, Vec::new())], how),
            Ok(None) => return self.any_node(session, request),
            Err(_) => self.database(session).map(|database| database.settings().split),
        };
        if slot != Some(true) {
            return self.object(session, CROSS_SLOT);
        }
        let groups = self.by_place(session, command, request, how);
        self.send_split(session, command, request, &groups, how)
    }

    /// The keys grouped by place: one slot of the place, and the positions of the keys' arguments.
    fn by_place(
        &self,
        session: &Session,
        command: &'static Command,
        request: Request<'_>,
        how: Merging,
    ) -> Vec<(Slot, Vec<usize>)> {
        let Some(database) = self.database(session) else { return Vec::new() };
        // MSET: every key is followed by its value.
        let with_value = how == Merging::AllOk;
        let mut groups: Vec<(usize, Slot, Vec<usize>)> = Vec::new();
        for key in command.keys(request).unwrap_or_default() {
            let slot = Slot::of(request.argument(key.index()));
            let place = database.place_index(slot);
            let group = match groups.iter().position(|(known, ..)| *known == place) {
                Some(group) => group,
                None => {
                    groups.push((place, slot, Vec::new()));
                    groups.len() - 1
                }
            };
            groups[group].2.push(key.index());
            if with_value {
                groups[group].2.push(key.index() + 1);
            }
        }
        groups.into_iter().map(|(_, slot, keys)| (slot, keys)).collect()
    }

    fn send_split(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
        groups: &[(Slot, Vec<usize>)],
        how: Merging,
    ) -> Taken {
        if let [(slot, _)] = groups {
            return self.send_keyed(session, command, request, *slot);
        }
        let mut parts = Vec::with_capacity(groups.len());
        for (slot, arguments) in groups {
            let mut words = vec![request.argument(0)];
            words.extend(arguments.iter().map(|index| request.argument(*index)));
            let mut bytes = Vec::new();
            write_request(&mut bytes, &words);
            let (link, pass) = match self.route(session, *slot, command.reads_only()) {
                Ok(Route::Node { link, ticket }) => {
                    let keys = || words[1..].iter().map(|key| bytes::Bytes::copy_from_slice(key)).collect();
                    let wrote = if command.writes() { Wrote::Keys(keys()) } else { Wrote::Nothing };
                    (link, ticket.map(|ticket| Pass::new(ticket, wrote)))
                }
                Ok(Route::Peer { link }) => (link, None),
                Err(taken) => {
                    // Nothing was sent: releases what the routed parts reserved.
                    for part in parts {
                        let Part { pass, .. } = part;
                        pass.into_iter().for_each(|pass| pass.unsent());
                    }
                    return taken;
                }
            };
            parts.push(Part { link: Ok(link), request: bytes, pass });
        }
        let merge = match how {
            Merging::Values => Merge::Pick(owners(groups)),
            Merging::Sum => Merge::Sum,
            Merging::AllOk
            | Merging::Concatenation
            | Merging::Any
            | Merging::Every
            | Merging::Newest
            | Merging::Histograms
            | Merging::Scan => Merge::Same,
        };
        let sequence = session.replies.owe(session.wants_reply());
        self.gather(session.key, sequence, session.protocol, merge, parts, session.effect);
        Taken::Yes
    }

    /// A command for every node: of this host, and of the others if this proxy serves the whole database.
    pub(super) fn all_nodes(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
        how: Merge,
    ) -> Taken {
        let beyond = self.database(session).is_some_and(|database| database.is_single());
        let remotes = self.everywhere(session, beyond);
        if remotes.is_empty() {
            return self.hold(session, Hold::Unserved);
        }
        let how = match how {
            Merge::FirstGood if command.name() == "randomkey" => Merge::AnyOf(rand::random()),
            how => how,
        };
        let wrote = if command.writes() { Wrote::Anything } else { Wrote::Nothing };
        let passes = match self.admit_everywhere(session, &wrote) {
            Ok(passes) => passes,
            Err(taken) => return taken,
        };
        self.ask_all(session, &remotes, request.bytes(), how, passes);
        Taken::Yes
    }

    /// Sends the same request to several remotes; `passes` are finished when the first has replied.
    pub(super) fn ask_all(
        &mut self,
        session: &mut Session,
        remotes: &[Remote],
        request: &[u8],
        how: Merge,
        mut passes: Vec<Pass>,
    ) {
        let mut parts = Vec::with_capacity(remotes.len());
        for remote in remotes {
            let link = self
                .pipeline(remote, session.protocol, session.lane)
                .map_err(|down| format!("-{}\r\n", down.error()));
            parts.push(Part {
                link,
                request: request.to_vec(),
                pass: Pass::all(std::mem::take(&mut passes)),
            });
        }
        let sequence = session.replies.owe(session.wants_reply());
        self.gather(session.key, sequence, session.protocol, how, parts, session.effect);
    }

    /// Admits a command that may write anywhere at every gate of the database.
    pub(super) fn admit_everywhere(
        &mut self,
        session: &mut Session,
        wrote: &Wrote,
    ) -> Result<Vec<Pass>, Taken> {
        let Standing::Uses(index) = session.standing else { return Ok(Vec::new()) };
        let database = std::sync::Arc::clone(&self.databases[index].database);
        let unserved = |place: &Place| matches!(place, Place::Own { since, .. } if !self.serving.allows(self.now, *since));
        if database.places().iter().any(unserved) {
            return Err(self.hold(session, Hold::NoLease));
        }
        let mut passes = Vec::new();
        for place in database.places() {
            let Place::Own { gate: Some(gate), .. } = place else { continue };
            match gate.admit() {
                Admission::Open => {}
                Admission::Pass(ticket) => passes.push(*Pass::new(ticket, wrote.clone())),
                Admission::Hold | Admission::Released | Admission::Gone => {
                    passes.into_iter().for_each(Pass::unsent);
                    return Err(self.hold(session, Hold::Moving));
                }
            }
        }
        Ok(passes)
    }

    /// `SLOWLOG GET`: slow commands are those that kept a node busy, so the nodes are queried.
    pub(super) fn slowlog(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        /// Redis's default.
        const DEFAULT_COUNT: usize = 10;
        let count = match (request.len(), decimal(request.argument(2))) {
            (2, _) => DEFAULT_COUNT,
            (3, Some(-1)) => usize::MAX,
            (3, Some(count)) if count >= 0 => usize::try_from(count).unwrap_or(usize::MAX),
            (3, _) => return self.object(session, "ERR count should be greater than or equal to -1"),
            _ => return self.object(session, Objection::wrong_form(request, "slowlog").line()),
        };
        self.all_nodes(session, command, request, Merge::Newest(count))
    }

    /// A command without keys, for any one node.
    pub(super) fn any_node(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        let beyond = self.database(session).is_some_and(|database| database.is_single());
        let Some(remote) = self.everywhere(session, beyond).into_iter().next() else {
            return self.hold(session, Hold::Unserved);
        };
        if !self.serving.allows(self.now, Epoch::NEVER_TOLD) {
            return self.hold(session, Hold::NoLease);
        }
        match self.pipeline(&remote, session.protocol, session.lane) {
            Ok(link) => self.send_client(session, link, request.bytes(), None),
            Err(down) => {
                return self.object(session, down.error());
            }
        }
        Taken::Yes
    }

    /// `SCAN`: one place after another; the cursor encodes the place.
    pub(super) fn scan(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        let Some(number) = cursor_number(request.argument(1)) else {
            return self.object(session, "ERR invalid cursor");
        };
        let beyond = self.database(session).is_some_and(|database| database.is_single());
        let remotes = self.everywhere(session, beyond);
        if remotes.is_empty() || !self.serving.allows(self.now, Epoch::NEVER_TOLD) {
            return self.hold(session, Hold::Unserved);
        }
        if let [_] = &remotes[..] {
            return self.any_node(session, request);
        }
        let cursor = Cursor::of(number);
        let Some(remote) = remotes.get(cursor.place as usize) else {
            // The node is gone: its keys are elsewhere, and this scan cannot find them.
            session.answer(|writer| {
                writer.array(2);
                writer.bulk("0");
                writer.array(0);
            });
            return Taken::Yes;
        };
        let inner = cursor.inner.to_string();
        let mut words: Vec<&[u8]> = request.from(0).collect();
        words[1] = inner.as_bytes();
        let mut bytes = Vec::new();
        write_request(&mut bytes, &words);
        match self.pipeline(remote, session.protocol, session.lane) {
            Ok(link) => {
                let sequence = session.replies.owe(session.wants_reply());
                let (place, places) = (cursor.place, remotes.len() as u32);
                self.send(link, &bytes, Waiter::Scan { session: session.key, sequence, place, places });
                Taken::Yes
            }
            Err(down) => self.object(session, down.error()),
        }
    }

    /// `WAIT`: the node waits for the writes before the last command of the same connection, so each node
    /// gets a dedicated connection with a `PING` first.
    pub(super) fn wait(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let beyond = self.database(session).is_some_and(|database| database.is_single());
        let remotes = self.everywhere(session, beyond);
        if remotes.is_empty() {
            return self.hold(session, Hold::Unserved);
        }
        let mut parts = Vec::new();
        for remote in &remotes {
            let link = self.lend(remote, session.protocol).map_err(|no| format!("-{}\r\n", no.error()));
            if let Ok(link) = link {
                session.borrowed.push(link);
                self.send(link, b"*1\r\n$4\r\nPING\r\n", Waiter::Ignored);
            }
            parts.push(Part { link, request: request.bytes().to_vec(), pass: None });
        }
        let sequence = session.replies.owe(session.wants_reply());
        // `WAITAOF` returns two numbers: the minimum of each.
        let how = if command.is_newer() { Merge::Every } else { Merge::Least };
        self.gather(session.key, sequence, session.protocol, how, parts, session.effect);
        Taken::Yes
    }
}

/// Parses a cursor, as liberally as Redis: an empty one is zero.
fn cursor_number(word: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(word).ok()?;
    match text.strip_prefix('-') {
        _ if text.is_empty() => Some(0),
        Some(negative) => negative.parse::<u64>().ok().map(u64::wrapping_neg),
        None => text.parse().ok(),
    }
}

/// For each key of the request, in order, the part that contains it.
fn owners(groups: &[(Slot, Vec<usize>)]) -> Vec<u32> {
    let mut owners: Vec<(usize, u32)> = Vec::new();
    for (part, (_, arguments)) in groups.iter().enumerate() {
        owners.extend(arguments.iter().map(|argument| (*argument, part as u32)));
    }
    owners.sort_unstable();
    owners.into_iter().map(|(_, part)| part).collect()
}

/// A node's reply to `SCAN`, with a cursor for the next place when this one is done.
pub(super) fn scanned(reply: &[u8], place: u32, places: u32) -> Vec<u8> {
    let rewritten = || {
        let mut parts = View::of(reply)?.sequence()?;
        let inner =
            View::of(parts.next()?)?.bytes().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())?;
        let keys = parts.next()?;
        let next = Cursor::next(place, places, inner)?.to_string();
        Some([format!("*2\r\n${}\r\n{next}\r\n", next.len()).as_bytes(), keys].concat())
    };
    // An error is returned unchanged.
    rewritten().unwrap_or_else(|| reply.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_in_the_clients_order() {
        let (a, b) = (Slot::of(b"a"), Slot::of(b"b"));
        assert_eq!(owners(&[(a, vec![1, 4]), (b, vec![2, 3])]), [0, 1, 1, 0]);
    }

    #[test]
    fn cursors_are_read_as_redis_reads_them() {
        for (word, number) in
            [("", Some(0)), ("17", Some(17)), ("-1", Some(u64::MAX)), ("1x", None), (" 1", None)]
        {
            assert_eq!(cursor_number(word.as_bytes()), number, "{word:?}");
        }
        assert_eq!(cursor_number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(cursor_number(b"18446744073709551616"), None);
    }

    #[test]
    fn a_scan_leads_to_the_next_place() {
        let reply = b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk\r\n";
        assert_eq!(scanned(reply, 0, 2), b"*2\r\n$1\r\n1\r\n*1\r\n$1\r\nk\r\n");
        assert_eq!(scanned(reply, 1, 2), reply);
        assert_eq!(scanned(b"-ERR x\r\n", 0, 2), b"-ERR x\r\n");
    }
}
