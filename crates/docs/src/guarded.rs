//! One guarded change of one record: read, decide, commit, and again until nothing is left to do.
//!
//! The same loop as `capstan_meta::settle`, for one key and without a closure that reads: futures of requests have to
//! move between threads.

use std::time::Duration;

use capstan_meta::record::{Key, Stored};
use capstan_meta::settle::{Contended, Next, Progress};
use capstan_meta::{Remedy, Store};

use crate::error::DocsError;

/// Lost races and unknown outcomes before the change gives up.
const ATTEMPTS: u32 = 24;
/// Pause after a lost race.
const PAUSE: Duration = Duration::from_millis(5);

/// Changes the record of a key as `decide` says.
pub(crate) async fn change<K: Key, T>(
    store: &Store,
    key: &K,
    mut decide: impl FnMut(Option<&Stored<K::Record>>, Progress) -> Result<Next<T>, DocsError>,
) -> Result<T, DocsError> {
    let mut progress = Progress::default();
    for attempt in 1..=ATTEMPTS {
        let seen = store.read(key).await?;
        let (txn, answer) = match decide(seen.as_ref(), progress)? {
            Next::Done(answer) => return Ok(answer),
            Next::Commit(txn) => (txn, None),
            Next::Last(txn, answer) => (txn, Some(answer)),
        };
        match store.commit(txn).await {
            Ok(result) if result.succeeded => match answer {
                Some(answer) => return Ok(answer),
                None => progress.committed += 1,
            },
            Ok(_) => tokio::time::sleep(PAUSE * attempt).await,
            Err(error) if error.remedy() == Remedy::Refresh => progress.unknown = true,
            Err(error) => return Err(error.into()),
        }
    }
    Err(Contended { what: key.to_string() }.into())
}
