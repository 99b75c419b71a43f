//! Making releases: built, signed, verified, published.

use capstan_fleet::release::make::{self, Description, MakeError, Maturity};
use capstan_fleet::release::{SecretKey, Trust};
use capstan_fleet::run::check_source;
use capstan_testkit::TempDir;

use crate::install::Workshop;
use crate::install::fixture::{Deb, now, one_step, version};

#[test]
fn a_published_release_never_changes() {
    let workshop = Workshop::new("never");
    workshop.release_svc("1.0", Deb::default());
    let other = workshop.deb(&Deb { name: "svc", version: "6.6", ..Deb::default() });
    let built = workshop.build("1.0", &one_step(&other, 60));
    make::sign(&built, &workshop.key).unwrap();
    let publish = || make::publish(&built, &workshop.repository(), Maturity::Released, now());
    assert_eq!(
        publish().unwrap_err().to_string(),
        "release 1.0 is published already, with other content: publish a higher version"
    );
}

#[test]
fn a_second_signature_may_be_published_later() {
    let workshop = Workshop::new("second");
    let file = workshop.deb(&Deb { name: "svc", version: "1.0", ..Deb::default() });
    let built = workshop.build("1.0", &one_step(&file, 60));
    let publish = || make::publish(&built, &workshop.repository(), Maturity::Released, now());
    assert_eq!(publish().unwrap_err().to_string(), "the release is not signed");
    make::sign(&built, &workshop.key).unwrap();
    publish().unwrap();
    let second = SecretKey::generate().unwrap();
    make::sign(&built, &second).unwrap();
    let published = publish().unwrap();
    let both = Trust::in_all_of(vec![workshop.key.public(), second.public()]);
    make::verify(&published.dir, &both).unwrap();
    assert!(std::fs::read_dir(workshop.repository().join("releases")).unwrap().count() == 1);
}

#[test]
fn a_built_release_is_checked_file_by_file() {
    let workshop = Workshop::new("checked");
    let file = workshop.deb(&Deb { name: "svc", version: "1.0", ..Deb::default() });
    let built = workshop.build("1.0", &one_step(&file, 60));
    let trust = Trust::in_all_of(vec![workshop.key.public()]);
    assert!(matches!(make::verify(&built, &trust), Err(MakeError::Refused(_))));
    make::sign(&built, &workshop.key).unwrap();
    let manifest = make::verify(&built, &trust).unwrap();
    let deb = built.join(manifest.packages[0].file());
    let mut bytes = std::fs::read(&deb).unwrap();
    bytes[70] ^= 1;
    std::fs::write(&deb, &bytes).unwrap();
    let error = make::verify(&built, &trust).unwrap_err().to_string();
    assert!(error.contains("it has digest sha256:") && error.contains("and the manifest says"), "{error}");
    std::fs::remove_file(&deb).unwrap();
    let error = make::verify(&built, &trust).unwrap_err().to_string();
    assert!(error.ends_with("No such file or directory (os error 2)"), "{error}");
}

#[test]
fn a_wrong_description_says_where() {
    let dir = TempDir::new("description").unwrap();
    let path = dir.join("release.toml");
    for (text, says) in [
        ("version = \"1.0\"\nsteps = []\nbonus = 1\n", "unknown field `bonus`"),
        ("version = \"v1\"\nsteps = []\n", "it does not begin with a digit"),
        ("version = \"1.0\"\n", "missing field `steps`"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Description::read(&path).unwrap_err().to_string();
        assert!(error.contains(says) && error.starts_with(&path.display().to_string()), "{error}");
    }
    std::fs::write(&path, "version = \"1.0\"\npackages = [\"no.deb\"]\nsteps = []\n").unwrap();
    let description = Description::read(&path).unwrap();
    let error = make::build(&description, dir.path(), &dir.join("out"), now()).unwrap_err().to_string();
    assert!(error.starts_with("dpkg-deb failed: ") && error.contains("no.deb"), "{error}");
}

#[tokio::test]
async fn the_sample_is_signed_and_whole_and_grows() {
    let dir = TempDir::new("sample").unwrap();
    for text in ["1.0.0", "1.0.1"] {
        make::sample(dir.path(), &version(text), now()).unwrap();
    }
    let trust = Trust::parse(&std::fs::read(dir.join("trust.json")).unwrap()).unwrap();
    let source = capstan_fleet::release::Directory::new(dir.join("repository"));
    for text in ["1.0.0", "1.0.1"] {
        let manifest = check_source(&source, &version(text), &trust, &dir.join("cache")).await.unwrap();
        assert_eq!((manifest.packages.len(), manifest.images.len()), (2, 1));
    }
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(dir.join("release.key")).unwrap().permissions().mode() & 0o777, 0o600);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "no drafts are left: {left:?}");
}
