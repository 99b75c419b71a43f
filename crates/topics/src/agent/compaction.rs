//! Compacts old objects of the topics that this broker leads, where a policy asks for it.

use capstan_meta::clock;

use super::broker::Inner;
use crate::data::now_ms;
use crate::error::TopicsError;
use crate::spec::StoragePolicy;
use crate::status::TierObject;
use crate::tier::TierOfTopic;
use crate::tier::commit::Right;
use crate::tier::compact::{Latest, Made, is_due};

/// Objects of one pass, from the oldest on. Later ones are left as they are.
const MAX_OBJECTS: usize = 1_024;

/// Rewrites the objects whose messages every subscription has acknowledged. Each object is replaced for itself: a pass
/// that ends early has done a part.
pub(super) async fn compact(
    inner: &Inner,
    tier: &TierOfTopic,
    right: &Right,
    policy: &StoragePolicy,
) -> Result<(), TopicsError> {
    let Some(grace) = policy.tombstone_grace() else { return Ok(()) };
    let acknowledged = acknowledged(inner, right).await?;
    let objects: Vec<TierObject> = {
        let chain = tier.chain();
        let done = chain.objects().take(MAX_OBJECTS).take_while(|object| object.end_offset < acknowledged);
        done.cloned().collect()
    };
    let Some(last) = objects.last().filter(|_| is_due(&objects, tier.compacted_before())) else {
        return Ok(());
    };
    let mut latest = Latest::default();
    for object in &objects {
        tier.messages_of(object).await?.iter().for_each(|message| latest.note(message));
    }
    let oldest_tombstone = now_ms().saturating_sub(grace);
    let mut removed = 0;
    for object in &objects {
        let messages = tier.messages_of(object).await?;
        let made = Made { epoch: right.epoch.0, number: rand::random(), now: clock::since_epoch().as_secs() };
        let Some((new, content)) = latest.rewrite(object, &messages, oldest_tombstone, made)? else {
            continue;
        };
        tier.tier.put(&tier.path(&new), content).await?;
        right.replace(inner.store(), object, &new).await?;
        removed += (messages.len() as u64).saturating_sub(new.compacted.unwrap_or_default());
        tier.chain().push(new);
    }
    tier.set_compacted_before(last.end_offset + 1);
    tracing::info!(topic = %right.topic, objects = objects.len(), removed, "objects compacted");
    Ok(())
}

/// The offset before which every subscription has acknowledged everything, as it is stored.
async fn acknowledged(inner: &Inner, right: &Right) -> Result<u64, TopicsError> {
    let progress = inner.store().list(&right.topic.progress()).await?;
    if let Some(bad) = progress.bad.first() {
        return Err(TopicsError::Corrupt(bad.to_string()));
    }
    Ok(progress.iter().map(|(_, stored)| stored.record.floor).min().unwrap_or(u64::MAX))
}
