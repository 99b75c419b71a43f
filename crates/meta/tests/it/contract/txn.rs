//! What a transaction sees and does.

use std::time::Duration;

use capstan_meta::{Compare, Delete, KeyRange, LeaseId, MetaError, Op, OpResult, Put, Range, Txn, TxnResult};

use crate::subjects::{World, error};

/// Puts a transaction into another one.
pub fn nested(mut outer: Txn, inner: Txn) -> Txn {
    outer.success.push(Op::Txn(inner));
    outer
}

/// The keys that the ranges of an answer found, nested ones in brackets.
fn found(result: &TxnResult) -> String {
    let one = |response: &OpResult| match response {
        OpResult::Range(range) => {
            let kvs = range
                .kvs
                .iter()
                .map(|kv| format!("{}={}", kv.key_text(), String::from_utf8_lossy(&kv.value)));
            kvs.collect::<Vec<_>>().join(",")
        }
        OpResult::Put(_) => "put".to_owned(),
        OpResult::Delete(delete) => format!("deleted {}", delete.deleted),
        OpResult::Txn(inner) => format!("[{}]", found(inner)),
    };
    result.responses.iter().map(one).collect::<Vec<_>>().join(" ")
}

pub async fn the_branch_is_chosen_by_all_compares(w: World) {
    w.put("a", "1").await;
    let txn = |second: &'static str| {
        Txn::new()
            .when(Compare::value("a", "1"))
            .when(Compare::absent(second))
            .then(Put::new("then", second))
            .otherwise(Put::new("else", second))
    };
    let held = w.store.commit(txn("b")).await.unwrap();
    assert_eq!((held.succeeded, held.revision, held.responses.len()), (true, w.rev(2), 1));
    let failed = w.store.commit(txn("a")).await.unwrap();
    assert_eq!((failed.succeeded, failed.revision, failed.responses.len()), (false, w.rev(3), 1));
    assert_eq!(w.keys(Range::prefix("")).await, ["a", "else", "then"]);
}

pub async fn compares_see_the_state_before(w: World) {
    let txn = Txn::new().when(Compare::absent("a")).then(Put::new("a", "1"));
    assert!(w.store.commit(txn.clone()).await.unwrap().succeeded);
    assert!(!w.store.commit(txn).await.unwrap().succeeded);
}

pub async fn nested_compares_see_the_state_before_too(w: World) {
    let inner = Txn::new()
        .when(Compare::absent("a"))
        .then(Put::new("saw", "nothing"))
        .otherwise(Put::new("saw", "the put"));
    w.store.commit(nested(Txn::new().then(Put::new("a", "1")), inner)).await.unwrap();
    assert_eq!(w.store.get("saw").await.unwrap().unwrap().value, "nothing");
}

pub async fn later_operations_see_earlier_ones(w: World) {
    w.put("old", "0").await;
    let txn = Txn::new()
        .then(Range::prefix(""))
        .then(Put::new("new", "1"))
        .then(Range::prefix(""))
        .then(Delete::one("old"))
        .then(Range::prefix(""));
    let txn = nested(txn, Txn::new().then(Range::prefix("")).then(Delete::one("old")));
    let done = w.store.commit(txn).await.unwrap();
    assert_eq!(found(&done), "old=0 put new=1,old=0 deleted 1 new=1 [new=1 deleted 0]");
}

pub async fn an_error_in_the_chosen_branch_undoes_everything(w: World) {
    w.put("a", "1").await;
    let broken: [(Op, MetaError); 4] = [
        (Put::new("b", "1").lease(LeaseId(987_654_321)).into(), MetaError::LeaseNotFound),
        (Put { ignore_value: true, ..Put::new("b", "") }.into(), MetaError::KeyNotFound),
        (Put { ignore_lease: true, ..Put::new("b", "1") }.into(), MetaError::KeyNotFound),
        (Range::one("a").at(w.rev(100)).into(), MetaError::FutureRevision),
    ];
    for (op, expected) in broken {
        let txn = Txn::new().then(Put::new("a", "2")).then(op.clone());
        assert_eq!(error(w.store.commit(txn).await), expected);
        let inside = nested(Txn::new().then(Put::new("a", "2")), Txn::new().then(op));
        assert_eq!(error(w.store.commit(inside).await), expected);
    }
    assert_eq!((w.now().await, &w.store.get("a").await.unwrap().unwrap().value[..]), (w.rev(1), &b"1"[..]));
}

pub async fn the_other_branch_is_not_executed_or_blamed(w: World) {
    let txn = Txn::new()
        .then(Put::new("a", "1"))
        .otherwise(Put::new("b", "1").lease(LeaseId(987_654_321)))
        .otherwise(Put { ignore_value: true, ..Put::new("c", "") })
        .otherwise(Range::one("a").at(w.rev(100)));
    let done = w.store.commit(txn).await.unwrap();
    assert_eq!((done.succeeded, done.responses.len()), (true, 1));
    assert_eq!(w.keys(Range::prefix("")).await, ["a"]);
}

pub async fn nested_answers_have_the_shape_of_the_request(w: World) {
    let deepest =
        Txn::new().when(Compare::present("a")).otherwise(Range::one("a")).otherwise(Put::new("c", "1"));
    let middle = nested(Txn::new().then(Put::new("b", "1")), deepest);
    let done = w.store.commit(nested(Txn::new().then(Put::new("a", "1")), middle)).await.unwrap();
    assert_eq!(found(&done), "put [put [a=1 put]]");
    let OpResult::Txn(middle) = &done.responses[1] else { panic!("{done:?}") };
    let OpResult::Txn(deepest) = &middle.responses[1] else { panic!("{done:?}") };
    assert!(done.succeeded && middle.succeeded && !deepest.succeeded);
}

pub async fn an_empty_transaction_succeeds(w: World) {
    let done = w.store.commit(Txn::new()).await.unwrap();
    assert_eq!((done.succeeded, done.responses.len(), done.revision), (true, 0, w.base));
    let failed = w.store.commit(Txn::new().when(Compare::present("a"))).await.unwrap();
    assert_eq!((failed.succeeded, failed.responses.len()), (false, 0));
}

pub async fn deletes_inside_show_what_they_deleted(w: World) {
    let lease = w.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
    w.store.put(Put::new("a", "1").lease(lease)).await.unwrap();
    let delete = Delete { keys: KeyRange::span("a", "z"), prev_kv: true };
    let txn = Txn::new().then(delete.clone()).then(delete).then(Put { prev_kv: true, ..Put::new("z", "1") });
    let done = w.store.commit(txn).await.unwrap();
    let [OpResult::Delete(first), OpResult::Delete(second), OpResult::Put(put)] = &done.responses[..] else {
        panic!("{done:?}")
    };
    assert_eq!((first.deleted, first.prev_kvs[0].lease), (1, lease));
    assert_eq!((second.deleted, second.prev_kvs.len()), (0, 0));
    assert_eq!(put.prev, None);
}
