//! Which keys does a slot have? Nodes have no index by slot, so the node is scanned and its keys are hashed
//! here.

use capstan_redis_protocol::resp::{View, Writer, write_request};
use capstan_redis_protocol::slots::Slot;

use super::arena::Key;
use super::link::{Link, Remote};
use super::replies::Sequence;
use super::session::Session;
use super::waiter::Waiter;
use super::worker::{Taken, Worker};

/// Keys that the node visits per `SCAN`: some hundred microseconds of its time.
const BATCH: &str = "500";

/// A scan in progress.
#[derive(Debug)]
pub(super) struct SlotScan {
    session: Key,
    sequence: Sequence,
    slot: Slot,
    /// The most keys to return; `None` if only their number is requested.
    most: Option<usize>,
    keys: Vec<Vec<u8>>,
    count: i64,
}

impl Worker {
    /// `CLUSTER COUNTKEYSINSLOT`, `CLUSTER GETKEYSINSLOT`.
    pub(super) fn scan_slot(&mut self, session: &mut Session, slot: Slot, most: Option<usize>) -> Taken {
        let link = match self.owner(session, slot) {
            Ok(remote @ Remote::Node(_)) => self.pipeline(&remote, session.protocol, session.lane),
            // This proxy has no keys of a slot that another proxy owns.
            Ok(Remote::Peer(..)) => {
                session.answer(|writer| if most.is_some() { writer.array(0) } else { writer.integer(0) });
                return Taken::Yes;
            }
            Err(taken) => return taken,
        };
        let link = match link {
            Ok(link) => link,
            Err(down) => {
                return self.object(session, down.error());
            }
        };
        let sequence = session.replies.owe(session.wants_reply());
        let scan = SlotScan { session: session.key, sequence, slot, most, keys: Vec::new(), count: 0 };
        let mut request = Vec::new();
        write_request(&mut request, &["SCAN", "0", "COUNT", BATCH]);
        self.send(link, &request, Waiter::SlotScan(Box::new(scan)));
        Taken::Yes
    }

    /// Handles one batch: requests the next one, or completes the reply.
    pub(super) fn slot_scanned(&mut self, link: &mut Link, mut scan: Box<SlotScan>, reply: &[u8]) {
        let cursor = scan.take(reply);
        let Some(cursor) = cursor.filter(|cursor| cursor != b"0" && !scan.is_full()) else {
            return self.give(scan.session, scan.sequence, &scan.reply(reply));
        };
        write_request(link.out.bytes(), &[b"SCAN", &cursor[..], b"COUNT", BATCH.as_bytes()]);
        link.waiters.push_back(Waiter::SlotScan(scan));
        if !link.dirty {
            link.dirty = true;
            self.dirty_links.push(link.key);
        }
    }
}

impl SlotScan {
    pub(super) fn whose(&self) -> (Key, Sequence) {
        (self.session, self.sequence)
    }

    fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.keys.len() >= most)
    }

    /// Counts the keys of a batch, and returns the next cursor.
    fn take(&mut self, reply: &[u8]) -> Option<Vec<u8>> {
        let mut parts = View::of(reply)?.sequence()?.views();
        let cursor = parts.next()?.bytes()?.to_vec();
        for key in parts.next()?.sequence()?.views().filter_map(View::bytes) {
            if Slot::of(key) == self.slot && !self.is_full() {
                self.count += 1;
                if self.most.is_some() {
                    self.keys.push(key.to_vec());
                }
            }
        }
        Some(cursor)
    }

    fn reply(&self, last: &[u8]) -> Vec<u8> {
        if last.first() == Some(&b'-') {
            return last.to_vec();
        }
        let mut reply = Vec::new();
        let mut writer = Writer::new(&mut reply, capstan_redis_protocol::resp::Protocol::Resp2);
        if self.most.is_some() {
            writer.array(self.keys.len());
            self.keys.iter().for_each(|key| writer.bulk(key));
        } else {
            writer.integer(self.count);
        }
        reply
    }
}
