//! How does a frame get to another host? Through a link: a queue and a task that keeps a connection open.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::OwnedTask;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::AddressBook;
use super::frame::Frame;
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
    links: Mutex<HashMap<HolderId, Link>>,
}

#[derive(Debug)]
struct Link {
    queue: mpsc::Sender<Bytes>,
    _task: OwnedTask,
}

impl Links {
    pub(crate) fn new(me: HolderId, book: AddressBook) -> Links {
        Links { me, book, links: Mutex::default() }
    }

    /// Sends a frame, or loses it.
    pub(crate) fn send(&self, to: &HolderId, frame: &Frame) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.entry(to.clone()).or_insert_with(|| {
            let (queue, frames) = mpsc::channel(QUEUE);
            let (me, to, book) = (self.me.clone(), to.clone(), self.book.clone());
            Link { queue, _task: OwnedTask::spawn(keep(me, to, book, frames)) }
        });
        if link.queue.try_send(frame.encode()).is_err() {
            tracing::debug!(%to, "frame lost: the link is full");
        }
    }
}

async fn keep(me: HolderId, to: HolderId, book: AddressBook, mut frames: mpsc::Receiver<Bytes>) {
    let mut stream: Option<TcpStream> = None;
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
            stream = dial(&me, &to, &book).await;
        }
        let Some(open) = &mut stream else {
            tokio::time::sleep(REDIAL).await;
            continue;
        };
        if !matches!(tokio::time::timeout(PATIENCE, write(open, &batch)).await, Ok(Ok(()))) {
            tracing::debug!(%to, "connection to holder broke");
            stream = None;
        }
    }
}

async fn write(stream: &mut TcpStream, batch: &[Bytes]) -> std::io::Result<()> {
    match batch {
        [one] => stream.write_all(one).await,
        many => stream.write_all(&many.concat()).await,
    }
}

async fn dial(me: &HolderId, to: &HolderId, book: &AddressBook) -> Option<TcpStream> {
    let address = book.get(to)?;
    let mut stream = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await.ok()?.ok()?;
    stream.set_nodelay(true).ok()?;
    let hello = Frame::Hello(me.clone()).encode();
    stream.write_all(&hello).await.ok()?;
    Some(stream)
}
