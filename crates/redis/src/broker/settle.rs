//! How is an operation carried out? Read, decide, commit, and again until there is nothing left to do. The decision
//! looks at what is there, so a lost race and an unknown outcome need nothing but another look.

use std::time::Duration;

use capstan_meta::backoff::Backoff;
use capstan_meta::{Remedy, Revision, Store};

use super::draft::Draft;
use super::error::BrokerError;
use super::tree::Tree;

/// How often an operation is tried again when others change the same records; each attempt begins with a fresh read.
const ATTEMPTS: u32 = 24;
/// Pauses between such attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));
/// Transactions of one operation; the largest cluster needs a fraction of it.
const MOST_STEPS: u32 = 4096;

/// What comes next in an operation.
#[derive(Debug)]
pub enum Next<T> {
    /// Nothing: this is the answer.
    Done(T),
    /// This change, then another look.
    Commit(Draft),
}

/// What this operation has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sofar {
    /// Its transactions that surely happened.
    pub committed: u32,
    /// One of its transactions may have happened: what is found may be its own work.
    pub unsettled: bool,
}

impl Sofar {
    /// Whether something that is found done already may have been done by this very operation.
    #[must_use]
    pub fn maybe_ours(self) -> bool {
        self.committed > 0 || self.unsettled
    }
}

/// Carries an operation out.
pub async fn settle<T>(
    store: &Store,
    what: &str,
    mut decide: impl FnMut(&Tree, Sofar) -> Result<Next<T>, BrokerError>,
) -> Result<T, BrokerError> {
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1, jitter(what));
    let mut sofar = Sofar::default();
    let mut failures = 0;
    while failures < ATTEMPTS && sofar.committed < MOST_STEPS {
        let tree = Tree::read(store).await?;
        let draft = match decide(&tree, sofar)? {
            Next::Done(answer) => return Ok(answer),
            Next::Commit(draft) => draft,
        };
        match commit(store, draft).await {
            Ok(Committed::At(_)) => {
                sofar.committed += 1;
                failures = 0;
                continue;
            }
            Ok(Committed::Conflict) => {}
            Err(error) if error.remedy() == Remedy::Refresh => sofar.unsettled = true,
            Err(error) => return Err(error),
        }
        failures += 1;
        tokio::time::sleep(pauses.next_wait()).await;
    }
    Err(BrokerError::Contended { what: what.to_owned() })
}

/// Different in every process, so that two that collide do not collide again; the same in every run of a simulation.
fn jitter(what: &str) -> u64 {
    what.bytes()
        .fold(u64::from(std::process::id()), |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()))
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It happened.
    At(Revision),
    /// A guard did not hold: nothing happened.
    Conflict,
}

/// Commits one change.
pub async fn commit(store: &Store, draft: Draft) -> Result<Committed, BrokerError> {
    let what = draft.what.clone();
    let result = store.commit(draft.into_txn()).await?;
    if result.succeeded {
        tracing::info!(what, revision = %result.revision, "committed");
        return Ok(Committed::At(result.revision));
    }
    tracing::debug!(what, "others changed the same records");
    Ok(Committed::Conflict)
}
