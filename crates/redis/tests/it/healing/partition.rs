//! An owner that is partitioned from its coordinators, but not from its clients, stops before another one
//! begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capstan_meta::faults::Link;
use capstan_redis::timing::Timing;
use capstan_testkit::eventually;
use capstan_testkit::seed::soak;
use tokio::time::Instant;

use super::pool::{Host, Pool, SOON};
use super::{loaded, replicated};

/// Writes to one proxy until stopped; returns when the last write was acknowledged.
fn write_for_ever(host: &Host, key: &str, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<Option<Instant>> {
    let (mut wire, line) = (host.client().unwrap(), format!("SET {key} old"));
    wire.socket().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let address = host.address.clone();
    tokio::task::spawn_blocking(move || {
        let mut last = None;
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match wire.say(&line) {
                Ok(said) if said == "+OK\r\n" => last = Some(asked),
                Ok(_) => {}
                // It is held. Opens a new connection, as a client does after a timeout.
                Err(_) => {
                    wire = capstan_testkit::redis::Wire::connect(address.as_str().parse().unwrap()).unwrap();
                    wire.socket().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                }
            }
        }
        last
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_that_is_cut_off_acknowledges_nothing_once_its_successor_does() {
    let mut pool = Pool::start(2, 2, 3, replicated(1)).await;
    pool.warm().await;
    let old = pool.owner("key-0").await.proxy_address;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = write_for_ever(pool.host(&old), "key-0", stop.clone());
    pool.cut_off(&old);
    let cut_at = Instant::now();
    let other = pool.hosts.iter().find(|host| host.address != old).unwrap();
    let taken_over = async || {
        let said = other.client().and_then(|mut wire| wire.say("SET key-0 new"));
        if said.as_ref().is_ok_and(|said| said == "+OK\r\n") {
            Ok(Instant::now())
        } else {
            Err(format!("{said:?}"))
        }
    };
    let first_new = eventually("the successor serves", SOON, taken_over).await;
    stop.store(true, Ordering::Relaxed);
    let last_old = writer.await.unwrap().expect("the old owner served before it was cut off");
    eprintln!(
        "the old owner stopped {:?} and its successor began {:?} after the cut",
        last_old.saturating_duration_since(cut_at),
        first_new.duration_since(cut_at)
    );
    assert!(last_old < first_new, "both served for {:?}", last_old.duration_since(first_new));
    assert_eq!(other.client().unwrap().say("GET key-0").unwrap(), "$3\r\nnew\r\n");
    pool.end().await;
}

/// One broken link does not mean that the proxy is down: it is neither replaced nor stopped, however long it lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_two_coordinators_that_loses_its_link_to_a_proxy_changes_nothing() {
    let mut pool = Pool::start(2, 2, 2, replicated(1)).await;
    pool.warm().await;
    let owner = pool.owner("key-0").await;
    let mut wire = pool.host(&owner.proxy_address).client().unwrap();
    pool.cut_link(2, &owner.proxy_address);
    let mut longest = Duration::ZERO;
    let served_while_reported = async || {
        let asked = Instant::now();
        let said = wire.say("SET key-0 new").unwrap();
        assert_eq!(said, "+OK\r\n");
        longest = longest.max(asked.elapsed());
        let reports = pool.tree().await.failures;
        match reports.iter().map(|(_, seen)| seen.record).min() {
            Some(since)
                if capstan_meta::clock::since_epoch().as_secs() > u64::try_from(since).unwrap() + 3 =>
            {
                Ok(())
            }
            Some(_) | None => Err(format!("{} reports", reports.len())),
        }
    };
    eventually("the proxy is reported for a while", SOON, served_while_reported).await;
    eprintln!("longest pause {longest:?}");
    assert!(longest < Timing::default().grant_ttl + loaded(), "a client waited for {longest:?}");
    assert_eq!(pool.owner("key-0").await.address, owner.address);
    pool.end().await;
}

/// The store is not on the data path: slots whose owner does not change are served without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_notice_nothing_of_an_outage_of_the_store() {
    let mut pool = Pool::start(2, 2, 2, replicated(1)).await;
    pool.warm().await;
    let owner = pool.owner("key-0").await;
    let mut wire = pool.host(&owner.proxy_address).client().unwrap();
    let timing = Timing::default();
    let lasts = soak(timing.session_ttl + timing.warm_up(), Duration::from_secs(600));
    for link in soak(vec![Link::Silent], vec![Link::Silent, Link::Refused]) {
        pool.way_to_store.set_link(link);
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        let outage_is_over = async || {
            let asked = Instant::now();
            assert_eq!(wire.say("SET key-0 new").unwrap(), "+OK\r\n");
            longest = longest.max(asked.elapsed());
            if began.elapsed() >= lasts { Ok(()) } else { Err("without the store") }
        };
        eventually("the store was away for long", lasts + SOON, outage_is_over).await;
        eprintln!("{link:?}: longest pause {longest:?} in {lasts:?} without the store");
        assert!(longest < timing.grant_ttl + loaded(), "a client waited for {longest:?}");
        pool.way_to_store.set_link(Link::Up);
    }
    eventually("the store is back for everybody", SOON, async || pool.registered(2).await).await;
    pool.host(&owner.proxy_address).kill().await;
    eventually("a host that dies afterwards is replaced", SOON, async || pool.write_all("after")).await;
    pool.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_serves_without_coordinators_and_everybody_when_they_are_back() {
    let mut pool = Pool::start(2, 1, 1, capstan_redis::spec::ClusterSpec::of(2)).await;
    let owner = pool.owner("key-0").await.proxy_address;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = write_for_ever(pool.host(&owner), "key-0", stop.clone());
    pool.kill_coordinators();
    let gone_at = Instant::now();
    let host = pool.host(&owner);
    let refuses = async || {
        let mut wire = host.client().map_err(|error| error.to_string())?;
        wire.socket().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        match wire.say("SET key-0 x") {
            Ok(said) if said == "+OK\r\n" => Err("it serves".to_owned()),
            Ok(_) | Err(_) => Ok(()),
        }
    };
    eventually("no proxy serves", SOON, refuses).await;
    stop.store(true, Ordering::Relaxed);
    let served_for =
        writer.await.unwrap().map_or(Duration::ZERO, |last| last.saturating_duration_since(gone_at));
    eprintln!("served for {served_for:?} without a coordinator");
    assert!(served_for <= Timing::default().grant_over(), "{served_for:?}");
    pool.start_coordinator(9).await;
    eventually("everything is served again", SOON, async || pool.write_all("again")).await;
    pool.end().await;
}
