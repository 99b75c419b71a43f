//! What no test of the document's program covers: leaders that die, hosts that are cut off, stores that forget.

use capstan_fleet::Lrn;
use capstan_fleet::history::Outcome;
use capstan_fleet::keys::default_group;
use capstan_fleet::release::StepKind::{Barrier, Rolling};
use capstan_fleet::spec::{Amount, Policy};
use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_testkit::eventually;
use capstan_testkit::proxy::Proxy;

use super::{operator, quick, two_hosts};
use crate::rig::{Rig, SOON};

/// A leader dies without a word in the middle of a step; the other updater waits for its lease and goes on.
#[tokio::test]
async fn leader_killed_mid_update_and_the_next_one_goes_on() {
    let mut rig = Rig::in_memory();
    rig.join(0..3).await;
    rig.publish("1.1.0", &[Barrier, Rolling]).await;
    rig.put(&rig.tree.policy(default_group()), &quick()).await;
    rig.hosts[&Lrn(1)].hold(1);
    rig.want("1.1.0").await;
    let leader = rig.start_updater("a");
    rig.until_begun(1, 1, &[1]).await;
    let before = rig.request().await.unwrap();
    let _next = rig.start_updater("b");
    drop(leader);
    rig.hosts[&Lrn(1)].let_go(1);
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.request().await.unwrap(), before, "the same request, with the same start");
    for host in rig.hosts.values() {
        assert_eq!(host.begun(1), [1, 2]);
    }
}

/// Two updaters run all the time and one of them is replaced between every two steps: nobody runs anything twice.
#[tokio::test]
async fn two_updaters_take_turns_and_nothing_is_done_twice() {
    let mut rig = Rig::in_memory();
    rig.join(0..3).await;
    rig.publish("1.1.0", &[Barrier, Barrier, Barrier]).await;
    for step in 1..=3 {
        rig.hosts[&Lrn(2)].hold(step);
    }
    rig.want("1.1.0").await;
    let mut updaters = vec![rig.start_updater("a"), rig.start_updater("b")];
    for step in 1..=3_u32 {
        rig.until_begun(2, 1, &(1..=step).collect::<Vec<_>>()).await;
        updaters.remove(0).stop();
        updaters.push(rig.start_updater("next"));
        rig.hosts[&Lrn(2)].let_go(step);
    }
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.request().await.unwrap().generation, 1, "one request, whoever led");
    for host in rig.hosts.values() {
        assert_eq!(host.begun(1), [1, 2, 3]);
    }
}

/// A host is cut off from a real etcd while it runs a step. The others go on when its lease is over; it finishes its step
/// meanwhile, cannot say so, and catches up when it is back.
#[tokio::test]
async fn partition_a_host_that_is_cut_off_catches_up() {
    let etcd = capstan_testkit::Etcd::start().await.unwrap();
    let connect =
        async |endpoint: &str| Store::new(Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap());
    let proxy = Proxy::start(etcd.port().addr()).await.unwrap();
    let mut rig = Rig::on(connect(etcd.endpoint()).await);
    rig.join(0..3).await;
    rig.register(Lrn(3)).await;
    rig.start_worker_on(Lrn(3), connect(&proxy.endpoint()).await);
    for lrn in 0..4 {
        rig.until_up(lrn).await;
    }
    rig.hosts[&Lrn(3)].hold(1);
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    let policy = Policy { barrier_budget: Amount::Percent(34), ..quick() };
    rig.put(&rig.tree.policy(default_group()), &policy).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(3, 1, &[1]).await;
    proxy.cut().await;
    rig.hosts[&Lrn(3)].let_go(1);
    let ended = rig.until_ended(1).await;
    assert_eq!((ended.outcome, ended.without), (Some(Outcome::Succeeded), vec![Lrn(3)]));
    assert_eq!(rig.status(3).await.unwrap().step, 1, "nothing was heard of it");
    proxy.heal().await;
    rig.until_status("it catches up", 3, |status| status.finished).await;
    assert_eq!(rig.hosts[&Lrn(3)].begun(1), [1, 2], "each step once");
}

/// A worker is gone at the worst moments: while a step runs, and before anybody knows that it is done.
#[tokio::test]
async fn crash_in_every_step_resumes_and_repeats_nothing() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    for step in 1..=2 {
        rig.hosts[&Lrn(0)].hold(step);
    }
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    for step in 1..=2_u32 {
        let begun: Vec<u32> = (1..=step).collect();
        rig.until_begun(0, 1, &begun).await;
        rig.kill_worker(Lrn(0));
        rig.start_worker(Lrn(0));
        rig.hosts[&Lrn(0)].let_go(step);
    }
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.hosts[&Lrn(0)].begun(1), [1, 2]);
}

/// An old stopped request, and a history that begins behind it: a worker that starts does not fail for it.
#[tokio::test]
async fn compaction_behind_the_request_does_not_stop_a_worker() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].fail_at(1, "no");
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_request("it is stopped", |request| request.stop).await;
    rig.until_ended(1).await;
    rig.kill_worker(Lrn(0));
    rig.hosts[&Lrn(0)].heal(1);
    let newest = rig.store.status().await.unwrap().revision;
    rig.store.compact(newest).await.unwrap();
    rig.start_worker(Lrn(0));
    rig.until_up(0).await;
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
}

/// A host left while the fleet kept it drained, and the process that was to take the drain back died: the updater does.
#[tokio::test]
async fn a_drain_of_a_host_that_left_is_taken_back() {
    use capstan_control::drain::{Ask, Intent, ask};
    use capstan_control::hosts::HostRecord;
    use capstan_control::keys::{DrainKey, HostId, HostKey, ServiceName};

    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    let host = HostId::new("gone").unwrap();
    let services = vec![ServiceName::new("svc").unwrap()];
    let record = HostRecord { services: services.clone(), ..HostRecord::default() };
    rig.put(&HostKey { host: host.clone() }, &record).await;
    for (name, by) in [("gone", "fleet"), ("other", "ann")] {
        let (host, services) = (HostId::new(name).unwrap(), services.clone());
        let wish = Ask { asked_by: by.to_owned(), reason: "update".to_owned(), asked_at: 1, services };
        ask(&rig.store, &host, &wish).await.unwrap();
    }
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    eventually("the drain is taken back", SOON, async || {
        let drain = rig.read(&DrainKey { host: host.clone() }).await.unwrap();
        if drain.intent == Intent::Return { Ok(()) } else { Err(format!("{drain:?}")) }
    })
    .await;
    let other = rig.read(&DrainKey { host: HostId::new("other").unwrap() }).await.unwrap();
    assert_eq!(other.intent, Intent::Drain, "somebody else's is left alone");
}
