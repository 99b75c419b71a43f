//! Edges of the embedded store that need its simulated disk.

use std::time::Duration;

use capstan_meta::embedded::{Embedded, OpenError};
use capstan_meta::{Backend, LeaseId};
use capstan_testkit::disk::SimDisk;
use capstan_testkit::seed;
use rand::RngExt;

use super::{open, runtime};

async fn leases(store: &Embedded) -> Vec<(LeaseId, Duration)> {
    let mut found = Vec::new();
    for id in store.leases().await.unwrap() {
        found.push((id, store.lease_info(id).await.unwrap().unwrap().granted_ttl));
    }
    found.sort();
    found
}

/// S12: leases are records like all others: a changed bit of one is found or harmless, in the log and in a base.
#[test]
fn a_changed_bit_of_a_lease_is_found_or_harmless() {
    let flips = seed::soak(2_000, 200_000);
    runtime().block_on(async {
        for folded in [false, true] {
            let disk = SimDisk::new();
            let store = open(&disk).await.unwrap();
            for id in 1..=20 {
                store.lease_grant(Duration::from_secs(1_000_000 + id), LeaseId(id as i64)).await.unwrap();
            }
            if folded {
                store.defragment().await.unwrap();
            }
            let before = leases(&store).await;
            assert_eq!(before.len(), 20);
            let crashed = disk.crash();
            let files: Vec<_> = crashed.files().into_iter().filter(|(_, size)| *size > 0).collect();
            let (mut rng, mut found) = (seed::rng(5), 0);
            for _ in 0..flips / 2 {
                let copy = crashed.copy();
                let (path, size) = &files[rng.random_range(0..files.len())];
                let bit = rng.random_range(0..size * 8);
                assert!(copy.flip(path, bit));
                match open(&copy).await {
                    Ok(store) => assert_eq!(leases(&store).await, before, "bit {bit} of {}", path.display()),
                    Err(OpenError::Corrupt { .. }) => found += 1,
                    Err(error) => panic!("bit {bit} of {}: {error}", path.display()),
                }
            }
            assert!(found > 0, "no flip was found, folded: {folded}");
        }
    });
}
