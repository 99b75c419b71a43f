//! How is a whole store carried elsewhere? As checksummed frames: a header, all keys of one revision, an end.
//!
//! History is not part of it: a restored store goes on after the snapshot's revision and has nothing before it.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use capstan_disk::{Disk, Os};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::durable::{self, Contents};
use super::engine::{Beside, OpenError};
use super::writer::{Alone, Command, Present};
use super::{Embedded, Options, codec};
use crate::clock;
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, KeyValue, LeaseId, Revision};
use crate::task::spawn_producer;

/// The first bytes of every snapshot; the digit is its format.
const MAGIC: &[u8] = b"capstan-meta-snapshot-1\n";

/// Keys read under one lock.
const KEYS_PER_TURN: usize = 64;

/// Bytes of keys and values gathered for one frame: it has at most these and one more key. Without this bound the
/// frames of a store with large values could not be restored, and would take as much memory as the store.
const FRAME_BYTES: usize = 256 * 1024;

/// A frame larger than this is damage. Earlier versions put up to 1,024 keys into one.
const MAX_FRAME: u32 = 1 << 31;

/// Frames that may wait for a slow reader of the snapshot.
const FRAMES_AHEAD: usize = 4;

#[derive(Serialize, Deserialize)]
enum Frame {
    Header {
        revision: Revision,
        cluster_id: u64,
        leases: Vec<(LeaseId, u64)>,
        /// The record of users and roles, in hex.
        #[serde(default)]
        users: String,
    },
    End {
        keys: u64,
    },
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
    /// The directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Streams everything that lives at the newest revision.
pub async fn save(store: &Embedded) -> Result<mpsc::Receiver<Result<Bytes>>> {
    let Present { revision, leases, users } =
        store.ask(|reply| Command::Alone(Alone::Present(reply))).await?;
    let header = Frame::Header {
        revision,
        cluster_id: store.inner.cluster_id,
        leases: leases.into_iter().map(|(id, ttl)| (id, ttl.as_secs())).collect(),
        users: users.iter().map(|byte| format!("{byte:02x}")).collect(),
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
    let mut rows = vec![b'K'];
    loop {
        let mut some: Vec<Arc<KeyValue>> = Vec::with_capacity(KEYS_PER_TURN);
        after = {
            let state = store.inner.shared.state()?;
            if at < state.compacted {
                return Err(MetaError::Compacted { oldest: state.compacted });
            }
            let mut gather = |kv: &Arc<KeyValue>| some.push(kv.clone());
            state.tree.visit_from(&KeyRange::all(), after.as_ref(), KEYS_PER_TURN, at, &mut gather)
        };
        for kv in some {
            keys += 1;
            codec::put_row(&mut rows, &kv);
            if rows.len() >= FRAME_BYTES {
                frames.send(Ok(framed(&rows))).await.map_err(gone)?;
                rows.truncate(1);
            }
        }
        if after.is_none() {
            break;
        }
    }
    frames.send(Ok(framed(&rows))).await.map_err(gone)?;
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

/// A restored store goes on at least this many revisions after its snapshot. The store that was saved may have gone on
/// since, and its clients may have seen what it wrote: no revision that they know may come to mean something else. Etcd's
/// own recommendation for its `--bump-revision`.
pub const RESTORE_RAISE: i64 = 1_000_000_000;

/// A store that is restored from the same snapshot again goes on further than the first time: by one revision for each of
/// these that has passed since, which is more than a store can have written.
const ONE_REVISION: Duration = Duration::from_micros(10);

/// How many revisions after its snapshot a store goes on that is restored now.
fn raise(since_epoch: Duration) -> i64 {
    let passed = since_epoch.as_micros() / ONE_REVISION.as_micros();
    RESTORE_RAISE.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
}

/// Makes a data directory from a snapshot. All of it is read and checked before anything is written. If it does not get to
/// its end, the directory cannot be opened, and the same can be done again. Blocking.
pub fn restore(snapshot: impl Read, dir: &Path) -> Result<Revision, RestoreError> {
    restore_on(&Os, snapshot, dir)
}

/// The same on a given disk.
pub fn restore_on(disk: &dyn Disk, mut snapshot: impl Read, dir: &Path) -> Result<Revision, RestoreError> {
    let saved = read_all(&mut snapshot)?;
    let revision = Revision(saved.revision.0.saturating_add(raise(clock::since_epoch())));
    let contents = Contents { revision, compacted: revision, ..saved };
    durable::create(disk, dir, Options::default().log_file_bytes, &contents)?;
    Ok(revision)
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
            (Some((b'K', rows)), Some(contents)) => codec::read_rows(rows, &mut contents.keys)
                .map_err(|error| RestoreError::Damaged(error.to_string()))?,
            (Some((b'J', json)), _) => match (serde_json::from_slice(json), &mut contents) {
                (Ok(Frame::Header { revision, cluster_id, leases, users }), None) => {
                    let leases = leases.into_iter().map(|(id, ttl)| (id, Duration::from_secs(ttl))).collect();
                    let compacted = revision;
                    let users = unhex(&users).ok_or_else(|| damaged("its users cannot be read"))?;
                    // Alarms are about the store that was saved, not about the one that is made of it.
                    let beside = Beside { users, alarm: false };
                    let keys = Vec::new();
                    contents = Some(Contents { revision, compacted, cluster_id, leases, keys, beside });
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

fn unhex(text: &str) -> Option<Bytes> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len().is_multiple_of(2) { digits.chunks(2).map(pair).collect() } else { None }
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
