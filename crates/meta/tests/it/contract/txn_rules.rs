//! Which transactions are refused before anything happens.

use capstan_meta::{Compare, Delete, KeyRange, LeaseId, MetaError, Op, Put, Range, Txn};

use super::txn::nested;
use crate::subjects::{World, error};

fn put(key: &'static str) -> Put {
    Put::new(key, "1")
}

async fn refused(w: &World, txn: Txn) {
    assert_eq!(error(w.store.commit(txn.clone()).await), MetaError::DuplicateKey, "{txn:?}");
}

async fn fine(w: &World, txn: Txn) {
    w.store.commit(txn).await.unwrap();
}

pub async fn one_key_is_written_once_per_branch(w: World) {
    refused(&w, Txn::new().then(put("a")).then(put("a"))).await;
    refused(&w, Txn::new().otherwise(put("a")).otherwise(put("a"))).await;
    fine(&w, Txn::new().then(put("a")).then(Range::one("a"))).await;
}

pub async fn branches_may_write_the_same_key(w: World) {
    fine(&w, Txn::new().then(put("a")).otherwise(put("a"))).await;
    let inner = Txn::new().then(put("b")).otherwise(put("b"));
    fine(&w, nested(Txn::new().then(put("a")), inner)).await;
}

pub async fn nested_writes_count_with_their_parents_and_siblings(w: World) {
    let inner = || Txn::new().then(put("a"));
    refused(&w, nested(Txn::new().then(put("a")), inner())).await;
    refused(&w, nested(nested(Txn::new(), inner()), inner())).await;
    refused(&w, nested(nested(Txn::new(), inner()), Txn::new().otherwise(put("a")))).await;
    refused(&w, nested(Txn::new().then(put("a")), nested(Txn::new(), inner()))).await;
    refused(&w, nested(Txn::new().then(Delete::prefix("")), inner())).await;
    fine(&w, nested(Txn::new().then(put("b")), inner())).await;
}

pub async fn a_put_under_a_deletion_is_a_duplicate(w: World) {
    refused(&w, Txn::new().then(put("ab")).then(Delete::prefix("a"))).await;
    refused(&w, Txn::new().then(Delete::prefix("a")).then(put("ab"))).await;
    refused(&w, Txn::new().then(Delete::one("a")).then(put("a"))).await;
    refused(&w, Txn::new().then(Delete { keys: KeyRange::all(), prev_kv: false }).then(put("a"))).await;
    let from = Delete { keys: KeyRange::from_key("b"), prev_kv: false };
    refused(&w, Txn::new().then(from.clone()).then(put("c"))).await;
    fine(&w, Txn::new().then(from).then(put("a"))).await;
    fine(&w, Txn::new().then(Delete { keys: KeyRange::span("a", "b"), prev_kv: false }).then(put("b"))).await;
    fine(&w, Txn::new().then(Delete::prefix("a")).otherwise(put("a"))).await;
}

pub async fn overlapping_deletions_are_fine(w: World) {
    w.put_all(&["a", "ab"]).await;
    fine(&w, Txn::new().then(Delete::prefix("a")).then(Delete::one("a")).then(Delete::prefix(""))).await;
    assert_eq!(w.now().await, w.rev(3));
}

fn ranges(count: usize) -> Vec<Op> {
    vec![Op::Range(Range::one("a")); count]
}

fn compares(count: usize) -> Vec<Compare> {
    vec![Compare::absent("a"); count]
}

pub async fn each_list_takes_128(w: World) {
    fine(&w, Txn { compares: compares(128), success: ranges(128), failure: ranges(128) }).await;
    for txn in [
        Txn { compares: compares(129), ..Txn::new() },
        Txn { success: ranges(129), ..Txn::new() },
        Txn { failure: ranges(129), ..Txn::new() },
    ] {
        assert_eq!(error(w.store.commit(txn).await), MetaError::TooManyOps);
    }
}

pub async fn nesting_shares_the_limit(w: World) {
    let outer = |inner: usize| {
        let mut success = ranges(99);
        success.push(Op::Txn(Txn { success: ranges(inner), ..Txn::new() }));
        Txn { success, ..Txn::new() }
    };
    fine(&w, outer(28)).await;
    assert_eq!(error(w.store.commit(outer(29)).await), MetaError::TooManyOps);
}

pub async fn no_key_is_refused_anywhere(w: World) {
    let empty: [Txn; 6] = [
        Txn::new().when(Compare::absent("")),
        Txn::new().then(Put::new("", "1")),
        Txn::new().otherwise(Put::new("", "1")),
        Txn::new().then(Range::one("")),
        Txn::new().otherwise(Delete::one("")),
        nested(Txn::new(), Txn::new().otherwise(Put::new("", "1"))),
    ];
    for txn in empty {
        assert_eq!(error(w.store.commit(txn).await), MetaError::EmptyKey);
    }
}

pub async fn contradictory_puts_are_refused_in_either_branch(w: World) {
    let value = Put { ignore_value: true, ..Put::new("a", "1") };
    let lease = Put { ignore_lease: true, ..Put::new("a", "1").lease(LeaseId(7)) };
    assert_eq!(error(w.store.commit(Txn::new().then(value.clone())).await), MetaError::ValueProvided);
    assert_eq!(error(w.store.commit(Txn::new().otherwise(value)).await), MetaError::ValueProvided);
    assert_eq!(error(w.store.commit(Txn::new().then(lease.clone())).await), MetaError::LeaseProvided);
    assert_eq!(error(w.store.commit(Txn::new().otherwise(lease)).await), MetaError::LeaseProvided);
}

pub async fn a_large_transaction_is_too_large(w: World) {
    let half = || vec![0_u8; 900 << 10];
    let txn = Txn::new().then(Put::new("a", half())).then(Put::new("b", half()));
    assert_eq!(error(w.store.commit(txn).await), MetaError::TooLarge);
    let other = Txn::new().then(Put::new("a", half())).otherwise(Put::new("b", half()));
    assert_eq!(error(w.store.commit(other).await), MetaError::TooLarge, "what is not executed counts too");
}
