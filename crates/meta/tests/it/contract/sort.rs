//! In which order a read answers. Ties have no order, so that there are none here.

use capstan_meta::{Range, SortOrder, SortTarget};

use crate::subjects::World;

/// Four keys whose orders by key, creation and value differ, and no two of which are alike in anything.
async fn four(w: &World) {
    for (key, value) in [("c", "2"), ("a", "1"), ("d", "x"), ("b", "x"), ("d", "x"), ("c", "x"), ("d", "4")] {
        w.put(key, value).await;
    }
    for value in ["x", "x", "3"] {
        w.put("b", value).await;
    }
    for value in ["9", "9", "9", "1"] {
        w.put("a", value).await;
    }
}

async fn order(w: &World, by: SortTarget, order: SortOrder) -> String {
    w.keys(Range::prefix("").sorted(by, order)).await.join("")
}

pub async fn unsorted_is_by_key(w: World) {
    four(&w).await;
    assert_eq!(order(&w, SortTarget::Key, SortOrder::None).await, "abcd");
}

pub async fn a_target_without_order_is_ascending(w: World) {
    four(&w).await;
    for target in
        [SortTarget::Version, SortTarget::CreateRevision, SortTarget::ModRevision, SortTarget::Value]
    {
        let ascending = order(&w, target, SortOrder::Ascend).await;
        assert_eq!(order(&w, target, SortOrder::None).await, ascending, "{target:?}");
    }
}

pub async fn every_target_both_ways(w: World) {
    four(&w).await;
    let cases = [
        (SortTarget::Key, "abcd"),
        (SortTarget::Version, "cdba"),
        (SortTarget::CreateRevision, "cadb"),
        (SortTarget::ModRevision, "cdba"),
        (SortTarget::Value, "abdc"),
    ];
    for (target, expected) in cases {
        assert_eq!(order(&w, target, SortOrder::Ascend).await, expected, "{target:?}");
        let backwards: String = expected.chars().rev().collect();
        assert_eq!(order(&w, target, SortOrder::Descend).await, backwards, "{target:?}");
    }
}

pub async fn order_comes_before_limit(w: World) {
    four(&w).await;
    let newest = Range::prefix("").sorted(SortTarget::ModRevision, SortOrder::Descend).limit(1);
    let found = w.store.range(newest).await.unwrap();
    assert_eq!((found.kvs[0].key_text().into_owned(), found.more, found.count), ("a".to_owned(), true, 4));
}
