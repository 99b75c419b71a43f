//! How does a life of a copy end, and the next one begin? It ends with a failed disk write.

use std::time::Duration;

use capstan_meta::LeaseId;
use tokio::time::Instant;

use super::Copy;
use crate::disk::DiskError;
use crate::entry::LogEpoch;
use crate::error::LogError;
use crate::host::gauge::Duty;
use crate::keys::HolderId;
use crate::replica::{Replica, Standing};

/// The pause of a copy after a failed disk write.
pub(super) const RECOVER_AFTER: Duration = Duration::from_secs(1);
/// How often the pause doubles, once for each further life without a commit.
const RECOVER_DOUBLINGS: u32 = 5;

impl Copy {
    /// Ends this life after a failed write: its knowledge of its tail is no longer reliable.
    pub(in crate::host) fn end_life(&mut self, error: DiskError) {
        if self.ended.is_some() {
            return;
        }
        tracing::warn!(log = %self.name, %error, "log copy stopped");
        self.gathered.clear();
        for (_, reply) in self.tickets.drain(..) {
            reply.refuse(error.clone().into());
        }
        // Some of it may be on this disk or on another one.
        self.abandon_placed(&error.to_string());
        self.leaving.clear();
        self.arriving = None;
        let pause = RECOVER_AFTER * 2_u32.pow(self.failures.min(RECOVER_DOUBLINGS));
        self.failures += 1;
        self.ended = Some((error, Instant::now() + pause));
        self.stand_aside();
        self.resign();
    }

    /// Publishes that this copy does not lead: between two lives it cannot follow the record.
    fn stand_aside(&mut self) {
        self.needle.move_to(self.needle.shown().committed, Duty::Follower);
        self.standing_mark = (Duty::Follower, LogEpoch(0), false);
        self.standing.send_replace(Standing::Out);
    }

    /// Hands the lead to another complete copy, because a primary needs a working disk. Without another one, or while
    /// none responds, the lead stays here and waits for the disk.
    pub(super) fn resign(&mut self) {
        let Some((config, revision)) = &self.known else { return };
        let (asked, times) = self.resigned;
        if config.primary != self.me || asked == Some(*revision) {
            return;
        }
        let others: Vec<&HolderId> = config.in_sync.iter().filter(|other| **other != self.me).collect();
        let heir = self.replica.heir(self.now()).or_else(|| others.get(times % others.len().max(1)).copied());
        let Some(next) = heir.and_then(|heir| config.elect(heir).ok()) else { return };
        tracing::warn!(log = %self.name, to = %next.primary, "disk failed, handing over");
        let guard = *revision;
        self.resigned = (Some(guard), times + 1);
        self.propose(guard, next);
    }

    /// Fails placed appends with an unknown outcome.
    pub(in crate::host) fn abandon_placed(&mut self, why: &str) {
        for placed in self.placed.drain(..) {
            let (log, why) = (self.name.clone(), why.to_owned());
            placed.reply.finish(Err(LogError::Uncertain { log, why }));
        }
    }

    /// Begins a new life from the data on disk, once the last write of the old one was reported.
    pub(super) async fn begin_anew(&mut self) {
        if self.writing > 0 || self.ended.as_ref().is_none_or(|(_, when)| Instant::now() < *when) {
            return;
        }
        if let Err(error) = self.disk.probe().await {
            self.ended = Some((error, Instant::now() + RECOVER_AFTER));
            self.resigned.0 = None;
            self.resign();
            return;
        }
        self.ended = None;
        self.life = self.shared.next_life();
        self.recent.clear();
        self.recent_bytes = 0;
        let committed = self.needle.shown().committed;
        let found = Replica::new(self.me.clone(), self.disk.start(), self.disk.history(), self.timing);
        self.replica = found.in_life(self.life).knowing(committed);
        let state = *self.session.borrow();
        self.lease = LeaseId::NONE;
        self.leased(state).await;
    }
}
