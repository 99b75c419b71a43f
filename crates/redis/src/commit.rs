//! How is an operation carried out? By the kernel's [`settle`](capstan_meta::settle::settle), over the whole Redis tree.

use capstan_meta::settle::{self, Progress};
use capstan_meta::{Revision, Store};

use crate::decide::Draft;
use crate::error::BrokerError;
use crate::facts::Tree;

/// The next step of an operation on the tree.
pub type Next<T> = settle::Next<T, Draft>;

/// Carries an operation out: reads the tree, decides, commits, until nothing is left to do.
pub async fn settle<T>(
    store: &Store,
    what: &str,
    decide: impl FnMut(&Tree, Progress) -> Result<Next<T>, BrokerError>,
) -> Result<T, BrokerError> {
    settle::settle(store, what, || async { Ok(Tree::read(store).await?) }, decide).await
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It was committed.
    At(Revision),
    /// A guard failed: nothing changed.
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
    tracing::debug!(what, "conflict with a concurrent change");
    Ok(Committed::Conflict)
}
