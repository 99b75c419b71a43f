//! K2 to K4: who belongs to the fleet, and what is installed there.

use capstan_fleet::api::{Asker, Member};
use capstan_fleet::history::Outcome;
use capstan_fleet::keys::{ContainerName, PackageName};
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::{FleetError, Lrn};
use capstan_meta::record::{Key, Prefix};
use capstan_meta::{LeaseId, Put, Range};

use crate::rig::Rig;

fn member(lrn: u32) -> Member {
    Member { lrn: Lrn(lrn), ..Member::default() }
}

async fn raw(rig: &Rig, key: &impl Key) -> Option<Vec<u8>> {
    rig.store.get(key.bytes()).await.unwrap().map(|kv| kv.value.to_vec())
}

async fn count(rig: &Rig, prefix: &impl Prefix) -> usize {
    rig.store.range(Range::of(Prefix::range(prefix))).await.unwrap().kvs.len()
}

pub(super) async fn k06_a_host_joins_with_an_empty_value(rig: Rig) {
    let fleet = rig.fleet();
    fleet.join(&member(3)).await.unwrap();
    fleet.join(&member(3)).await.unwrap();
    assert_eq!(raw(&rig, &rig.tree.boot_server(Lrn(3))).await, Some(Vec::new()));
    assert_eq!(fleet.hosts().await.unwrap().hosts.len(), 1);
}

pub(super) async fn k07_a_host_leaves_with_what_was_installed_on_it(rig: Rig) {
    let fleet = rig.fleet();
    fleet.join(&member(3)).await.unwrap();
    let deb = rig.tree.installed_deb(Lrn(3), PackageName::new("etcdpasswd").unwrap());
    rig.put(&deb, &"1.0".to_owned()).await;
    fleet.leave(Lrn(3), &Asker::default()).await.unwrap();
    assert_eq!(count(&rig, &rig.tree.boot_servers()).await, 0);
    assert_eq!(count(&rig, &rig.tree.installed_on(Lrn(3))).await, 0);
    let again = fleet.leave(Lrn(3), &Asker::default()).await;
    assert_eq!(again, Err(FleetError::UnknownHost(Lrn(3))));
    assert!(again.unwrap_err().to_string().contains("not found"));
}

pub(super) async fn k08_a_key_that_names_no_host_is_a_problem_and_no_panic(mut rig: Rig) {
    rig.join([1]).await;
    let strange = format!("{}foo", rig.tree.boot_servers().path());
    rig.store.put(Put::new(strange.clone(), "")).await.unwrap();
    let hosts = rig.fleet().hosts().await.unwrap();
    assert_eq!(hosts.hosts.len(), 1);
    assert_eq!(hosts.problems, [format!("bad key {strange}: not the number of a host")]);
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded), "the others are not held up");
}

pub(super) async fn k09_hosts_sort_as_numbers(mut rig: Rig) {
    rig.join([0, 1, 10, 11, 2, 9]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    let request = rig.request().await.unwrap();
    assert_eq!(request.servers, [0, 1, 2, 9, 10, 11].map(Lrn));
    let lines = rig.fleet().hosts().await.unwrap().hosts;
    assert_eq!(lines.iter().map(|line| line.lrn.0).collect::<Vec<_>>(), [0, 1, 2, 9, 10, 11]);
    assert_eq!(rig.fleet().status().await.unwrap().why, "1.1.0 is on every host", "and nobody begins again");
}

pub(super) async fn k10_the_registry_has_no_lease_and_the_worker_has(mut rig: Rig) {
    rig.join([4]).await;
    rig.until_up(4).await;
    let registered = rig.store.get(rig.tree.boot_server(Lrn(4)).bytes()).await.unwrap().unwrap();
    let alive = rig.store.get(rig.tree.host_lease(Lrn(4)).bytes()).await.unwrap().unwrap();
    assert_eq!(registered.lease, LeaseId::NONE);
    assert_ne!(alive.lease, LeaseId::NONE);
}

pub(super) async fn k11_what_is_installed_is_plain_text(mut rig: Rig) {
    rig.join([0]).await;
    rig.hosts[&Lrn(0)].installs(1, ("etcdpasswd", "1.4.9-1"), ("etcd", "3.3.9-4"));
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    let deb = rig.tree.installed_deb(Lrn(0), PackageName::new("etcdpasswd").unwrap());
    let image = rig.tree.installed_container(Lrn(0), ContainerName::new("etcd").unwrap());
    assert!(
        deb.path().ends_with("/install/0/debs/etcdpasswd")
            && image.path().ends_with("/install/0/containers/etcd")
    );
    assert_eq!(raw(&rig, &deb).await.as_deref(), Some(&b"1.4.9-1"[..]));
    assert_eq!(raw(&rig, &image).await.as_deref(), Some(&b"3.3.9-4"[..]));
}

pub(super) async fn k12_only_a_step_that_worked_is_recorded(mut rig: Rig) {
    rig.join([0]).await;
    rig.hosts[&Lrn(0)].installs(1, ("etcdpasswd", "1.4.9-1"), ("etcd", "3.3.9-4"));
    rig.hosts[&Lrn(0)].fail_at(1, "dpkg says no");
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Failed));
    assert_eq!(count(&rig, &rig.tree.installed_on(Lrn(0))).await, 0);
}

pub(super) async fn k13_what_is_done_is_not_done_again(mut rig: Rig) {
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    rig.kill_worker(Lrn(0));
    rig.start_worker(Lrn(0));
    rig.until_up(0).await;
    rig.want("1.1.0").await;
    assert_eq!(rig.fleet().status().await.unwrap().why, "1.1.0 is on every host");
    assert_eq!(rig.hosts[&Lrn(0)].all_begun().len(), 2);
}

pub(super) async fn k14_host_one_is_not_host_ten(rig: Rig) {
    let fleet = rig.fleet();
    for lrn in [1, 10] {
        fleet.join(&member(lrn)).await.unwrap();
        let deb = rig.tree.installed_deb(Lrn(lrn), PackageName::new("svc").unwrap());
        rig.put(&deb, &"1.0".to_owned()).await;
    }
    fleet.leave(Lrn(1), &Asker::default()).await.unwrap();
    assert_eq!(count(&rig, &rig.tree.installed_on(Lrn(10))).await, 1);
    assert_eq!(fleet.hosts().await.unwrap().hosts[0].lrn, Lrn(10));
}
