//! The store of a world, and how it goes back in time.

use std::path::Path;
use std::sync::Arc;

use capstan_meta::embedded::{Embedded, Options, restore_on};
use capstan_meta::faults::Replaceable;
use capstan_meta::{Backend, KeyRange, Range, RangeResult};
use capstan_testkit::disk::SimDisk;

/// The store that everybody talks to.
pub(super) type Truth = Replaceable<Embedded>;

pub(super) fn truth(seed: u64) -> Truth {
    Replaceable::new(Embedded::in_memory(Options { seed: Some(seed), ..Options::default() }))
}

/// A snapshot of everything.
pub(super) async fn saved(truth: &Truth) -> Vec<u8> {
    let mut chunks = truth.snapshot().await.unwrap();
    let mut saved = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        saved.extend_from_slice(&chunk.unwrap());
    }
    saved
}

/// A store that is made of a snapshot, and what it has. Its lease ids are its own: those of the time that is lost are held by
/// processes that do not know of it.
pub(super) async fn restored(saved: &[u8], lease_seed: u64) -> (Embedded, RangeResult) {
    let (disk, dir) = (SimDisk::new(), Path::new("/var/lib/store"));
    restore_on(&disk, saved, dir).unwrap();
    let options = Options { seed: Some(lease_seed), ..Options::default() };
    let store = Embedded::open_on(Arc::new(disk), dir, options).await.unwrap();
    let found = store.range(Range::of(KeyRange::prefix("/capstan/"))).await.unwrap();
    (store, found)
}
