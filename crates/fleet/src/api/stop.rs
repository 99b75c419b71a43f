//! How is a rollout stopped? A record that every worker obeys by itself, and an answer that is given when they have.

use std::time::Duration;

use capstan_meta::record::{Key, RecordError, Stored};
use capstan_meta::settle::{Next, settle};
use capstan_meta::{Compare, Revision, Txn};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{Asker, Fleet};
use crate::decide::{is_over, unconfirmed};
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::facts::Facts;
use crate::keys::CurrentKey;
use crate::lrn::Lrn;
use crate::status::Request;

/// How long hosts are waited for: a program that ignores TERM is killed after five seconds, and a lease lasts ten.
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at what hosts have confirmed.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// What became of a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// Hosts on which nothing of the request runs any more, as they say themselves.
    pub confirmed: Vec<Lrn>,
    /// Hosts whose worker is up and has not confirmed in time.
    pub pending: Vec<Lrn>,
    /// Hosts whose worker is not up: it ends what runs there, before anything else, when it starts.
    pub down: Vec<Lrn>,
}

impl Stopped {
    /// Whether every host has confirmed.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.pending.is_empty() && self.down.is_empty()
    }
}

impl Fleet {
    /// Every host stops at once, whether or not an updater leads. Returns when all have confirmed, or names those that
    /// have not after [`CONFIRM_WITHIN`].
    pub async fn stop(&self, asker: &Asker) -> Result<Stopped, FleetError> {
        self.stop_within(asker, CONFIRM_WITHIN).await
    }

    /// The same with another patience.
    pub async fn stop_within(&self, asker: &Asker, patience: Duration) -> Result<Stopped, FleetError> {
        self.record_stop(asker).await?;
        self.confirmations(patience).await
    }

    async fn record_stop(&self, asker: &Asker) -> Result<(), FleetError> {
        let key = self.tree.current();
        let reason = format!("stopped by {}: {}", asker.by, asker.reason);
        let read = || async {
            let raw = self.store.get(key.bytes()).await?.ok_or(FleetError::NothingUnderWay)?;
            let request = match Stored::decode::<CurrentKey>(&raw) {
                Ok(seen) if seen.record.stop => seen.record,
                Ok(seen) => {
                    self.refuse_if_over().await?;
                    seen.record
                }
                Err(_) => self.rebuilt().await?,
            };
            Ok((raw.mod_revision, request))
        };
        settle(&self.store, "the request", read, |(at, request): &(Revision, Request), _| {
            if request.stop {
                return Ok(Next::Done(()));
            }
            let stopped = Request { stop: true, stop_reason: reason.clone(), ..request.clone() };
            let unchanged = Compare::mod_revision(key.bytes(), *at);
            Ok(Next::Commit(Txn::new().when(unchanged).then(key.put(&stopped))))
        })
        .await
    }

    /// When every host has the release there is nothing to stop. What cannot be read does not keep anything from being
    /// stopped.
    async fn refuse_if_over(&self) -> Result<(), FleetError> {
        let facts = self.facts().await?;
        let over = facts.unreadable.is_empty() && facts.has_ended() && is_over(&facts);
        if over { Err(FleetError::NothingUnderWay) } else { Ok(()) }
    }

    /// A request that cannot be parsed, as far as its plan and its history say what it was.
    async fn rebuilt(&self) -> Result<Request, FleetError> {
        let facts = self.facts().await?;
        let generation = facts.last_generation.max(1);
        let readable = |error: RecordError| match error {
            RecordError::BadValue(_) => Ok(None),
            RecordError::Store(error) => Err(FleetError::from(error)),
        };
        let history = self.store.read(&self.tree.history(generation)).await.or_else(readable)?;
        let wanted = facts.target.as_ref().map(|seen| seen.record.version.clone());
        let version = history.map(|seen| seen.record.version).or(wanted).unwrap_or_default();
        Ok(Request {
            version,
            servers: facts.registry.iter().copied().collect(),
            started_at: Moment::now(),
            generation,
            ..Request::default()
        })
    }

    async fn confirmations(&self, patience: Duration) -> Result<Stopped, FleetError> {
        let until = Instant::now() + patience;
        loop {
            let found = sorted(&self.facts().await?);
            if found.pending.is_empty() || Instant::now() >= until {
                return Ok(found);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Which hosts have confirmed a stop.
fn sorted(facts: &Facts) -> Stopped {
    let missing = unconfirmed(facts);
    let (pending, down) = missing.iter().partition(|lrn| facts.leases.contains_key(lrn));
    let members = facts.request.iter().flat_map(|seen| seen.record.members());
    let confirmed = members.filter(|lrn| facts.registry.contains(lrn) && !missing.contains(lrn)).collect();
    Stopped { confirmed, pending, down }
}
