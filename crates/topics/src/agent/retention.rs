//! Drops old messages of the topics that this broker leads: raises the floor of their logs, which every holder obeys.

use capstan_log::{Log, referee};
use capstan_meta::clock;

use super::broker::Inner;
use crate::data::retain;
use crate::error::TopicsError;
use crate::keys::Topics;
use crate::spec::{Delivery, StoragePolicy, TopicName};

/// Looks at every topic that is led here and has a policy.
pub(super) async fn enforce(inner: &Inner) {
    let snapshot = inner.view.snapshot();
    for (key, stored) in snapshot.list(&Topics {}).iter() {
        let name = TopicName { namespace: key.namespace.clone(), local: key.topic.clone() };
        let policy = stored.record.storage.or(inner.policy(&name).storage);
        // With a tier, messages leave the log when they are uploaded, and retention is about objects.
        if inner.tier.is_some() || !policy.drops() || stored.record.delivery == Delivery::NonReliable {
            continue;
        }
        let Some(log) = inner.leading(&stored.record) else { continue };
        if let Err(error) = enforce_one(inner, &name, &log, &policy).await {
            tracing::warn!(topic = %name, %error, "old messages were not dropped; trying again");
        }
    }
}

async fn enforce_one(
    inner: &Inner,
    name: &TopicName,
    log: &Log,
    policy: &StoragePolicy,
) -> Result<(), TopicsError> {
    let Some(floor) = retain::floor(log, policy, clock::since_epoch()).await? else { return Ok(()) };
    referee::change(inner.store(), log.name(), |config| Ok(config.raise_floor(floor))).await?;
    tracing::info!(topic = %name, entry = floor.0, "old messages dropped");
    Ok(())
}
