//! Does a change under guards happen exactly once, whatever others and the network do?

// tidy: the clock is paused in this file

use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::faults::{Faults, Faulty, Rates};
use capstan_meta::record::{Key, RecordError};
use capstan_meta::settle::{Contended, Next, settle};
use capstan_meta::{MetaError, Store, Txn, keys};
use futures_util::future::join_all;

keys! {
    /// Keys of this test.
    const CATALOGUE;

    /// Who has counted, in order.
    pub struct TallyKey {} at "/tally" => String {
        writer: "the test",
        lifetime: Durable,
    }
}

#[derive(Debug)]
struct Failed;

impl From<MetaError> for Failed {
    fn from(_: MetaError) -> Failed {
        Failed
    }
}

impl From<RecordError> for Failed {
    fn from(_: RecordError) -> Failed {
        Failed
    }
}

impl From<Contended> for Failed {
    fn from(_: Contended) -> Failed {
        Failed
    }
}

/// Adds a name to the tally unless it is there already.
async fn count(store: &Store, name: &str) -> Result<(), Failed> {
    settle(
        store,
        name,
        || async { Ok(store.read(&TallyKey {}).await?) },
        |seen, _| {
            let tally = seen.as_ref().map(|seen| seen.record.clone()).unwrap_or_default();
            if tally.split(' ').any(|other| other == name) {
                return Ok(Next::Done(()));
            }
            let next = format!("{tally} {name}");
            let key = TallyKey {};
            Ok(Next::Commit(Txn::new().when(key.as_seen(seen.as_ref())).then(key.put(&next))))
        },
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn every_change_happens_once_under_conflicts_and_unknown_outcomes() {
    for seed in 0..50 {
        let truth = Embedded::in_memory(Options { seed: Some(seed), ..Options::default() });
        let names: Vec<String> = (0..6).map(|n| format!("n{n}")).collect();
        let stores = names.iter().enumerate().map(|(n, _)| {
            let faults = Faults::seeded(seed * 100 + n as u64);
            let rates = Rates { lost_answer: 0.3, ..Rates::default() };
            faults.set_rates(rates);
            Store::new(Faulty::new(truth.clone(), faults))
        });
        let stores: Vec<Store> = stores.collect();
        let results =
            join_all(names.iter().zip(&stores).map(async |(name, store)| count(store, name).await)).await;
        let tally = Store::new(truth).read(&TallyKey {}).await.unwrap().unwrap().record;
        for (name, result) in names.iter().zip(results) {
            let times = tally.split(' ').filter(|other| other == name).count();
            assert!(times <= 1, "seed {seed}: {name} counted {times} times: {tally}");
            // A lost answer of a read is an error of the whole operation; of a commit it is not.
            assert!(times == 1 || result.is_err(), "seed {seed}: {name} is missing from {tally}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_last_transaction_is_not_repeated_on_what_others_make_afterwards() {
    let store = Store::new(Embedded::in_memory(Options::default()));
    let key = TallyKey {};
    store.commit(Txn::new().then(key.put(&"old".to_owned()))).await.unwrap();
    let mut reads = 0;
    let read = || {
        reads += 1;
        let (store, first) = (store.clone(), reads == 1);
        async move {
            if !first {
                store.commit(Txn::new().then(TallyKey {}.put(&"made again".to_owned()))).await?;
            }
            Ok::<_, Failed>(store.read(&TallyKey {}).await?)
        }
    };
    settle(&store, "tally", read, |seen, _| match seen {
        None => Ok(Next::Done(())),
        Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
    })
    .await
    .unwrap();
    assert_eq!(reads, 1, "a committed deletion looked again");
}
