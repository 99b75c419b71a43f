//! What does a power cut leave of the embedded store? The real store on a simulated disk, cut at every call of its life.
//!
//! A life is a random sequence of requests, one after the other. After each one the whole store is written down, with the
//! number of disk calls by then. A cut at a call must leave the last state that was acknowledged before it, or the next
//! one (the request that was under way); what is found must be on disk before it is served; and everything that a watch
//! replays must have happened.

mod edges;
mod faults;
mod life;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use capstan_meta::embedded::{Embedded, OpenError};
use capstan_meta::{Backend, KeyRange, Revision, Watch, WatchMessage};
use capstan_testkit::disk::{Cut, SimDisk};
use capstan_testkit::seed;
use rand::RngExt;
use rand::rngs::StdRng;

use life::{Life, State, options};

/// Cuts of one run; more in `make soak`.
const CUTS: usize = 20_000;
const SOAK_CUTS: usize = 2_000_000;
/// How many of them are followed by a second one, and compared by what a watch replays.
const DEEPER: f64 = 0.3;
/// Requests in one life.
const REQUESTS: usize = 70;

pub fn dir() -> &'static Path {
    Path::new("/var/lib/store")
}

pub async fn open(disk: &SimDisk) -> Result<Embedded, OpenError> {
    Embedded::open_on(Arc::new(disk.clone()), dir(), options()).await
}

/// A runtime whose clock stands still unless everything waits: ticks of the store come when a test sleeps.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[test]
fn a_power_cut_at_any_call_loses_nothing_acknowledged() {
    let cuts = AtomicUsize::new(0);
    let wanted = seed::soak(CUTS, SOAK_CUTS);
    let lives = seed::soak(12, 600);
    seed::seeds(lives, |seed| {
        runtime().block_on(async {
            let life = Life::live(seed, REQUESTS).await;
            cut_everywhere(&life, wanted.div_ceil(lives), &cuts, seed).await;
        });
    });
    let cuts = cuts.into_inner();
    eprintln!("{cuts} power cuts");
    assert!(cuts >= wanted, "only {cuts} cuts");
}

async fn cut_everywhere(life: &Life, wanted: usize, cuts: &AtomicUsize, seed: u64) {
    let mut rng = seed::rng(seed ^ 0xc0ffee);
    let frames = life.film.len();
    for n in 0..wanted.next_multiple_of(frames * Cut::ALL.len()).min(wanted + frames) {
        let (frame, how) = (n % frames, Cut::ALL[(n / frames) % Cut::ALL.len()]);
        let left = life.film.cut(frame, how, &mut rng);
        judge(life, frame, how, &left, &mut rng).await;
        cuts.fetch_add(1, Ordering::Relaxed);
    }
}

async fn judge(life: &Life, frame: usize, how: Cut, left: &SimDisk, rng: &mut StdRng) {
    let call = life.film.call(frame);
    let at = || format!("{how:?} at call {} ({:?} of {})", call.number, call.kind, call.path.display());
    let store = open(left).await.unwrap_or_else(|error| panic!("{}: refused: {error}", at()));
    let found = State::of(&store).await;
    let acknowledged = life.acknowledged_before(call.number);
    let expected = &life.states[acknowledged..life.states.len().min(acknowledged + 2)];
    assert!(
        expected.iter().any(|state| state.is(&found)),
        "{}: found revision {}, acknowledged {}",
        at(),
        found.revision(),
        expected[0].revision()
    );
    if rng.random_bool(DEEPER) {
        same_history(life, &store, &found).await;
        second_cut(&found, left, &at(), rng).await;
    }
}

/// What was found is on disk before it is served: a second cut does not take it away.
async fn second_cut(found: &State, left: &SimDisk, at: &str, rng: &mut StdRng) {
    let again = left.cut(Cut::Lose, rng);
    again.set_capacity(None);
    let store = open(&again).await.unwrap_or_else(|error| panic!("{at}: cut again: {error}"));
    assert!(State::of(&store).await.is(found), "{at}: served, and lost with the next cut");
    if found.alarm {
        // The alarm survived as well, and refuses writes until it is disarmed.
        assert!(store.put(capstan_meta::Put::new("after", "the cut")).await.is_err(), "{at}");
        store.set_no_space_alarm(false).await.unwrap();
    }
    let next = store.put(capstan_meta::Put::new("after", "the cut")).await.unwrap();
    assert_eq!(next.revision, found.revision().next(), "{at}");
}

/// What a watch replays is what happened.
async fn same_history(life: &Life, store: &Embedded, found: &State) {
    let from = Revision(found.compacted.0.max(1));
    let mut watch = store.watch(Watch::from(KeyRange::all(), from)).await.unwrap();
    watch.request_progress().await.unwrap();
    let mut seen = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            WatchMessage::Events { events, .. } => seen.extend(events.iter().map(|event| event.kv.clone())),
            WatchMessage::Progress(at) => break assert_eq!(at, found.revision()),
        }
    }
    let happened = life.events.iter().filter(|kv| (from..=found.revision()).contains(&kv.mod_revision));
    assert!(happened.eq(seen.iter()), "a watch from {from} replays something else than what happened");
}
