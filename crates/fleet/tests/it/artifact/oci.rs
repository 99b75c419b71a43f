//! Images in a host's OCI layout: whole or not there, shared, collected, readable by others.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use capstan_fleet::artifact::oci::Layout;
use capstan_fleet::release::make;
use capstan_fleet::run::{Host, HostConfig, Permission, Runner};

use crate::install::Workshop;
use crate::install::fixture::{now, update, version};

const NAME: &str = "capstan-sample-image";

struct Installed {
    workshop: Workshop,
    host: Host,
    layout: Layout,
}

async fn installed(label: &str, releases: &[&str]) -> Installed {
    let workshop = Workshop::new(label);
    let sample = workshop.dir.join("sample");
    let config = HostConfig { trust: sample.join("trust.json"), ..workshop.config("h1") };
    let layout = Layout::new(&config.images);
    let source = std::sync::Arc::new(capstan_fleet::release::Directory::new(sample.join("repository")));
    let host = Host::open(config, source).unwrap();
    for (generation, release) in (1..).zip(releases) {
        make::sample(&sample, &version(release), now()).unwrap();
        update(&host, generation, release, Permission::Upgrade).await.unwrap();
    }
    Installed { workshop, host, layout }
}

fn blobs(layout: &Layout) -> usize {
    std::fs::read_dir(layout.dir().join("blobs/sha256")).unwrap().count()
}

#[tokio::test]
async fn an_image_is_linked_from_the_cache_and_named_in_the_index() {
    let Installed { layout, workshop, .. } = installed("image", &["1.0"]).await;
    let index = std::fs::read_to_string(layout.dir().join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let entry = &index["manifests"][0];
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], format!("{NAME}:1.0"));
    assert_eq!(entry["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    let top = layout.find(&format!("{NAME}:1.0")).unwrap().unwrap();
    assert_eq!(layout.blobs(&top).unwrap().len(), 3);
    let links = std::fs::metadata(layout.blob_path(&top.digest)).unwrap().nlink();
    assert!(links >= 2, "linked, not copied");
    assert!(workshop.dir.join("h1/images/oci-layout").exists());
}

#[tokio::test]
async fn a_changed_blob_is_seen_and_healed() {
    let Installed { layout, host, workshop: _workshop } = installed("changed", &["1.0"]).await;
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let image = &manifest.images[0];
    let blob = layout.blobs(&layout.find(&format!("{NAME}:1.0")).unwrap().unwrap()).unwrap().pop().unwrap();
    // The cache shares the file: both are changed.
    let path = layout.blob_path(&blob.digest);
    std::fs::write(&path, "changed").unwrap();
    let error = layout.verify(&image.name, &image.tag, &image.digest).unwrap_err().to_string();
    assert!(error.starts_with(&format!("blob {} has digest ", blob.digest)), "{error}");
    assert!(host.installed(&manifest).await.unwrap().images.is_empty());
    update(&host, 9, "1.0", Permission::Upgrade).await.unwrap();
    layout.verify(&image.name, &image.tag, &image.digest).unwrap();
}

#[tokio::test]
async fn a_link_in_place_of_a_blob_is_refused() {
    let Installed { layout, host, workshop: _workshop } = installed("blob-link", &["1.0"]).await;
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let image = &manifest.images[0];
    let path = layout.blob_path(&image.digest);
    let elsewhere = layout.dir().join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let error = layout.verify(&image.name, &image.tag, &image.digest).unwrap_err().to_string();
    assert!(error.contains("is a link or leads through one"), "{error}");
}

#[tokio::test]
async fn old_tags_are_collected_and_other_peoples_images_stay() {
    let Installed { layout, workshop, host } = installed("garbage", &["1.0"]).await;
    let top = layout.find(&format!("{NAME}:1.0")).unwrap().unwrap();
    layout.tag(&"somebody-else".parse().unwrap(), &"7".parse().unwrap(), top).unwrap();
    for (generation, release) in (2..).zip(["1.1", "1.2", "1.3", "1.4"]) {
        make::sample(&workshop.dir.join("sample"), &version(release), now()).unwrap();
        update(&host, generation, release, Permission::Upgrade).await.unwrap();
    }
    let kept: Vec<bool> = ["1.0", "1.1", "1.2", "1.3", "1.4"]
        .iter()
        .map(|tag| layout.find(&format!("{NAME}:{tag}")).unwrap().is_some())
        .collect();
    assert_eq!(kept, [false, false, false, true, true]);
    assert!(layout.find("somebody-else:7").unwrap().is_some());
    assert_eq!(blobs(&layout), 9, "three images of three blobs");
    let cached = std::fs::read_dir(workshop.dir.join("h1/cache/sha256")).unwrap().count();
    assert_eq!(cached, 10, "two releases of two packages and three blobs");
    let none = BTreeSet::new();
    layout.collect_garbage(&none, &BTreeSet::new(), 0).unwrap();
    assert_eq!(blobs(&layout), 9);
}

/// Runs where skopeo is installed.
#[tokio::test]
async fn skopeo_reads_what_we_write() {
    if Command::new("skopeo").arg("--version").output().is_err() {
        eprintln!("skopeo is not installed: not tried");
        return;
    }
    let Installed { layout, host, workshop: _workshop } = installed("skopeo", &["1.0"]).await;
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let image = format!("oci:{}:{NAME}:1.0", layout.dir().display());
    let output =
        Command::new("skopeo").args(["inspect", "--format", "{{.Digest}}", &image]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), manifest.images[0].digest.to_string());
}
