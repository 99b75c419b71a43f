//! How does a snapshot get from one copy to another? In pieces, with a small window that bounds the memory of both
//! ends. The receiver takes a piece when its owner is ready for it, and reports its progress; lost pieces are sent
//! again. The sender keeps the pieces that were not acknowledged, and ends when the receiver has installed the last one
//! or is silent for too long.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::copy::{Copy, Notice};
use super::machine::StateMachine;
use crate::entry::{History, LogEpoch, Offset};
use crate::keys::{HolderId, LogName};
use crate::net::{Frame, Links, Packet, Piece, Taken};
use crate::replica::{Event, Message};

/// Bytes of one piece: small enough not to delay frames of other logs.
const PIECE: usize = 256 * 1024;
/// Pieces in flight, and in memory on each end.
const WINDOW: usize = 8;
/// The time after which unacknowledged pieces are sent again.
const RESEND: Duration = Duration::from_millis(500);
/// The time after which a silent receiver counts as gone; later the snapshot starts over.
const SILENCE: Duration = Duration::from_secs(15);

/// A snapshot being sent to another copy.
pub(super) struct Leaving {
    pub(super) to: HolderId,
    session: u64,
    /// Progress reports of the other copy.
    answers: mpsc::Sender<Taken>,
}

/// A snapshot being received.
pub(super) struct Arriving {
    from: HolderId,
    session: u64,
    /// The next piece.
    next: u32,
    /// To the owner; `None` after the last piece.
    feed: Option<SyncSender<Fed>>,
    /// Whether the last piece has arrived.
    whole: bool,
}

/// A message to the owner's thread.
struct Fed {
    bytes: Bytes,
    last: bool,
}

/// Reads pieces as they arrive. An unannounced end is an error: a partial snapshot is useless.
struct Feed {
    pieces: Receiver<Fed>,
    rest: Bytes,
    ended: bool,
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !self.ended {
            match self.pieces.recv() {
                Ok(Fed { bytes, last }) => (self.rest, self.ended) = (bytes, last),
                Err(_) => {
                    let why = "the rest of the snapshot will not arrive";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
            }
        }
        let taken = self.rest.split_to(buffer.len().min(self.rest.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

impl Copy {
    /// Begins to send a snapshot to a copy that lacks dropped entries.
    pub(super) fn ship_snapshot(&mut self, to: HolderId, epoch: LogEpoch) {
        self.next_session += 1;
        let session = self.life.wrapping_mul(1 << 20).wrapping_add(self.next_session);
        let (answers, taken) = mpsc::channel(4 * WINDOW);
        self.leaving.retain(|leaving| leaving.to != to);
        self.leaving.push(Leaving { to: to.clone(), session, answers });
        let shipping = Shipping {
            log: self.name.clone(),
            to: to.clone(),
            epoch,
            session,
            start: self.replica.start(),
            committed: self.replica.committed(),
            history: self.replica.history().clone(),
            machine: Arc::clone(&self.machine),
            links: Arc::clone(&self.links),
            incarnation: self.disk.incarnation(),
        };
        let notices = self.notices.clone();
        tracing::info!(log = %self.name, %to, "sending a snapshot");
        self.background.spawn(async move {
            if let Err(why) = shipping.run(taken).await {
                tracing::warn!(log = %shipping.log, to = %shipping.to, why, "cannot send snapshot");
                // Delayed, because the next attempt is likely to fail too.
                tokio::time::sleep(RESEND).await;
            }
            notices.send(Notice::Shipped(shipping.to)).ok();
        });
    }

    /// Handles a progress report of the other copy.
    pub(super) fn taken(&mut self, from: &HolderId, taken: Taken) {
        let leaving =
            self.leaving.iter().find(|leaving| leaving.to == *from && leaving.session == taken.session);
        if let Some(leaving) = leaving {
            // An excess report may be dropped: it is sent again.
            leaving.answers.try_send(taken).ok();
        }
    }

    /// Handles a piece of a snapshot.
    pub(super) fn piece(&mut self, from: &HolderId, piece: Piece) {
        let known = self.arriving.as_ref().is_some_and(|a| a.from == *from && a.session == piece.session);
        if !known && !self.begin_arrival(from, &piece) {
            return;
        }
        let Some(arriving) = &mut self.arriving else { return };
        if piece.number == arriving.next
            && let Some(feed) = &arriving.feed
        {
            match feed.try_send(Fed { bytes: piece.bytes, last: piece.last }) {
                Ok(()) => arriving.next += 1,
                // The owner is too slow, or has given up and reports that itself.
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return,
            }
            if piece.last {
                arriving.feed = None;
                arriving.whole = true;
            }
        }
        self.answer_arrival(false);
    }

    /// Whether a snapshot is wanted; then its installation begins.
    fn begin_arrival(&mut self, from: &HolderId, piece: &Piece) -> bool {
        // An owner that still installs an earlier one is notified that it has ended.
        if let Some(earlier) = &mut self.arriving {
            earlier.feed = None;
            return false;
        }
        if piece.number != 0 || !self.replica.wants_snapshot(from, piece.epoch, &piece.history) {
            return false;
        }
        let (feed, pieces) = sync_channel(WINDOW);
        let (session, from) = (piece.session, from.clone());
        self.arriving =
            Some(Arriving { from: from.clone(), session, next: 0, feed: Some(feed), whole: false });
        let (machine, log, notices) = (Arc::clone(&self.machine), self.name.clone(), self.notices.clone());
        let (epoch, history) = (piece.epoch, piece.history.clone());
        let mut feed = Feed { pieces, rest: Bytes::new(), ended: false };
        tracing::info!(%log, %from, at = %history.end(), "installing a snapshot");
        self.background.spawn(async move {
            let at = history.end();
            let install = move || machine.install(&log, at, &mut feed).map_err(|error| error.to_string());
            let installed = tokio::task::spawn_blocking(install).await;
            let outcome = installed.unwrap_or_else(|error| Err(error.to_string()));
            notices.send(Notice::Installed { session, from, epoch, history, outcome }).ok();
        });
        true
    }

    /// The owner has installed a snapshot: the log begins after it.
    pub(super) async fn installed(
        &mut self,
        session: u64,
        from: &HolderId,
        epoch: LogEpoch,
        history: History,
        outcome: Result<(), String>,
    ) {
        let complete = self.arriving.as_ref().is_some_and(|a| a.session == session && a.whole);
        if let Err(why) = &outcome {
            tracing::warn!(log = %self.name, %from, why, "cannot install snapshot");
        }
        if complete && outcome.is_ok() {
            let snapshot = Bytes::new();
            self.happen(Event::Received(from.clone(), Message::Install { epoch, history, snapshot })).await;
            self.answer_arrival(true);
        }
        self.arriving = None;
    }

    fn answer_arrival(&self, installed: bool) {
        if let Some(Arriving { from, session, next, .. }) = &self.arriving {
            let taken = Taken { session: *session, next: *next, installed };
            self.send(from, Packet::Taken(taken));
        }
    }

    /// Repeats the progress report, which keeps the sender waiting.
    pub(super) fn tend_snapshots(&self) {
        self.answer_arrival(false);
    }
}

/// One snapshot transfer.
struct Shipping {
    log: LogName,
    incarnation: crate::config::Incarnation,
    to: HolderId,
    epoch: LogEpoch,
    session: u64,
    start: Offset,
    committed: Offset,
    history: History,
    machine: Arc<dyn StateMachine>,
    links: Arc<Links>,
}

impl Shipping {
    async fn run(&self, mut taken: mpsc::Receiver<Taken>) -> Result<(), String> {
        let (pieces, mut made) = mpsc::channel(WINDOW);
        let (machine, log, start) = (Arc::clone(&self.machine), self.log.clone(), self.start);
        let cutting = tokio::task::spawn_blocking(move || cut(&*machine, &log, start, &pieces));
        let outcome = self.send(&mut made, &mut taken).await;
        drop(made);
        let cut = cutting.await.map_err(|error| error.to_string())?;
        cut.and(outcome)
    }

    async fn send(
        &self,
        made: &mut mpsc::Receiver<Cut>,
        taken: &mut mpsc::Receiver<Taken>,
    ) -> Result<(), String> {
        let mut window: VecDeque<Piece> = VecDeque::new();
        let mut whole = false;
        let (mut heard, mut sent) = (Instant::now(), Instant::now());
        loop {
            let wake = (sent + RESEND).min(heard + SILENCE);
            tokio::select! {
                cut = made.recv(), if !whole && window.len() < WINDOW => {
                    let Some(cut) = cut else { return Err("the owner returned no snapshot".to_owned()) };
                    let piece = self.piece(cut)?;
                    whole = piece.last;
                    self.ship(&piece);
                    window.push_back(piece);
                    sent = Instant::now();
                }
                answer = taken.recv() => {
                    let Some(answer) = answer else { return Err("it was cancelled".to_owned()) };
                    if answer.installed {
                        return Ok(());
                    }
                    heard = Instant::now();
                    while window.front().is_some_and(|piece| piece.number < answer.next) {
                        window.pop_front();
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if heard.elapsed() >= SILENCE {
                        return Err("the other copy does not answer".to_owned());
                    }
                    window.iter().for_each(|piece| self.ship(piece));
                    sent = Instant::now();
                }
            }
        }
    }

    fn piece(&self, cut: Cut) -> Result<Piece, String> {
        if cut.at < self.start || cut.at > self.committed.max(self.start) {
            let (at, start, committed) = (cut.at, self.start, self.committed);
            return Err(format!(
                "the owner's snapshot ends at {at}, and it must be in {start}..={committed}"
            ));
        }
        let mut history = self.history.clone();
        history.cut(cut.at);
        let Cut { number, last, bytes, .. } = cut;
        Ok(Piece { epoch: self.epoch, session: self.session, history, number, last, bytes })
    }

    fn ship(&self, piece: &Piece) {
        let packet = Packet::Piece(piece.clone());
        self.links.send(&self.to, &Frame::About(self.log.clone(), self.incarnation, packet));
    }
}

/// A piece as produced by the owner's thread.
struct Cut {
    at: Offset,
    number: u32,
    last: bool,
    bytes: Bytes,
}

/// Takes a snapshot and cuts it into pieces; waits for the receiver. Blocking.
fn cut(
    machine: &dyn StateMachine,
    log: &LogName,
    start: Offset,
    pieces: &mpsc::Sender<Cut>,
) -> Result<(), String> {
    let mut snapshot = machine.snapshot(log, start).map_err(|error| error.to_string())?;
    let at = snapshot.at;
    let mut number = 0;
    loop {
        let mut bytes = Vec::new();
        let limit = PIECE as u64;
        let read = snapshot.content.by_ref().take(limit).read_to_end(&mut bytes);
        let last = read.map_err(|error| error.to_string())? < PIECE;
        if pieces.blocking_send(Cut { at, number, last, bytes: bytes.into() }).is_err() {
            // The other end reports the reason.
            return Ok(());
        }
        if last {
            return Ok(());
        }
        number += 1;
    }
}
