//! What does the journal of a directory hold? Its groups in order, from the first that is not in the segments.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use capstan_disk::{DiskExt as _, DiskFileExt as _};

use super::error::{DiskError, DiskResult};
use super::files::Fs;
use super::group::{BLOCK, GROUP_HEADER, KNOWS_DURABLE, MAGIC};
use super::journal::journal_files;
use super::record::{crc32c, u32_at, u64_at};

/// The result of a journal replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Groups that were replayed.
    pub groups: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// What an incomplete write left at the end, if anything; it was never acknowledged.
    pub torn: Option<String>,
    /// The files that hold them, each with its first group.
    pub files: Vec<(PathBuf, u64)>,
    /// The positions of complete groups after the incomplete one; they were never acknowledged either.
    pub unacknowledged: Vec<(PathBuf, u64)>,
    /// The acknowledged groups that are missing.
    pub lost: Option<Lost>,
}

/// A hole in the journal: a group that was durable and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The first missing group.
    pub group: u64,
    /// Complete groups after it, which are unusable because their predecessors are missing.
    pub behind: u64,
    /// The last of them.
    pub last: u64,
    /// The file that proves that it was durable.
    pub witness: PathBuf,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lost { group, behind, last, witness } = self;
        let witness = witness.file_name().unwrap_or_default().to_string_lossy();
        write!(
            f,
            "group {group} of the journal was acknowledged and is gone; {behind} whole groups up to {last} follow it in \
             {witness}"
        )
    }
}

/// Passes every group from this number on to `take`, in order. An incomplete group is a torn tail, unless a later one
/// records that it was durable: then acknowledged entries are lost, and the caller decides.
pub fn replay(
    fs: &Fs,
    dir: &Path,
    key: u32,
    first: u64,
    mut take: impl FnMut(u64, Bytes) -> DiskResult<()>,
) -> DiskResult<Replayed> {
    let mut replayed = Replayed::default();
    let mut expected = first;
    let paths = journal_files(fs, dir)?;
    while let Some((path, at)) = find_first(fs, &paths, key, expected)? {
        let bytes = Bytes::from(fs.read(&path).map_err(|error| DiskError::io(&path, &error))?);
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
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            replayed.torn = Some(format!("group {expected} at byte {at} of {file} is incomplete"));
        }
    }
    let later = find_later(fs, &paths, key, expected)?;
    let torn = replayed.torn.take();
    if let Some(witness) = later.iter().find(|later| later.durable >= expected) {
        let last = later.iter().map(|later| later.number).max().unwrap_or(expected);
        let (behind, witness) = (later.len() as u64, witness.path.clone());
        replayed.lost = Some(Lost { group: expected, behind, last, witness });
        return Ok(replayed);
    }
    let unacknowledged = later.first().map(|_| format!("group {expected} of the journal is incomplete"));
    replayed.torn = torn.or(unacknowledged);
    replayed.unacknowledged = later.into_iter().map(|later| (later.path, later.at)).collect();
    Ok(replayed)
}

/// Makes unacknowledged groups unreadable, so that no later replay confuses them with groups that reuse their numbers.
pub fn erase(fs: &Fs, places: &[(PathBuf, u64)]) -> DiskResult<()> {
    for (path, at) in places {
        let failed = |error: std::io::Error| DiskError::io(path, &error);
        let file = fs.open(path).map_err(failed)?;
        file.write_all_at(&[0; GROUP_HEADER], *at).map_err(failed)?;
        file.sync().map_err(|error| DiskError::sync(path, &error))?;
    }
    Ok(())
}

/// Makes the groups in these files durable. A process that was killed, or whose last sync failed, leaves groups that
/// are visible and perhaps not on the disk, and after a failed sync only another write brings them there. The blocks
/// exist, so a full disk does not matter.
pub fn persist(fs: &Fs, files: &[(PathBuf, u64)]) -> DiskResult<()> {
    for (path, _) in files {
        let bytes = fs.read(path).map_err(|error| DiskError::io(path, &error))?;
        let written = fs.open_through(path).and_then(|file| file.write_all_at(&bytes, 0));
        written.map_err(|error| DiskError::sync(path, &error))?;
    }
    Ok(())
}

/// The complete group with this number at this position.
fn group_at(bytes: &[u8], key: u32, at: usize, number: u64) -> Option<&[u8]> {
    (number_at(bytes, key, at)? == number).then_some(())?;
    let len = u32_at(bytes, at + 16) as usize;
    bytes.get(at + GROUP_HEADER..at + GROUP_HEADER + len)
}

/// The number of the complete group at this position, if there is one.
fn number_at(bytes: &[u8], key: u32, at: usize) -> Option<u64> {
    let header = bytes.get(at..at + GROUP_HEADER)?;
    let len = u32_at(header, 16) as usize;
    let body = bytes.get(at + 8..at + GROUP_HEADER + len)?;
    (u32_at(header, 0) == MAGIC && crc32c(body) ^ key == u32_at(header, 4)).then(|| u64_at(header, 8))
}

/// The file and position at which a group begins. A file's groups are consecutive, so the first header rules out most
/// files.
fn find_first(fs: &Fs, paths: &[PathBuf], key: u32, number: u64) -> DiskResult<Option<(PathBuf, usize)>> {
    for path in paths {
        let head = first_number(fs, path)?;
        if head.is_none_or(|first| first > number) {
            continue;
        }
        let bytes = fs.read(path).map_err(|error| DiskError::io(path, &error))?;
        let places = (0..bytes.len()).step_by(BLOCK);
        let mut candidates = places.filter(|at| claims(&bytes, *at, number));
        if let Some(at) = candidates.find(|at| group_at(&bytes, key, *at, number).is_some()) {
            return Ok(Some((path.clone(), at)));
        }
    }
    Ok(None)
}

/// Whether the header at this position has this number; cheap.
fn claims(bytes: &[u8], at: usize, number: u64) -> bool {
    at + GROUP_HEADER <= bytes.len() && u32_at(bytes, at) == MAGIC && u64_at(bytes, at + 8) == number
}

fn first_number(fs: &Fs, path: &Path) -> DiskResult<Option<u64>> {
    let file = fs.open_read(path).map_err(|error| DiskError::io(path, &error))?;
    let mut header = [0; GROUP_HEADER];
    let read = file.read_exact_at(&mut header, 0).is_ok();
    Ok((read && u32_at(&header, 0) == MAGIC).then(|| u64_at(&header, 8)))
}

/// A complete group after a missing one.
struct Later {
    path: PathBuf,
    at: u64,
    number: u64,
    /// The group that was durable when it was written.
    durable: u64,
}

/// Every complete group with a higher number.
fn find_later(fs: &Fs, paths: &[PathBuf], key: u32, number: u64) -> DiskResult<Vec<Later>> {
    let mut found = Vec::new();
    for path in paths {
        let bytes = fs.read(path).map_err(|error| DiskError::io(path, &error))?;
        for at in (0..bytes.len()).step_by(BLOCK) {
            let later = at + GROUP_HEADER <= bytes.len()
                && u32_at(&bytes, at) == MAGIC
                && u64_at(&bytes, at + 8) > number;
            if later && let Some(number) = number_at(&bytes, key, at) {
                // Groups without the field were written one at a time.
                let says = bytes[at + 28] == KNOWS_DURABLE;
                let durable = if says { u64_at(&bytes, at + 20) } else { number - 1 };
                found.push(Later { path: path.clone(), at: at as u64, number, durable });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::group::Group;
    use super::*;

    const KEY: u32 = 7;

    fn os() -> Fs {
        std::sync::Arc::new(capstan_disk::Os)
    }

    /// A journal file with these groups: number, durable group at that time, and whether it is complete.
    fn journal(groups: &[(u64, u64, bool)]) -> capstan_testkit::TempDir {
        let dir = capstan_testkit::TempDir::new("replay").unwrap();
        let mut file = Vec::new();
        for (number, durable, whole) in groups {
            let mut group = Group::default();
            group.content().extend_from_slice(&number.to_le_bytes());
            group.seal(*number, *durable, KEY);
            let mut bytes = group.sealed().to_vec();
            bytes[GROUP_HEADER] ^= u8::from(!whole);
            file.extend_from_slice(&bytes);
        }
        std::fs::write(dir.join("00000000.journal"), file).unwrap();
        dir
    }

    fn replayed(dir: &Path) -> (Vec<u64>, Replayed) {
        let mut seen = Vec::new();
        let replayed = replay(&os(), dir, KEY, 5, |number, _| {
            seen.push(number);
            Ok(())
        });
        (seen, replayed.unwrap())
    }

    #[test]
    fn of_two_groups_on_their_way_the_later_one_may_arrive_alone_and_is_forgotten() {
        let dir = journal(&[(5, 4, true), (6, 5, false), (7, 5, true)]);
        let (seen, found) = replayed(dir.path());
        assert_eq!((seen, found.lost, found.unacknowledged.len()), (vec![5], None, 1));
        assert!(found.torn.is_some());
        erase(&os(), &found.unacknowledged).unwrap();
        assert!(replayed(dir.path()).1.unacknowledged.is_empty());
    }

    #[test]
    fn a_hole_that_a_later_group_calls_durable_is_a_loss() {
        let dir = journal(&[(5, 4, true), (6, 4, false), (7, 5, true), (8, 6, true)]);
        let (seen, found) = replayed(dir.path());
        let lost = found.lost.unwrap();
        assert_eq!((seen, lost.group, lost.behind, lost.last), (vec![5], 6, 2, 8));
        assert_eq!(found.torn, None);
    }

    #[test]
    fn a_torn_last_group_is_cut() {
        let dir = journal(&[(4, 3, true), (5, 4, true), (6, 5, false)]);
        let (seen, found) = replayed(dir.path());
        assert_eq!((seen, found.lost.is_none(), found.torn.is_some()), (vec![5], true, true));
    }
}
