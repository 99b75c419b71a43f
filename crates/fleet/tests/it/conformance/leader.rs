//! K1: the leader.

use std::time::Duration;

use capstan_fleet::Lrn;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_meta::election::Election;
use capstan_meta::record::{Key, Prefix};
use capstan_meta::session::Session;
use capstan_meta::{KeyValue, Put, Range, Txn};
use capstan_testkit::eventually;

use crate::rig::{Rig, SOON, brisk};

async fn candidates(rig: &Rig) -> Vec<KeyValue> {
    let found = rig.store.range(Range::of(Prefix::range(&rig.tree.candidates()))).await.unwrap();
    let mut found: Vec<KeyValue> = found.kvs.iter().map(|kv| (**kv).clone()).collect();
    found.sort_by_key(|kv| kv.create_revision);
    found
}

async fn leader(rig: &Rig) -> Option<String> {
    candidates(rig).await.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
}

async fn until_candidates(rig: &Rig, count: usize) -> Vec<KeyValue> {
    eventually("all candidates are there", SOON, async || {
        let found = candidates(rig).await;
        if found.len() == count { Ok(found) } else { Err(format!("{} of {count}", found.len())) }
    })
    .await
}

pub(super) async fn k01_one_of_many_candidates_leads(rig: Rig) {
    let _updaters = [rig.start_updater("a"), rig.start_updater("b"), rig.start_updater("c")];
    until_candidates(&rig, 3).await;
    let term = rig.tree.term();
    eventually("somebody begins a term", SOON, async || rig.read(&term).await.ok_or("no term")).await;
    assert_eq!(rig.read(&term).await.map(|epoch| epoch.0), Some(1), "one leader, one term");
}

pub(super) async fn k02_a_candidate_is_a_leased_key_with_its_name(rig: Rig) {
    let _updater = rig.start_updater("boot-0");
    let found = until_candidates(&rig, 1).await.remove(0);
    assert_eq!(&found.value[..], b"boot-0");
    assert_ne!(found.lease.0, 0);
    let expected = format!("{}{:x}", rig.tree.candidates().path(), found.lease.0);
    assert_eq!(found.key_text(), expected);
}

pub(super) async fn k03_a_killed_leader_is_followed_within_its_lease_and_a_polite_one_at_once(rig: Rig) {
    let first = rig.start_updater("a");
    until_candidates(&rig, 1).await;
    let second = rig.start_updater("b");
    until_candidates(&rig, 2).await;
    assert_eq!(leader(&rig).await.as_deref(), Some("a"));
    drop(first);
    let killed = tokio::time::Instant::now();
    eventually("b leads", SOON, async || match leader(&rig).await {
        Some(name) if name == "b" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(killed.elapsed() < Duration::from_secs(20), "a lease of two seconds, and a loaded machine");
    let _third = rig.start_updater("c");
    until_candidates(&rig, 2).await;
    second.stop();
    eventually("c leads", SOON, async || match leader(&rig).await {
        Some(name) if name == "c" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

pub(super) async fn k04_a_write_of_a_former_leader_changes_nothing(rig: Rig) {
    let session = Session::start(rig.store.clone(), brisk());
    let mut election = Election::new(rig.store.clone(), session.clone(), rig.tree.ballot(), "a", 1);
    let leadership = election.campaign().await.unwrap();
    let (guard, term) = (leadership.guard(), leadership.term());
    let write = |guard| Txn::new().when(guard).then(Put::new(rig.tree.target().bytes(), "{}"));
    assert!(rig.store.commit(write(guard.clone())).await.unwrap().succeeded);
    leadership.resign().await.unwrap();
    assert!(!rig.store.commit(write(guard.clone())).await.unwrap().succeeded);
    // The same session elected again has the same key, but not the same term: a write of the first term stays out.
    let again = election.campaign().await.unwrap();
    assert!(again.term() > term);
    let before = rig.store.get(rig.tree.target().bytes()).await.unwrap().unwrap().mod_revision;
    assert!(!rig.store.commit(write(guard)).await.unwrap().succeeded);
    let after = rig.store.get(rig.tree.target().bytes()).await.unwrap().unwrap().mod_revision;
    assert_eq!(before, after);
}

pub(super) async fn k05_a_new_leader_continues_the_request_unchanged(mut rig: Rig) {
    rig.join(0..3).await;
    rig.hosts[&Lrn(1)].hold(1);
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let first = rig.start_updater("a");
    rig.until_begun(1, 1, &[1]).await;
    let before = rig.request().await.unwrap();
    drop(first);
    let _second = rig.start_updater("b");
    rig.hosts[&Lrn(1)].let_go(1);
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.request().await.unwrap(), before);
}
