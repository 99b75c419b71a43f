//! What a store says about itself and what can be done to all of it.

use capstan_meta::{KeyRange, Range};

use crate::subjects::World;

pub async fn the_status_names_the_store_and_its_revisions(w: World) {
    w.put("a", "1").await;
    let status = w.store.status().await.unwrap();
    assert_eq!(status.revision, w.rev(1));
    assert!(status.compacted < status.revision);
    assert!(status.cluster_id != 0 && status.member_id != 0 && status.term > 0, "{status:?}");
    assert!(status.db_size >= status.db_size_in_use, "{status:?}");
    assert!(status.version.split('.').count() >= 3, "{status:?}");
    let again = w.store.status().await.unwrap();
    assert_eq!((again.cluster_id, again.member_id), (status.cluster_id, status.member_id));
}

pub async fn a_snapshot_has_content(w: World) {
    w.put("a", &"x".repeat(10_000)).await;
    let mut chunks = w.store.snapshot().await.unwrap();
    let mut size = 0;
    while let Some(chunk) = chunks.recv().await {
        size += chunk.unwrap().len();
    }
    assert!(size > 10_000, "{size}");
}

pub async fn defragmenting_changes_nothing(w: World) {
    w.put_all(&["a", "b"]).await;
    w.store.defragment().await.unwrap();
    assert_eq!(w.now().await, w.rev(2));
    assert_eq!(w.keys(Range::of(KeyRange::all()).at(w.rev(1))).await, ["a"]);
}
