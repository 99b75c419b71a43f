//! How are queued messages sent? By any updater, each message by one of them: it is claimed before it is sent and
//! removed afterwards.
//!
//! The courier is a task of its own: a webhook that is slow or dead holds nothing up but the messages. A message that
//! could not be sent [`MAX_ATTEMPTS`] times is dropped with an error in the log.

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::record::{Key, Stored};
use capstan_meta::view::{Ranges, Snapshot, View};
use capstan_meta::{Store, Txn};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::encoding::Moment;
use crate::facts::Settings;
use crate::http;
use crate::keys::{NoticeKey, Tree};
use crate::outbox::{Claim, Notice};

/// How long the webhook may take.
const POST_WITHIN: Duration = Duration::from_secs(3);
/// How long a claim on a message lasts: longer than sending takes, so that two never send it at once.
const CLAIM_FOR: Duration = Duration::from_secs(15);
/// How often sending is tried.
pub const MAX_ATTEMPTS: u32 = 8;
/// Pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// How often a courier checks whether another courier's claim has ended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Sends what waits.
#[derive(Debug)]
pub struct Courier {
    store: Store,
    tree: Tree,
    view: Arc<View>,
    /// Names this process among the couriers.
    name: String,
    /// What the messages call the fleet.
    cluster: String,
}

/// What a courier has to see.
#[must_use]
pub fn ranges(tree: &Tree) -> Ranges {
    Ranges::new().with(&tree.outbox()).with(&tree.config())
}

impl Courier {
    /// A courier on a view that covers [`ranges`].
    #[must_use]
    pub fn new(store: Store, tree: Tree, view: Arc<View>, name: String, cluster: String) -> Courier {
        Courier { store, tree, view, name, cluster }
    }

    /// Sends until it is stopped.
    pub async fn run(&self, stop: &CancellationToken) {
        let mut changes = self.view.changes();
        loop {
            let snapshot = changes.mark_seen();
            let settings = Settings::read(&*snapshot, &self.tree);
            let waiting = self.waiting(&snapshot);
            let any = !waiting.is_empty();
            for (key, seen) in waiting {
                if stop.is_cancelled() {
                    return;
                }
                self.deliver(&key, &seen, &settings).await;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = changes.next() => if changed.is_none() { return },
                () = sleep(LOOK_AGAIN), if any => {}
            }
        }
    }

    /// Messages in the order of their events.
    fn waiting(&self, snapshot: &Snapshot) -> Vec<(NoticeKey, Arc<Stored<Notice>>)> {
        let listing = snapshot.list(&self.tree.outbox());
        listing.bad.iter().for_each(|bad| tracing::error!(%bad, "a message cannot be read"));
        listing.entries
    }

    async fn deliver(&self, key: &NoticeKey, seen: &Stored<Notice>, settings: &Settings) {
        let now = Moment::now();
        if seen.record.claim.as_ref().is_some_and(|claim| claim.until > now) {
            return;
        }
        let Some(webhook) = &settings.slack else {
            // No recipient is configured any more.
            self.remove(key, seen).await;
            return;
        };
        let Some(claimed) = self.claim(key, seen, now).await else { return };
        let body = claimed.record.slack_json(&self.cluster);
        let sent = http::post_json(webhook, &body, settings.proxy.as_deref(), POST_WITHIN).await;
        match sent {
            Ok(_) => {
                tracing::info!(notice = %key.notice, "message sent");
                self.remove(key, &claimed).await;
            }
            Err(error) if claimed.record.attempts >= MAX_ATTEMPTS => {
                tracing::error!(notice = %key.notice, %error, "message dropped: the webhook does not take it");
                self.remove(key, &claimed).await;
            }
            Err(error) => {
                tracing::warn!(notice = %key.notice, %error, "message is sent again later");
                self.postpone(key, &claimed).await;
            }
        }
    }

    /// Claims a message; `None` if another courier was faster.
    async fn claim(&self, key: &NoticeKey, seen: &Stored<Notice>, now: Moment) -> Option<Stored<Notice>> {
        let record = Notice {
            claim: Some(Claim { by: self.name.clone(), until: now.plus(CLAIM_FOR) }),
            attempts: seen.record.attempts + 1,
            ..seen.record.clone()
        };
        let txn = Txn::new().when(key.unchanged(seen)).then(key.put(&record));
        let result = self.store.commit(txn).await.ok().filter(|result| result.succeeded)?;
        let (create_revision, lease) = (seen.create_revision, seen.lease);
        Some(Stored { record, create_revision, mod_revision: result.revision, lease })
    }

    async fn postpone(&self, key: &NoticeKey, claimed: &Stored<Notice>) {
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(claimed.record.attempts.saturating_sub(1).min(6));
        let claim = Claim { by: self.name.clone(), until: Moment::now().plus(pause) };
        let record = Notice { claim: Some(claim), ..claimed.record.clone() };
        // If this is lost, the claim ends by itself.
        self.store.commit(Txn::new().when(key.unchanged(claimed)).then(key.put(&record))).await.ok();
    }

    async fn remove(&self, key: &NoticeKey, seen: &Stored<Notice>) {
        let txn = Txn::new().when(key.unchanged(seen)).then(key.delete());
        if let Err(error) = self.store.commit(txn).await {
            tracing::warn!(notice = %key.notice, %error, "a message that was sent could not be removed");
        }
    }
}
