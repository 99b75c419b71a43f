//! One guarded change of one record.

use capstan_meta::Store;
use capstan_meta::record::{Key, Stored};
use capstan_meta::settle::{Next, Progress, settle};

use crate::error::DocsError;

/// Changes the record of a key as `decide` says.
pub(crate) async fn change<K: Key, T>(
    store: &Store,
    key: &K,
    mut decide: impl FnMut(Option<&Stored<K::Record>>, Progress) -> Result<Next<T>, DocsError>,
) -> Result<T, DocsError> {
    let read = || async { Ok::<_, DocsError>(store.read(key).await?) };
    settle(store, &key.to_string(), read, |seen, progress| decide(seen.as_ref(), progress)).await
}
