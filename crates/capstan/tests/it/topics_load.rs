//! Producers and consumers that work all the time and know what must be there: nothing acknowledged is lost, no offset
//! is used twice, the order of each kind of subscription is kept, and messages come again only where that is allowed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use capstan_client::wire::capstan::topics::v1::{Position, Record, position};
use capstan_client::wire::danube::StreamMessage;
use capstan_client::wire::danube::consumer_request::SubscriptionType;
use capstan_client::{Client, Subscribe};
use capstan_testkit::eventually;
use tokio::task::JoinSet;

pub const TOPIC: &str = "/default/chaos";

const PRODUCERS: u64 = 2;
/// Records that a producer has on their way before it waits for all of them.
const ROUND: u64 = 16;
/// The pause between rounds: a load, not a benchmark.
const PACE: Duration = Duration::from_millis(10);
const KEYS: u64 = 8;
/// Messages that a consumer acknowledges together.
const ACKNOWLEDGE: usize = 8;
/// After a takeover: acknowledgments that were not written yet, and what was in flight.
const AGAIN_PER_DISRUPTION: usize = 1_000 + 1_024;
/// Enough for everything that is outstanding to be delivered.
const LONG: Duration = Duration::from_secs(60);

/// The subscriptions, and how many consumers each has.
const SUBSCRIPTIONS: [(&str, SubscriptionType, usize); 4] = [
    ("exclusive", SubscriptionType::Exclusive, 1),
    ("shared", SubscriptionType::Shared, 2),
    ("failover", SubscriptionType::Failover, 2),
    ("key-shared", SubscriptionType::KeyShared, 2),
];

/// What a consumer received, in its order.
#[derive(Clone, Debug)]
struct Received {
    offset: u64,
    value: String,
    key: Option<String>,
    consumer: usize,
}

type Journal = Arc<Mutex<Vec<Received>>>;

/// What a producer knows.
#[derive(Debug, Default)]
struct Account {
    /// The offset of everything that was acknowledged.
    acknowledged: BTreeMap<String, u64>,
    /// The longest wait for an acknowledgment.
    slowest: Duration,
}

/// Clients at work on a topic.
pub struct Load {
    client: Client,
    stop: Arc<AtomicBool>,
    producers: JoinSet<Account>,
    consumers: JoinSet<()>,
    journals: BTreeMap<&'static str, Journal>,
}

fn earliest() -> Position {
    Position { at: Some(position::At::Earliest(true)) }
}

impl Load {
    /// Creates the topic and begins.
    pub async fn start(client: &Client) -> Load {
        let mut first = client.producer(TOPIC, "first");
        first.send(vec![record("first:0".to_owned(), 0)]).await.unwrap();
        first.flush().await.unwrap();
        let (mut journals, mut consumers) = (BTreeMap::new(), JoinSet::new());
        for (name, kind, count) in SUBSCRIPTIONS {
            let journal = Journal::default();
            journals.insert(name, journal.clone());
            for number in 0..count {
                consumers.spawn(consume(client.clone(), name, kind, number, journal.clone()));
            }
        }
        let (stop, mut producers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for number in 0..PRODUCERS {
            producers.spawn(produce(client.clone(), number, stop.clone()));
        }
        Load { client: client.clone(), stop, producers, consumers, journals }
    }

    /// Ends, and checks everything against the topic as it is then. Returns the longest wait of a producer.
    pub async fn finish(mut self, disruptions: usize) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let mut acknowledged = BTreeMap::from([("first:0".to_owned(), 0)]);
        let mut slowest = Duration::ZERO;
        while let Some(account) = self.producers.join_next().await {
            let account = account.unwrap();
            acknowledged.extend(account.acknowledged);
            slowest = slowest.max(account.slowest);
        }
        let stored = self.stored().await;
        for (value, offset) in &acknowledged {
            assert_eq!(stored.get(offset), Some(value), "acknowledged at {offset}");
        }
        let values: BTreeSet<&String> = stored.values().collect();
        assert_eq!(values.len(), stored.len(), "everything is stored once");
        assert_eq!(stored.len(), acknowledged.len(), "nothing is stored that was given up");
        for (name, journal) in &self.journals {
            let missing = || {
                let journal = journal.lock().unwrap();
                let seen: BTreeSet<u64> = journal.iter().map(|received| received.offset).collect();
                let missing: Vec<u64> =
                    stored.keys().filter(|offset| !seen.contains(offset)).copied().collect();
                missing.first().map(|first| (missing.len(), *first))
            };
            let delivered = async || match missing() {
                None => Ok(()),
                Some((count, first)) => {
                    let stats = self.client.stats(TOPIC).await;
                    Err(format!("{name}: {count} are missing from {first} on; {stats:?}"))
                }
            };
            eventually("everything is delivered", LONG, delivered).await;
        }
        self.consumers.shutdown().await;
        for (name, journal) in &self.journals {
            let journal = journal.lock().unwrap();
            check(name, &journal, &stored);
            let again = journal.len() - stored.len();
            eprintln!("{name}: {} messages, {again} delivered again", stored.len());
            assert!(again <= disruptions * AGAIN_PER_DISRUPTION, "{name}: {again} delivered again");
        }
        eprintln!("{} acknowledged, longest wait {slowest:?}", acknowledged.len());
        slowest
    }

    /// The whole topic: offsets are dense.
    async fn stored(&self) -> BTreeMap<u64, String> {
        let mut messages = self.client.read(TOPIC, earliest(), 0).await.unwrap();
        let mut stored = BTreeMap::new();
        while let Some(message) = messages.message().await.unwrap() {
            let (offset, value) = (offset(&message), text(&message));
            assert_eq!(offset, stored.len() as u64, "offsets have no gaps");
            stored.insert(offset, value);
        }
        stored
    }
}

/// What one subscription received: each offset is one message; new messages come in order.
fn check(name: &str, journal: &[Received], stored: &BTreeMap<u64, String>) {
    for received in journal {
        assert_eq!(stored.get(&received.offset), Some(&received.value), "{name}");
    }
    // The order that a kind of subscription keeps, and for what.
    let line = |received: &Received| match name {
        "exclusive" => Some(String::new()),
        "failover" => Some(received.consumer.to_string()),
        "key-shared" => received.key.clone(),
        _ => None,
    };
    let mut newest: HashMap<String, u64> = HashMap::new();
    // The order is about the first time that the subscription delivers a message: one that another consumer had, and whose
    // acknowledgment was lost with a broker, comes again.
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    for received in journal {
        let Some(line) = line(received) else { continue };
        if !seen.insert(received.offset) {
            continue;
        }
        let before = newest.insert(line.clone(), received.offset);
        assert!(
            before.is_none_or(|before| before < received.offset),
            "{name} {line}: {} came first after {before:?}",
            received.offset
        );
    }
}

fn record(value: String, key: u64) -> Record {
    Record { key: Some(format!("k{key}").into()), value: Some(value.into()), ..Record::default() }
}

async fn produce(client: Client, me: u64, stop: Arc<AtomicBool>) -> Account {
    let mut producer = client.producer(TOPIC, &format!("p{me}"));
    let (mut account, mut number, mut sent) = (Account::default(), 0, VecDeque::new());
    while !stop.load(Ordering::Relaxed) {
        let since = Instant::now();
        let mut done = Vec::new();
        for _ in 0..ROUND {
            let value = format!("p{me}:{number}");
            sent.push_back(value.clone());
            done.extend(producer.send(vec![record(value, number % KEYS)]).await.unwrap());
            number += 1;
        }
        done.extend(producer.flush().await.unwrap());
        for acknowledged in done {
            account.acknowledged.insert(sent.pop_front().unwrap(), acknowledged.offset);
        }
        account.slowest = account.slowest.max(since.elapsed());
        // tidy: allow, because this is the pace of the load
        tokio::time::sleep(PACE).await;
    }
    assert!(sent.is_empty());
    account
}

async fn consume(
    client: Client,
    name: &'static str,
    kind: SubscriptionType,
    number: usize,
    journal: Journal,
) {
    let subscribe = Subscribe {
        topic: TOPIC.to_owned(),
        subscription: name.to_owned(),
        consumer: format!("{name}-{number}"),
        kind,
        from: earliest(),
    };
    let mut consumer = client.consumer(subscribe).await.unwrap();
    let mut outstanding = Vec::new();
    loop {
        let message = consumer.next().await.unwrap();
        outstanding.push(offset(&message));
        journal.lock().unwrap().push(Received {
            offset: offset(&message),
            value: text(&message),
            key: message.routing_key.clone(),
            consumer: number,
        });
        // A key has one message in flight: waiting for more of them would be waiting for oneself.
        if outstanding.len() >= ACKNOWLEDGE || kind == SubscriptionType::KeyShared {
            consumer.acknowledge(std::mem::take(&mut outstanding)).await.unwrap();
        }
    }
}

fn offset(message: &StreamMessage) -> u64 {
    message.msg_id.as_ref().unwrap().topic_offset
}

fn text(message: &StreamMessage) -> String {
    String::from_utf8(message.payload.to_vec()).unwrap()
}
