//! How is a change made safely? Read, decide, commit under guards, and again until the decision is that nothing is left
//! to do. The decision looks at what is there, so a lost race and an unknown outcome need nothing but another read.

use std::future::Future;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::error::{MetaError, Remedy};
use crate::request::Txn;
use crate::store::Store;

/// Conflicts and unknown outcomes in a row before the operation gives up; each attempt begins with a fresh read.
const ATTEMPTS: u32 = 24;
/// Pauses between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));
/// Transactions of one operation. The largest operations (a repair of a whole tree) need fewer.
const MAX_TXNS: u32 = 10_000;

/// The next step of an operation; `C` is a transaction, or a service's own type that becomes one.
#[derive(Debug)]
pub enum Next<T, C = Txn> {
    /// Nothing is left to do: this is the answer.
    Done(T),
    /// Commit this transaction, then decide again.
    Commit(C),
    /// Commit this transaction; once it is known to be committed, this is the answer. What others make of the records
    /// afterwards is not looked at, so a deletion does not delete what was created again after it.
    Last(C, T),
}

/// What an operation has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Transactions of this operation that are known to have been committed.
    pub committed: u32,
    /// The outcome of an earlier transaction is unknown: what is found may be this operation's own work.
    pub unknown: bool,
}

impl Progress {
    /// Whether a state that is already as wanted may be this operation's own work.
    #[must_use]
    pub fn maybe_ours(self) -> bool {
        self.committed > 0 || self.unknown
    }
}

/// Others kept changing the same records until the attempts were used up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is being changed by others; try again")]
pub struct Contended {
    /// What was to be changed.
    pub what: String,
}

/// Carries an operation out: `read` fetches what `decide` needs, `decide` is pure and guards its transaction with what
/// was read.
///
/// Only a failed guard and an unknown outcome are retried. Every other error of the store ends the operation.
///
/// `read` is a closure that returns a future, not an async closure, so that the operation can run in a spawned task.
pub async fn settle<S, T, C, E, Read>(
    store: &Store,
    what: &str,
    mut read: impl FnMut() -> Read,
    mut decide: impl FnMut(&S, Progress) -> Result<Next<T, C>, E>,
) -> Result<T, E>
where
    C: Into<Txn>,
    E: From<MetaError> + From<Contended>,
    Read: Future<Output = Result<S, E>>,
{
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1, jitter(what));
    let mut progress = Progress::default();
    while pauses.failures() < ATTEMPTS && progress.committed < MAX_TXNS {
        let seen = read().await?;
        let (txn, answer) = match decide(&seen, progress)? {
            Next::Done(answer) => return Ok(answer),
            Next::Commit(txn) => (txn.into(), None),
            Next::Last(txn, answer) => (txn.into(), Some(answer)),
        };
        match store.commit(txn).await {
            Ok(result) if result.succeeded => {
                tracing::debug!(what, revision = %result.revision, "committed");
                if let Some(answer) = answer {
                    return Ok(answer);
                }
                progress.committed += 1;
                pauses.reset();
                continue;
            }
            Ok(_) => {}
            Err(error) if error.remedy() == Remedy::Refresh => progress.unknown = true,
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(pauses.next_wait()).await;
    }
    Err(Contended { what: what.to_owned() }.into())
}

/// Differs between processes, so that two that collide do not collide again; the same in every run of a simulation.
fn jitter(what: &str) -> u64 {
    what.bytes()
        .fold(u64::from(std::process::id()), |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()))
}
