//! A crash at every durable step of a move, at the receiver, at the master and where the token leaves, with every number
//! of unsynced batches lost.

use std::collections::BTreeSet;
use std::io::{self, Cursor, Read as _};
use std::sync::Arc;

use bytes::Bytes;
use capstan_log::{LogName, Offset, StateMachine as _};

use super::engine::CrashEngine;
use crate::data::copy::Data;
use crate::data::entry;
use crate::data::machine::{Machine, put_pair, read_pair};
use crate::data::pace::Pace;
use crate::data::tokens::Tokens;
use crate::id::Token;
use crate::metrics::DocsMetrics;
use crate::storage::{Change, Engine};

/// Entries of the log before and after the copy.
const COPIED: u64 = 40;
const ALL: u64 = 60;

fn token() -> Token {
    "7".parse().unwrap()
}

fn log() -> LogName {
    token().log().unwrap()
}

fn open(engine: &Arc<CrashEngine>) -> Arc<Data> {
    let engine = Arc::clone(engine) as Arc<dyn Engine>;
    Arc::new(Data::open(token(), engine, DocsMetrics::default()).unwrap())
}

/// Puts, changes and deletes documents: every third entry deletes what an earlier one has put.
fn entries(from: u64, until: u64) -> Vec<(u64, Bytes)> {
    let key = |at: u64| Bytes::from(format!("k{:02}", at % 20));
    let change = |at: u64| match at % 3 {
        2 => Change::Delete(key(at.saturating_sub(5))),
        _ => Change::Put(key(at), Bytes::from(format!("value {at}"))),
    };
    (from..until).map(|at| (at, entry::encode(&[change(at)]))).collect()
}

type Pairs = Vec<(Bytes, Bytes)>;

fn pairs(data: &Data) -> Pairs {
    data.view().range(&[], &[u8::MAX]).map(|pair| pair.unwrap()).collect()
}

/// What a copy has after so many entries.
fn state_at(next: u64) -> Pairs {
    let data = open(&Arc::default());
    data.apply(0, &entries(0, next), next).unwrap();
    pairs(&data)
}

fn follow(data: &Data, until: u64) -> Result<(), crate::DocsError> {
    let next = data.applied().next;
    data.apply(next, &entries(next, until), until)
}

fn tidy(engine: &Arc<CrashEngine>, left: &BTreeSet<Token>) -> Result<(), crate::DocsError> {
    Tokens::new(
        Arc::clone(engine) as Arc<dyn Engine>,
        None,
        Arc::new(Pace::new(None)),
        DocsMetrics::default(),
    )
    .tidy(1, left)
}

/// Lets `act` be cut off at each of its steps, and checks what every crash then leaves. Returns the number of steps.
fn at_every_step(
    begin: impl Fn() -> Arc<CrashEngine>,
    mut act: impl FnMut(&Arc<CrashEngine>) -> bool,
    mut check: impl FnMut(&Arc<CrashEngine>),
) -> usize {
    let mut steps = 0;
    loop {
        let engine = begin();
        engine.cut_after(steps);
        let ended = act(&engine);
        assert!(ended || engine.is_off(), "only a power cut keeps it from ending");
        (0..=engine.unsynced()).for_each(|kept| check(&engine.after_crash(kept)));
        if ended {
            return steps;
        }
        steps += 1;
    }
}

/// A source with everything before an offset, and its snapshot in batches of a few pairs.
fn batches(at: u64) -> Vec<Vec<u8>> {
    let source = open(&Arc::default());
    source.apply(0, &entries(0, at), at).unwrap();
    let mut snapshot = Machine::direct(source).snapshot(&log(), Offset(0)).unwrap();
    let mut bytes = Vec::new();
    snapshot.content.read_to_end(&mut bytes).unwrap();
    let (mut rest, mut batches) = (&bytes[..], Vec::new());
    while let Some((key, value)) = read_pair(&mut rest).unwrap() {
        let mut batch = Vec::new();
        put_pair(&mut batch, &key, &value);
        batches.push(batch);
    }
    batches
}

/// Receives every batch and makes each durable, as over a queue.
fn receive(engine: &Arc<CrashEngine>, at: u64) -> io::Result<()> {
    let data = open(engine);
    Machine::direct(Arc::clone(&data)).install_pairs(Offset(at), |write| {
        for batch in batches(at) {
            write(&mut Cursor::new(batch))?;
            data.engine.sync().map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(())
    })
}

#[test]
fn the_receiver_has_its_old_state_or_the_whole_copy_and_goes_on() {
    for had in [0, 11] {
        let begin = || {
            let engine = Arc::new(CrashEngine::default());
            follow(&open(&engine), had).unwrap();
            engine
        };
        let steps = at_every_step(
            begin,
            |engine| receive(engine, COPIED).is_ok(),
            |left| {
                let next = open(left).applied().next;
                // What was not synced before the copy began may be lost with it.
                assert!(next <= had || next == COPIED, "{next}");
                assert_eq!(pairs(&open(left)), state_at(next));
                // Another master serves the copy that begins anew, at a later offset.
                receive(left, COPIED + 5).unwrap();
                let data = open(left);
                follow(&data, ALL).unwrap();
                assert_eq!(pairs(&data), state_at(ALL));
                tidy(left, &BTreeSet::new()).unwrap();
                assert_eq!(
                    left.snapshot().range(b"g", b"h").count(),
                    state_at(ALL).len(),
                    "nothing is left over"
                );
            },
        );
        assert!(steps > batches(COPIED).len(), "{steps} steps");
        eprintln!("{steps} steps of a receiver that had {had} entries");
    }
}

#[test]
fn the_master_never_lacks_what_its_log_has_dropped() {
    let start = std::cell::Cell::new(0);
    let act = |engine: &Arc<CrashEngine>| {
        start.set(0);
        let data = open(engine);
        (1..=6).all(|part| {
            let done = follow(&data, part * 10).and_then(|()| data.save());
            done.map(|saved| start.set(saved.0)).is_ok()
        })
    };
    let steps = at_every_step(Arc::<CrashEngine>::default, act, |left| {
        let data = open(left);
        let next = data.applied().next;
        assert!(next >= start.get(), "{next} entries are applied, and {} were dropped", start.get());
        assert_eq!(pairs(&data), state_at(next));
        // It can still give a copy to another node.
        assert!(Machine::direct(data).snapshot(&log(), Offset(start.get())).is_ok());
    });
    assert!(steps > 6, "{steps} steps");
}

#[test]
fn a_copy_that_leaves_counts_or_is_gone_and_may_come_back() {
    let left = BTreeSet::from([token()]);
    let begin = || {
        let engine = Arc::new(CrashEngine::default());
        follow(&open(&engine), COPIED).unwrap();
        // An earlier copy was cut off and has left something behind.
        let machine = Machine::direct(open(&engine));
        let cut = machine.install_pairs(Offset(COPIED), |write| {
            write(&mut Cursor::new(batches(COPIED).concat()))?;
            Err(io::Error::other("cut off"))
        });
        assert!(cut.is_err());
        engine.sync().unwrap();
        engine
    };
    let steps = at_every_step(
        begin,
        |engine| tidy(engine, &left).is_ok(),
        |after| {
            let next = open(after).applied().next;
            assert!(next == COPIED || next == 0, "{next}");
            assert_eq!(pairs(&open(after)), state_at(next));
            // It comes back before anything is tidied up: from its log, or with a copy.
            let back = after.after_crash(0);
            follow(&open(&back), ALL).unwrap();
            assert_eq!(pairs(&open(&back)), state_at(ALL));
            receive(&back, ALL).unwrap();
            assert_eq!(pairs(&open(&back)), state_at(ALL));
            // Or it stays away: nothing is left of it.
            tidy(after, &left).unwrap();
            assert_eq!(after.snapshot().range(b"g", b"h").count(), 0);
        },
    );
    assert!(steps >= 3, "{steps} steps");
}
