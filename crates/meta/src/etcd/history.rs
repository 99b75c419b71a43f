//! Where etcd's history begins. Its errors do not say and its status does not either; a watch from the beginning is
//! told when it is cancelled.

use etcd_client::{Client, GetOptions, WatchOptions};

use super::Link;
use super::errors::Failure;
use crate::error::{MetaError, Result};
use crate::kv::Revision;

/// Any key will do: nothing is read.
const ANY_KEY: &[u8] = b"\0";
/// The first revision there ever was.
const BEGINNING: i64 = 1;

impl Link {
    /// The oldest revision that can be asked for, when something is known to be compacted; zero if it cannot be
    /// learned now.
    pub(super) async fn oldest_revision(&self) -> Revision {
        let asking = self.read(|client| async move { cancelled_at(client).await });
        Revision(asking.await.unwrap_or(0))
    }

    /// Up to where history was dropped; -1 if never.
    pub(super) async fn compacted(&self) -> Result<Revision> {
        let options = GetOptions::new().with_revision(BEGINNING).with_count_only();
        let at_beginning = self.read(|client| {
            let options = options.clone();
            async move { client.kv_client().get(ANY_KEY, Some(options)).await }
        });
        match at_beginning.await {
            Ok(_) => Ok(Revision(-1)),
            Err(MetaError::Compacted { .. }) => Ok(self.oldest_revision().await),
            Err(error) => Err(error),
        }
    }
}

/// The compact revision that a watch from the beginning is cancelled with.
async fn cancelled_at(client: Client) -> Result<i64, etcd_client::Error> {
    let options = WatchOptions::new().with_start_revision(BEGINNING);
    let mut stream = client.watch_client().watch(ANY_KEY, Some(options)).await?;
    while let Some(response) = stream.message().await? {
        if response.canceled() {
            return Ok(response.compact_revision());
        }
    }
    Err(etcd_client::Error::WatchError("the watch ended without an answer".into()))
}

/// What the reason of a cancelled watch means.
pub(super) fn cancelled(reason: &str, compact_revision: i64) -> Failure {
    if compact_revision != 0 {
        let oldest = Revision(compact_revision.max(BEGINNING));
        return Failure::Refused(MetaError::Compacted { oldest });
    }
    let text = reason.strip_prefix("etcdserver: ").unwrap_or(reason);
    super::errors::of_text(text).unwrap_or_else(|| match text {
        // A server that gives no reason is going away.
        "" => Failure::Broken("the server cancelled the watch".to_owned()),
        text => Failure::Refused(MetaError::Rejected(text.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellations_by_reason() {
        let compacted = |oldest| Failure::Refused(MetaError::Compacted { oldest: Revision(oldest) });
        assert_eq!(cancelled("", 7), compacted(7));
        assert_eq!(cancelled("", -1), compacted(1));
        assert_eq!(cancelled("etcdserver: mvcc: required revision has been compacted", 0), compacted(0));
        assert_eq!(
            cancelled("mvcc: watcher range is empty", 0),
            Failure::Refused(MetaError::EmptyWatchRange)
        );
        assert!(matches!(cancelled("etcdserver: no leader", 0), Failure::Unsent(_)));
        assert!(matches!(cancelled("", 0), Failure::Broken(_)));
        assert!(matches!(
            cancelled("rpc error: permission denied", 0),
            Failure::Refused(MetaError::Rejected(_))
        ));
    }
}
