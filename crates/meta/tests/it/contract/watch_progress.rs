//! What progress promises: everything up to it has been delivered.

use std::time::Duration;

use capstan_meta::{Delete, KeyRange, Revision, Watch, WatchMessage};

use crate::subjects::{EVENT_DEADLINE, World};

pub async fn progress_says_where_the_store_is(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    watch.quiet_until(w.base).await;
    w.put_all(&["a", "b"]).await;
    watch.events(2).await;
    watch.quiet_until(w.rev(2)).await;
}

/// Reads until the revision is known to be delivered; returns the revisions of the events, and fails if one of them
/// comes behind progress that covers it.
async fn until(watch: &mut dyn capstan_meta::WatchStream, revision: Revision) -> Vec<Revision> {
    let reading = async {
        let (mut seen, mut proven) = (Vec::<Revision>::new(), Revision::ZERO);
        while seen.last().copied().unwrap_or_default().max(proven) < revision {
            watch.request_progress().await.unwrap();
            // A store in process may always have an answer ready; the writer needs its turn too.
            tokio::task::yield_now().await;
            match tokio::time::timeout(Duration::from_millis(50), watch.next()).await {
                Ok(Ok(WatchMessage::Progress(at))) => proven = at,
                Ok(Ok(WatchMessage::Events { events, .. })) => {
                    for event in events.iter() {
                        assert!(event.kv.mod_revision > proven, "{event:?} came behind progress {proven}");
                        seen.push(event.kv.mod_revision);
                    }
                }
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => {}
            }
        }
        seen
    };
    tokio::time::timeout(EVENT_DEADLINE, reading).await.expect("no progress in time")
}

pub async fn progress_never_overtakes_events(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    let writing = async {
        for n in 0..200 {
            w.put("a", &n.to_string()).await;
        }
    };
    let ((), seen) = tokio::join!(writing, until(&mut *watch.stream, w.rev(200)));
    assert_eq!(seen, (1..=200).map(|n| w.rev(n)).collect::<Vec<_>>());
}

pub async fn progress_of_a_quiet_range_follows_other_writes(w: World) {
    w.put("quiet", "1").await;
    let mut watch = w.watch(Watch::from(KeyRange::prefix("quiet"), w.rev(1))).await;
    watch.events(1).await;
    for n in 2..20 {
        w.put("loud", "x").await;
        watch.quiet_until(w.rev(n)).await;
    }
    w.put("quiet", "2").await;
    assert_eq!(watch.events(1).await[0].kv.mod_revision, w.rev(20));
}

/// A deletion leaves nothing behind that a look at the keys would find.
pub async fn a_deletion_is_never_passed_over(w: World) {
    let mut watch = w.watch_all(w.rev(1)).await;
    let mut at = 0;
    for _ in 0..30 {
        w.put_all(&["a", "b"]).await;
        w.store.delete(Delete::one("a")).await.unwrap();
        let seen = until(&mut *watch.stream, w.rev(at + 3)).await;
        assert_eq!(seen, [w.rev(at + 1), w.rev(at + 2), w.rev(at + 3)]);
        at += 3;
    }
}
