//! Holders that stop and start while the steward runs.

use capstan_control::api::{drain, undrain};
use capstan_log::Offset;
use capstan_steward::{StewardError, WantedLog};
use capstan_testkit::eventually;

use crate::cluster::{Cluster, SOON, id, log, service};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_created_log_is_opened_by_its_holders_and_takes_appends() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let wanted = WantedLog::new(service(), 3).led_by(id("b"));
    let config = cluster.logs.create(&log("orders"), &wanted).await.unwrap();
    assert_eq!((config.holders.len(), config.min_copies, &config.primary), (3, 2, &id("b")));
    let first = cluster.append(&log("orders"), "one").await;
    let second = cluster.append(&log("orders"), "two").await;
    assert!(second > first);
    cluster.logs.create(&log("orders"), &wanted).await.unwrap();
    let other = WantedLog::new(service(), 1);
    assert_eq!(cluster.logs.create(&log("orders"), &other).await, Err(StewardError::Exists(log("orders"))));
    let too_many = WantedLog::new("docs".parse().unwrap(), 1);
    let refused = cluster.logs.create(&log("other"), &too_many).await;
    assert!(matches!(refused, Err(StewardError::TooFewHolders { up: 0, .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_is_replaced_and_its_copy_is_made_elsewhere() {
    let mut cluster = Cluster::start(&["a", "b", "c", "d"]).await;
    let wanted = WantedLog::new(service(), 3).led_by(id("a"));
    let name = log("orders");
    cluster.logs.create(&name, &wanted).await.unwrap();
    cluster.append(&name, "one").await;
    cluster.end(&id("a")).await;
    cluster.append(&name, "two").await;
    let config = cluster
        .becomes("the copy of a is made elsewhere", &name, |config| {
            config.in_sync.len() == 3 && !config.holders.contains(&id("a")) && config.leaving.is_none()
        })
        .await;
    assert!(config.holders.contains(&id("d")), "{config:?}");
    assert_eq!(config.learner, None);
    cluster.append(&name, "three").await;
}

async fn texts(cluster: &Cluster, name: &capstan_log::LogName) -> Vec<String> {
    let primary = cluster.config(name).await.primary;
    let log = cluster.holders[&primary].0.opened(name).unwrap();
    let entries = log.read(Offset::ZERO, 1 << 20).await.unwrap().entries;
    entries.iter().map(|entry| String::from_utf8(entry.data.to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_made_again_has_nothing_of_the_earlier_one() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let (wanted, name) = (WantedLog::new(service(), 3), log("orders"));
    let first = cluster.logs.create(&name, &wanted).await.unwrap();
    cluster.append(&name, "one").await;
    cluster.logs.delete(&name).await.unwrap();
    let second = cluster.logs.create(&name, &wanted).await.unwrap();
    assert!(second.incarnation > first.incarnation);
    eventually("every copy is of the new log", SOON, async || {
        for (holder, _) in cluster.holders.values() {
            match holder.opened(&name) {
                Some(log) if log.incarnation() == second.incarnation => {}
                Some(_) | None => return Err(format!("{holder:?} has not opened it")),
            }
        }
        Ok(())
    })
    .await;
    cluster.append(&name, "two").await;
    assert_eq!(texts(&cluster, &name).await, ["two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_log_and_a_copy_that_moved_away_leave_no_copies() {
    let cluster = Cluster::start(&["a", "b", "c", "d"]).await;
    let (wanted, name) = (WantedLog::new(service(), 3), log("orders"));
    let config = cluster.logs.create(&name, &wanted).await.unwrap();
    cluster.append(&name, "one").await;
    let spare = ["a", "b", "c", "d"].into_iter().find(|id| !config.holders.iter().any(|h| h.as_str() == *id));
    let (from, to) = (config.holders[2].clone(), id(spare.unwrap()));
    cluster.logs.relocate(&name, &from, &to).await.unwrap();
    cluster.becomes("the copy has moved", &name, |now| !now.holders.contains(&from)).await;
    let gone = async |holder: &capstan_log::HolderId| {
        eventually("the copy is deleted", SOON, async || {
            if cluster.holders[holder].0.host().has_copy(&name) { Err("there") } else { Ok(()) }
        })
        .await;
    };
    gone(&from).await;
    cluster.append(&name, "two").await;
    assert_eq!(texts(&cluster, &name).await, ["one", "two"]);
    cluster.logs.delete(&name).await.unwrap();
    for holder in cluster.holders.keys() {
        gone(holder).await;
    }
}

/// The new copy is complete and the old one not yet removed: what a caller that asks again, or is slow, may find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_whose_copy_is_complete_counts_as_under_way() {
    let cluster = Cluster::without_steward(&["a", "b", "c", "d"]).await;
    let (wanted, name) = (WantedLog::new(service(), 3), log("orders"));
    let config = cluster.logs.create(&name, &wanted).await.unwrap();
    let spare = ["a", "b", "c", "d"].map(id).into_iter().find(|id| !config.holders.contains(id)).unwrap();
    let from = config.holders[2].clone();
    cluster.logs.relocate(&name, &from, &spare).await.unwrap();
    cluster.becomes("the new copy is complete", &name, |now| now.holders.contains(&spare)).await;
    assert!(cluster.config(&name).await.holders.contains(&from));
    cluster.logs.relocate(&name, &from, &spare).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_host_hands_its_leads_over_under_appends_and_keeps_its_copies() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let name = log("orders");
    let config = cluster.logs.create(&name, &WantedLog::new(service(), 3)).await.unwrap();
    let mut wrote = vec!["0".to_owned()];
    cluster.append(&name, "0").await;
    let host = config.primary.as_str().parse().unwrap();
    drain(&cluster.store, &host, "test", "", &[service()]).await.unwrap();
    while cluster.config(&name).await.primary == config.primary {
        wrote.push(wrote.len().to_string());
        cluster.append(&name, wrote.last().unwrap()).await;
    }
    let after = cluster.config(&name).await;
    assert_eq!((after.holders.len(), after.in_sync.contains(&config.primary)), (3, true), "{after:?}");
    cluster.append(&name, "last").await;
    wrote.push("last".to_owned());
    let mut there = texts(&cluster, &name).await;
    there.dedup();
    assert_eq!(there, wrote);
    undrain(&cluster.store, &host, "test", "").await.unwrap();
}
