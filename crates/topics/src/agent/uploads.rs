//! Moves old messages of the topics that this broker leads into object storage: uploads closed files, describes them,
//! drops them from the log, expires and collects objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use capstan_log::{Offset, SegmentInfo, referee};
use capstan_meta::clock;

use super::broker::Inner;
use super::compaction;
use crate::data::envelope::Envelope;
use crate::data::now_ms;
use crate::data::partition::Partition;
use crate::data::retain;
use crate::error::TopicsError;
use crate::keys::{LeaderKey, Topics};
use crate::spec::{Delivery, StoragePolicy, TopicName};
use crate::tier::commit::Right;
use crate::tier::object::{self, Draft};
use crate::tier::place::described;
use crate::tier::{Tier, TierOfTopic};

/// Bytes of one read.
const READ_BYTES: usize = 4 << 20;
/// How long a view may take to show what was written.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

pub(super) async fn run(inner: Arc<Inner>) {
    let Some(tier) = inner.tier.clone() else { return };
    loop {
        tokio::time::sleep(tier.options.interval).await;
        round(&inner).await;
        if let Err(error) = collect_deleted(&inner, &tier).await {
            tracing::warn!(%error, "objects of deleted topics were not collected; trying again");
        }
    }
}

async fn round(inner: &Arc<Inner>) {
    let snapshot = inner.view.snapshot();
    for (key, stored) in snapshot.list(&Topics {}).iter() {
        let name = TopicName { namespace: key.namespace.clone(), local: key.topic.clone() };
        if stored.record.delivery == Delivery::NonReliable || inner.leading(&stored.record).is_none() {
            continue;
        }
        let policy = stored.record.storage.or(inner.policy(&name).storage);
        match tend(inner, &name, &policy).await {
            // It was just moved.
            Err(TopicsError::NotHere { .. } | TopicsError::NotReady(_)) => {}
            Ok(()) => inner.watchdog().tier_works(&name),
            Err(error) => {
                inner.watchdog().tier_failed(&name, error.to_string(), now_ms());
                tracing::warn!(topic = %name, %error, "old messages were not moved to object storage; trying again");
            }
        }
    }
}

/// Everything that is due for one topic. Each step can be the last: the next round goes on from what is stored.
async fn tend(inner: &Arc<Inner>, name: &TopicName, policy: &StoragePolicy) -> Result<(), TopicsError> {
    let partition = inner.partition(name).await?;
    let Some(tier) = &partition.tier else { return Ok(()) };
    let right = Right {
        topic: name.clone(),
        record: partition.record.clone(),
        holder: inner.holder.id().clone(),
        epoch: partition.epoch,
    };
    let uploaded = upload(inner, &partition, tier, &right).await?;
    for (from, to) in tier.gaps(Some(partition.log_start().await?)) {
        tracing::error!(topic = %name, from, to, "messages are neither in the log nor in object storage");
    }
    trim(inner, &partition, tier, uploaded).await?;
    expire(inner, tier, &right, policy).await?;
    compaction::compact(inner, tier, &right, policy).await?;
    collect(inner, tier, &right).await
}

/// Uploads closed files. Returns the place in the log up to which everything is uploaded.
async fn upload(
    inner: &Inner,
    partition: &Partition,
    tier: &TierOfTopic,
    right: &Right,
) -> Result<Offset, TopicsError> {
    let mut done = Offset::ZERO;
    for segment in partition.log.closed_segments()? {
        let draft = draft(partition, tier, segment).await?;
        if !draft.is_empty() {
            let (object, content) = draft.finish(partition.epoch.0, clock::since_epoch().as_secs());
            tier.tier.put(&tier.path(&object), content).await?;
            right.describe(inner.store(), &object).await?;
            tracing::info!(topic = %right.topic, object = %object.object_id, "old messages uploaded");
            tier.chain().push(object);
        }
        done = segment.end;
    }
    Ok(done)
}

/// The messages of a file that are in no object yet.
async fn draft(
    partition: &Partition,
    tier: &TierOfTopic,
    segment: SegmentInfo,
) -> Result<Draft, TopicsError> {
    let mut end = tier.chain().end();
    let mut draft = Draft::new(end.unwrap_or_default());
    let mut at = segment.first;
    while at < segment.end {
        let batch = match partition.log.read(at, READ_BYTES).await {
            // The file is dropped in the middle; what went was uploaded or too old.
            Err(capstan_log::LogError::Truncated(start)) if start > at && start < segment.end => {
                at = start;
                continue;
            }
            Err(capstan_log::LogError::Truncated(_)) => break,
            read => read?,
        };
        for entry in batch.entries.iter().filter(|entry| entry.offset < segment.end) {
            let envelope = Envelope::open(&entry.data)?;
            if end.is_some_and(|end| envelope.end() <= end) {
                continue;
            }
            draft.push(&envelope, &entry.data);
            end = Some(draft.end());
        }
        if batch.next == at {
            break;
        }
        at = batch.next;
    }
    Ok(draft)
}

/// Drops files from the log that are uploaded, except for the newest.
async fn trim(
    inner: &Inner,
    partition: &Partition,
    tier: &TierOfTopic,
    uploaded: Offset,
) -> Result<(), TopicsError> {
    let keep = tier.tier.options.local_bytes;
    let Some(floor) = retain::local_floor(&partition.log, keep, uploaded).await? else { return Ok(()) };
    referee::change(inner.store(), partition.log.name(), |config| Ok(config.raise_floor(floor))).await?;
    tracing::info!(topic = %partition.text, entry = floor.0, "uploaded messages dropped from the log");
    Ok(())
}

/// Removes the descriptors of objects that are too old or too many.
async fn expire(
    inner: &Inner,
    tier: &TierOfTopic,
    right: &Right,
    policy: &StoragePolicy,
) -> Result<(), TopicsError> {
    let oldest = match policy.retention_seconds.unwrap_or_default() {
        0 => 0,
        seconds => now_ms().saturating_sub(seconds.saturating_mul(1_000)),
    };
    let expired: Vec<(u64, u64)> = {
        let chain = tier.chain();
        let expired = chain.expired(oldest, policy.retention_bytes.unwrap_or_default());
        expired.into_iter().map(|object| (object.start_offset, object.end_offset)).collect()
    };
    let Some((_, last)) = expired.last().copied() else { return Ok(()) };
    let starts: Vec<u64> = expired.iter().map(|(start, _)| *start).collect();
    right.expire(inner.store(), &starts).await?;
    tier.chain().drop_before(last + 1);
    tracing::info!(topic = %right.topic, objects = starts.len(), "old objects expired");
    Ok(())
}

/// Deletes objects that have no descriptor and cannot get one any more: those of this epoch and earlier ones. Objects are
/// listed first: what is described meanwhile is kept.
async fn collect(inner: &Inner, tier: &TierOfTopic, right: &Right) -> Result<(), TopicsError> {
    let listed = tier.tier.list(&tier.at).await?;
    if listed.len() <= tier.chain().objects().count() {
        return Ok(());
    }
    let chain = described(inner.store(), &right.topic).await?;
    let known: BTreeSet<&str> = chain.objects().map(|object| object.object_id.as_str()).collect();
    for path in listed {
        let Some(name) = path.filename() else { continue };
        let dead = object::epoch_of(name).is_some_and(|epoch| epoch <= right.epoch.0);
        if dead && !known.contains(name) {
            tier.tier.delete(&path).await?;
            tracing::info!(topic = %right.topic, object = name, "orphaned object deleted");
        }
    }
    Ok(())
}

/// Deletes the objects of topics that are not there any more. The leader does it. Objects are listed before the topics:
/// an object that is listed belongs to a topic that was created before.
async fn collect_deleted(inner: &Inner, tier: &Tier) -> Result<(), TopicsError> {
    let leader = inner.store().read(&LeaderKey {}).await?.map(|stored| stored.record);
    if leader != Some(inner.id) {
        return Ok(());
    }
    let objects = tier.all().await?;
    let snapshot = inner.view.catch_up(SEEN_WITHIN).await?;
    let topics = snapshot.list(&Topics {});
    if !topics.bad.is_empty() {
        return Err(TopicsError::Corrupt("a topic's record cannot be read".to_owned()));
    }
    let known: BTreeSet<u64> = topics.iter().map(|(_, stored)| stored.record.id).collect();
    for (_, path) in objects.into_iter().filter(|(id, _)| !known.contains(id)) {
        tier.delete(&path).await?;
        tracing::info!(object = %path, "object of a deleted topic deleted");
    }
    Ok(())
}
