//! Who leads? Etcd's election recipe, with what a leader needs to be harmless once it leads no more.
//!
//! Every candidate puts a key on its lease; the key with the lowest create revision leads, and each candidate waits for
//! the deletion of the one just before it, so nobody is woken in vain. Where a document asks for a single key, the
//! candidate that manages to create it leads.
//!
//! Two fences. In the store: the create revision of the leader's key is its *term*, and every write of a leader carries
//! [`Leadership::guard`]. In time: a leader acts only while [`Leadership::is_valid`], which ends by its own clock
//! before its lease can have ended for others.
//!
//! The fence in time relies on the lease. When somebody revokes a leader's lease or deletes its key by hand, the leader
//! learns of it a moment later than its successor may; in that moment only the fence in the store holds.

mod ballot;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use ballot::Standing;
pub use ballot::{Ballot, Leader, Observer};

use crate::backoff::Backoff;
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, LeaseId, Revision};
use crate::request::{Compare, Delete, EventKind, Txn, Watch, WatchMessage};
use crate::session::Session;
use crate::store::Store;

/// A watch of a predecessor is asked for a sign of life this often, and opened anew if it gives none by the next time.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A candidate.
#[derive(Debug)]
pub struct Election {
    store: Store,
    session: Session,
    ballot: Ballot,
    id: String,
    backoff: Backoff,
}

impl Election {
    /// Stands for election under this session; `id` is what others see as the leader's name.
    pub fn new(store: Store, session: Session, ballot: Ballot, id: impl Into<String>, seed: u64) -> Election {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2), seed);
        Election { store, session, ballot, id: id.into(), backoff }
    }

    /// Waits until elected; nothing once the session is closed. A lost lease means standing again at the end of the
    /// queue. When this is dropped, the candidacy stays until the session ends or [`Election::withdraw`].
    pub async fn campaign(&mut self) -> Option<Leadership> {
        loop {
            let lease = self.session.live().await?;
            let session = self.session.clone();
            let stood = tokio::select! {
                biased;
                () = session.ended(lease) => continue,
                stood = self.stand(lease) => stood,
            };
            match stood {
                Ok(leadership) => {
                    self.backoff.reset();
                    tracing::info!(key = %leadership.key_text(), term = %leadership.term, "elected");
                    return Some(leadership);
                }
                Err(MetaError::LeaseNotFound) => self.session.doubt(),
                Err(error) => tracing::debug!(%error, "election is tried again"),
            }
            sleep(self.backoff.next_wait()).await;
        }
    }

    /// Leaves the queue, if this candidate is in it.
    pub async fn withdraw(&self) -> Result<()> {
        let Some(lease) = self.session.lease() else { return Ok(()) };
        let txn = self.ballot.leave(lease, &self.id);
        self.store.commit(txn).await.map(|_| ())
    }

    async fn stand(&self, lease: LeaseId) -> Result<Leadership> {
        loop {
            let entered = self.store.commit(self.ballot.enter(lease, &self.id)).await?;
            match self.ballot.standing(lease, &self.id, &entered)? {
                Standing::Leads { key, term } => {
                    let (store, session) = (self.store.clone(), self.session.clone());
                    return Ok(Leadership { store, session, lease, key, term });
                }
                Standing::Behind { key, at } => gone(&self.store, key, at).await?,
            }
        }
    }
}

/// Waits until a key that existed at a revision is deleted.
async fn gone(store: &Store, key: Bytes, at: Revision) -> Result<()> {
    let silent = |_| MetaError::Unavailable("no answer in time".to_owned());
    let opening = store.watch(Watch::from(KeyRange::one(key), at.next()));
    let mut watch = timeout(HEARTBEAT, opening).await.map_err(silent)??;
    let mut asked = false;
    loop {
        match timeout(HEARTBEAT, watch.next()).await {
            Ok(message) => {
                asked = false;
                if deletes(&message?) {
                    return Ok(());
                }
            }
            Err(silence) if asked => return Err(silent(silence)),
            Err(_) => {
                timeout(HEARTBEAT, watch.request_progress()).await.map_err(silent)??;
                asked = true;
            }
        }
    }
}

fn deletes(message: &WatchMessage) -> bool {
    match message {
        WatchMessage::Events { events, .. } => events.iter().any(|event| event.kind() == EventKind::Delete),
        WatchMessage::Progress(_) => false,
    }
}

/// The right to act as the leader, for as long as it is valid.
#[derive(Clone, Debug)]
pub struct Leadership {
    store: Store,
    session: Session,
    lease: LeaseId,
    key: Bytes,
    term: Revision,
}

impl Leadership {
    /// The create revision of the leader's key: no two leaders ever have the same one, and it only grows.
    #[must_use]
    pub fn term(&self) -> Revision {
        self.term
    }

    /// Holds as long as nobody else has been elected. Goes into every transaction of the leader.
    #[must_use]
    pub fn guard(&self) -> Compare {
        Compare::create_revision(self.key.clone(), self.term)
    }

    /// The instant after which this leader must not act; nothing if it must not act now.
    #[must_use]
    pub fn valid_until(&self) -> Option<Instant> {
        self.session.valid_until(self.lease)
    }

    /// Whether the leader may act now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.valid_until().is_some()
    }

    /// Waits until the leader may not act any more: its lease is in doubt, or its key is gone.
    pub async fn ended(&self) {
        tokio::select! {
            biased;
            () = self.session.ended(self.lease) => {}
            () = self.deposed() => {}
        }
    }

    /// Waits until the leader's key is gone although its lease may live: somebody deleted it, or revoked the lease.
    async fn deposed(&self) {
        loop {
            let seen = match self.store.get(self.key.clone()).await {
                Ok(Some(kv)) if kv.create_revision == self.term => kv.mod_revision,
                Ok(_) => return,
                Err(_) => {
                    sleep(HEARTBEAT).await;
                    continue;
                }
            };
            match gone(&self.store, self.key.clone(), seen).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "the leader's key is looked at again"),
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Asks the store whether this leader still leads.
    pub async fn confirm(&self) -> Result<bool> {
        let found = self.store.get(self.key.clone()).await?;
        Ok(found.is_some_and(|kv| kv.create_revision == self.term))
    }

    /// Steps down, so that the next candidate need not wait for the lease to end.
    pub async fn resign(self) -> Result<()> {
        let txn = Txn::new().when(self.guard()).then(Delete::one(self.key.clone()));
        self.store.commit(txn).await.map(|_| ())
    }

    fn key_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }
}
