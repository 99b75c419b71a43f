//! A random life of a store on a simulated disk, and what was true after each request.

// tidy: the clock is paused in this file

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::{
    Backend, Compare, Delete, KeyRange, KeyValue, LeaseId, MetaError, Put, Range, Revision, Txn, Watch,
    WatchMessage, WatchStream,
};
use capstan_testkit::disk::{Film, SimDisk};
use capstan_testkit::seed;
use rand::RngExt;
use rand::rngs::StdRng;

/// Files of the log are small, so that lives see many of them, and bases too.
pub fn options() -> Options {
    Options { history: 0, history_bytes: 0, log_file_bytes: 6 * 1024, seed: Some(7), ..Options::default() }
}

/// Everything that a store says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub kvs: Vec<Arc<KeyValue>>,
    revision: Revision,
    pub compacted: Revision,
    pub leases: Vec<LeaseId>,
    users: Bytes,
    pub alarm: bool,
}

impl State {
    pub async fn of(store: &Embedded) -> State {
        let found = store.range(Range::of(KeyRange::all())).await.unwrap();
        let mut leases = store.leases().await.unwrap();
        leases.sort();
        let compacted = store.status().await.unwrap().compacted;
        let (users, alarm) = (store.users().await.unwrap(), store.has_no_space_alarm().await.unwrap());
        State { kvs: found.kvs, revision: found.revision, compacted, leases, users, alarm }
    }

    pub fn is(&self, other: &State) -> bool {
        self == other
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }
}

/// What happened, and the disk at every call.
pub struct Life {
    pub film: Film,
    /// After each request that changed something; the first is that of a new store.
    pub states: Vec<State>,
    /// How many disk calls there were when each state was acknowledged.
    acknowledged: Vec<u64>,
    /// Every version ever written, deletions included.
    pub events: Vec<Arc<KeyValue>>,
}

impl Life {
    pub async fn live(seed: u64, requests: usize) -> Life {
        let disk = SimDisk::new();
        disk.film();
        let mut rng = seed::rng(seed);
        let mut store = super::open(&disk).await.unwrap();
        let mut life = Life {
            film: SimDisk::new().developed(),
            states: vec![State::of(&store).await],
            acknowledged: vec![0],
            events: Vec::new(),
        };
        let mut watch = watch(&store, Revision(2)).await;
        for _ in 0..requests {
            if rng.random_bool(0.04) {
                store.close().await.unwrap();
                store = super::open(&disk).await.unwrap();
                watch = self::watch(&store, life.last().revision.next()).await;
            }
            let full = rng.random_bool(0.08).then(|| disk.used() + rng.random_range(0..1500));
            disk.set_capacity(full);
            let outcome = request(&store, &mut rng, life.last()).await;
            disk.set_capacity(None);
            let now = State::of(&store).await;
            match outcome {
                Ok(()) => life.note(now, disk.calls(), &mut watch).await,
                Err(MetaError::NoSpace) => assert_eq!(now, *life.last(), "a refused request left a trace"),
                Err(error) => panic!("unexpected: {error}"),
            }
        }
        store.close().await.unwrap();
        life.film = disk.developed();
        life
    }

    fn last(&self) -> &State {
        self.states.last().unwrap()
    }

    async fn note(&mut self, now: State, calls: u64, watch: &mut Box<dyn WatchStream>) {
        while self.events.last().map_or(1, |kv| kv.mod_revision.0) < now.revision.0 {
            let WatchMessage::Events { events, .. } = watch.next().await.unwrap() else { continue };
            self.events.extend(events.iter().map(|event| event.kv.clone()));
        }
        if now != *self.last() {
            self.states.push(now);
            self.acknowledged.push(calls);
        }
    }

    /// The newest state that was acknowledged before a call.
    pub fn acknowledged_before(&self, call: u64) -> usize {
        self.acknowledged.partition_point(|calls| *calls <= call) - 1
    }
}

async fn watch(store: &Embedded, from: Revision) -> Box<dyn WatchStream> {
    store.watch(Watch::from(KeyRange::all(), from)).await.unwrap()
}

/// One request that changes at most one thing.
async fn request(store: &Embedded, rng: &mut StdRng, now: &State) -> Result<(), MetaError> {
    let key = format!("k{}", rng.random_range(0..9));
    let sizes = [0, 3, 60, 300, 479, 480, 481, 1200, 4000];
    let value = vec![rng.random::<u8>(); sizes[rng.random_range(0..sizes.len())]];
    let lease = now.leases.first().copied().filter(|_| rng.random_bool(0.3)).unwrap_or(LeaseId::NONE);
    if now.alarm {
        return store.set_no_space_alarm(false).await;
    }
    match rng.random_range(0..22) {
        0..8 => store.put(Put::new(key, value).lease(lease)).await.map(drop),
        8..10 => store.delete(Delete::one(key)).await.map(drop),
        10..13 => {
            let txn = Txn::new()
                .when(Compare::present(key.clone()))
                .then(Put::new(format!("{key}/a"), value.clone()))
                .then(Delete::one(key.clone()))
                .otherwise(Put::new(key.clone(), value))
                .otherwise(Put::new(format!("{key}/b"), "b"));
            store.commit(txn).await.map(drop)
        }
        13 => store.lease_grant(Duration::from_secs(1_000_000), LeaseId::NONE).await.map(drop),
        14 if lease != LeaseId::NONE => store.lease_revoke(lease).await.map(drop),
        15..17 if now.revision.0 > now.compacted.0.max(1) => {
            let at = rng.random_range(now.compacted.0.max(1) + 1..=now.revision.0);
            store.compact(Revision(at)).await.map(drop)
        }
        17 => store.defragment().await,
        18 => store.set_users(value.into()).await,
        19 if rng.random_bool(0.3) => store.set_no_space_alarm(true).await,
        _ => {
            // Some ticks: memory is trimmed, the last group is settled, a base may be written.
            tokio::time::sleep(Duration::from_millis(1700)).await;
            Ok(())
        }
    }
}
