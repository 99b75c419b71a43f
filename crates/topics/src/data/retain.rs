//! Which messages does retention drop? A floor for the log: everything before it may go, on every holder.
//!
//! The last message always stays: its offset says where the topic goes on.

use std::time::Duration;

use capstan_log::{Log, Offset, SegmentInfo};

use super::read;
use crate::error::TopicsError;
use crate::spec::StoragePolicy;

/// Messages within a file stay at least this much longer than they should, or a tenth of the time that they stay: a file
/// that is dropped whole costs one change of the metadata for many messages.
const SHORTEST_DELAY: Duration = Duration::from_secs(2);

/// What is known about the age of a log.
#[derive(Clone, Copy, Debug)]
struct Age {
    /// Where the log begins, and when its first entry was taken.
    start: Offset,
    oldest: Option<Duration>,
    /// The first entry that is young enough.
    young: Offset,
}

/// The floor that a policy asks for now (since 1970), if it is higher than the one that there is.
pub(crate) async fn floor(
    log: &Log,
    policy: &StoragePolicy,
    now: Duration,
) -> Result<Option<Offset>, TopicsError> {
    let segments = log.closed_segments()?;
    let start = read::log_start(log).await?;
    let seconds = policy.retention_seconds.unwrap_or_default();
    let by_time = match now.checked_sub(Duration::from_secs(seconds)).filter(|_| seconds > 0) {
        None => None,
        Some(cutoff) => {
            let oldest = read::time_of(log, start).await?;
            let age = Age { start, oldest, young: log.offset_at(cutoff).await? };
            by_time(&segments, age, cutoff, Duration::from_secs(seconds))
        }
    };
    let by_size = by_size(&segments, policy.retention_bytes.unwrap_or_default());
    let Some(wanted) = by_time.max(by_size).filter(|floor| *floor > start) else { return Ok(None) };
    let last = read::last_entry(log).await?;
    Ok(last.map(|last| wanted.min(last)).filter(|floor| *floor > start))
}

/// The floor that leaves so many bytes of closed files, of those that are uploaded up to a place.
pub(crate) async fn local_floor(
    log: &Log,
    keep: u64,
    uploaded: Offset,
) -> Result<Option<Offset>, TopicsError> {
    let start = read::log_start(log).await?;
    let wanted = uploaded_floor(&log.closed_segments()?, keep, uploaded).filter(|floor| *floor > start);
    let Some(wanted) = wanted else { return Ok(None) };
    let last = read::last_entry(log).await?;
    Ok(last.map(|last| wanted.min(last)).filter(|floor| *floor > start))
}

fn uploaded_floor(segments: &[SegmentInfo], keep: u64, uploaded: Offset) -> Option<Offset> {
    let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut floor = None;
    for segment in segments.iter().take_while(|segment| segment.end <= uploaded) {
        if bytes <= keep {
            break;
        }
        bytes -= segment.bytes;
        floor = Some(segment.end);
    }
    floor
}

/// Behind the oldest files that are too many.
fn by_size(segments: &[SegmentInfo], limit: u64) -> Option<Offset> {
    if limit == 0 {
        return None;
    }
    let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut floor = None;
    for segment in segments {
        if bytes <= limit {
            break;
        }
        bytes -= segment.bytes;
        floor = Some(segment.end);
    }
    floor
}

/// At the first entry that is young enough, if a file becomes free or the oldest entry is far too old.
fn by_time(segments: &[SegmentInfo], age: Age, cutoff: Duration, stay: Duration) -> Option<Offset> {
    if age.young <= age.start {
        return None;
    }
    let frees = segments.iter().any(|segment| segment.end <= age.young);
    let late = (stay / 10).max(SHORTEST_DELAY);
    let overdue = age.oldest.is_some_and(|oldest| oldest + late < cutoff);
    (frees || overdue).then_some(age.young)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(ends: &[u64]) -> Vec<SegmentInfo> {
        let firsts = std::iter::once(0).chain(ends.iter().copied());
        let info =
            |(first, end): (u64, &u64)| SegmentInfo { first: Offset(first), end: Offset(*end), bytes: 100 };
        firsts.zip(ends).map(info).collect()
    }

    #[test]
    fn the_oldest_files_go_until_the_rest_fits() {
        let files = segments(&[10, 20, 30]);
        assert_eq!(by_size(&files, 0), None);
        assert_eq!(by_size(&files, 300), None);
        assert_eq!(by_size(&files, 299), Some(Offset(10)));
        assert_eq!(by_size(&files, 100), Some(Offset(20)));
        assert_eq!(by_size(&files, 1), Some(Offset(30)));
        assert_eq!(by_size(&[], 1), None);
        assert_eq!(uploaded_floor(&files, 0, Offset(20)), Some(Offset(20)), "only what is uploaded");
        assert_eq!(uploaded_floor(&files, 200, Offset(30)), Some(Offset(10)));
        assert_eq!(uploaded_floor(&files, 0, Offset(9)), None);
    }

    #[test]
    fn old_entries_go_with_their_file_or_when_they_are_overdue() {
        let (cutoff, stay) = (Duration::from_secs(1_000), Duration::from_secs(100));
        let age = |start, oldest, young| Age {
            start: Offset(start),
            oldest: Some(Duration::from_secs(oldest)),
            young: Offset(young),
        };
        let files = segments(&[10, 20]);
        assert_eq!(by_time(&files, age(0, 999, 9), cutoff, stay), None, "no file is free, little is late");
        assert_eq!(by_time(&files, age(0, 999, 12), cutoff, stay), Some(Offset(12)));
        assert_eq!(by_time(&files, age(0, 980, 9), cutoff, stay), Some(Offset(9)));
        assert_eq!(by_time(&files, age(9, 980, 9), cutoff, stay), None, "nothing is old");
    }
}
