//! What a read finds.

use capstan_meta::{Delete, Detail, KeyRange, MetaError, Put, Range, Revision, SortOrder, SortTarget};

use crate::subjects::{World, error};

pub async fn one_key_is_found_or_not(w: World) {
    w.put("a", "1").await;
    let found = w.store.range(Range::one("a")).await.unwrap();
    assert_eq!((found.count, found.more, &found.kvs[0].value[..]), (1, false, &b"1"[..]));
    let missing = w.store.range(Range::one("b")).await.unwrap();
    assert_eq!((missing.count, missing.more, missing.kvs.len()), (0, false, 0));
    assert_eq!(missing.revision, w.rev(1));
}

pub async fn every_form_of_range_finds_its_keys(w: World) {
    w.put_all(&["a", "b", "ba", "bb", "c", "d"]).await;
    let cases = [
        (KeyRange::one("b"), "b"),
        (KeyRange::prefix("b"), "b ba bb"),
        (KeyRange::span("b", "c"), "b ba bb"),
        (KeyRange::span("ba", "d"), "ba bb c"),
        (KeyRange::from_key("bb"), "bb c d"),
        (KeyRange::all(), "a b ba bb c d"),
        (KeyRange::prefix(""), "a b ba bb c d"),
        (KeyRange::from_key("e"), ""),
    ];
    for (keys, expected) in cases {
        assert_eq!(w.keys(Range::of(keys.clone())).await.join(" "), expected, "{keys:?}");
    }
}

pub async fn an_inverted_range_is_empty(w: World) {
    w.put_all(&["a", "b"]).await;
    for keys in [KeyRange::span("b", "a"), KeyRange::span("a", "a")] {
        let found = w.store.range(Range::of(keys)).await.unwrap();
        assert_eq!((found.count, found.kvs.len(), found.more), (0, 0, false));
    }
}

pub async fn no_key_is_refused(w: World) {
    assert_eq!(error(w.store.range(Range::one("")).await), MetaError::EmptyKey);
    assert_eq!(error(w.store.range(Range::of(KeyRange::span("", "b"))).await), MetaError::EmptyKey);
    assert_eq!(error(w.store.range(Range::of(KeyRange::from_key(""))).await), MetaError::EmptyKey);
}

pub async fn zero_and_negative_revisions_are_now(w: World) {
    w.put("a", "1").await;
    for revision in [0, -1, i64::MIN] {
        let found = w.store.range(Range::one("a").at(Revision(revision))).await.unwrap();
        assert_eq!(found.kvs.len(), 1, "{revision}");
    }
}

pub async fn an_old_revision_shows_the_past(w: World) {
    w.put("a", "1").await;
    w.put("b", "1").await;
    w.put("a", "2").await;
    w.store.delete(Delete::one("b")).await.unwrap();
    let at = async |n| {
        let found = w.store.range(Range::prefix("").at(w.rev(n))).await.unwrap();
        let shown = found.kvs.iter().map(|kv| format!("{}={:?}", kv.key_text(), kv.value));
        shown.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(at(1).await, "a=b\"1\"");
    assert_eq!(at(2).await, "a=b\"1\" b=b\"1\"");
    assert_eq!(at(3).await, "a=b\"2\" b=b\"1\"");
    assert_eq!(at(4).await, "a=b\"2\"");
}

pub async fn a_future_revision_is_refused(w: World) {
    w.put("a", "1").await;
    assert_eq!(error(w.store.range(Range::one("a").at(w.rev(2))).await), MetaError::FutureRevision);
    assert_eq!(error(w.store.range(Range::one("a").at(Revision(i64::MAX))).await), MetaError::FutureRevision);
}

pub async fn a_limit_cuts_and_says_so(w: World) {
    w.put_all(&["a", "b", "c"]).await;
    for (limit, expected, more) in
        [(0, "a b c", false), (2, "a b", true), (3, "a b c", false), (9, "a b c", false)]
    {
        let found = w.store.range(Range::prefix("").limit(limit)).await.unwrap();
        let keys: Vec<_> = found.kvs.iter().map(|kv| kv.key_text().into_owned()).collect();
        assert_eq!((keys.join(" ").as_str(), found.more, found.count), (expected, more, 3), "limit {limit}");
    }
}

/// A range with the four revision filters.
fn filtered(min_mod: Revision, max_mod: Revision, min_create: Revision, max_create: Revision) -> Range {
    Range {
        min_mod_revision: min_mod,
        max_mod_revision: max_mod,
        min_create_revision: min_create,
        max_create_revision: max_create,
        ..Range::prefix("")
    }
}

pub async fn filters_go_by_revision_and_leave_the_count(w: World) {
    w.put_all(&["a", "b", "c", "a"]).await;
    let off = Revision::ZERO;
    let cases = [
        (filtered(w.rev(3), off, off, off), "a c"),
        (filtered(off, w.rev(3), off, off), "b c"),
        (filtered(w.rev(3), w.rev(3), off, off), "c"),
        (filtered(off, off, w.rev(2), off), "b c"),
        (filtered(off, off, off, w.rev(2)), "a b"),
        (filtered(w.rev(3), off, off, w.rev(1)), "a"),
        (filtered(w.rev(9), off, off, off), ""),
    ];
    for (range, expected) in cases {
        assert_eq!(w.keys(range.clone()).await.join(" "), expected, "{range:?}");
        assert_eq!(w.store.range(range).await.unwrap().count, 3);
    }
}

pub async fn filters_come_before_order_and_limit(w: World) {
    w.put_all(&["a", "b", "c", "d"]).await;
    let later = filtered(w.rev(2), Revision::ZERO, Revision::ZERO, Revision::ZERO);
    let cut = w.store.range(later.clone().limit(2)).await.unwrap();
    assert_eq!((cut.kvs.len(), cut.more, cut.count), (2, true, 4));
    assert_eq!(w.keys(later.clone().limit(2)).await, ["b", "c"]);
    let whole = w.store.range(later.clone().limit(3)).await.unwrap();
    assert_eq!((whole.kvs.len(), whole.more), (3, false));
    assert_eq!(w.keys(later.limit(1).sorted(SortTarget::Key, SortOrder::Descend)).await, ["d"]);
}

pub async fn only_keys_means_empty_values(w: World) {
    w.put("a", "1").await;
    w.put("a", "2").await;
    let found = w.store.range(Range::prefix("").detail(Detail::KeysOnly)).await.unwrap();
    let kv = &found.kvs[0];
    assert_eq!((&kv.key[..], kv.value.len(), kv.version), (&b"a"[..], 0, 2));
    assert_eq!((kv.create_revision, kv.mod_revision), (w.rev(1), w.rev(2)));
}

pub async fn only_the_count_means_no_keys(w: World) {
    w.put_all(&["a", "b", "c"]).await;
    let found = w.store.range(Range::prefix("").detail(Detail::CountOnly).limit(1)).await.unwrap();
    assert_eq!((found.count, found.kvs.len(), found.more), (3, 0, false));
    let past = w.store.range(Range::prefix("").detail(Detail::CountOnly).at(w.rev(2))).await.unwrap();
    assert_eq!(past.count, 2);
}

pub async fn pages_at_one_revision_make_one_picture(w: World) {
    for n in 0..25 {
        w.put(&format!("k{n:02}"), "old").await;
    }
    let (mut from, mut at, mut seen) = (b"k".to_vec(), Revision::ZERO, Vec::new());
    loop {
        let page = Range::of(KeyRange::span(from.clone(), "l")).at(at).limit(10);
        let page = w.store.range(page).await.unwrap();
        if at == Revision::ZERO {
            at = page.revision;
            // What happens now is not in the picture.
            w.store.delete(Delete::prefix("k2")).await.unwrap();
            w.put("k111", "new").await;
        }
        seen.extend(page.kvs.iter().map(|kv| kv.key_text().into_owned()));
        if !page.more {
            break;
        }
        from = page.kvs.last().unwrap().key.to_vec();
        from.push(0);
    }
    assert_eq!(seen, (0..25).map(|n| format!("k{n:02}")).collect::<Vec<_>>());
}

pub async fn keys_are_bytes_and_sorted_as_such(w: World) {
    let mut keys: Vec<Vec<u8>> =
        [&b"\0"[..], b"\0\0", b"\x01", b"a", b"a\0", b"a\xff", b"b", b"\xff", b"\xff\xff"]
            .map(Vec::from)
            .to_vec();
    for key in keys.iter().rev() {
        w.store.put(Put::new(key.clone(), "")).await.unwrap();
    }
    let all = async |range| {
        let found = w.store.range(Range::of(range)).await.unwrap();
        found.kvs.iter().map(|kv| kv.key.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(all(KeyRange::all()).await, keys);
    assert_eq!(all(KeyRange::prefix(vec![0xff])).await, keys.split_off(7));
    assert_eq!(all(KeyRange::prefix("a")).await, [&b"a"[..], b"a\0", b"a\xff"]);
}
