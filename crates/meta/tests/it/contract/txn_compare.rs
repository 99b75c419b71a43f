//! When a compare holds.

use std::time::Duration;

use bytes::Bytes;
use capstan_meta::{Compare, CompareTarget, Delete, KeyRange, LeaseId, Put, Relation, Revision, Txn};

use crate::subjects::World;

const RELATIONS: [Relation; 4] = [Relation::Equal, Relation::Greater, Relation::Less, Relation::NotEqual];

async fn holds(w: &World, keys: KeyRange, target: CompareTarget, relation: Relation) -> bool {
    w.store.commit(Txn::new().when(Compare { keys, target, relation })).await.unwrap().succeeded
}

/// Which of the four relations hold, in their order.
async fn table(w: &World, keys: KeyRange, target: CompareTarget) -> String {
    let mut held = String::new();
    for (relation, sign) in RELATIONS.into_iter().zip(["=", ">", "<", "!"]) {
        if holds(w, keys.clone(), target.clone(), relation).await {
            held.push_str(sign);
        }
    }
    held
}

pub async fn every_relation_of_every_target_on_a_present_key(w: World) {
    let lease = w.store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
    w.put("a", "0").await;
    w.store.put(Put::new("a", "5").lease(lease)).await.unwrap();
    let value = |text: &'static str| CompareTarget::Value(Bytes::from_static(text.as_bytes()));
    // The same, one less, one more: the stored side stands left of the sign.
    let cases = [
        [CompareTarget::Version(2), CompareTarget::Version(1), CompareTarget::Version(3)],
        [0, -1, 1].map(|d| CompareTarget::CreateRevision(w.rev(1 + d))),
        [0, -1, 1].map(|d| CompareTarget::ModRevision(w.rev(2 + d))),
        [0, -1, 1].map(|d| CompareTarget::Lease(LeaseId(lease.0 + d))),
        [value("5"), value("4"), value("6")],
        [value("5"), value(""), value("50")],
    ];
    for [same, less, more] in cases {
        assert_eq!(table(&w, KeyRange::one("a"), same.clone()).await, "=", "{same:?}");
        assert_eq!(table(&w, KeyRange::one("a"), less.clone()).await, ">!", "{less:?}");
        assert_eq!(table(&w, KeyRange::one("a"), more.clone()).await, "<!", "{more:?}");
    }
}

pub async fn a_missing_key_counts_as_zero(w: World) {
    w.put("a", "1").await;
    w.store.delete(Delete::one("a")).await.unwrap();
    for key in ["a", "never"] {
        for (n, expected) in [(0, "="), (1, "<!"), (-1, ">!")] {
            for target in [
                CompareTarget::Version(n),
                CompareTarget::CreateRevision(Revision(n)),
                CompareTarget::ModRevision(Revision(n)),
                CompareTarget::Lease(LeaseId(n)),
            ] {
                assert_eq!(table(&w, KeyRange::one(key), target.clone()).await, expected, "{key} {target:?}");
            }
        }
    }
}

pub async fn a_value_compare_on_a_missing_key_never_holds(w: World) {
    for value in ["", "1"] {
        assert_eq!(table(&w, KeyRange::one("a"), CompareTarget::Value(value.into())).await, "");
    }
}

pub async fn a_range_must_hold_for_every_key(w: World) {
    w.put_all(&["a1", "a2", "b1"]).await;
    let all = KeyRange::prefix("a");
    assert!(holds(&w, all.clone(), CompareTarget::ModRevision(w.rev(3)), Relation::Less).await);
    assert!(!holds(&w, all.clone(), CompareTarget::ModRevision(w.rev(2)), Relation::Less).await);
    assert!(holds(&w, all.clone(), CompareTarget::Version(1), Relation::Equal).await);
    w.put("a2", "x").await;
    assert!(!holds(&w, all.clone(), CompareTarget::Version(1), Relation::Equal).await);
    assert!(holds(&w, all, CompareTarget::Value("zzz".into()), Relation::NotEqual).await);
}

pub async fn an_empty_range_is_like_a_missing_key(w: World) {
    w.put("b", "1").await;
    for keys in [KeyRange::prefix("a"), KeyRange::span("z", "y")] {
        assert_eq!(table(&w, keys.clone(), CompareTarget::CreateRevision(Revision::ZERO)).await, "=");
        assert_eq!(table(&w, keys.clone(), CompareTarget::Version(1)).await, "<!");
        assert_eq!(table(&w, keys, CompareTarget::Value("".into())).await, "");
    }
}

pub async fn a_range_compare_may_be_open_ended(w: World) {
    w.put_all(&["a", "b", "c"]).await;
    let after = CompareTarget::CreateRevision(w.rev(1));
    assert!(holds(&w, KeyRange::from_key("b"), after.clone(), Relation::Greater).await);
    assert!(!holds(&w, KeyRange::from_key("a"), after.clone(), Relation::Greater).await);
    assert!(!holds(&w, KeyRange::all(), after, Relation::Greater).await);
}
