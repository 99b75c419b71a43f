//! What a node reports about itself while it runs, and the deletion of documents whose time is over.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Weak;
use std::time::Duration;

use bson::{Document, doc};
use capstan_log::keys::LogKeys;
use capstan_meta::clock;
use capstan_meta::record::Extra;
use capstan_meta::session::Session;

use crate::api::Documents;
use crate::data::command::{Query, Read, Reply, Target};
use crate::data::copy::Copy;
use crate::decide::JobState;
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{AliveKey, Collections, Jobs};
use crate::metrics::Census;
use crate::node::{Inner, Node};
use crate::queue::Queue;
use crate::router::{Concern, unexpected};
use crate::status::{Job, NodeStatus};

/// How often a node looks at itself.
const LOOK: Duration = Duration::from_secs(2);
/// Counting documents takes at most this part of the time: one of so many seconds.
const WEIGH_SHARE: u32 = 50;
/// How often documents whose time is over are looked for.
const SWEEP: Duration = Duration::from_secs(2);
/// Documents of one token that one sweep deletes at most; the next one goes on.
const SWEPT: i64 = 2_000;
/// A number in a field is a time: in milliseconds from here on, below it in seconds.
const MILLISECONDS_FROM: i64 = 100_000_000_000;

/// Reports how many tokens build indexes, and whether the queue is there; with one, sees to it that copies begin with
/// what travels over it.
pub(crate) async fn follow_self(inner: Weak<Inner>, session: Session) {
    let (mut reported, mut prefer_snapshots, mut closed) = (None, HashSet::new(), BTreeSet::new());
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(inner) = inner.upgrade() else { return };
        let tokens = inner.router.tokens().list();
        let building = tokens.iter().filter(|(_, copy)| copy.is_leading() && copy.is_building()).count();
        inner.metrics.set(inner.id.as_str(), census(&inner, &tokens, building).await);
        let queue = inner.router.tokens().queue().map(Queue::report);
        if inner.router.tokens().prefer_snapshots() {
            for (token, copy) in &tokens {
                if !prefer_snapshots.contains(token) && copy.prefer_snapshots().await {
                    prefer_snapshots.insert(*token);
                }
            }
        }
        let now_closed = closed_tokens(&inner, &tokens);
        // Opening takes a moment: only a token that was closed at the last look as well is missed.
        let unusable = now_closed.intersection(&closed).count()
            + tokens.iter().filter(|(_, copy)| copy.is_ahead()).count();
        closed = now_closed;
        let status = NodeStatus { http: inner.http, building, unusable, queue, extra: Extra::default() };
        if reported.as_ref() != Some(&status) {
            session.declare(&AliveKey { node: inner.id.clone() }, &status);
            reported = Some(status);
        }
    }
}

/// Tokens that the records give to this node and that are not open here.
fn closed_tokens(inner: &Inner, open: &[(Token, Copy)]) -> BTreeSet<Token> {
    let snapshot = inner.router.view.snapshot();
    let is_open = |token: &Token| open.binary_search_by_key(token, |(known, _)| *known).is_ok();
    let logs = snapshot.list(&LogKeys {});
    let mine = logs.iter().filter(|(_, found)| found.record.members().any(|one| one == inner.holder_id()));
    mine.filter_map(|(key, _)| Token::of_log(&key.log)).filter(|token| !is_open(token)).collect()
}

async fn census(inner: &Inner, tokens: &[(Token, Copy)], building: usize) -> Census {
    let jobs = inner.router.view.snapshot();
    let is_moving = |job: &Job| job.to == inner.id.as_str() && job.progress.state != JobState::Completed;
    let moving = jobs.list(&Jobs {}).iter().filter(|(_, found)| is_moving(&found.record)).count();
    let (mut led, mut lag) = (0, 0);
    for (_, copy) in tokens.iter().filter(|(_, copy)| copy.is_leading()) {
        led += 1;
        lag = copy.lag().await.max(lag);
    }
    Census { held: tokens.len(), led, building, moving, lag }
}

/// Counts the documents of the copies on this node. A copy that has not changed is not counted again, and counting takes
/// a small part of the time only.
pub(crate) async fn weigh(inner: Weak<Inner>) {
    let mut known: BTreeMap<Token, (u64, u64, u64)> = BTreeMap::new();
    loop {
        let begun = tokio::time::Instant::now();
        let Some(inner) = inner.upgrade() else { return };
        let tokens = inner.router.tokens().list();
        known.retain(|token, _| tokens.iter().any(|(open, _)| open == token));
        for (token, copy) in tokens {
            let position = copy.position();
            if known.get(&token).is_some_and(|(at, ..)| *at == position) {
                continue;
            }
            match copy.weigh().await {
                Ok((documents, bytes)) => drop(known.insert(token, (position, documents, bytes))),
                Err(error) => tracing::debug!(%token, %error, "documents were not counted; trying again"),
            }
        }
        let sum = |part: fn(&(u64, u64, u64)) -> u64| known.values().map(part).sum();
        inner.metrics.weighed(inner.id.as_str(), sum(|known| known.1), sum(|known| known.2));
        drop(inner);
        tokio::time::sleep(LOOK.max(begun.elapsed() * WEIGH_SHARE)).await;
    }
}

/// Deletes documents whose time is over, on the tokens that this node leads.
pub(crate) async fn sweep(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else { return };
        let node = Node { inner };
        let now = i64::try_from(clock::since_epoch().as_millis()).unwrap_or(i64::MAX);
        let snapshot = node.inner.router.view.snapshot();
        for (_, found) in snapshot.list(&Collections {}).iter() {
            let target = Target { version: found.mod_revision.0, spec: found.record.clone() };
            for filter in expired(&target, now) {
                if let Err(error) = delete(&node, &target, &filter).await {
                    tracing::debug!(%error, "expired documents were not deleted; trying again");
                }
            }
        }
    }
}

/// What documents have whose time is over: one filter for each way to write a time, so that an index answers it.
fn expired(target: &Target, now: i64) -> Vec<Document> {
    let mut filters = Vec::new();
    for (field, index) in &target.spec.indexes {
        let after = match (index.expires_after_seconds, index.expires_at) {
            (Some(seconds), _) => i64::try_from(seconds).unwrap_or(i64::MAX),
            (None, true) => 0,
            (None, false) => continue,
        };
        let until = now.saturating_sub(after.saturating_mul(1_000));
        let date = bson::DateTime::from_millis(until);
        let mut until_text = date.try_to_rfc3339_string().unwrap_or_default();
        until_text.truncate("2026-01-01T00:00:00".len());
        filters.push(doc! { field: { "$ge": MILLISECONDS_FROM, "$le": until } });
        filters.push(doc! { field: { "$gt": 0_i64, "$le": (until / 1_000).min(MILLISECONDS_FROM - 1) } });
        filters.push(doc! { field: { "$le": date } });
        filters.push(doc! { field: { "$ge": "1970-01-01T00:00:00", "$le": until_text } });
    }
    filters
}

async fn delete(node: &Node, target: &Target, filter: &Document) -> Result<(), DocsError> {
    let router = &node.inner.router;
    let led: Vec<Token> = router
        .tokens()
        .list()
        .into_iter()
        .filter(|(_, copy)| copy.is_leading())
        .map(|(token, _)| token)
        .collect();
    let documents = Documents { router, target: target.clone() };
    for token in led {
        let query = Query { filter: filter.clone(), limit: SWEPT, ids_only: true, ..Query::default() };
        let read = Read::Find(Box::new(query));
        let reply = router.read(token, target, read, Concern::Linearizable).await?;
        let Reply::Documents(found) = reply else { return Err(unexpected()) };
        for id in found.documents.iter().filter_map(|found| found.get("_id")) {
            // The filter is looked at again: the document may have been given another time meanwhile.
            documents.delete_id(id, filter).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bson::Bson;

    use super::*;
    use crate::language::Filter;
    use crate::spec::{CollectionId, CollectionSpec, IndexSpec};

    #[test]
    fn times_are_numbers_dates_and_texts() {
        let mut spec = CollectionSpec::new(CollectionId(1), vec!["_id".to_owned()]);
        let index = IndexSpec { expires_after_seconds: Some(60), ..IndexSpec::default() };
        spec.indexes.insert("t".to_owned(), index);
        let now = 1_800_000_000_000;
        let filters = expired(&Target { version: 1, spec }, now);
        let is_expired = |value: Bson| {
            filters.iter().any(|filter| Filter::parse(filter).unwrap().matches(&doc! { "t": value.clone() }))
        };
        for (seconds, expected) in [(61, true), (59, false)] {
            let at = now - seconds * 1_000;
            assert_eq!(is_expired(Bson::Int64(at)), expected, "{seconds} as milliseconds");
            assert_eq!(is_expired(Bson::Int64(at / 1_000)), expected, "{seconds} as seconds");
            let date = bson::DateTime::from_millis(at);
            assert_eq!(is_expired(Bson::DateTime(date)), expected, "{seconds} as a date");
            assert_eq!(
                is_expired(Bson::String(date.try_to_rfc3339_string().unwrap())),
                expected,
                "{seconds} as text"
            );
        }
        for other in [Bson::Null, Bson::Int64(0), Bson::String("later".to_owned()), Bson::Boolean(true)] {
            assert!(!is_expired(other.clone()), "{other}");
        }
    }
}
