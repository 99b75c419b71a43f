use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;

fn gate(workers: usize) -> Arc<Gate> {
    Gate::new(SlotRange::new(0, 100).unwrap(), "127.0.0.1:7001".parse().unwrap(), workers)
}

fn pass(gate: &Arc<Gate>) -> Ticket {
    match gate.admit() {
        Admission::Pass(ticket) => ticket,
        other => panic!("not admitted: {other:?}"),
    }
}

fn keys(keys: &[&'static str]) -> Dirty {
    Dirty::Keys(keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect())
}

#[test]
fn phases_follow_the_table() {
    use Phase::{Gone, Holding, Open, Recording, Released};
    let allowed = [
        (Recording, vec![Holding, Open, Gone]),
        (Holding, vec![Recording, Released, Open, Gone]),
        (Released, vec![Open, Gone]),
        (Open, vec![]),
        (Gone, vec![]),
    ];
    for (from, nexts) in allowed {
        for to in Phase::ALL {
            assert_eq!(from.may_become(to), nexts.contains(&to), "{from:?} to {to:?}");
            assert_eq!(unpack(pack(from, 7)), (from, 7));
        }
    }
}

#[test]
fn admission_follows_the_phase() {
    let gate = gate(0);
    pass(&gate).read();
    assert!(gate.become_phase(Phase::Holding));
    assert!(matches!(gate.admit(), Admission::Hold));
    assert!(gate.become_phase(Phase::Recording), "a hold that took too long ends");
    pass(&gate).read();
    assert!(gate.become_phase(Phase::Holding) && gate.become_phase(Phase::Released));
    assert!(matches!(gate.admit(), Admission::Released));
    assert!(!gate.become_phase(Phase::Recording), "it never goes back on its own");
    assert!(gate.become_phase(Phase::Gone));
    assert!(matches!(gate.admit(), Admission::Gone));
    assert!(!gate.become_phase(Phase::Open));
    let cancelled = self::gate(0);
    assert!(cancelled.become_phase(Phase::Open));
    assert!(matches!(cancelled.admit(), Admission::Open));
}

#[test]
fn keys_are_dirty_when_the_reply_is_in() {
    let gate = gate(0);
    let (write, read) = (pass(&gate), pass(&gate));
    assert_eq!(gate.take_dirty(), keys(&[]), "nothing is marked at sending");
    write.wrote(["a", "b", "a"]);
    read.read();
    assert_eq!((gate.dirty_keys(), gate.under_way()), (2, 0));
    assert_eq!(gate.take_dirty(), keys(&["a", "b"]));
    assert_eq!(gate.take_dirty(), keys(&[]));
}

#[test]
fn a_ticket_that_says_nothing_may_have_written_anything() {
    let gate = gate(0);
    drop(pass(&gate));
    assert_eq!((gate.under_way(), gate.dirty_keys()), (0, usize::MAX));
    pass(&gate).wrote(["a"]);
    assert_eq!(gate.take_dirty(), Dirty::Everything);
    pass(&gate).wrote_anything();
    assert_eq!(gate.take_dirty(), Dirty::Everything);
    assert_eq!(gate.take_dirty(), keys(&[]));
}

#[test]
fn memory_for_written_keys_is_bounded() {
    let gate = gate(0);
    let large = vec![b'x'; MAX_DIRTY_BYTES / 2];
    pass(&gate).wrote([&large, &large]);
    assert_eq!(gate.dirty_keys(), 1, "one key counts once");
    pass(&gate).wrote([&large[1..], &large[2..]]);
    assert_eq!(gate.take_dirty(), Dirty::Everything);
}

#[tokio::test]
async fn the_copy_waits_for_every_worker() {
    let gate = gate(2);
    let joined = gate.joined();
    tokio::pin!(joined);
    gate.join();
    assert!(tokio::time::timeout(Duration::from_millis(5), &mut joined).await.is_err());
    gate.join();
    joined.await;
}

#[tokio::test]
async fn the_last_ticket_ends_the_drain() {
    let gate = gate(0);
    let (first, last) = (pass(&gate), pass(&gate));
    gate.become_phase(Phase::Holding);
    let drained = gate.drained();
    tokio::pin!(drained);
    first.read();
    assert!(tokio::time::timeout(Duration::from_millis(5), &mut drained).await.is_err());
    last.wrote(["late"]);
    drained.await;
    assert_eq!(gate.take_dirty(), keys(&["late"]), "the last write is recorded when the drain ends");
}

/// Threads write numbers to a shared table under the gate while a mover copies what is dirty, again and
/// again. When the gate has released, copy and original must be equal, and no thread may have written since.
#[test]
fn no_write_is_lost_under_threads() {
    const WRITERS: usize = 4;
    const SLOTS: usize = 64;
    const HOLDS: usize = 200;
    let gate = gate(WRITERS);
    let table: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
    let released = AtomicBool::new(false);
    let mut copy = vec![0; SLOTS];
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (gate, table, released) = (&gate, &table, &released);
            scope.spawn(move || write_until_released(writer, gate, table, released));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            gate.joined().await;
            for hold in 0..HOLDS {
                copy_dirty(&gate, &table, &mut copy);
                assert!(gate.become_phase(Phase::Holding));
                gate.drained().await;
                copy_dirty(&gate, &table, &mut copy);
                for (slot, copied) in copy.iter().enumerate() {
                    assert_eq!(*copied, table[slot].load(Ordering::SeqCst), "slot {slot} in hold {hold}");
                }
                if hold + 1 < HOLDS {
                    gate.become_phase(Phase::Recording);
                    std::thread::yield_now();
                }
            }
            released.store(true, Ordering::SeqCst);
            gate.become_phase(Phase::Released);
            gate.become_phase(Phase::Gone);
        });
    });
    assert_eq!(gate.under_way(), 0);
}

fn write_until_released(writer: usize, gate: &Arc<Gate>, table: &[AtomicU64], released: &AtomicBool) {
    gate.join();
    for turn in 0_usize.. {
        match gate.admit() {
            Admission::Pass(ticket) => {
                assert!(!released.load(Ordering::SeqCst), "a command passed after the release");
                let slot = (turn * 7 + writer * 13) % table.len();
                table[slot].fetch_add(1, Ordering::SeqCst);
                ticket.wrote([slot.to_string()]);
            }
            Admission::Hold | Admission::Released => std::thread::yield_now(),
            Admission::Gone => return,
            Admission::Open => panic!("not cancelled"),
        }
    }
}

fn copy_dirty(gate: &Gate, table: &[AtomicU64], copy: &mut [u64]) {
    let Dirty::Keys(keys) = gate.take_dirty() else { panic!("every ticket reported its keys") };
    for key in keys {
        let slot: usize = std::str::from_utf8(&key).unwrap().parse().unwrap();
        copy[slot] = table[slot].load(Ordering::SeqCst);
    }
}
