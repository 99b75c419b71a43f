//! How is one watcher waited for, poked and cancelled while hundreds of others are? Each waits in a future of its own
//! ([`Watcher::turn`]); the session holds a [`Handle`] to poke it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use crate::error::{MetaError, Result};
use crate::request::WatchMessage;
use crate::store::WatchStream;

/// Names a watcher within its stream, never twice (watch ids can be used again after a cancel).
pub(super) type Serial = u64;

const PROGRESS: u8 = 1;
const CANCEL: u8 = 2;

/// What the session and the waiting future share.
#[derive(Debug, Default)]
struct Poke {
    wanted: AtomicU8,
    wake: Notify,
}

/// The session's side of a watcher.
#[derive(Debug)]
pub(super) struct Handle(Arc<Poke>);

impl Handle {
    /// Makes the watcher say how far it is, as soon as it has caught up.
    pub(super) fn ask_progress(&self) {
        self.0.wanted.fetch_or(PROGRESS, Ordering::AcqRel);
        self.0.wake.notify_one();
    }
}

impl Drop for Handle {
    /// A session that forgets a watcher ends it.
    fn drop(&mut self) {
        self.0.wanted.fetch_or(CANCEL, Ordering::AcqRel);
        self.0.wake.notify_one();
    }
}

/// A watch of the store, on behalf of one watcher of the stream.
pub(super) struct Watcher {
    pub(super) serial: Serial,
    pub(super) id: i64,
    stream: Box<dyn WatchStream>,
    poke: Arc<Poke>,
}

/// What came of waiting for a watcher.
pub(super) enum Turn {
    /// It has something to say; wait for it again.
    Message(Watcher, WatchMessage),
    /// It is over.
    Failed { serial: Serial, id: i64, error: MetaError },
    /// The session did not want it any more.
    Cancelled,
    /// The whole server is closing.
    Stopping,
}

impl Watcher {
    pub(super) fn new(serial: Serial, id: i64, stream: Box<dyn WatchStream>) -> (Watcher, Handle) {
        let poke = Arc::new(Poke::default());
        (Watcher { serial, id, stream, poke: poke.clone() }, Handle(poke))
    }

    /// Waits for whatever comes next.
    pub(super) async fn turn(mut self) -> Turn {
        match self.wait().await {
            Ok(Some(message)) => Turn::Message(self, message),
            Ok(None) => Turn::Cancelled,
            Err(error) => Turn::Failed { serial: self.serial, id: self.id, error },
        }
    }

    async fn wait(&mut self) -> Result<Option<WatchMessage>> {
        loop {
            tokio::select! {
                biased;
                () = self.poke.wake.notified() => {
                    let wanted = self.poke.wanted.swap(0, Ordering::AcqRel);
                    if wanted & CANCEL != 0 {
                        return Ok(None);
                    }
                    if wanted & PROGRESS != 0 {
                        self.stream.request_progress().await?;
                    }
                }
                message = self.stream.next() => return Ok(Some(message?)),
            }
        }
    }
}
