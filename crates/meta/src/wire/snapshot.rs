//! How is a snapshot sent? In blobs, padded to whole sectors, and at the end the SHA-256 of everything before it, which
//! is what `etcdctl snapshot save` checks. What is inside is the store's own format.
//!
//! The store streams its snapshot without knowing its length. So how many bytes remain is exact as soon as the end is in
//! sight (a few mebibytes ahead), an estimate before that, and never zero too early.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tonic::Status;

use super::kv::Answers;
use super::proto::etcdserverpb::{ResponseHeader, SnapshotResponse};
use super::service::Wire;
use super::status::{status, stopped};
use crate::error::Result;

/// Bytes in a blob.
const BLOB: usize = 32 << 10;
/// The payload is padded to a multiple of this.
const SECTOR: u64 = 512;
/// How far the end is looked for; bounds the memory of one snapshot.
const LOOK_AHEAD: usize = 4 << 20;

/// A snapshot of the store as the answers of one call.
pub(super) async fn stream(wire: &Arc<Wire>) -> Result<Answers<SnapshotResponse>, Status> {
    let told = wire.backend.status().await.map_err(status)?;
    let chunks = wire.backend.snapshot().await.map_err(status)?;
    let sender = Sender {
        wire: wire.clone(),
        header: wire.header(told.revision),
        chunks: Some(chunks),
        ahead: VecDeque::new(),
        ahead_bytes: 0,
        received: 0,
        sent: 0,
        expected: told.db_size_in_use,
        hash: Some(Sha256::new()),
    };
    Ok(Box::pin(stream::try_unfold(sender, |mut sender| async {
        Ok(sender.next().await?.map(|answer| (answer, sender)))
    })))
}

struct Sender {
    wire: Arc<Wire>,
    header: Option<ResponseHeader>,
    /// What the store still has to say; `None` at its end.
    chunks: Option<mpsc::Receiver<Result<Bytes>>>,
    ahead: VecDeque<Bytes>,
    ahead_bytes: usize,
    received: u64,
    sent: u64,
    expected: u64,
    /// Of everything sent; taken by the last answer.
    hash: Option<Sha256>,
}

impl Sender {
    async fn next(&mut self) -> Result<Option<SnapshotResponse>, Status> {
        self.look_ahead().await?;
        let blob = self.take(BLOB);
        if blob.is_empty() {
            return Ok(self.hash.take().map(|hash| self.answer(Bytes::copy_from_slice(&hash.finalize()), 0)));
        }
        if let Some(hash) = &mut self.hash {
            hash.update(&blob);
        }
        self.sent += blob.len() as u64;
        let remaining = match self.chunks {
            None => self.ahead_bytes as u64,
            Some(_) => (self.ahead_bytes as u64).max(self.expected.saturating_sub(self.sent)).max(1),
        };
        Ok(Some(self.answer(blob, remaining)))
    }

    async fn look_ahead(&mut self) -> Result<(), Status> {
        while self.ahead_bytes < LOOK_AHEAD
            && let Some(chunks) = &mut self.chunks
        {
            let chunk = tokio::select! {
                chunk = chunks.recv() => chunk,
                () = self.wire.stopping.cancelled() => return Err(stopped()),
            };
            match chunk {
                Some(chunk) => self.add(chunk.map_err(status)?),
                None => {
                    self.chunks = None;
                    let padding = self.received.next_multiple_of(SECTOR) - self.received;
                    self.add(Bytes::from(vec![0; padding as usize]));
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, chunk: Bytes) {
        self.received += chunk.len() as u64;
        self.ahead_bytes += chunk.len();
        self.ahead.push_back(chunk);
    }

    /// Up to so many bytes of what is ahead.
    fn take(&mut self, most: usize) -> Bytes {
        let mut blob = BytesMut::with_capacity(most.min(self.ahead_bytes));
        while blob.len() < most
            && let Some(front) = self.ahead.front_mut()
        {
            let piece = front.split_to(front.len().min(most - blob.len()));
            if front.is_empty() {
                self.ahead.pop_front();
            }
            blob.extend_from_slice(&piece);
        }
        self.ahead_bytes -= blob.len();
        blob.freeze()
    }

    fn answer(&self, blob: Bytes, remaining_bytes: u64) -> SnapshotResponse {
        let version = self.wire.identity.version.clone();
        SnapshotResponse { header: self.header, remaining_bytes, blob, version }
    }
}
