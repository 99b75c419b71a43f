//! Does the etcd-backed store tell the truth when the network or the server fails? A real etcd behind a proxy that
//! breaks, stopped, continued, killed and restarted.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::{
    Compare, KeyRange, LeaseId, MetaError, Op, Put, Range, Remedy, Revision, Store, Txn, Watch, WatchMessage,
    WatchStream,
};
use capstan_testkit as testkit;
use capstan_testkit::proxy::{Direction, Flow};
use capstan_testkit::{Proxy, eventually};

use crate::subjects::block_on;

/// Everything that must happen happens within this, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Impatient, so that tests do not wait for timeouts made for networks.
fn impatient(endpoints: impl IntoIterator<Item = String>) -> EtcdOptions {
    let mut options = EtcdOptions::new(endpoints);
    options.request_timeout = Duration::from_millis(1_500);
    options.connect_timeout = Duration::from_millis(500);
    options.heartbeat.interval = Duration::from_millis(300);
    options.heartbeat.timeout = Duration::from_millis(700);
    options
}

async fn connect(options: EtcdOptions) -> Store {
    Store::new(Etcd::connect(options).await.unwrap())
}

/// A real etcd, a proxy in front of it, a store through the proxy and one around it.
struct Scene {
    etcd: testkit::Etcd,
    proxy: Proxy,
    through: Store,
    around: Store,
}

impl Scene {
    async fn new() -> Scene {
        let etcd = testkit::Etcd::start().await.unwrap();
        let proxy = Proxy::start(etcd.port().addr()).await.unwrap();
        let through = connect(impatient([proxy.endpoint()])).await;
        let around = connect(impatient([etcd.endpoint().to_owned()])).await;
        Scene { etcd, proxy, through, around }
    }

    async fn watch(&self) -> Box<dyn WatchStream> {
        self.through.watch(Watch::from(KeyRange::all(), Revision(2))).await.unwrap()
    }
}

/// Puts, around whatever is broken, until it works.
async fn put(store: &Store, value: i64) {
    eventually("a put succeeds", DEADLINE, async || {
        store.put(Put::new("n", value.to_string())).await.map(drop)
    })
    .await;
}

/// Reads events until the newest of them has this value; each revision must follow the one before.
async fn follow(watch: &mut dyn WatchStream, seen: &mut Revision, value: i64) {
    let wanted = Bytes::from(value.to_string());
    let reading = async {
        loop {
            let WatchMessage::Events { events, .. } = watch.next().await.unwrap() else { continue };
            for event in events.iter() {
                assert_eq!(event.kv.mod_revision, seen.next(), "missed or repeated");
                *seen = event.kv.mod_revision;
            }
            if events.last().unwrap().kv.value == wanted {
                return;
            }
        }
    };
    let read = tokio::time::timeout(DEADLINE, reading).await;
    read.unwrap_or_else(|_| panic!("value {value} did not arrive; the last revision seen is {seen}"));
}

#[test]
fn a_watch_survives_every_kind_of_broken_connection_without_a_gap_or_a_repetition() {
    block_on(async {
        let scene = Scene::new().await;
        let mut watch = scene.watch().await;
        let (mut seen, mut n) = (Revision::FIRST, 0);
        for round in 0..8 {
            match round % 4 {
                0 => scene.proxy.close_connections().await,
                1 => scene.proxy.cut().await,
                // In the middle of a message.
                2 => scene.proxy.set(Direction::ToClient, Flow::CutAfter(37)),
                // Half-open: only the heartbeat can notice.
                _ => scene.proxy.set_both(Flow::Swallow),
            }
            for _ in 0..5 {
                n += 1;
                put(&scene.around, n).await;
            }
            if round % 4 == 3 {
                let before = scene.proxy.traffic().connections;
                eventually("the silent connection is left", DEADLINE, async || {
                    let now = scene.proxy.traffic().connections;
                    if now > before { Ok(()) } else { Err(format!("{now} connections")) }
                })
                .await;
            }
            scene.proxy.heal().await;
            n += 1;
            put(&scene.around, n).await;
            follow(&mut *watch, &mut seen, n).await;
        }
    });
}

/// Etcd sends six mebibytes in parts of two; whatever part the connection dies in, the revision arrives whole and once.
#[test]
fn a_revision_cut_between_its_parts_arrives_whole() {
    block_on(async {
        let scene = Scene::new().await;
        let patient = connect(EtcdOptions::new([scene.etcd.endpoint()])).await;
        for cut_after in [1 << 20, 5 << 19, 9 << 19] {
            let mut watch = scene.through.watch(Watch::from(KeyRange::all(), Revision::ZERO)).await.unwrap();
            let lease = patient.lease_grant(Duration::from_secs(300), LeaseId::NONE).await.unwrap().id;
            for n in 0..6_u8 {
                patient.put(Put::new(vec![b'k', n], vec![n; 1 << 20]).lease(lease)).await.unwrap();
            }
            let prev = Watch { prev_kv: true, no_put: true, ..Watch::from(KeyRange::all(), Revision::ZERO) };
            let mut deletions = scene.through.watch(prev).await.unwrap();
            // The other watch has taken its puts, so that the bytes that are counted are those of the deletion.
            let mut puts = 0;
            while puts < 6 {
                if let WatchMessage::Events { events, .. } = watch.next().await.unwrap() {
                    puts += events.len();
                }
            }
            drop(watch);
            scene.proxy.set(Direction::ToClient, Flow::CutAfter(cut_after));
            let revision = patient.lease_revoke(lease).await.unwrap();
            let message = async {
                loop {
                    match deletions.next().await.unwrap() {
                        WatchMessage::Events { revision, events } => return (revision, events.len()),
                        WatchMessage::Progress(_) => {}
                    }
                }
            };
            assert_eq!(tokio::time::timeout(DEADLINE, message).await.unwrap(), (revision, 6));
            scene.proxy.heal().await;
        }
    });
}

#[test]
fn a_watch_survives_a_stopped_and_a_killed_server() {
    block_on(async {
        let mut scene = Scene::new().await;
        let mut watch = scene.watch().await;
        let mut seen = Revision::FIRST;
        put(&scene.around, 1).await;
        follow(&mut *watch, &mut seen, 1).await;

        scene.etcd.pause().unwrap();
        let unanswered = scene.around.get("n").await;
        assert!(matches!(unanswered, Err(MetaError::Unavailable(_))), "{unanswered:?}");
        scene.etcd.resume().unwrap();
        put(&scene.around, 2).await;
        follow(&mut *watch, &mut seen, 2).await;

        scene.etcd.kill9().unwrap();
        // As long as the connection looks alive the outcome is unknown; then nobody listens, and nothing is sent.
        eventually("writes are known to be unsent", DEADLINE, async || {
            match scene.around.put(Put::new("n", "lost")).await.unwrap_err() {
                error if error.remedy() == Remedy::Retry => Ok(()),
                error => Err(error),
            }
        })
        .await;
        scene.etcd.restart().await.unwrap();
        put(&scene.around, 3).await;
        follow(&mut *watch, &mut seen, 3).await;
    });
}

#[test]
fn a_watch_that_was_away_too_long_is_told_where_history_begins() {
    block_on(async {
        let scene = Scene::new().await;
        let mut watch = scene.watch().await;
        let mut seen = Revision::FIRST;
        put(&scene.around, 1).await;
        follow(&mut *watch, &mut seen, 1).await;
        scene.proxy.cut().await;
        for n in 2..6 {
            put(&scene.around, n).await;
        }
        let now = scene.around.get("n").await.unwrap().unwrap().mod_revision;
        scene.around.compact(now).await.unwrap();
        scene.proxy.heal().await;
        let ended = async {
            loop {
                match watch.next().await {
                    Ok(WatchMessage::Progress(_)) => {}
                    other => return other,
                }
            }
        };
        let ended = tokio::time::timeout(DEADLINE, ended).await.unwrap();
        assert_eq!(ended, Err(MetaError::Compacted { oldest: now }));
        assert_eq!(watch.next().await, ended, "it stays over");
    });
}

/// Adds one if the counter has the expected value, and leaves a mark of its own.
fn increment(from: i64, mark: i64) -> Txn {
    let txn = if from == 0 {
        Txn::new().when(Compare::absent("counter"))
    } else {
        Txn::new().when(Compare::value("counter", from.to_string()))
    };
    txn.then(Put::new("counter", (from + 1).to_string())).then(Put::new(format!("mark/{mark:04}"), ""))
}

async fn counter(store: &Store) -> i64 {
    eventually("a read succeeds", DEADLINE, async || {
        let counter = store.get("counter").await?;
        Ok::<_, MetaError>(counter.map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse().unwrap()))
    })
    .await
}

/// Every write is a put without any condition, so that a second one could not hide: each has to be there as often as
/// it was said to be.
#[test]
fn a_write_whose_answer_was_lost_is_unknown_and_never_sent_twice() {
    block_on(async {
        let scene = Scene::new().await;
        let (mut unknown, mut applied) = (0, 0);
        for n in 0..12 {
            let key = format!("once/{n}");
            // A call that works first, so that there is a connection to lose.
            put(&scene.through, n).await;
            let flow = if n % 2 == 0 { Flow::CutAfter(0) } else { Flow::Swallow };
            scene.proxy.set(Direction::ToClient, flow);
            let outcome = scene.through.put(Put::new(key.clone(), "1")).await;
            scene.proxy.heal().await;
            match outcome {
                Ok(_) => panic!("its answer cannot have come"),
                Err(MetaError::Unknown(_)) => unknown += 1,
                Err(MetaError::Unavailable(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
            // Whatever was on its way arrives or is gone before this one is answered.
            put(&scene.through, n).await;
            let kv = scene.around.get(key).await.unwrap();
            applied += kv.as_ref().map_or(0, |kv| kv.version);
            assert!(kv.is_none_or(|kv| kv.version == 1), "put {n} was applied twice");
        }
        assert!(unknown >= 6, "the answers were lost behind the requests: {unknown}");
        assert!(applied >= 6, "what is unknown mostly did happen: {applied}");
    });
}

#[test]
fn conditional_writes_through_a_breaking_network_count_exactly_once() {
    block_on(async {
        let scene = Scene::new().await;
        let (mut sure, mut doubtful) = (BTreeSet::new(), BTreeSet::new());
        for n in 0..40 {
            let from = counter(&scene.through).await;
            match n % 4 {
                0 => scene.proxy.set(Direction::ToClient, Flow::CutAfter(n as u64)),
                1 => scene.proxy.set(Direction::ToUpstream, Flow::CutAfter(3 * n as u64)),
                2 => scene.proxy.close_connections().await,
                _ => {}
            }
            match scene.through.commit(increment(from, n)).await {
                Ok(done) if done.succeeded => drop(sure.insert(n)),
                // A commit of unknown outcome may be applied after the counter was read. Our own must not be.
                Ok(_) => {
                    let mark = scene.around.get(format!("mark/{n:04}")).await.unwrap();
                    assert_eq!(mark, None, "our own write was sent twice");
                }
                Err(MetaError::Unknown(_)) => drop(doubtful.insert(n)),
                Err(error) => assert_eq!(error.remedy(), Remedy::Retry, "{error:?}"),
            }
            scene.proxy.heal().await;
        }
        let marks = scene.around.range(Range::prefix("mark/")).await.unwrap();
        let marks: BTreeSet<i64> =
            marks.kvs.iter().map(|kv| kv.key_text().trim_start_matches("mark/").parse().unwrap()).collect();
        assert_eq!(counter(&scene.around).await, marks.len() as i64);
        assert!(marks.is_superset(&sure), "acknowledged and lost: {:?}", sure.difference(&marks));
        let explained: BTreeSet<i64> = sure.union(&doubtful).copied().collect();
        assert!(marks.is_subset(&explained), "refused and done: {:?}", marks.difference(&explained));
    });
}

#[test]
fn reads_recover_by_themselves() {
    block_on(async {
        let scene = Scene::new().await;
        put(&scene.through, 1).await;
        for _ in 0..5 {
            scene.proxy.close_connections().await;
            assert_eq!(scene.through.get("n").await.unwrap().unwrap().value, "1");
            let reads = Txn { success: vec![Op::Range(Range::one("n"))], ..Txn::new() };
            scene.proxy.set(Direction::ToClient, Flow::CutAfter(1));
            assert!(scene.through.commit(reads).await.unwrap().succeeded, "it only reads");
        }
        // Half-open: the first call finds out, and the next one has a new connection.
        scene.proxy.set_both(Flow::Swallow);
        assert!(matches!(scene.through.get("n").await, Err(MetaError::Unavailable(_))));
        scene.proxy.heal().await;
        assert_eq!(scene.through.get("n").await.unwrap().unwrap().value, "1");
    });
}

#[test]
fn a_dead_member_among_the_endpoints_is_no_obstacle() {
    block_on(async {
        let etcd = testkit::Etcd::start().await.unwrap();
        let nobody = testkit::Port::reserve().unwrap();
        let endpoints = [format!("http://{}", nobody.addr()), etcd.endpoint().to_owned()];
        let store = connect(impatient(endpoints)).await;
        for n in 1..=30 {
            let put = store.put(Put::new("n", n.to_string())).await.unwrap();
            assert_eq!(put.revision, Revision(n + 1));
            assert_eq!(store.get("n").await.unwrap().unwrap().version, n);
        }
        let mut watch = store.watch(Watch::from(KeyRange::all(), Revision(2))).await.unwrap();
        follow(&mut *watch, &mut Revision(1), 30).await;
    });
}

#[test]
fn nobody_there_is_unavailable_at_once() {
    block_on(async {
        let nobody = testkit::Port::reserve().unwrap();
        let error = Etcd::connect(impatient([format!("http://{}", nobody.addr())])).await.unwrap_err();
        assert_eq!(error.remedy(), Remedy::Retry);
        assert!(error.to_string().contains("refused"), "{error}");
    });
}
