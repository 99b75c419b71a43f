//! What was decided and done, by which process or operator, and why? An append-only record, bounded in size.
//!
//! An event is written in the transaction of its change, where there is one, so that neither exists without the other.
//! Events are for operators: no decision depends on them.

use std::time::Duration;

use capstan_meta::record::{Extra, Key as _, Listing, Stored};
use capstan_meta::{Put, Store, Txn, clock, json_records};
use serde::{Deserialize, Serialize};

use crate::error::ControlError;
use crate::keys::{EventId, EventKey, Events};
use crate::reconcile::{NoMessage, Step};

/// The number of events kept. Together below a megabyte: the metadata store is not a log store.
pub const KEPT: usize = 1000;
/// Events beyond [`KEPT`] before the oldest are removed, so that not every event costs a removal.
const SLACK: usize = 50;
/// Events removed per transaction.
const REMOVED_AT_ONCE: usize = 100;

/// A decision or an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The process or operator that decided or acted.
    pub actor: String,
    /// What was done, in the past tense: `drained`, `removed`, `promoted replica 10.0.0.2:7001`.
    pub action: String,
    /// The object: `host a`, `redis cluster demo`.
    pub object: String,
    /// The reason, if there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(Event);

impl Event {
    /// An event at this time, counted from 1970.
    pub fn new(
        at: Duration,
        actor: impl Into<String>,
        action: impl Into<String>,
        object: impl Into<String>,
        reason: impl Into<String>,
    ) -> Event {
        Event {
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            actor: actor.into(),
            action: action.into(),
            object: object.into(),
            reason: reason.into(),
            extra: Extra::default(),
        }
    }

    /// The write that records it, for the transaction of its change.
    #[must_use]
    pub fn put(&self) -> Put {
        self.put_as(&format!("{:08x}", rand::random::<u32>()))
    }

    /// The same for pure planners: `name` (letters, digits, hyphens) tells it from other events of its millisecond.
    #[must_use]
    pub fn put_as(&self, name: &str) -> Put {
        let id = format!("{:013}-{name}", self.at_ms);
        // Digits and letters are always a valid name; a put without a key is refused by every store.
        EventId::new(id).map_or_else(|_| Put::default(), |event| EventKey { event }.put(self))
    }

    /// One line: action, object, reason.
    #[must_use]
    pub fn sentence(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{} {}{reason}", self.action, self.object)
    }
}

/// One event, as `capstan events` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventLine {
    /// Its id; later events have greater ones.
    pub id: EventId,
    /// Its time, as RFC 3339.
    pub at: String,
    /// The process or operator.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// The object.
    pub object: String,
    /// The reason.
    pub reason: String,
    /// The revision of the metadata that recorded it.
    pub revision: i64,
}

/// Records an event that belongs to no transaction. A failure is only logged, because the change has already happened.
pub async fn record(
    store: &Store,
    actor: &str,
    action: impl Into<String>,
    object: impl Into<String>,
    reason: &str,
) {
    let event = Event::new(clock::since_epoch(), actor, action, object, reason);
    if let Err(error) = store.commit(Txn::new().then(event.put())).await {
        tracing::warn!(%error, event = event.sentence(), "cannot record event");
    }
}

/// All events after this one, oldest first; all events without one.
pub async fn list(store: &Store, after: Option<&EventId>) -> Result<Vec<EventLine>, ControlError> {
    let found = store.list(&Events {}).await?;
    let later = found.iter().filter(|(key, _)| after.is_none_or(|after| key.event > *after));
    Ok(later.map(|(key, stored)| line(key, stored)).collect())
}

fn line(key: &EventKey, stored: &Stored<Event>) -> EventLine {
    let event = &stored.record;
    let at = i64::try_from(event.at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    EventLine {
        id: key.event.clone(),
        at: at.map_or_else(|| "-".to_owned(), |at| at.to_string()),
        actor: event.actor.clone(),
        action: event.action.clone(),
        object: event.object.clone(),
        reason: event.reason.clone(),
        revision: stored.create_revision.0,
    }
}

/// The step that removes the oldest events, if there are too many. Pure.
#[must_use]
pub fn trim(events: &Listing<EventKey>) -> Option<Step<NoMessage>> {
    let surplus = events.entries.len().saturating_sub(KEPT);
    if surplus < SLACK {
        return None;
    }
    let oldest = events.iter().take(surplus.min(REMOVED_AT_ONCE));
    let txn = oldest.fold(Txn::new(), |txn, (key, _)| txn.then(key.delete()));
    Some(Step::Commit { what: "remove the oldest events".to_owned(), txn })
}

#[cfg(test)]
mod tests {
    use capstan_meta::Revision;

    use super::*;

    #[test]
    fn only_a_surplus_is_removed_and_never_the_newest() {
        let mut events = Listing::at(Revision(3));
        for number in 0..KEPT + SLACK {
            let event = Event::new(Duration::from_millis(number as u64), "a", "did", "it", "");
            let id = EventId::new(format!("{number:013}-x")).unwrap();
            let stored = Stored {
                record: event,
                create_revision: Revision(2),
                mod_revision: Revision(2),
                lease: capstan_meta::LeaseId(0),
            };
            if number + 1 == KEPT + SLACK {
                assert!(trim(&events).is_none());
            }
            events.entries.push((EventKey { event: id }, stored.into()));
        }
        let Some(Step::Commit { txn, .. }) = trim(&events) else { panic!("nothing is removed") };
        assert_eq!(txn.success.len(), SLACK);
        assert!(format!("{txn:?}").contains("0000000000000-x"));
    }
}
