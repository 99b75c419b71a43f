//! Many hosts at once on one machine, each with its own root, sharing one cache.

use std::sync::Arc;

use capstan_fleet::release::make;
use capstan_fleet::release::{Directory, Version};
use capstan_fleet::run::{CacheUse, Host, Permission, Runner};
use capstan_testkit::seed;
use tokio::task::JoinSet;

use super::Workshop;
use super::fixture::{now, update, version};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_hosts_get_the_sample_release_and_the_next_one() {
    let workshop = Workshop::new("twenty");
    let sample = workshop.dir.join("sample");
    let releases: Vec<Version> = vec![version("1.0"), version("1.1")];
    for release in &releases {
        make::sample(&sample, release, now()).unwrap();
    }
    let count = seed::soak(20, 100);
    let mut hosts = JoinSet::new();
    for number in 0..count {
        let mut config = workshop.config(&format!("h{number}"));
        config.trust = sample.join("trust.json");
        config.cache = workshop.dir.join("cache");
        config.cache_use = CacheUse::Shared;
        let source = Arc::new(Directory::new(sample.join("repository")));
        hosts.spawn(async move {
            let host = Host::open(config, source).unwrap();
            update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
            let outcome = update(&host, 2, "1.1", Permission::Upgrade).await.unwrap();
            assert_eq!((outcome.installed.packages.len(), outcome.installed.images.len()), (2, 1));
            let manifest = host.release(&version("1.1"), Permission::Upgrade).await.unwrap();
            assert_eq!(host.installed(&manifest).await.unwrap(), outcome.installed);
        });
    }
    while let Some(done) = hosts.join_next().await {
        done.unwrap();
    }
    for number in 0..count {
        assert_eq!(
            workshop.packages(&format!("h{number}")),
            ["capstan-sample 1.1 ii", "capstan-sample-tools 1.1 ii"]
        );
    }
}
