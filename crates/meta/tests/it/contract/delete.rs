//! What a deletion does.

use capstan_meta::{Delete, KeyRange, MetaError, Op, Put, Range, Txn};

use crate::subjects::{World, error, shown};

pub async fn the_deleted_are_counted_and_shown_on_request(w: World) {
    w.put_all(&["b", "a", "c"]).await;
    let silent = w.store.delete(Delete::one("c")).await.unwrap();
    assert_eq!((silent.deleted, silent.prev_kvs.len(), silent.revision), (1, 0, w.rev(4)));
    let told = w.store.delete(Delete { keys: KeyRange::all(), prev_kv: true }).await.unwrap();
    let keys: Vec<_> = told.prev_kvs.iter().map(|kv| kv.key_text().into_owned()).collect();
    assert_eq!((told.deleted, keys.join(" ").as_str()), (2, "a b"));
    assert_eq!((told.prev_kvs[0].mod_revision, &told.prev_kvs[0].value[..]), (w.rev(2), &b"a"[..]));
}

pub async fn every_form_of_range_is_deleted(w: World) {
    let cases = [
        (KeyRange::one("b"), "a ba bb c"),
        (KeyRange::prefix("b"), "a c"),
        (KeyRange::span("a", "bb"), "bb c"),
        (KeyRange::from_key("ba"), "a b"),
        (KeyRange::span("c", "a"), "a b ba bb c"),
        (KeyRange::all(), ""),
    ];
    for (keys, left) in cases {
        w.put_all(&["a", "b", "ba", "bb", "c"]).await;
        let deleted = w.store.delete(Delete { keys: keys.clone(), prev_kv: false }).await.unwrap().deleted;
        let found = w.keys(Range::of(KeyRange::all())).await;
        assert_eq!((found.join(" ").as_str(), deleted + found.len()), (left, 5), "{keys:?}");
    }
}

pub async fn deleting_nothing_is_no_error(w: World) {
    w.put("a", "1").await;
    let nothing = w.store.delete(Delete { keys: KeyRange::prefix("b"), prev_kv: true }).await.unwrap();
    assert_eq!((nothing.deleted, nothing.prev_kvs.len(), nothing.revision), (0, 0, w.rev(1)));
}

pub async fn no_key_is_refused(w: World) {
    assert_eq!(error(w.store.delete(Delete::one("")).await), MetaError::EmptyKey);
    w.put("a", "1").await;
    let all = Delete { keys: KeyRange::from_key(""), prev_kv: false };
    assert_eq!(error(w.store.delete(all).await), MetaError::EmptyKey);
    assert!(w.store.get("a").await.unwrap().is_some());
}

/// 3,000 keys of 1,000 bytes: the message is larger than one response of the wire may be.
pub async fn a_mass_deletion_is_one_revision_and_one_message(w: World) {
    let padding = "x".repeat(1_000);
    let keys: Vec<String> = (0..3_000).map(|n| format!("{n:04}{padding}")).collect();
    for chunk in keys.chunks(100) {
        let puts = chunk.iter().map(|key| Op::Put(Put::new(key.clone(), ""))).collect();
        w.store.commit(Txn { success: puts, ..Txn::new() }).await.unwrap();
    }
    let mut watch = w.watch_all(w.rev(31)).await;
    let deleted = w.store.delete(Delete::prefix("")).await.unwrap();
    assert_eq!((deleted.deleted, deleted.revision), (3_000, w.rev(31)));
    let (revision, events) = watch.batch().await;
    assert_eq!(revision, w.rev(31));
    let expected: Vec<_> = keys.iter().map(|key| format!("DELETE {key} @31")).collect();
    assert!(shown(&w, &events) == expected, "{} events", events.len());
}
