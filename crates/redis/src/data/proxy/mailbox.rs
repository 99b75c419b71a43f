//! How do workers hear of what happens outside of them? By letter: a list and a way to wake them.

use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use crate::keys::ClusterName;

use super::arena::Key;
use super::client_list::Roll;
use super::replies::Sequence;

/// What a worker is told.
#[derive(Debug)]
pub(super) enum Letter {
    /// The reply of one of its sessions' commands is ready.
    Give {
        /// Which session.
        session: Key,
        /// Which of its requests.
        sequence: Sequence,
        /// The reply.
        reply: Vec<u8>,
    },
    /// All workers are asked about their clients.
    Roll(Arc<Roll>),
    /// A command for those who watch the commands of a database.
    Monitor {
        /// Which database.
        database: ClusterName,
        /// As they see it.
        line: Arc<[u8]>,
    },
}

/// Where a worker's letters are put.
#[derive(Debug)]
pub(super) struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Mailbox {
        Mailbox { letters: Mutex::new(Vec::new()), waker }
    }

    /// Leaves a letter and wakes the worker.
    pub(super) fn post(&self, letter: Letter) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "cannot wake a worker");
        }
    }

    /// Everything that has come.
    pub(super) fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
