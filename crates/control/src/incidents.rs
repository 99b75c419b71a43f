//! What must stay visible after it is over? Incidents, above all data loss. Each is a critical finding until an
//! operator acknowledges it.

use capstan_meta::record::{Extra, Key as _, Listing};
use capstan_meta::{Put, Store, Txn, clock, json_records};
use serde::{Deserialize, Serialize};

use crate::error::ControlError;
use crate::events::Event;
use crate::findings::{Code, Finding, Severity};
use crate::keys::{IncidentCode, IncidentId, IncidentKey, Incidents};

/// Incidents acknowledged per transaction: each is a compare and a delete, and etcd accepts 128 operations.
const PER_TXN: usize = 60;

/// An event that stays visible until it is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// The affected object.
    pub object: String,
    /// What happened.
    pub cause: String,
    /// What to do about it.
    pub action: String,
    /// Its time, in seconds since 1970.
    pub at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(Incident);

impl Incident {
    /// An incident at this time, in seconds since 1970.
    pub fn new(
        object: impl Into<String>,
        cause: impl Into<String>,
        action: impl Into<String>,
        at: u64,
    ) -> Incident {
        Incident {
            object: object.into(),
            cause: cause.into(),
            action: action.into(),
            at,
            extra: Extra::default(),
        }
    }

    /// The write that records it, for the transaction of the decision that caused it. The id distinguishes incidents of
    /// one code; the same id is the same incident.
    pub fn put(&self, code: &Code, id: &str) -> Result<Put, ControlError> {
        Ok(IncidentKey { code: IncidentCode::new(code.as_str())?, id: IncidentId::new(id)? }.put(self))
    }
}

/// Every incident as a finding.
#[must_use]
pub fn findings(incidents: &Listing<IncidentKey>) -> Vec<Finding> {
    let finding = |key: &IncidentKey, incident: &Incident| {
        let (code, ack) = (Code::from_text(key.code.as_str()), format!("capstan status ack {}", key.code));
        let action = match incident.action.is_empty() {
            true => format!("when it is resolved: {ack}"),
            false => format!("{}; then: {ack}", incident.action),
        };
        Finding::new(code, Severity::Critical, &incident.object, &incident.cause, action).since(incident.at)
    };
    incidents.iter().map(|(key, stored)| finding(key, &stored.record)).collect()
}

/// Acknowledges every incident of a code, or those about one object; they are no longer findings. Returns what was
/// acknowledged.
pub async fn acknowledge(
    store: &Store,
    code: &IncidentCode,
    object: Option<&str>,
    actor: &str,
) -> Result<Vec<String>, ControlError> {
    let found = store.list(&Incidents {}).await?;
    let meant: Vec<_> = found
        .iter()
        .filter(|(key, stored)| {
            key.code == *code && object.is_none_or(|object| stored.record.object == object)
        })
        .collect();
    let mut done = Vec::new();
    for batch in meant.chunks(PER_TXN) {
        let mut txn = Txn::new();
        for (key, stored) in batch {
            txn = txn.when(key.unchanged(stored)).then(key.delete());
        }
        let objects: Vec<String> = batch.iter().map(|(_, stored)| stored.record.object.clone()).collect();
        let event =
            Event::new(clock::since_epoch(), actor, format!("acknowledged {code}"), objects.join(", "), "");
        if !store.commit(txn.then(event.put())).await?.succeeded {
            return Err(ControlError::Contended { what: format!("incident {code}") });
        }
        done.extend(objects);
    }
    Ok(done)
}
