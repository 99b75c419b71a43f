//! Is there one leader at a time, and is a former one harmless?

use std::time::Duration;

use capstan_meta::election::{Ballot, Election, Leadership};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::faults::{Faults, Faulty, Link};
use capstan_meta::record::LeaseHex;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::ViewOptions;
use capstan_meta::{Backend, Put, Store, Txn, keys};
use tokio::time::{Instant, sleep, timeout};

keys! {
    /// Keys of this test.
    const CATALOGUE;

    /// A candidate.
    pub struct CandidateKey { lease: LeaseHex } at "/election/{lease}" => String {
        writer: "the candidate",
        lifetime: Leased,
        prefixes: [
            /// All candidates.
            pub struct Candidates {} at "/election/",
        ],
    }

    /// The one leader.
    pub struct LeaderKey {} at "/cluster/leader" => u64 {
        writer: "the leader",
        lifetime: Leased,
    }
}

struct Candidate {
    faults: Faults,
    session: Session,
    election: Election,
}

fn candidate(truth: &Embedded, ballot: &Ballot, seed: u64) -> Candidate {
    let faults = Faults::seeded(seed);
    let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
    let session = Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() });
    let election = Election::new(store, session.clone(), ballot.clone(), seed.to_string(), seed);
    Candidate { faults, session, election }
}

fn truth() -> Embedded {
    Embedded::in_memory(Options { seed: Some(7), ..Options::default() })
}

async fn guarded_write(truth: &Embedded, leadership: &Leadership) -> bool {
    let txn = Txn::new().when(leadership.guard()).then(Put::new("/written", "x"));
    truth.commit(txn).await.unwrap().succeeded
}

/// The brokers of one process share its session.
async fn one_of_a_session(ballot: Ballot) {
    let truth = truth();
    let mut one = candidate(&truth, &ballot, 1);
    let store = Store::new(truth.clone());
    let mut two = Election::new(store, one.session.clone(), ballot, "2", 2);
    let first = one.election.campaign().await.unwrap();
    assert!(timeout(Duration::from_secs(60), two.campaign()).await.is_err(), "one leader at a time");
    two.withdraw().await.unwrap();
    assert!(guarded_write(&truth, &first).await, "only its own candidacy is withdrawn");
    first.clone().resign().await.unwrap();
    let second = two.campaign().await.unwrap();
    assert!(second.term() > first.term() && !guarded_write(&truth, &first).await);
}

async fn failover(ballot: Ballot) {
    assert_eq!(CATALOGUE.len(), 2);
    let truth = truth();
    let (mut one, mut two) = (candidate(&truth, &ballot, 1), candidate(&truth, &ballot, 2));
    let first = one.election.campaign().await.unwrap();
    assert!(first.is_valid() && guarded_write(&truth, &first).await);
    assert!(timeout(Duration::from_secs(60), two.election.campaign()).await.is_err(), "one leader at a time");

    one.faults.set_link(Link::Silent);
    let cut_off = Instant::now();
    let second = two.election.campaign().await.unwrap();
    assert!(!first.is_valid(), "the first stopped before the second began");
    assert!(cut_off.elapsed() < Duration::from_secs(13), "failover took {:?}", cut_off.elapsed());
    assert!(second.term() > first.term());
    assert!(!guarded_write(&truth, &first).await, "the past cannot write");
    assert!(guarded_write(&truth, &second).await);

    one.faults.set_link(Link::Up);
    let one_again = one.election.campaign();
    assert!(timeout(Duration::from_secs(60), one_again).await.is_err());
    assert!(second.confirm().await.unwrap() && !first.confirm().await.unwrap());
    second.resign().await.unwrap();
    let third = timeout(Duration::from_secs(1), one.election.campaign()).await.unwrap().unwrap();
    assert!(third.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_candidates_hands_over_when_the_leader_is_cut_off() {
    failover(Ballot::queue(&Candidates {})).await;
}

#[tokio::test(start_paused = true)]
async fn a_seat_is_handed_over_when_its_holder_is_cut_off() {
    failover(Ballot::seat(&LeaderKey {})).await;
}

#[tokio::test(start_paused = true)]
async fn one_candidate_of_a_session_leads() {
    one_of_a_session(Ballot::queue(&Candidates {})).await;
    one_of_a_session(Ballot::seat(&LeaderKey {})).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_elect_twice_and_keys_look_as_etcd_writes_them() {
    let truth = truth();
    let ballot = Ballot::queue(&Candidates {});
    let mut one = candidate(&truth, &ballot, 1);
    let lost = capstan_meta::faults::Rates { lost_answer: 0.5, ..Default::default() };
    one.session.live().await.unwrap();
    one.faults.set_rates(lost);
    let leadership = one.election.campaign().await.unwrap();
    let found = truth.range(capstan_meta::Range::prefix("/election/")).await.unwrap().kvs;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].create_revision, leadership.term());
    assert_eq!(found[0].key_text(), format!("/election/{:x}", found[0].lease.0));
}

#[tokio::test(start_paused = true)]
async fn observers_see_who_leads() {
    let truth = truth();
    let ballot = Ballot::queue(&Candidates {});
    let store = Store::new(truth.clone());
    let mut observer = ballot.observe(store.clone(), ViewOptions::default()).await.unwrap();
    assert_eq!(observer.current(), None);
    let mut one = candidate(&truth, &ballot, 1);
    let leadership = one.election.campaign().await.unwrap();
    let seen = observer.next().await.unwrap();
    assert_eq!((seen.id.as_str(), seen.term), ("1", leadership.term()));
    assert_eq!(ballot.leader(&store).await.unwrap(), Some(seen));
    one.session.close().await.unwrap();
    assert_eq!(observer.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_whose_key_was_deleted_by_hand_stands_again() {
    let truth = truth();
    let ballot = Ballot::queue(&Candidates {});
    let (mut one, mut two) = (candidate(&truth, &ballot, 1), candidate(&truth, &ballot, 2));
    let first = one.election.campaign().await.unwrap();
    assert!(timeout(Duration::from_secs(1), two.election.campaign()).await.is_err());
    truth.delete(capstan_meta::Delete::prefix("/election/")).await.unwrap();
    assert!(!first.confirm().await.unwrap());
    let second = two.election.campaign().await.unwrap();
    assert!(second.term() > first.term() && !guarded_write(&truth, &first).await);
    // tidy: allow, because the clock is paused here
    sleep(Duration::from_secs(1)).await;
    assert!(second.is_valid());
}

#[tokio::test]
async fn a_real_etcd_elects_one_after_the_other() {
    let etcd = capstan_testkit::Etcd::start().await.unwrap();
    for ballot in [Ballot::queue(&Candidates {}), Ballot::seat(&LeaderKey {})] {
        let store = Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
        let mut candidates = Vec::new();
        for seed in 0..3 {
            let session = Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() });
            let id = seed.to_string();
            let election = Election::new(store.clone(), session.clone(), ballot.clone(), id, seed);
            candidates.push((session, election));
        }
        let mut terms = Vec::new();
        for (session, election) in &mut candidates {
            let leadership = election.campaign().await.unwrap();
            assert!(leadership.is_valid() && leadership.confirm().await.unwrap());
            let txn = Txn::new().when(leadership.guard()).then(Put::new("/written", "x"));
            assert!(store.commit(txn.clone()).await.unwrap().succeeded);
            session.close().await.unwrap();
            assert!(!store.commit(txn).await.unwrap().succeeded);
            terms.push(leadership.term());
        }
        assert!(terms.is_sorted());
    }
}
