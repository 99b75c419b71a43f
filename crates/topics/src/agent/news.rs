//! Does a broker learn of a change before its watch brings it? It may, from the internal topic: the broker that serves it
//! announces what its view shows to be changed, and the others have their views catch up.
//!
//! News carry a revision and keys, never values. What a view shows comes from the store alone, by revision: old, doubled,
//! forged and lost news change nothing, and everything works without the topic. It is there if an operator creates it.

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::Revision;
use capstan_meta::record::Prefix as _;
use capstan_meta::view::{Changes, Delta, View};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::broker::{Inner, Whereabouts};
use crate::data::message::Record;
use crate::data::now_ms;
use crate::data::partition::Partition;
use crate::data::publish::Publication;
use crate::error::TopicsError;
use crate::spec::{Delivery, TopicName};
use crate::wire::capstan::topics::v1::topics_client::TopicsClient;
use crate::wire::capstan::topics::v1::{Position, ReadRequest, position};

/// The topic that announces changes of the metadata.
const TOPIC: &str = "/system/_events_topic";
/// Keys that one announcement names; more are counted.
const MAX_KEYS: usize = 64;
/// Between two announcements: what changes meanwhile is announced together.
const PACE: Duration = Duration::from_millis(10);
/// The time that the watch has to bring what is announced. The store is asked at most this often.
const HEAD_START: Duration = Duration::from_millis(50);
/// How long a view may take to catch up.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// The shortest time between two attempts to reach the topic.
const RETRY: Duration = Duration::from_millis(200);
/// How often a broker looks where the topic is, if nothing changes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Changes of the metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct News {
    /// The revision that shows them.
    revision: Revision,
    /// The keys that changed, in their order.
    keys: Vec<String>,
    /// Further keys that are not named.
    #[serde(default)]
    more: usize,
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The view shows its revision already.
    Known,
    /// The view shows everything that the store has, whatever was announced.
    CaughtUp,
    /// The store did not answer. The watch brings it later.
    Behind,
    /// It is no announcement.
    Unreadable,
}

impl News {
    /// What happened, except to keys that begin like this: consumers of the topic acknowledge, which changes the metadata.
    fn of(delta: &Delta, except: &str) -> Option<News> {
        let changes = delta.changes();
        let changed = changes.iter().filter_map(|change| change.after.or(change.before));
        let mut keys: Vec<String> = changed.map(|kv| kv.key_text().into_owned()).collect();
        keys.retain(|key| !key.starts_with(except));
        let more = keys.len().saturating_sub(MAX_KEYS);
        keys.truncate(MAX_KEYS);
        (!keys.is_empty()).then_some(News { revision: delta.after.revision(), keys, more })
    }

    fn is_known(&self, view: &View) -> bool {
        self.revision <= view.snapshot().revision()
    }
}

/// Has the view catch up if it does not show the revision of an announcement.
async fn hear(view: &View, payload: &[u8]) -> Outcome {
    let Ok(news) = serde_json::from_slice::<News>(payload) else { return Outcome::Unreadable };
    if news.is_known(view) {
        return Outcome::Known;
    }
    sleep(HEAD_START).await;
    if news.is_known(view) {
        return Outcome::Known;
    }
    // Up to what the store has, not up to what is announced: nothing vouches for that revision.
    match view.catch_up(SEEN_WITHIN).await {
        Ok(_) => Outcome::CaughtUp,
        Err(error) => {
            tracing::debug!(%error, revision = %news.revision, "view did not catch up with an announcement");
            Outcome::Behind
        }
    }
}

/// Announces or listens, wherever the topic is.
pub(super) async fn run(inner: Arc<Inner>) {
    let Ok(topic) = TOPIC.parse::<TopicName>() else { return };
    let mut changes = inner.view.changes();
    loop {
        let ended = match inner.whereabouts(&topic) {
            Ok(Whereabouts::Here) => announce(&inner, &topic, &mut changes).await,
            Ok(Whereabouts::At(broker)) => listen(&inner, &topic, &broker.connect_url).await,
            Ok(Whereabouts::Nowhere) | Err(_) => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "news of the metadata ended; trying again");
        }
        sleep(RETRY).await;
        changes.mark_seen();
        // Whatever ends the wait, the topic is looked for again.
        drop(timeout(LOOK_AGAIN, changes.next()).await);
    }
}

/// Publishes what changes for as long as the topic is served here.
async fn announce(inner: &Inner, topic: &TopicName, changes: &mut Changes) -> Result<(), TopicsError> {
    let own = topic.tree().path();
    loop {
        let partition = inner.partition(topic).await?;
        // A topic that keeps messages would keep all of this for ever.
        if partition.record.delivery != Delivery::NonReliable {
            return Ok(());
        }
        match timeout(LOOK_AGAIN, changes.next()).await {
            Err(_) => {}
            Ok(None) => return Ok(()),
            Ok(Some(delta)) => {
                if let Some(news) = News::of(&delta, &own) {
                    publish(inner, &partition, &news).await?;
                    sleep(PACE).await;
                }
            }
        }
    }
}

async fn publish(inner: &Inner, partition: &Arc<Partition>, news: &News) -> Result<(), TopicsError> {
    let value = serde_json::to_vec(news).map_err(|error| TopicsError::Invalid(error.to_string()))?;
    let record = Record {
        value: Some(value.into()),
        created_at: now_ms(),
        producer: format!("broker-{}", inner.id),
        ..Record::default()
    };
    let publication = Publication { producer_id: inner.id, session: 0, sequence: -1, records: vec![record] };
    partition.publish(publication).await.map(drop)
}

/// Listens for as long as the topic is served there.
async fn listen(inner: &Inner, topic: &TopicName, url: &str) -> Result<(), TopicsError> {
    let failed = |status: tonic::Status| {
        TopicsError::NotReady(format!("the broker at {url} does not answer: {}", status.message()))
    };
    let mut broker = TopicsClient::new(inner.peer(url).await?);
    let from = Some(Position { at: Some(position::At::Latest(true)) });
    let request = ReadRequest { topic: topic.to_string(), from, count: 0, follow: true };
    let mut news = broker.read(request).await.map_err(failed)?.into_inner();
    loop {
        match timeout(LOOK_AGAIN, news.message()).await {
            Ok(message) => match message.map_err(failed)? {
                Some(message) => {
                    let outcome = hear(&inner.view, &message.payload).await;
                    tracing::trace!(?outcome, "news of the metadata");
                }
                None => return Ok(()),
            },
            Err(_) => match inner.whereabouts(topic)? {
                Whereabouts::At(broker) if broker.connect_url == url => {}
                Whereabouts::At(_) | Whereabouts::Here | Whereabouts::Nowhere => return Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use capstan_meta::embedded::{Embedded, Options};
    use capstan_meta::view::{Ranges, ViewOptions};
    use capstan_meta::{Delete, KeyRange, Put, Store};

    use super::*;

    async fn put(store: &Store, key: &str, value: &str) -> Revision {
        store.put(Put::new(key.to_owned(), value.to_owned())).await.unwrap().revision
    }

    async fn view(store: &Store) -> View {
        let ranges = Ranges::new().with_range(KeyRange::prefix("/".to_owned()));
        View::open(store.clone(), ranges, ViewOptions::default()).await.unwrap()
    }

    fn news(revision: Revision) -> Vec<u8> {
        serde_json::to_vec(&News { revision, keys: vec!["/a".to_owned()], more: 0 }).unwrap()
    }

    #[tokio::test]
    async fn news_are_applied_by_revision_and_old_doubled_and_forged_ones_change_nothing() {
        let store = Store::new(Embedded::in_memory(Options::default()));
        let view = view(&store).await;
        let mut shown = view.snapshot().revision();
        for number in 0..3 {
            let written = put(&store, "/a", &number.to_string()).await;
            let outcome = hear(&view, &news(written)).await;
            assert!(matches!(outcome, Outcome::Known | Outcome::CaughtUp), "{outcome:?}");
            let now = view.snapshot();
            assert!(now.revision() >= written && now.revision() > shown, "{written} {shown}");
            assert_eq!(now.raw(b"/a").unwrap().value, number.to_string().as_bytes());
            shown = now.revision();
            assert_eq!(hear(&view, &news(written)).await, Outcome::Known, "doubled");
            assert_eq!(hear(&view, &news(Revision(written.0 - 1))).await, Outcome::Known, "old");
        }
        for revision in [Revision(0), Revision(-7)] {
            assert_eq!(hear(&view, &news(revision)).await, Outcome::Known);
        }
        // A revision that the store has not reached: the view shows what is there, and no more.
        assert_eq!(hear(&view, &news(Revision(i64::MAX))).await, Outcome::CaughtUp);
        for text in ["", "{}", "[1]", r#"{"revision": "9", "keys": []}"#] {
            assert_eq!(hear(&view, text.as_bytes()).await, Outcome::Unreadable, "{text}");
        }
        assert_eq!(view.snapshot().revision(), shown);
    }

    #[tokio::test]
    async fn an_announcement_names_what_changed_except_what_the_topic_itself_causes() {
        let store = Store::new(Embedded::in_memory(Options::default()));
        put(&store, "/gone", "1").await;
        let view = view(&store).await;
        let before = view.snapshot();
        put(&store, "/own/cursor", "1").await;
        let at = put(&store, "/b", "1").await;
        let after = view.wait_for(at, SEEN_WITHIN).await.unwrap();
        let delta = Delta { before: before.clone(), after };
        let told = News::of(&delta, "/own/").unwrap();
        assert_eq!(told, News { revision: at, keys: vec!["/b".to_owned()], more: 0 });
        assert_eq!(News::of(&delta, "/"), None);
        store.delete(Delete::one("/gone")).await.unwrap();
        let mut last = at;
        for number in 0..=MAX_KEYS {
            last = put(&store, &format!("/many/{number}"), "1").await;
        }
        let after = view.wait_for(last, SEEN_WITHIN).await.unwrap();
        let told = News::of(&Delta { before, after }, "/own/").unwrap();
        assert_eq!((told.revision, told.keys.len(), told.more), (last, MAX_KEYS, 3));
        assert!(told.keys.contains(&"/gone".to_owned()), "a deletion is a change");
    }
}
