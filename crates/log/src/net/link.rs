//! How does a frame get to another host? Through a link: a queue and a task that keeps a connection open.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
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
            let line =
                Line { me: self.me.clone(), to: to.clone(), book: self.book.clone(), tls: self.tls.clone() };
            Link { queue, _task: OwnedTask::spawn(line.keep(frames)) }
        });
        if pieces.into_iter().any(|piece| link.queue.try_send(piece).is_err()) {
            tracing::debug!(%to, "frame lost: the link is full");
        }
    }
}

type Stream = Box<dyn AsyncWrite + Send + Unpin>;

/// From whom to whom.
struct Line {
    me: HolderId,
    to: HolderId,
    book: AddressBook,
    tls: Option<Tls>,
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
