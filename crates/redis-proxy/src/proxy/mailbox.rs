//! How do workers receive messages from other threads? Through a list and a waker.

use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

use capstan_redis_protocol::ClusterName;

use super::arena::Key;
use super::client_list::Roll;
use super::replies::Sequence;

/// A message to a worker.
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
    /// A query to all workers about their clients.
    Roll(Arc<Roll>),
    /// A command for the `MONITOR` clients of a database.
    Monitor {
        /// Which database.
        database: ClusterName,
        /// The line as they receive it.
        line: Arc<[u8]>,
    },
}

/// The incoming messages of a worker.
#[derive(Debug)]
pub(super) struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Mailbox {
        Mailbox { letters: Mutex::new(Vec::new()), waker }
    }

    /// Adds a message and wakes the worker.
    pub(super) fn post(&self, letter: Letter) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "cannot wake a worker");
        }
    }

    /// Takes all messages.
    pub(super) fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
