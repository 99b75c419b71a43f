//! K1: the leader.

use std::time::Duration;

use capstan_fleet::Lrn;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_meta::election::Election;
use capstan_meta::record::{Key, Prefix};
use capstan_meta::session::Session;
use capstan_meta::{Compare, Delete, KeyValue, LeaseId, Put, Range, Revision, SortOrder, SortTarget, Txn};
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
    assert!(
        found.key_text().ends_with(&format!("/leader//{:x}", found.lease.0)),
        "as the public updater writes it"
    );
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

/// The election of the public updater, request by request: what etcd's Go library sends for a prefix that ends in a slash.
struct Public {
    key: String,
    prefix: String,
    lease: LeaseId,
    created: Revision,
}

impl Public {
    /// Stands for election: a leased key named after its lease, put if it is not there.
    async fn stand(rig: &Rig, name: &str) -> Public {
        // The library appends a slash to the prefix that it is given, `/neco/leader/`.
        let given = rig.tree.candidates().path().trim_end_matches('/').to_owned() + "/";
        let prefix = given + "/";
        let lease = rig.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
        let key = format!("{prefix}{:x}", lease.0);
        let put = Put::new(key.clone(), name.to_owned()).lease(lease);
        let txn = Txn::new().when(Compare::create_revision(key.clone(), Revision::ZERO)).then(put);
        let put = rig.store.commit(txn).await.unwrap();
        assert!(put.succeeded);
        Public { key, prefix, lease, created: put.revision }
    }

    /// The youngest candidate that is older, which it waits for.
    async fn waits_for(&self, rig: &Rig) -> Option<String> {
        let older = Range::prefix(self.prefix.clone())
            .sorted(SortTarget::CreateRevision, SortOrder::Descend)
            .limit(1);
        let older = Range { max_create_revision: Revision(self.created.0 - 1), ..older };
        let found = rig.store.range(older).await.unwrap();
        found.kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
    }

    /// Gives up, if it leads still.
    async fn resign(self, rig: &Rig) {
        let mine = Compare::create_revision(self.key.clone(), self.created);
        assert!(rig.store.commit(Txn::new().when(mine).then(Delete::one(self.key))).await.unwrap().succeeded);
        rig.store.lease_revoke(self.lease).await.unwrap();
    }
}

/// An updater of the public project beside ours: they stand in one queue, and one leads.
pub(super) async fn a_public_updater_beside_ours_leaves_one_leader(mut rig: Rig) {
    let public = Public::stand(&rig, "public").await;
    assert_eq!(public.waits_for(&rig).await, None, "it leads");
    rig.join(0..1).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let ours = rig.start_updater("ours");
    until_candidates(&rig, 2).await;
    assert_eq!(leader(&rig).await.as_deref(), Some("public"));
    assert!(rig.read(&rig.tree.term()).await.is_none(), "ours has begun no term");
    assert!(rig.request().await.is_none(), "and asked nobody for anything");
    let second = Public::stand(&rig, "second").await;
    assert_eq!(second.waits_for(&rig).await.as_deref(), Some("ours"), "ours is in the same queue");
    public.resign(&rig).await;
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded), "ours leads now");
    assert_eq!(second.waits_for(&rig).await.as_deref(), Some("ours"), "and the public one waits");
    ours.stop();
    eventually("the public one leads", SOON, async || match second.waits_for(&rig).await {
        None => Ok(()),
        Some(name) => Err(name),
    })
    .await;
}
