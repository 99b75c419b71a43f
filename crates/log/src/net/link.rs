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
use tokio::time::Instant;

use super::frame::{Frame, MAX_FRAME};
use super::{AddressBook, Tls};
use crate::keys::HolderId;

/// Frames that may wait for one host; others are dropped, and sent again after a timeout.
const QUEUE: usize = 4096;
/// Bytes that may wait for one host: a few round trips of a fast network.
const QUEUE_BYTES: usize = 32 * 1024 * 1024;
/// Bytes per write.
const WRITE: usize = 1024 * 1024;
/// Pause before a failed connection is retried.
const REDIAL: Duration = Duration::from_millis(100);
/// Timeout for connecting and for writing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The links of a host to all others, created on first use.
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
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    /// When the first unanswered frame was sent.
    unanswered: Option<Instant>,
    _task: OwnedTask,
}

impl Links {
    pub(crate) fn new(me: HolderId, book: AddressBook, tls: Option<Tls>) -> Links {
        Links { me, book, tls, links: Mutex::default() }
    }

    /// Queues a frame, or drops it.
    pub(crate) fn send(&self, to: &HolderId, frame: &Frame) {
        let frame = frame.encode();
        if frame.len() > MAX_FRAME {
            tracing::error!(%to, bytes = frame.len(), "frame too long, dropped");
            return;
        }
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.entry(to.clone()).or_insert_with(|| {
            let (queue, frames) = mpsc::channel(QUEUE);
            let waiting = Arc::new(AtomicUsize::new(0));
            let (me, book, tls) = (self.me.clone(), self.book.clone(), self.tls.clone());
            let line = Line { me, to: to.clone(), book, tls, waiting: Arc::clone(&waiting) };
            Link { queue, waiting, unanswered: None, _task: OwnedTask::spawn(line.keep(frames)) }
        });
        link.unanswered.get_or_insert_with(Instant::now);
        if !link.take(frame) {
            tracing::debug!(%to, "link queue full, frame dropped");
        }
    }
}

impl Links {
    /// Records that something arrived from another holder.
    pub(crate) fn heard(&self, from: &HolderId) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get_mut(from) {
            link.unanswered = None;
        }
    }

    /// Holders that have not answered for this long. Every message is answered, some with a delay.
    pub(crate) fn silent(&self, within: Duration) -> Vec<HolderId> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let silent =
            links.iter().filter(|(_, link)| link.unanswered.is_some_and(|at| at.elapsed() >= within));
        let mut silent: Vec<HolderId> = silent.map(|(holder, _)| holder.clone()).collect();
        silent.sort();
        silent
    }
}

impl Link {
    /// Queues a frame, if there is space.
    fn take(&self, frame: Bytes) -> bool {
        let bytes = frame.len();
        // Counted before it is queued: otherwise it could be subtracted before it was added, and count forever.
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let queued = before + bytes <= QUEUE_BYTES && self.queue.try_send(frame).is_ok();
        if !queued {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        queued
    }
}

type Stream = Box<dyn AsyncWrite + Send + Unpin>;

/// The two ends of a link.
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
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            if stream.is_none() {
                stream = self.reach().await;
            }
            let Some(open) = &mut stream else {
                tokio::time::sleep(REDIAL).await;
                continue;
            };
            if !matches!(tokio::time::timeout(PATIENCE, write(open, &batch)).await, Ok(Ok(()))) {
                tracing::debug!(to = %self.to, "connection to holder lost");
                stream = None;
            }
        }
    }

    async fn reach(&self) -> Option<Stream> {
        let address = self.book.get(&self.to)?;
        match tokio::time::timeout(PATIENCE, self.dial(address)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(to = %self.to, %error, "cannot connect to holder");
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
