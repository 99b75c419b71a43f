//! What does the journal of a directory hold? Its groups in order, from the first that is not in the segments on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::{DiskError, DiskResult};
use super::group::{BLOCK, GROUP_HEADER, KNOWS_DURABLE, MAGIC};
use super::journal::journal_files;
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
    /// What was acknowledged and is gone.
    pub lost: Option<Lost>,
}

/// A hole in the journal: a group that was durable and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The first group that is gone.
    pub group: u64,
    /// Groups behind it that are whole and of no use: what they follow on is not there.
    pub behind: u64,
    /// The last of them.
    pub last: u64,
    /// The file that says that it was durable.
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

/// Gives every group from this number on to `take`, in order. A group that is not whole is a torn tail, unless a later
/// one says that it was durable: then acknowledged entries are lost, and the caller has to say what that means.
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
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            replayed.torn = Some(format!("group {expected} at byte {at} of {file} is not whole"));
        }
    }
    let later = find_later(&paths, key, expected)?;
    let torn = replayed.torn.take();
    if let Some(witness) = later.iter().find(|later| later.durable >= expected) {
        let last = later.iter().map(|later| later.number).max().unwrap_or(expected);
        let (behind, witness) = (later.len() as u64, witness.path.clone());
        replayed.lost = Some(Lost { group: expected, behind, last, witness });
        return Ok(replayed);
    }
    let unacknowledged = later.first().map(|_| format!("group {expected} of the journal is not whole"));
    replayed.torn = torn.or(unacknowledged);
    replayed.unacknowledged = later.into_iter().map(|later| (later.path, later.at)).collect();
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

#[cfg(test)]
mod tests {
    use super::super::group::Group;
    use super::*;

    const KEY: u32 = 7;

    /// A journal file with these groups: number, which group was durable then, and whether it arrived whole.
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
        let replayed = replay(dir, KEY, 5, |number, _| {
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
        erase(&found.unacknowledged).unwrap();
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
