//! How is a whole store carried elsewhere? As checksummed frames: a header, all keys of one revision, an end.
//!
//! History is not part of it: a restored store goes on after the snapshot's revision and has nothing before it.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::engine::{EngineError, OpenError};
use super::sqlite::Sqlite;
use super::writer::Command;
use super::{Embedded, codec};
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, KeyValue, LeaseId, Revision};
use crate::task::spawn_producer;

/// The first bytes of every snapshot; the digit is its format.
const MAGIC: &[u8] = b"capstan-meta-snapshot-1\n";

/// Keys read under one lock and written into one frame.
const KEYS_PER_FRAME: usize = 1024;

/// A frame larger than this is damage: the largest has so many keys of the largest size.
const MAX_FRAME: u32 = 1 << 31;

/// Frames that may wait for a slow reader of the snapshot.
const FRAMES_AHEAD: usize = 4;

#[derive(Serialize, Deserialize)]
enum Frame {
    Header { revision: Revision, cluster_id: u64, leases: Vec<(LeaseId, u64)> },
    End { keys: u64 },
}

/// A file that cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It is not a snapshot, or not all of it.
    #[error("not a usable snapshot: {0}")]
    Damaged(String),
    /// It could not be read.
    #[error("cannot read the snapshot: {0}")]
    Io(#[from] std::io::Error),
    /// The directory has data already.
    #[error("data directory {0} is not empty; choose another one, nothing was changed")]
    NotEmpty(String),
    /// The directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Writing failed.
    #[error("cannot write the data directory: {0}")]
    Write(String),
}

/// Streams everything that lives at the newest revision.
pub async fn save(store: &Embedded) -> Result<mpsc::Receiver<Result<Bytes>>> {
    let leases = store.ask(Command::Leases).await?;
    let revision = store.inner.shared.visible();
    let header = Frame::Header {
        revision,
        cluster_id: store.inner.cluster_id,
        leases: leases.into_iter().map(|(id, ttl)| (id, ttl.as_secs())).collect(),
    };
    let (frames, receiver) = mpsc::channel(FRAMES_AHEAD);
    let store = store.clone();
    spawn_producer(async move {
        let result = send_all(&store, revision, &header, &frames).await;
        if let Err(error) = result {
            // The reader sees the error instead of an end; if it has gone, nobody asks.
            frames.send(Err(error)).await.ok();
        }
    });
    Ok(receiver)
}

async fn send_all(
    store: &Embedded,
    at: Revision,
    header: &Frame,
    frames: &mpsc::Sender<Result<Bytes>>,
) -> Result<()> {
    let gone = |_| MetaError::Stopped;
    frames.send(Ok(Bytes::from_static(MAGIC))).await.map_err(gone)?;
    frames.send(Ok(described(header)?)).await.map_err(gone)?;
    let mut keys = 0;
    let mut after = None;
    loop {
        let mut rows = vec![b'K'];
        {
            let state = store.inner.shared.state()?;
            if at < state.compacted {
                return Err(MetaError::Compacted { oldest: state.compacted });
            }
            after = state.tree.visit_from(&KeyRange::all(), after.as_ref(), KEYS_PER_FRAME, at, &mut |kv| {
                keys += 1;
                put_row(&mut rows, kv);
            });
        }
        frames.send(Ok(framed(&rows))).await.map_err(gone)?;
        if after.is_none() {
            break;
        }
    }
    frames.send(Ok(described(&Frame::End { keys })?)).await.map_err(gone)
}

fn described(frame: &Frame) -> Result<Bytes> {
    let json = serde_json::to_vec(frame).map_err(|error| MetaError::Rejected(error.to_string()))?;
    Ok(framed(&[b"J", &json[..]].concat()))
}

fn framed(payload: &[u8]) -> Bytes {
    let sealed = codec::sealed(b"snapshot", payload);
    let mut frame = Vec::with_capacity(4 + sealed.len());
    frame.put_u32_le(sealed.len() as u32);
    frame.extend_from_slice(&sealed);
    frame.into()
}

fn put_row(rows: &mut Vec<u8>, kv: &KeyValue) {
    let row = codec::base_row(kv);
    rows.put_u32_le(kv.key.len() as u32);
    rows.put_u32_le(row.len() as u32);
    rows.extend_from_slice(&kv.key);
    rows.extend_from_slice(&row);
}

/// What a snapshot holds.
struct Contents {
    revision: Revision,
    cluster_id: u64,
    leases: Vec<(LeaseId, Duration)>,
    keys: Vec<Arc<KeyValue>>,
}

/// Makes a data directory from a snapshot. All of it is read and checked before anything is written. Blocking.
pub fn restore(mut snapshot: impl Read, dir: &Path) -> Result<Revision, RestoreError> {
    let contents = read_all(&mut snapshot)?;
    if dir.join(super::sqlite::FILE).try_exists()? {
        return Err(RestoreError::NotEmpty(dir.display().to_string()));
    }
    let mut engine = Sqlite::open(dir, contents.cluster_id)?;
    let write = |error: EngineError| RestoreError::Write(error.to_string());
    engine.fill(&contents.keys, contents.revision, &contents.leases).map_err(write)?;
    super::engine::Engine::close(Box::new(engine)).map_err(write)?;
    Ok(contents.revision)
}

fn read_all(snapshot: &mut impl Read) -> Result<Contents, RestoreError> {
    let damaged = |what: &str| RestoreError::Damaged(what.into());
    let mut magic = [0; MAGIC.len()];
    snapshot.read_exact(&mut magic).map_err(|_| damaged("it is too short"))?;
    if magic != MAGIC {
        return Err(damaged("it does not begin like one (etcd's own snapshots cannot be restored here)"));
    }
    let mut contents: Option<Contents> = None;
    loop {
        let payload = read_frame(snapshot)?;
        match (payload.split_first(), &mut contents) {
            (Some((b'K', rows)), Some(contents)) => read_rows(rows, &mut contents.keys)?,
            (Some((b'J', json)), _) => match (serde_json::from_slice(json), &mut contents) {
                (Ok(Frame::Header { revision, cluster_id, leases }), None) => {
                    let leases = leases.into_iter().map(|(id, ttl)| (id, Duration::from_secs(ttl))).collect();
                    contents = Some(Contents { revision, cluster_id, leases, keys: Vec::new() });
                }
                (Ok(Frame::End { keys }), Some(_)) => {
                    let contents = contents.filter(|contents| contents.keys.len() as u64 == keys);
                    return contents.ok_or_else(|| damaged("keys are missing"));
                }
                _ => return Err(damaged("a frame is out of place")),
            },
            _ => return Err(damaged("a frame is out of place")),
        }
    }
}

fn read_frame(snapshot: &mut impl Read) -> Result<Vec<u8>, RestoreError> {
    let cut = |_| RestoreError::Damaged("it ends too early".into());
    let mut len = [0; 4];
    snapshot.read_exact(&mut len).map_err(cut)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_FRAME {
        return Err(RestoreError::Damaged("a frame is too large".into()));
    }
    let mut sealed = Vec::new();
    if snapshot.take(u64::from(len)).read_to_end(&mut sealed)? < len as usize {
        return Err(RestoreError::Damaged("it ends too early".into()));
    }
    let payload =
        codec::unsealed(b"snapshot", &sealed).map_err(|error| RestoreError::Damaged(error.to_string()))?;
    Ok(payload.to_vec())
}

fn read_rows(mut rows: &[u8], keys: &mut Vec<Arc<KeyValue>>) -> Result<(), RestoreError> {
    let damaged = || RestoreError::Damaged("a key is cut off".into());
    while rows.has_remaining() {
        let key_len = rows.try_get_u32_le().map_err(|_| damaged())? as usize;
        let row_len = rows.try_get_u32_le().map_err(|_| damaged())? as usize;
        let (key, rest) = rows.split_at_checked(key_len).ok_or_else(damaged)?;
        let (row, rest) = rest.split_at_checked(row_len).ok_or_else(damaged)?;
        let kv = codec::read_base_row(key, row).map_err(|error| RestoreError::Damaged(error.to_string()))?;
        keys.push(Arc::new(kv));
        rows = rest;
    }
    Ok(())
}
