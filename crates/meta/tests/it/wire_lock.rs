//! Do the server's own locks and elections keep order? Through the client crate that calls them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use capstan_meta::{Backend, Range};
use capstan_testkit::eventually;
use etcd_client::{Client, LeaderKey, LockOptions, ProclaimOptions, ResignOptions};
use tokio::time::timeout;
use tonic::Code;

use crate::wire_support::{DEADLINE, Served, served};

async fn lease(client: &mut Client) -> i64 {
    client.lease_grant(60, None).await.unwrap().id()
}

async fn in_line(served: &Served, prefix: &str, count: usize) {
    eventually("that many stand in line", DEADLINE, async || {
        match served.store.range(Range::prefix(prefix.to_owned())).await.unwrap().count {
            n if n == count => Ok(()),
            n => Err(format!("{n} in line")),
        }
    })
    .await;
}

fn status(error: etcd_client::Error) -> (Code, String) {
    match error {
        etcd_client::Error::GRpcStatus(status) => (status.code(), status.message().to_owned()),
        other => panic!("not a status: {other}"),
    }
}

#[tokio::test]
async fn a_lock_is_a_key_named_after_its_lease() {
    let served = served().await;
    let mut client = served.client().await;
    let lease = lease(&mut client).await;
    let options = LockOptions::new().with_lease(lease);
    let locked = client.lock("door", Some(options.clone())).await.unwrap();
    assert_eq!(locked.key(), format!("door/{lease:x}").as_bytes());
    assert_eq!(locked.header().unwrap().revision(), 2);
    let kv = served.direct().get(locked.key().to_vec()).await.unwrap().unwrap();
    assert_eq!(kv.lease.0, lease);
    let again = client.lock("door", Some(options)).await.unwrap();
    assert_eq!(again.key(), locked.key(), "whoever holds it gets it again");
    client.unlock(locked.key()).await.unwrap();
    assert!(served.direct().get(locked.key().to_vec()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_lock_without_a_lease_gets_one_that_ends() {
    let served = served().await;
    let mut client = served.client().await;
    let locked = client.lock("door", None).await.unwrap();
    let kv = served.direct().get(locked.key().to_vec()).await.unwrap().unwrap();
    let info = served.store.lease_info(kv.lease).await.unwrap().unwrap();
    assert_eq!(info.granted_ttl, Duration::from_secs(60));
}

#[tokio::test]
async fn locks_go_to_those_who_wait_in_the_order_of_their_coming() {
    let served = served().await;
    let mut client = served.client().await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(lease(&mut client).await);
    }
    let first = client.lock("door", Some(LockOptions::new().with_lease(leases[0]))).await.unwrap();
    let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for (n, lease) in leases.iter().enumerate().skip(1) {
        let (mut client, told, lease) = (client.clone(), told.clone(), *lease);
        waiting.push(capstan_meta::OwnedTask::spawn(async move {
            let locked = client.lock("door", Some(LockOptions::new().with_lease(lease))).await.unwrap();
            told.send((n, locked.key().to_vec())).unwrap();
        }));
        in_line(&served, "door/", n + 1).await;
    }
    let mut key = first.key().to_vec();
    for n in 1..4 {
        assert!(order.try_recv().is_err(), "nobody enters while the door is shut");
        client.unlock(key).await.unwrap();
        let (who, next) = timeout(DEADLINE, order.recv()).await.unwrap().unwrap();
        assert_eq!(who, n);
        key = next;
    }
}

#[tokio::test]
async fn who_stops_waiting_leaves_the_line() {
    let served = served().await;
    let mut client = served.client().await;
    let lease = lease(&mut client).await;
    let held = client.lock("door", Some(LockOptions::new().with_lease(lease))).await.unwrap();
    let mut impatient = served.client().await;
    let waiting = capstan_meta::OwnedTask::spawn(async move {
        impatient.lock("door", None).await.unwrap();
    });
    in_line(&served, "door/", 2).await;
    drop(waiting);
    in_line(&served, "door/", 1).await;
    assert!(served.direct().get(held.key().to_vec()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_lease_that_ends_opens_the_lock() {
    let served = served().await;
    let mut client = served.client().await;
    let lease = lease(&mut client).await;
    client.lock("door", Some(LockOptions::new().with_lease(lease))).await.unwrap();
    let mut other = client.clone();
    let (told, entered) = tokio::sync::oneshot::channel();
    let _waiting = capstan_meta::OwnedTask::spawn(async move {
        told.send(other.lock("door", None).await.unwrap()).ok();
    });
    in_line(&served, "door/", 2).await;
    client.lease_revoke(lease).await.unwrap();
    timeout(DEADLINE, entered).await.unwrap().unwrap();
}

#[tokio::test]
async fn nonsense_is_refused_in_the_words_of_the_format() {
    let served = served().await;
    let mut client = served.client().await;
    let unknown = client.lock("door", Some(LockOptions::new().with_lease(99))).await.unwrap_err();
    assert_eq!(status(unknown), (Code::NotFound, "etcdserver: requested lease not found".into()));
    let nothing = client.unlock("").await.unwrap_err();
    assert_eq!(status(nothing), (Code::InvalidArgument, "etcdserver: key is not provided".into()));
    let nobody = client.leader("chief").await.unwrap_err();
    assert_eq!(status(nobody), (Code::Unknown, "election: no leader".into()));
    let missing = Some(r#""leader" field must be provided"#);
    let resigned = client.resign(None).await.unwrap_err();
    assert_eq!((Code::InvalidArgument, missing.map(str::to_owned)), {
        let (code, text) = status(resigned);
        (code, Some(text))
    });
    let impostor = LeaderKey::new().with_name("chief").with_key("chief/1").with_rev(5).with_lease(0);
    let options = ProclaimOptions::new().with_leader(impostor);
    let refused = client.proclaim("me", Some(options)).await.unwrap_err();
    assert_eq!(status(refused), (Code::Unknown, "election: not leader".into()));
}

#[tokio::test]
async fn an_election_from_campaign_to_resignation() {
    let served = served().await;
    let mut client = served.client().await;
    let (alice, bob) = (lease(&mut client).await, lease(&mut client).await);
    let mut observed = client.observe("chief").await.unwrap();
    let campaign = client.campaign("chief", "alice", alice).await.unwrap();
    let leader = campaign.leader().unwrap().clone();
    assert_eq!((leader.name(), leader.rev(), leader.lease()), (&b"chief"[..], 2, alice));
    assert_eq!(leader.key(), format!("chief/{alice:x}").as_bytes());
    let kv = client.leader("chief").await.unwrap().kv().cloned().unwrap();
    assert_eq!((kv.key(), kv.value()), (leader.key(), &b"alice"[..]));
    assert_eq!(next_leader(&mut observed).await, "alice");

    let mut rival = served.client().await;
    let (told, elected) = tokio::sync::oneshot::channel();
    let _campaign = capstan_meta::OwnedTask::spawn(async move {
        told.send(rival.campaign("chief", "bob", bob).await.unwrap()).ok();
    });
    in_line(&served, "chief/", 2).await;
    let options = ProclaimOptions::new().with_leader(leader.clone());
    client.proclaim("alice again", Some(options.clone())).await.unwrap();
    assert_eq!(next_leader(&mut observed).await, "alice again");

    client.resign(Some(ResignOptions::new().with_leader(leader))).await.unwrap();
    let bobs = timeout(DEADLINE, elected).await.unwrap().unwrap();
    assert_eq!(bobs.leader().unwrap().lease(), bob);
    assert_eq!(next_leader(&mut observed).await, "bob");
    let deposed = client.proclaim("still me", Some(options)).await.unwrap_err();
    assert_eq!(status(deposed), (Code::Unknown, "election: not leader".into()));
    client.lease_revoke(bob).await.unwrap();
    let nobody = client.leader("chief").await.unwrap_err();
    assert_eq!(status(nobody), (Code::Unknown, "election: no leader".into()));
}

async fn next_leader(observed: &mut etcd_client::ObserveStream) -> String {
    let answer = timeout(DEADLINE, observed.message()).await.unwrap().unwrap().unwrap();
    answer.kv().unwrap().value_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_second_campaign_of_the_same_lease_changes_its_word() {
    let served = served().await;
    let mut client = served.client().await;
    let lease = lease(&mut client).await;
    let first = client.campaign("chief", "one", lease).await.unwrap();
    let second = client.campaign("chief", "two", lease).await.unwrap();
    assert_eq!(first.leader().unwrap().rev(), second.leader().unwrap().rev());
    let kv = client.leader("chief").await.unwrap().kv().cloned().unwrap();
    assert_eq!(kv.value(), b"two");
}
