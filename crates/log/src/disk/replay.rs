//! What does the journal of a directory hold? Its groups in order, from the first that is not in the segments on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::{DiskError, DiskResult};
use super::journal::{BLOCK, GROUP_HEADER, KNOWS_DURABLE, MAGIC, journal_files};
use super::record::{crc32c, u32_at, u64_at};

/// What a replay of the journal found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Groups that were replayed.
    pub groups: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What an unfinished write left at the end, if anything; nobody was told that it was there.
    pub torn: Option<String>,
    /// The files that hold them, each with the first of them.
    pub files: Vec<(PathBuf, u64)>,
    /// Where whole groups stand that follow on the unfinished one; nobody was told of them either.
    pub unacknowledged: Vec<(PathBuf, u64)>,
}

/// Gives every group from this number on to `take`, in order. A group that is not whole is a torn tail, unless a later
/// one says that it was durable: then acknowledged entries are lost, and that is an error.
pub fn replay(
    dir: &Path,
    key: u32,
    first: u64,
    mut take: impl FnMut(u64, Bytes) -> DiskResult<()>,
) -> DiskResult<Replayed> {
    let mut replayed = Replayed::default();
    let mut expected = first;
    let paths = journal_files(dir)?;
    while let Some((path, at)) = find_first(&paths, key, expected)? {
        let bytes = Bytes::from(std::fs::read(&path).map_err(|error| DiskError::io(&path, &error))?);
        replayed.files.push((path.clone(), expected));
        let mut at = at;
        while let Some(content) = group_at(&bytes, key, at, expected) {
            take(expected, bytes.slice_ref(content))?;
            replayed.groups += 1;
            replayed.bytes += content.len() as u64;
            at += (GROUP_HEADER + content.len()).next_multiple_of(BLOCK);
            expected += 1;
        }
        if at + 16 <= bytes.len() && u32_at(&bytes, at) == MAGIC && u64_at(&bytes, at + 8) >= expected {
            replayed.torn = Some(format!("{} at {at}: group {expected} is not whole", path.display()));
        }
    }
    for later in find_later(&paths, key, expected)? {
        if later.durable >= expected {
            return Err(DiskError::Corrupt {
                dir: dir.display().to_string(),
                what: format!(
                    "group {expected} of the journal is gone, and group {} follows in {}",
                    later.number,
                    later.path.display()
                ),
            });
        }
        replayed.torn =
            Some(format!("group {expected} is not whole, and group {} was never acknowledged", later.number));
        replayed.unacknowledged.push((later.path, later.at));
    }
    Ok(replayed)
}

/// Makes groups that were written and never acknowledged unreadable, so that no later replay takes them for groups that
/// were given the same numbers afterwards.
pub fn erase(places: &[(PathBuf, u64)]) -> DiskResult<()> {
    for (path, at) in places {
        let failed = |error: std::io::Error| DiskError::io(path, &error);
        let file = File::options().write(true).open(path).map_err(failed)?;
        file.write_all_at(&[0; GROUP_HEADER], *at).and_then(|()| file.sync_data()).map_err(failed)?;
    }
    Ok(())
}

/// The whole group with this number at this place.
fn group_at(bytes: &[u8], key: u32, at: usize, number: u64) -> Option<&[u8]> {
    (number_at(bytes, key, at)? == number).then_some(())?;
    let len = u32_at(bytes, at + 16) as usize;
    bytes.get(at + GROUP_HEADER..at + GROUP_HEADER + len)
}

/// The number of the whole group at this place, if there is one.
fn number_at(bytes: &[u8], key: u32, at: usize) -> Option<u64> {
    let header = bytes.get(at..at + GROUP_HEADER)?;
    let len = u32_at(header, 16) as usize;
    let body = bytes.get(at + 8..at + GROUP_HEADER + len)?;
    (u32_at(header, 0) == MAGIC && crc32c(body) ^ key == u32_at(header, 4)).then(|| u64_at(header, 8))
}

/// The file and place at which a group begins. A file's groups are consecutive, so most files are ruled out by their
/// first header.
fn find_first(paths: &[PathBuf], key: u32, number: u64) -> DiskResult<Option<(PathBuf, usize)>> {
    for path in paths {
        let head = first_number(path)?;
        if head.is_none_or(|first| first > number) {
            continue;
        }
        let bytes = std::fs::read(path).map_err(|error| DiskError::io(path, &error))?;
        let places = (0..bytes.len()).step_by(BLOCK);
        let mut candidates = places.filter(|at| claims(&bytes, *at, number));
        if let Some(at) = candidates.find(|at| group_at(&bytes, key, *at, number).is_some()) {
            return Ok(Some((path.clone(), at)));
        }
    }
    Ok(None)
}

/// Whether the header at this place has this number; cheap.
fn claims(bytes: &[u8], at: usize, number: u64) -> bool {
    at + GROUP_HEADER <= bytes.len() && u32_at(bytes, at) == MAGIC && u64_at(bytes, at + 8) == number
}

fn first_number(path: &Path) -> DiskResult<Option<u64>> {
    let file = File::open(path).map_err(|error| DiskError::io(path, &error))?;
    let mut header = [0; GROUP_HEADER];
    let read = file.read_exact_at(&mut header, 0).is_ok();
    Ok((read && u32_at(&header, 0) == MAGIC).then(|| u64_at(&header, 8)))
}

/// A whole group that follows on one that is missing.
struct Later {
    path: PathBuf,
    at: u64,
    number: u64,
    /// The group that was durable when it was written.
    durable: u64,
}

/// Every whole group with a number above this one.
fn find_later(paths: &[PathBuf], key: u32, number: u64) -> DiskResult<Vec<Later>> {
    let mut found = Vec::new();
    for path in paths {
        let bytes = std::fs::read(path).map_err(|error| DiskError::io(path, &error))?;
        for at in (0..bytes.len()).step_by(BLOCK) {
            let later = at + GROUP_HEADER <= bytes.len()
                && u32_at(&bytes, at) == MAGIC
                && u64_at(&bytes, at + 8) > number;
            if later && let Some(number) = number_at(&bytes, key, at) {
                // Before groups said it, there was one on its way at a time.
                let says = bytes[at + 28] == KNOWS_DURABLE;
                let durable = if says { u64_at(&bytes, at + 20) } else { number - 1 };
                found.push(Later { path: path.clone(), at: at as u64, number, durable });
            }
        }
    }
    Ok(found)
}
