//! How does a frame get to another host? Through a link: a queue and a task that keeps a connection open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::OwnedTask;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::frame::Frame;
use super::{AddressBook, Tls, fragment};
use crate::keys::HolderId;

/// Frames waiting for one host; what does not fit is lost, and sent again by who missed an answer.
const QUEUE: usize = 4096;
/// Bytes waiting for one host: the longest message, and some more. A snapshot that is sent again while it still waits
/// is lost instead of waiting twice.
const QUEUE_BYTES: usize = fragment::MAX_MESSAGE + 32 * 1024 * 1024;
/// Bytes written at once.
const WRITE: usize = 1024 * 1024;
/// Pause before a host that could not be reached is dialled again.
const REDIAL: Duration = Duration::from_millis(100);
/// A host that does not take a connection, or bytes, within this is not there.
const PATIENCE: Duration = Duration::from_secs(5);

/// The links of a host to all others, made when they are first needed.
#[derive(Debug)]
pub(crate) struct Links {
    me: HolderId,
    book: AddressBook,
    tls: Option<Tls>,
    links: Mutex<HashMap<HolderId, Link>>,
}

#[derive(Debug)]
struct Link {
    queue: mpsc::Sender<Bytes>,
    /// Bytes in it.
    waiting: Arc<AtomicUsize>,
    _task: OwnedTask,
}

impl Links {
    pub(crate) fn new(me: HolderId, book: AddressBook, tls: Option<Tls>) -> Links {
        Links { me, book, tls, links: Mutex::default() }
    }

    /// Sends a frame, or loses it.
    pub(crate) fn send(&self, to: &HolderId, frame: &Frame) {
        let Some(pieces) = fragment::split(frame.encode()) else {
            tracing::error!(%to, most = fragment::MAX_MESSAGE, "message is too long to be sent: is it a snapshot?");
            return;
        };
        // Held until all of them are queued: nothing comes between the fragments of a frame.
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.entry(to.clone()).or_insert_with(|| {
            let (queue, frames) = mpsc::channel(QUEUE);
            let waiting = Arc::new(AtomicUsize::new(0));
            let (me, book, tls) = (self.me.clone(), self.book.clone(), self.tls.clone());
            let line = Line { me, to: to.clone(), book, tls, waiting: Arc::clone(&waiting) };
            Link { queue, waiting, _task: OwnedTask::spawn(line.keep(frames)) }
        });
        if !link.take(pieces) {
            tracing::debug!(%to, "frame lost: the link is full");
        }
    }
}

impl Link {
    /// Queues all of a frame, as far as there is room.
    fn take(&self, pieces: Vec<Bytes>) -> bool {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        if self.waiting.load(Ordering::Relaxed) + bytes > QUEUE_BYTES {
            return false;
        }
        pieces.into_iter().all(|piece| {
            let bytes = piece.len();
            let queued = self.queue.try_send(piece).is_ok();
            if queued {
                self.waiting.fetch_add(bytes, Ordering::Relaxed);
            }
            queued
        })
    }
}

type Stream = Box<dyn AsyncWrite + Send + Unpin>;

/// From whom to whom.
struct Line {
    me: HolderId,
    to: HolderId,
    book: AddressBook,
    tls: Option<Tls>,
    waiting: Arc<AtomicUsize>,
}

impl Line {
    async fn keep(self, mut frames: mpsc::Receiver<Bytes>) {
        let mut stream: Option<Stream> = None;
        while let Some(frame) = frames.recv().await {
            let mut batch = vec![frame];
            let mut bytes = batch[0].len();
            while bytes < WRITE
                && let Ok(more) = frames.try_recv()
            {
                bytes += more.len();
                batch.push(more);
            }
            // May be taken off before it was put on: then there is room for a little more than there should be.
            self.waiting
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |w| Some(w.saturating_sub(bytes)))
                .ok();
            if stream.is_none() {
                stream = self.reach().await;
            }
            let Some(open) = &mut stream else {
                tokio::time::sleep(REDIAL).await;
                continue;
            };
            if !matches!(tokio::time::timeout(PATIENCE, write(open, &batch)).await, Ok(Ok(()))) {
                tracing::debug!(to = %self.to, "connection to holder broke");
                stream = None;
            }
        }
    }

    async fn reach(&self) -> Option<Stream> {
        let address = self.book.get(&self.to)?;
        match tokio::time::timeout(PATIENCE, self.dial(address)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(to = %self.to, %error, "holder cannot be reached");
                None
            }
            Err(_) => None,
        }
    }

    async fn dial(&self, address: std::net::SocketAddr) -> std::io::Result<Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut stream: Stream = match &self.tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.connect(&self.to, stream).await?),
        };
        write(&mut stream, &[Frame::Hello(self.me.clone()).encode()]).await?;
        Ok(stream)
    }
}

async fn write(stream: &mut Stream, batch: &[Bytes]) -> std::io::Result<()> {
    match batch {
        [one] => stream.write_all(one).await?,
        many => stream.write_all(&many.concat()).await?,
    }
    stream.flush().await
}
