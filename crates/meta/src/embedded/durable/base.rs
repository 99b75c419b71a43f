//! A base file: everything that lived at one revision, from which the log goes on.
//!
//! It is written beside the running store, as a draft that gets its name when it is complete and synced. So a base that
//! has its name and does not match its checksums is damage.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use capstan_disk::{DRAFT, Disk, DiskFile, DiskFileExt as _};

use super::frame::{self, HEADER, Kind, SECTOR};
use super::log::{classed, failed, named};
use super::{FORMAT, OLDEST_FORMAT, names};
use crate::embedded::codec::{self, Reader, damaged};
use crate::embedded::engine::{Beside, EngineError};
use crate::kv::{KeyValue, LeaseId, Revision};

/// Bytes of keys and values gathered before they are written: a frame has at most these and one more key.
const FRAME_BYTES: usize = 256 * 1024;

/// Facts about a base, in its first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaseHead {
    pub(super) cluster_id: u64,
    pub(super) number: u64,
    /// What lived at this revision.
    pub(super) revision: Revision,
    /// History before this may not be read.
    pub(super) compacted: Revision,
    /// The first file of the log that is still needed.
    pub(super) log_from: u64,
    /// The leases when the base was begun; the log repeats what happened to them since.
    pub(super) leases: Vec<(LeaseId, Duration)>,
    /// What was kept beside the keys then; the log repeats what happened to it since.
    pub(super) beside: Beside,
}

impl BaseHead {
    fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(64 + 16 * self.leases.len());
        payload.put_u32_le(FORMAT);
        payload.put_u64_le(self.cluster_id);
        payload.put_u64_le(self.number);
        payload.put_i64_le(self.revision.0);
        payload.put_i64_le(self.compacted.0);
        payload.put_u64_le(self.log_from);
        payload.put_u32_le(self.leases.len() as u32);
        for (id, ttl) in &self.leases {
            payload.put_i64_le(id.0);
            payload.put_u64_le(ttl.as_secs());
        }
        payload.put_u8(u8::from(self.beside.alarm));
        payload.put_u32_le(self.beside.users.len() as u32);
        payload.extend_from_slice(&self.beside.users);
        payload
    }

    fn read(payload: &[u8]) -> Result<BaseHead, EngineError> {
        let mut fields = Reader(payload);
        let format = fields.u32()?;
        super::check_format(format)?;
        let (cluster_id, number) = (fields.u64()?, fields.u64()?);
        let (revision, compacted) = (Revision(fields.i64()?), Revision(fields.i64()?));
        let (log_from, leases) = (fields.u64()?, fields.u32()?);
        let lease = |_| Ok((LeaseId(fields.i64()?), Duration::from_secs(fields.u64()?)));
        let leases = (0..leases).map(lease).collect::<Result<_, EngineError>>()?;
        let beside = if format == OLDEST_FORMAT { Beside::default() } else { read_beside(&mut fields)? };
        Ok(BaseHead { cluster_id, number, revision, compacted, log_from, leases, beside })
    }
}

fn read_beside(fields: &mut Reader<'_>) -> Result<Beside, EngineError> {
    let (alarm, len) = (fields.u8()? != 0, fields.u32()?);
    Ok(Beside { alarm, users: Bytes::copy_from_slice(fields.bytes(len)?) })
}

/// A base on its way to disk.
pub(super) struct BaseWriter<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    name: String,
    draft: PathBuf,
    file: Arc<dyn DiskFile>,
    salt: u32,
    at: u64,
    next_frame: u64,
    rows: Vec<u8>,
    keys: u64,
}

impl<'a> BaseWriter<'a> {
    pub(super) fn begin(
        disk: &'a dyn Disk,
        dir: &'a Path,
        head: &BaseHead,
    ) -> Result<BaseWriter<'a>, EngineError> {
        let name = names::base(head.number);
        let draft = dir.join(format!("{name}{DRAFT}"));
        let file = disk.create(&draft).map_err(|error| classed(&draft, &error))?;
        let salt = super::salt(head.cluster_id, head.number);
        let rows = frame::begin(FRAME_BYTES);
        let mut base = BaseWriter { disk, dir, name, draft, file, salt, at: 0, next_frame: 1, rows, keys: 0 };
        base.write(&frame::framed(Kind::Head, 0, 0, &head.payload()))?;
        Ok(base)
    }

    /// Adds a key, and writes what was gathered if it is enough. Not called under a lock.
    pub(super) fn add(&mut self, kv: &KeyValue) -> Result<(), EngineError> {
        self.keys += 1;
        codec::put_row(&mut self.rows, kv);
        if self.rows.len() < FRAME_BYTES { Ok(()) } else { self.write_rows() }
    }

    fn write_rows(&mut self) -> Result<(), EngineError> {
        if self.rows.len() == HEADER {
            return Ok(());
        }
        let mut rows = std::mem::replace(&mut self.rows, frame::begin(FRAME_BYTES));
        frame::seal(&mut rows, Kind::Rows, self.next_frame, self.salt);
        self.next_frame += 1;
        self.write(&rows)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.file.write_all_at(bytes, self.at).map_err(|error| classed(&self.draft, &error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Completes the base and gives it its name, durably. Returns its length.
    pub(super) fn finish(&mut self) -> Result<u64, EngineError> {
        self.write_rows()?;
        let end = frame::framed(Kind::End, self.next_frame, self.salt, &self.keys.to_le_bytes());
        self.write(&end)?;
        self.file.sync().map_err(|error| classed(&self.draft, &error))?;
        let path = self.dir.join(&self.name);
        self.disk.rename(&self.draft, &path).map_err(|error| failed(&path, &error))?;
        self.disk.sync_dir(self.dir).map_err(|error| failed(self.dir, &error))?;
        Ok(self.at)
    }

    /// Takes the draft away again.
    pub(super) fn discard(&self) {
        // One that stays is removed at the next opening.
        self.disk.remove(&self.draft).ok();
    }
}

/// Reads a base, frame by frame.
pub(super) fn read(
    disk: &dyn Disk,
    dir: &Path,
    number: u64,
) -> Result<(BaseHead, Vec<Arc<KeyValue>>, u64), EngineError> {
    let path = dir.join(names::base(number));
    let file = disk.open(&path).map_err(|error| failed(&path, &error))?;
    let size = file.size().map_err(|error| failed(&path, &error))?;
    let contents = read_file(&*file, &path, size).map_err(|error| named(&path, error))?;
    if contents.0.number != number {
        return Err(damaged(format!("{} calls itself base {}", path.display(), contents.0.number)));
    }
    Ok((contents.0, contents.1, size))
}

fn read_file(
    file: &dyn DiskFile,
    path: &Path,
    size: u64,
) -> Result<(BaseHead, Vec<Arc<KeyValue>>), EngineError> {
    let mut at = 0;
    let mut next = |number: u64, salt: u32| {
        let frame = read_frame(file, path, (at, size), number, salt)?;
        at += frame.1;
        Ok::<_, EngineError>(frame.0)
    };
    let (kind, payload) = next(0, 0)?;
    let head = BaseHead::read(&payload).ok().filter(|_| kind == Kind::Head);
    let head = match head {
        Some(head) => head,
        None => return Err(BaseHead::read(&payload).err().unwrap_or_else(|| damaged("it has no head"))),
    };
    let salt = super::salt(head.cluster_id, head.number);
    let mut keys = Vec::new();
    for number in 1.. {
        let (kind, payload) = next(number, salt)?;
        match kind {
            Kind::Rows => codec::read_rows(&payload, &mut keys)?,
            Kind::End if payload[..] == (keys.len() as u64).to_le_bytes() => break,
            Kind::End => return Err(damaged("keys are missing")),
            Kind::Head | Kind::Group | Kind::Mark => return Err(damaged("a frame is out of place")),
        }
    }
    Ok((head, keys))
}

/// One whole frame of a file; anything else is damage. Returns its length too.
fn read_frame(
    file: &dyn DiskFile,
    path: &Path,
    (at, size): (u64, u64),
    number: u64,
    salt: u32,
) -> Result<((Kind, Bytes), u64), EngineError> {
    let mut content = vec![0; SECTOR.min((size - at) as usize)];
    let read = |content: &mut [u8], from: usize| {
        file.read_exact_at(&mut content[from..], at + from as u64).map_err(|error| failed(path, &error))
    };
    read(&mut content, 0)?;
    let whole = frame::length(&content, salt).filter(|length| *length as u64 <= size - at);
    let whole =
        whole.ok_or_else(|| damaged(format!("frame {number} (byte {at}) was changed or is cut off")))?;
    content.resize(whole, 0);
    read(&mut content, SECTOR.min(whole))?;
    let frames = frame::scan(&content, 0, number, salt)?.frames;
    let frame = frames.first().ok_or_else(|| damaged(format!("frame {number} (byte {at}) is not whole")))?;
    Ok(((frame.kind, Bytes::from(content).slice(frame.payload.clone())), whole as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> BaseHead {
        BaseHead {
            cluster_id: 7,
            number: 3,
            revision: Revision(9),
            compacted: Revision(8),
            log_from: 2,
            leases: vec![(LeaseId(5), Duration::from_secs(60))],
            beside: Beside { users: Bytes::from_static(b"{}"), alarm: true },
        }
    }

    #[test]
    fn a_head_comes_back_and_one_of_format_2_has_no_users() {
        let payload = head().payload();
        assert_eq!(BaseHead::read(&payload).unwrap(), head());
        let mut older = payload[..payload.len() - 7].to_vec();
        older[..4].copy_from_slice(&2_u32.to_le_bytes());
        assert_eq!(BaseHead::read(&older).unwrap(), BaseHead { beside: Beside::default(), ..head() });
        assert!(BaseHead::read(&payload[..payload.len() - 7]).is_err(), "users cut off");
    }
}
