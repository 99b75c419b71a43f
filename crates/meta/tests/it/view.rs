//! Does a view show what the store holds? Under random writes, broken watches and compactions, at every revision.

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::faults::{Faults, Faulty, Link, Rates};
use capstan_meta::record::{Key, Prefix};
use capstan_meta::view::{Ranges, Snapshot, View, ViewOptions};
use capstan_meta::{
    Backend, Delete, DeleteResult, KeyRange, Lease, LeaseId, LeaseInfo, Op, Put, PutResult, Range,
    RangeResult, Remedy, Result, Revision, Store, StoreStatus, Txn, TxnResult, Watch, WatchMessage,
    WatchStream, keys,
};
use capstan_testkit::seed::{rng, seeds};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

keys! {
    /// Keys of this test.
    const CATALOGUE;

    /// A number.
    pub struct NumberKey { name: u64 } at "/a/{name}" => u64 {
        writer: "the test",
        lifetime: Durable,
        prefixes: [
            /// All numbers.
            pub struct Numbers {} at "/a/",
        ],
    }
}

const PATIENCE: Duration = Duration::from_secs(600);

fn store_in_memory(seed: u64) -> Embedded {
    Embedded::in_memory(Options { seed: Some(seed), ..Options::default() })
}

fn options(seed: u64) -> ViewOptions {
    ViewOptions { seed, ..ViewOptions::default() }
}

fn simulate(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(test);
}

type State = BTreeMap<Vec<u8>, (Vec<u8>, i64)>;

/// Everything that ever was, by revision; the writer below is the only one.
#[derive(Default)]
struct Model {
    states: BTreeMap<i64, State>,
}

impl Model {
    fn at(&self, revision: Revision) -> State {
        self.states.range(..=revision.0).next_back().map(|(_, state)| state.clone()).unwrap_or_default()
    }

    fn apply(&mut self, txn: &Txn, revision: Revision) {
        let mut state = self.at(revision);
        for op in &txn.success {
            match op {
                Op::Put(put) => {
                    state.insert(put.key.to_vec(), (put.value.to_vec(), revision.0));
                }
                Op::Delete(delete) => state.retain(|key, _| !delete.keys.contains(key)),
                Op::Range(_) | Op::Txn(_) => {}
            }
        }
        self.states.insert(revision.0, state);
    }

    fn assert_shows(&self, snapshot: &Snapshot, ranges: &[KeyRange]) {
        let mut expected = self.at(snapshot.revision());
        expected.retain(|key, _| ranges.iter().any(|range| range.contains(key)));
        let shown: State =
            snapshot.iter_raw().map(|kv| (kv.key.to_vec(), (kv.value.to_vec(), kv.mod_revision.0))).collect();
        assert_eq!(shown, expected, "at revision {}", snapshot.revision());
        assert_eq!(snapshot.len(), expected.len());
    }
}

/// A transaction that changes several ranges at once, so that a view of half of it would be seen.
fn some_txn(rng: &mut StdRng) -> Txn {
    let mut txn = Txn::new();
    let name = rng.random_range(0..8);
    for range in ["/a", "/b", "/c"] {
        if rng.random_bool(0.6) {
            let key = format!("{range}/{name}");
            txn = if rng.random_bool(0.3) {
                txn.then(Delete::one(key))
            } else {
                txn.then(Put::new(key, rng.random_range(0..1000).to_string()))
            };
        }
    }
    txn
}

fn some_rates(rng: &mut StdRng) -> Rates {
    let mut rate = |most: f64| if rng.random_bool(0.5) { rng.random_range(0.0..most) } else { 0.0 };
    Rates {
        unavailable: rate(0.3),
        lost_request: rate(0.2),
        lost_answer: rate(0.2),
        cut_watch: rate(0.3),
        repeat_message: rate(0.5),
        compact_before_watch: rate(0.5),
        delay: Duration::from_millis(rng.random_range(0..80)),
    }
}

async fn check_views(seed: u64) {
    let mut rng = rng(seed);
    let truth = store_in_memory(seed);
    let faults = Faults::seeded(seed);
    let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
    let choices = [vec!["/a/"], vec!["/a/", "/c/"], vec!["/a/", "/b/", "/c/"], vec!["/"]];
    let chosen = choices[rng.random_range(0..choices.len())].clone();
    let ranges: Vec<KeyRange> = chosen.iter().map(|prefix| KeyRange::prefix(*prefix)).collect();
    let mut model = Model::default();
    for _ in 0..rng.random_range(0..10) {
        write(&truth, &mut model, &mut rng).await;
    }
    let covered = ranges.iter().cloned().fold(Ranges::new(), Ranges::with_range);
    let view = View::open(store, covered, options(seed)).await.unwrap();
    let mut changes = view.changes();
    let mut last = Revision::ZERO;
    for _ in 0..rng.random_range(5..80) {
        match rng.random_range(0..20) {
            0 => faults.set_rates(some_rates(&mut rng)),
            1 => faults.set_link([Link::Up, Link::Refused, Link::Silent][rng.random_range(0..3)]),
            2 => {
                let newest = truth.status().await.unwrap().revision;
                truth.compact(Revision(rng.random_range(1..=newest.0))).await.ok();
            }
            // tidy: allow, because the clock is paused here
            3..10 => sleep(Duration::from_millis(rng.random_range(0..3000))).await,
            _ => write(&truth, &mut model, &mut rng).await,
        }
        let snapshot = view.snapshot();
        assert!(snapshot.revision() >= last, "a view went back from {last} to {}", snapshot.revision());
        last = snapshot.revision();
        model.assert_shows(&snapshot, &ranges);
        if let Ok(Some(delta)) = tokio::time::timeout(Duration::ZERO, changes.next()).await {
            check_delta(&delta, &model, &ranges);
        }
    }
    faults.set_rates(Rates::default());
    faults.set_link(Link::Up);
    let newest = truth.status().await.unwrap().revision;
    let snapshot = view.catch_up(PATIENCE).await.unwrap();
    assert!(snapshot.revision() >= newest);
    model.assert_shows(&snapshot, &ranges);
    assert!(view.staleness() < Duration::from_secs(60));
}

fn check_delta(delta: &capstan_meta::view::Delta, model: &Model, ranges: &[KeyRange]) {
    let mut state = model.at(delta.before.revision());
    state.retain(|key, _| ranges.iter().any(|range| range.contains(key)));
    for change in delta.changes() {
        match (change.before, change.after) {
            (_, Some(kv)) => state.insert(kv.key.to_vec(), (kv.value.to_vec(), kv.mod_revision.0)),
            (Some(kv), None) => state.remove(&kv.key.to_vec()),
            (None, None) => panic!("a change without a change"),
        };
    }
    let mut expected = model.at(delta.after.revision());
    expected.retain(|key, _| ranges.iter().any(|range| range.contains(key)));
    assert_eq!(state, expected, "before + changes = after");
}

async fn write(truth: &Embedded, model: &mut Model, rng: &mut StdRng) {
    let txn = some_txn(rng);
    let result = truth.commit(txn.clone()).await.unwrap();
    model.apply(&txn, result.revision);
}

#[test]
fn a_view_equals_the_store_at_its_revision() {
    seeds(400, |seed| simulate(check_views(seed)));
}

#[test]
fn a_view_shows_typed_records_and_names_the_bad_ones() {
    simulate(async {
        let store = Store::new(store_in_memory(1));
        store.commit(Txn::new().then(NumberKey { name: 1 }.put(&11))).await.unwrap();
        let view = View::open(store.clone(), Ranges::new().with(&Numbers {}), options(1)).await.unwrap();
        let written = store.put(Put::new("/a/2", "not a number")).await.unwrap().revision;
        store.put(Put::new("/a/2/deeper", "of another type")).await.unwrap();
        let snapshot = view.wait_for(written.next(), PATIENCE).await.unwrap();
        assert_eq!(snapshot.get(&NumberKey { name: 1 }).unwrap().unwrap().record, 11);
        assert_eq!(snapshot.get(&NumberKey { name: 9 }).unwrap(), None);
        let bad = snapshot.get(&NumberKey { name: 2 }).unwrap_err();
        assert_eq!(bad.key, "/a/2");
        let listing = snapshot.list(&Numbers {});
        assert_eq!(listing.entries.len(), 1);
        assert_eq!(listing.bad, vec![bad]);
        assert_eq!(store.list(&Numbers {}).await.unwrap().bad, listing.bad);
        assert_eq!(Numbers {}.path(), "/a/");
        assert_eq!(CATALOGUE[0].pattern, "/a/{name}");
    });
}

#[test]
fn a_key_outside_of_the_view_is_an_error_and_not_an_absent_key() {
    simulate(async {
        let store = Store::new(store_in_memory(1));
        let view =
            View::open(store, Ranges::new().with_range(KeyRange::prefix("/b/")), options(1)).await.unwrap();
        assert!(view.snapshot().get(&NumberKey { name: 1 }).is_err());
        assert_eq!(view.snapshot().list(&Numbers {}).bad.len(), 1);
    });
}

#[test]
fn a_compaction_behind_a_cut_watch_is_a_visible_resync_with_a_diff() {
    simulate(async {
        let truth = store_in_memory(1);
        let faults = Faults::seeded(1);
        let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
        for name in 0..5 {
            truth.put(Put::new(format!("/a/{name}"), "1")).await.unwrap();
        }
        let view = View::open(store, Ranges::new().with(&Numbers {}), options(1)).await.unwrap();
        let mut changes = view.changes();
        faults.set_link(Link::Refused);
        tokio::task::yield_now().await;
        truth.delete(Delete::one("/a/1")).await.unwrap();
        let newest = truth.put(Put::new("/a/7", "7")).await.unwrap().revision;
        truth.compact(newest).await.unwrap();
        faults.set_link(Link::Up);
        let delta = changes.next().await.unwrap();
        assert!(delta.resynced());
        let changed: Vec<_> =
            delta.changes().iter().map(|change| (change.before.is_some(), change.after.is_some())).collect();
        assert_eq!(changed, [(true, false), (false, true)]);
        assert_eq!(delta.after.revision(), newest);
    });
}

#[test]
fn a_view_knows_how_stale_it_is_and_recovers_from_silence() {
    simulate(async {
        let truth = store_in_memory(1);
        let faults = Faults::seeded(1);
        let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
        let view = View::open(store, Ranges::new().with(&Numbers {}), options(1)).await.unwrap();
        // tidy: allow, because the clock is paused here
        sleep(Duration::from_secs(60)).await;
        assert!(
            view.staleness() <= Duration::from_secs(6),
            "heartbeats prove freshness: {:?}",
            view.staleness()
        );
        faults.set_link(Link::Silent);
        let written = truth.put(Put::new("/a/1", "1")).await.unwrap().revision;
        // tidy: allow, because the clock is paused here
        sleep(Duration::from_secs(60)).await;
        assert!(view.staleness() >= Duration::from_secs(60));
        assert!(view.wait_for(written, Duration::from_secs(1)).await.is_err());
        faults.set_link(Link::Up);
        let healed = Instant::now();
        view.wait_for(written, PATIENCE).await.unwrap();
        assert!(healed.elapsed() < Duration::from_secs(10), "{:?}", healed.elapsed());
    });
}

#[test]
fn ten_thousand_watchers_each_see_every_revision_once() {
    const WATCHERS: usize = 10_000;
    const WRITES: i64 = 40;
    simulate(async {
        let store = store_in_memory(1);
        let first = store.status().await.unwrap().revision.next();
        let mut watchers = JoinSet::new();
        for _ in 0..WATCHERS {
            let watch = store.watch(Watch::from(KeyRange::prefix("/a/"), first)).await.unwrap();
            watchers.spawn(collect(watch, WRITES));
        }
        let mut written = Vec::new();
        for write in 0..WRITES {
            written.push(store.put(Put::new(format!("/a/{}", write % 7), "x")).await.unwrap().revision);
            store.put(Put::new("/elsewhere", "x")).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut done = 0;
        while let Some(seen) = watchers.join_next().await {
            assert_eq!(seen.unwrap(), written);
            done += 1;
        }
        assert_eq!(done, WATCHERS);
    });
}

async fn collect(mut watch: Box<dyn WatchStream>, wanted: i64) -> Vec<Revision> {
    let mut seen = Vec::new();
    while (seen.len() as i64) < wanted {
        match watch.next().await.unwrap() {
            WatchMessage::Events { events, .. } => {
                seen.extend(events.iter().map(|event| event.kv.mod_revision))
            }
            WatchMessage::Progress(_) => {}
        }
    }
    seen
}

async fn assert_equals_store(view: &View, store: &Store, ranges: &[&'static str]) {
    let snapshot = view.catch_up(Duration::from_secs(60)).await.unwrap();
    let mut expected = Vec::new();
    for range in ranges {
        let at_revision = Range::prefix(*range).at(snapshot.revision());
        expected.extend(store.range(at_revision).await.unwrap().kvs);
    }
    let shown: Vec<_> = snapshot.iter_raw().cloned().collect();
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_view_of_several_ranges_follows_a_real_etcd_through_kills_and_compactions() {
    let mut etcd = capstan_testkit::Etcd::start().await.unwrap();
    let store = Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
    let ranges = ["/a/", "/c/"];
    let covered = ranges.iter().fold(Ranges::new(), |all, range| all.with_range(KeyRange::prefix(*range)));
    let view = View::open(store.clone(), covered, options(1)).await.unwrap();
    let mut rng = rng(1);
    for round in 0..3 {
        for _ in 0..50 {
            let txn = some_txn(&mut rng);
            let written = store.commit(txn).await.unwrap().revision;
            assert!(view.wait_for(written, Duration::from_secs(60)).await.unwrap().revision() >= written);
        }
        assert_equals_store(&view, &store, &ranges).await;
        etcd.kill9().unwrap();
        etcd.restart().await.unwrap();
        // Until the client has found the server again, what it says is "nothing happened" or "nobody knows".
        let written = loop {
            match store.put(Put::new("/a/after", round.to_string())).await {
                Ok(put) => break put.revision,
                Err(error) => assert!(matches!(error.remedy(), Remedy::Retry | Remedy::Refresh), "{error}"),
            }
            tokio::task::yield_now().await;
        };
        store.compact(written).await.unwrap();
        assert_equals_store(&view, &store, &ranges).await;
    }
}

/// A store that can be exchanged for another one, as by a restore from an older copy.
struct Switch(std::sync::RwLock<Embedded>);

impl Switch {
    fn now(&self) -> Embedded {
        self.0.read().unwrap().clone()
    }
}

#[async_trait::async_trait]
impl Backend for Switch {
    async fn range(&self, range: Range) -> Result<RangeResult> {
        self.now().range(range).await
    }
    async fn put(&self, put: Put) -> Result<PutResult> {
        self.now().put(put).await
    }
    async fn delete(&self, delete: Delete) -> Result<DeleteResult> {
        self.now().delete(delete).await
    }
    async fn commit(&self, txn: Txn) -> Result<TxnResult> {
        self.now().commit(txn).await
    }
    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>> {
        self.now().watch(watch).await
    }
    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease> {
        self.now().lease_grant(ttl, id).await
    }
    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision> {
        self.now().lease_revoke(id).await
    }
    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration> {
        self.now().lease_keep_alive(id).await
    }
    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.now().lease_info(id).await
    }
    async fn leases(&self) -> Result<Vec<LeaseId>> {
        self.now().leases().await
    }
    async fn compact(&self, revision: Revision) -> Result<Revision> {
        self.now().compact(revision).await
    }
    async fn status(&self) -> Result<StoreStatus> {
        self.now().status().await
    }
    async fn snapshot(&self) -> Result<tokio::sync::mpsc::Receiver<Result<bytes::Bytes>>> {
        self.now().snapshot().await
    }
    async fn defragment(&self) -> Result<()> {
        self.now().defragment().await
    }
}

/// S6: a view notices that its store went back in time, and shows what the store has, also at revisions that mean
/// something else now.
#[test]
fn a_view_of_a_store_that_went_back_shows_what_it_has() {
    simulate(async {
        let write = async |store: &Embedded, values: &[(u64, u64)]| {
            for (name, value) in values {
                store.put(NumberKey { name: *name }.put(value)).await.unwrap();
            }
        };
        let (first, second) = (store_in_memory(1), store_in_memory(2));
        for store in [&first, &second] {
            write(store, &[(1, 10), (2, 20), (3, 30)]).await;
        }
        write(&first, &[(1, 11), (2, 21), (3, 31), (4, 41)]).await;
        let switch = std::sync::Arc::new(Switch(std::sync::RwLock::new(first.clone())));
        let ranges = Ranges::new().with(&Numbers {});
        let view = View::open(Store::shared(switch.clone()), ranges, options(1)).await.unwrap();
        assert_eq!(view.snapshot().get(&NumberKey { name: 4 }).unwrap().map(|seen| seen.record), Some(41));
        *switch.0.write().unwrap() = second.clone();
        first.close().await.unwrap();
        // At a revision at which the view has seen something else.
        write(&second, &[(1, 12)]).await;
        let shown = || {
            let snapshot = view.snapshot();
            let number = |name| snapshot.get(&NumberKey { name }).unwrap().map(|seen| seen.record);
            ([number(1), number(2), number(3), number(4)], snapshot.revision())
        };
        let expected = ([Some(12), Some(20), Some(30), None], second.status().await.unwrap().revision);
        let end = Instant::now() + PATIENCE;
        while shown() != expected {
            assert!(Instant::now() < end, "the view shows {:?} instead of {expected:?}", shown());
            // tidy: allow, because the clock is paused here
            sleep(Duration::from_millis(100)).await;
        }
        write(&second, &[(2, 22)]).await;
        let end = Instant::now() + PATIENCE;
        while shown().0[1] != Some(22) {
            assert!(Instant::now() < end, "the view does not go on");
            // tidy: allow, because the clock is paused here
            sleep(Duration::from_millis(100)).await;
        }
    });
}
