//! Do clients notice that the store, or one of two coordinators, is away? Slots whose owner does not change are served
//! without errors and without pauses.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_redis::spec::{Acks, Persistence};
use capstan_testkit::eventually;
use capstan_testkit::redis::{RedisServer, Wire, spread_keys};
use capstan_testkit::seed::soak;
use tokio::runtime::Handle;

use super::installation::{Installation, SOON};
use super::{NODES, spec};

/// The longest pause that a client may see.
const PAUSE: Duration = Duration::from_millis(50);
/// What a machine that runs other tests may add in the short form.
const LOADED: Duration = Duration::from_secs(5);
/// Longer than the session of a coordinator lasts without the store, and its grants.
const SHORT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(600);

/// Waits of a client, beside those at a bare server on the same machine.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    longest: Duration,
    /// When the longest one ended.
    at: Duration,
    bare: Duration,
    commands: u64,
}

/// Writes all over the slots for some time. Every error is a failure.
fn write_for(time: Duration, proxies: &[SocketAddr], bare: SocketAddr) -> Waits {
    let mut wires: Vec<Wire> = proxies.iter().map(|proxy| Wire::connect(*proxy).unwrap()).collect();
    let mut bare = Wire::connect(bare).unwrap();
    let keys: Vec<(String, usize)> =
        spread_keys().map(|key| (owner(&mut wires, &key), key)).map(|(at, key)| (key, at)).collect();
    let (began, mut waits) = (Instant::now(), Waits::default());
    while began.elapsed() < time {
        for (key, at) in &keys {
            let words = format!("SET {key} {}", waits.commands);
            let asked = Instant::now();
            assert_eq!(bare.say(&words).unwrap(), "+OK\r\n");
            let between = Instant::now();
            assert_eq!(wires[*at].say(&words).unwrap(), "+OK\r\n", "after {:?}", began.elapsed());
            waits.bare = waits.bare.max(between - asked);
            if between.elapsed() > waits.longest {
                (waits.longest, waits.at) = (between.elapsed(), began.elapsed());
            }
            waits.commands += 1;
        }
        // tidy: allow, because this is the pace of a client
        Handle::current().block_on(tokio::time::sleep(Duration::from_millis(2)));
    }
    waits
}

/// The proxy that serves a key.
fn owner(wires: &mut [Wire], key: &str) -> usize {
    let served = |wire: &mut Wire| wire.say(&format!("SET {key} first")).unwrap() == "+OK\r\n";
    wires.iter_mut().position(served).unwrap()
}

impl Waits {
    /// A machine that stalls makes clients of a bare server wait too.
    fn check(self, what: &str) {
        eprintln!("{what}: {self:?}");
        let limit = PAUSE.max(self.bare * 2) + soak(LOADED, Duration::ZERO);
        assert!(
            self.longest <= limit,
            "{what}: a client waited for {:?}, {limit:?} is allowed",
            self.longest
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_notice_no_outage_of_the_store_and_no_broken_link() {
    let spec = spec(1, Persistence::None, Acks::Primary);
    let mut run = if soak(true, false) {
        Installation::patient(2, NODES, &spec).await
    } else {
        Installation::start(2, NODES, &spec).await
    };
    let bare = RedisServer::start().await.unwrap();
    let proxies = run.proxies();
    let write = async |time| {
        let (proxies, bare) = (proxies.clone(), bare.address());
        tokio::task::spawn_blocking(move || write_for(time, &proxies, bare)).await.unwrap()
    };
    let cut = run.hosts[0].address();
    run.controllers[1].cut(&cut);
    write(soak(SHORT / 3, LONG)).await.check("with one of two coordinators");
    run.controllers[1].heal();
    let withdrawn = async || match run.tree().await?.failures.len() {
        0 => Ok(()),
        reports => Err(format!("{reports} reports")),
    };
    eventually("the host is reached by both", SOON, withdrawn).await;
    run.etcd.kill9().unwrap();
    write(soak(SHORT, LONG)).await.check("without the store");
    run.etcd.restart().await.unwrap();
    run.healthy().await;
}
