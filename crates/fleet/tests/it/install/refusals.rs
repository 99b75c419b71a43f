//! What a host refuses: each with its own words, and nothing is installed.

use capstan_fleet::release::make::{self, Maturity};
use capstan_fleet::release::{SecretKey, Trust};
use capstan_fleet::run::{Permission, StepError};

use super::fixture::{Deb, now, one_step, update, version};
use super::{Workshop, tree};

/// Tries an update that must be refused: the words, without what differs from run to run.
async fn refused(workshop: &Workshop, to: &str) -> String {
    let host = workshop.host("h1");
    let before = tree(&workshop.root("h1"));
    let error = update(&host, 9, to, Permission::Upgrade).await.unwrap_err();
    assert!(matches!(error, StepError::Refused(_) | StepError::Unavailable(_)), "{error:?}");
    assert!(tree(&workshop.root("h1")) == before, "nothing is installed");
    let dir = workshop.dir.path().display().to_string();
    error.to_string().replace(&dir, "DIR").replace(&workshop.key.public().id().to_string(), "KEY")
}

fn workshop(label: &str) -> Workshop {
    let workshop = Workshop::new(label);
    workshop.release_svc("1.0", Deb::default());
    workshop
}

#[tokio::test]
async fn an_unsigned_release() {
    let workshop = workshop("unsigned");
    std::fs::remove_file(workshop.release_file("1.0", "manifest.json.sig")).unwrap();
    assert_eq!(refused(&workshop, "1.0").await, "the release is not signed");
    std::fs::write(workshop.release_file("1.0", "manifest.json.sig"), "{\"signatures\":[]}").unwrap();
    assert_eq!(refused(&workshop, "1.0").await, "the release is not signed");
}

#[tokio::test]
async fn a_release_signed_by_a_stranger() {
    let workshop = workshop("stranger");
    let stranger = SecretKey::generate().unwrap();
    std::fs::remove_file(workshop.release_file("1.0", "manifest.json.sig")).unwrap();
    make::sign(&workshop.repository().join("releases/1.0"), &stranger).unwrap();
    let id = stranger.public().id();
    assert_eq!(
        refused(&workshop, "1.0").await,
        format!("the release is signed by {id}, and none of these keys is in the trust file")
    );
}

#[tokio::test]
async fn a_release_with_too_few_signatures() {
    let workshop = workshop("threshold");
    let second = SecretKey::generate().unwrap();
    workshop.trust(&Trust::in_all_of(vec![workshop.key.public(), second.public()]));
    assert_eq!(
        refused(&workshop, "1.0").await,
        "the release is signed by 1 trusted keys, and the trust file asks for 2"
    );
    make::sign(&workshop.repository().join("releases/1.0"), &second).unwrap();
    update(&workshop.host("h1"), 1, "1.0", Permission::Upgrade).await.unwrap();
}

#[tokio::test]
async fn a_tampered_manifest() {
    let workshop = workshop("manifest");
    let path = workshop.release_file("1.0", "manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"timeout_seconds\": 60", "\"timeout_seconds\": 61")).unwrap();
    assert_eq!(
        refused(&workshop, "1.0").await,
        "the signature of key KEY does not fit the manifest: one of them was changed"
    );
}

#[tokio::test]
async fn a_huge_manifest() {
    let workshop = workshop("huge");
    let path = workshop.release_file("1.0", "manifest.json");
    std::fs::write(&path, vec![b' '; 300_000]).unwrap();
    assert_eq!(
        refused(&workshop, "1.0").await,
        "DIR/repository gave a wrong answer: it is longer than 262144 bytes"
    );
}

#[tokio::test]
async fn a_tampered_package() {
    let workshop = workshop("package");
    let path = workshop.package_file("1.0");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let text = refused(&workshop, "1.0").await;
    assert!(text.starts_with("svc-") && text.contains(" of release 1.0 has digest sha256:"), "{text}");
    assert!(text.ends_with(": refused"), "{text}");
}

#[tokio::test]
async fn a_truncated_and_a_longer_package() {
    let workshop = workshop("length");
    let path = workshop.package_file("1.0");
    let whole = std::fs::read(&path).unwrap();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    std::fs::write(&path, &whole[..100]).unwrap();
    let size = whole.len();
    assert_eq!(
        refused(&workshop, "1.0").await,
        format!("{name} of release 1.0 ends after 100 of {size} bytes")
    );
    std::fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert_eq!(
        refused(&workshop, "1.0").await,
        format!("{name} of release 1.0 is longer than the {size} bytes that the manifest says: refused")
    );
    std::fs::write(&path, &whole).unwrap();
    update(&workshop.host("h1"), 9, "1.0", Permission::Upgrade).await.unwrap();
}

#[tokio::test]
async fn links_in_the_repository() {
    let workshop = workshop("links");
    let outside = workshop.dir.join("outside");
    let dir = workshop.repository().join("releases/1.0");
    let path = workshop.release_file("1.0", "manifest.json");
    std::fs::rename(&path, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &path).unwrap();
    let through_file =
        "DIR/repository gave a wrong answer: releases/1.0/manifest.json is a link or leads through one";
    assert_eq!(refused(&workshop, "1.0").await, through_file);
    std::fs::remove_file(&path).unwrap();
    std::fs::rename(&outside, &path).unwrap();
    std::fs::rename(&dir, workshop.dir.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(workshop.dir.join("elsewhere"), &dir).unwrap();
    assert_eq!(refused(&workshop, "1.0").await, through_file);
}

#[tokio::test]
async fn a_package_file_of_another_package() {
    let workshop = Workshop::new("other-package");
    let file = workshop.deb(&Deb { name: "svc", version: "6.6", ..Deb::default() });
    let built = workshop.build("1.0", &one_step(&file, 60));
    let path = built.join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"version\": \"6.6\"", "\"version\": \"1.0\"")).unwrap();
    make::sign(&built, &workshop.key).unwrap();
    make::publish(&built, &workshop.repository(), Maturity::Released, now()).unwrap();
    assert_eq!(refused(&workshop, "1.0").await, "the file of package svc 1.0 is that of svc 6.6");
}

#[tokio::test]
async fn an_expired_release_and_a_downgrade() {
    let workshop = workshop("downgrade");
    let file = workshop.deb(&Deb { name: "svc", version: "0.9", ..Deb::default() });
    workshop.release("0.9", &one_step(&file, 60));
    workshop.release("2.0", &format!("expires = \"2020-01-01T00:00:00Z\"\n{}", one_step(&file, 60)));
    workshop.release(
        "3.0",
        &format!("allowed_from = [{{ at_least = \"2.0\", at_most = \"2.9\" }}]\n{}", one_step(&file, 60)),
    );
    workshop.release("4.0", &format!("min_worker_version = \"9\"\n{}", one_step(&file, 60)));
    update(&workshop.host("h1"), 1, "1.0", Permission::Upgrade).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
    let expired = refused(&workshop, "2.0").await;
    assert!(expired.starts_with("release 2.0 expired at 2020-01-01T00:00:00Z, and it is 2"), "{expired}");
    for (to, says) in [
        ("0.9", "release 0.9 is older than the installed 1.0: only a rollback may go back"),
        ("3.0", "release 3.0 cannot be installed over 1.0: its allowed_from does not name it"),
        ("4.0", "release 4.0 needs worker 9 or later, and this is worker 0.1.0"),
    ] {
        assert_eq!(refused(&workshop, to).await, says);
    }
    let host = workshop.host("h1");
    let error = update(&host, 9, "0.9", Permission::RollBack).await.unwrap_err();
    assert_eq!(error.to_string(), "a rollback to 0.9 is not possible: this host keeps no release");
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
}

#[tokio::test]
async fn a_release_that_the_trust_file_forbids() {
    let workshop = workshop("forbids");
    let mut trust = Trust::in_all_of(vec![workshop.key.public()]);
    trust.min_version = Some(version("1.5"));
    workshop.trust(&trust);
    assert_eq!(
        refused(&workshop, "1.0").await,
        "release 1.0 is older than 1.5, the min_version of the trust file"
    );
    trust.min_version = None;
    trust.pinned = Some(version("1.1"));
    workshop.trust(&trust);
    assert_eq!(
        refused(&workshop, "1.0").await,
        "release 1.0 is not 1.1, to which the trust file pins this host"
    );
    std::fs::write(workshop.trust_file(), "{").unwrap();
    let text = refused(&workshop, "1.0").await;
    assert!(text.starts_with("the trust file DIR/trust.json: the trust file cannot be read: EOF"), "{text}");
}

#[tokio::test]
async fn a_release_that_is_not_there() {
    let workshop = workshop("missing");
    assert_eq!(refused(&workshop, "7.0").await, "DIR/repository has no releases/7.0/manifest.json");
    // A source that answers with another release than it was asked for.
    let copy = workshop.repository().join("releases/7.0");
    std::fs::rename(workshop.repository().join("releases/1.0"), copy).unwrap();
    assert_eq!(refused(&workshop, "7.0").await, "release 7.0 was asked for, and the manifest is that of 1.0");
}
