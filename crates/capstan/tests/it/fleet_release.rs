//! `capstan fleet release`, as a newcomer types it.

use std::path::Path;
use std::process::Command;

use capstan_testkit::TempDir;

use crate::binary::capstan;

fn make_package(dir: &Path) {
    let tree = dir.join("tree");
    std::fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    let control = "Package: hello-svc\nVersion: 1.2.3-1\nArchitecture: all\nMaintainer: a <a@example.invalid>\n\
                   Description: hello\n";
    std::fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let output =
        Command::new("dpkg-deb").arg("-b").arg(&tree).arg(dir.join("hello-svc.deb")).output().unwrap();
    assert!(output.status.success());
    let description = "version = \"2026.11.16-1\"\nexpires = \"2999-01-01T00:00:00Z\"\npackages = [\"hello-svc.deb\"]\n\n\
                       [[steps]]\nname = \"install\"\nkind = \"rolling\"\ntimeout_seconds = 300\n\
                       actions = [{ packages = [\"hello-svc\"] }]\n";
    std::fs::write(dir.join("release.toml"), description).unwrap();
}

#[test]
fn a_release_is_made_signed_checked_and_published() {
    let dir = TempDir::new("fleet-release").unwrap();
    make_package(dir.path());
    let run = |args: &[&str]| {
        let args: Vec<&str> = ["fleet", "release"].iter().chain(args).copied().collect();
        capstan(dir.path(), &args)
    };
    let key = run(&["keygen", "release.key", "--trust", "trust.json", "-o", "json"]).json();
    let id = key["id"].as_str().unwrap();

    let built = run(&["build", "release.toml", "--out", "built"]);
    assert_eq!(built.stderr, "Sign it: capstan fleet release sign built --key FILE\n");
    let built = built.ok();
    let lines: Vec<&str> = built.lines().collect();
    assert_eq!(lines[0], "release 2026.11.16-1, expires 2999-01-01T00:00:00Z");
    assert!(lines[2].starts_with("package  hello-svc 1.2.3-1  sha256:"), "{built}");
    assert_eq!(lines[3], "step 1   install            rolling, 300 s");

    let unsigned = run(&["verify", "built", "--trust", "trust.json"]);
    assert_eq!((unsigned.code, unsigned.stderr.as_str()), (1, "capstan: the release is not signed\n"));
    let unsigned = run(&["publish", "built", "repository"]);
    assert_eq!((unsigned.code, unsigned.stderr.as_str()), (1, "capstan: the release is not signed\n"));

    let signed = run(&["sign", "built", "--key", "release.key"]).ok();
    assert_eq!(signed, format!("built is signed by key {id}\n"));
    assert_eq!(run(&["verify", "built", "--trust", "trust.json"]).ok(), built);
    let published = run(&["publish", "built", "repository"]).ok();
    assert_eq!(published, "release 2026.11.16-1 is in repository/releases/2026.11.16-1 (1 artifacts)\n");
    let listed = run(&["list", "repository", "-o", "json"]).json();
    assert_eq!(listed["releases"][0]["version"], "2026.11.16-1");
    let verify = ["verify", "repository", "--release", "2026.11.16-1", "--trust", "trust.json", "-o", "json"];
    assert_eq!(run(&verify).json()["manifest"]["version"], "2026.11.16-1");
    let missing = run(&["verify", "repository", "--release", "9", "--trust", "trust.json"]);
    assert_eq!(missing.stderr, "capstan: repository has no releases/9/manifest.json\n");
}

#[test]
fn keys_are_kept_secret_and_never_replaced() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = TempDir::new("fleet-keys").unwrap();
    let run = |args: &[&str]| capstan(dir.path(), args);
    run(&["fleet", "release", "keygen", "a.key", "--trust", "trust.json", "--owner", "a"]).ok();
    let again = run(&["fleet", "release", "keygen", "a.key"]);
    assert_eq!(
        (again.code, again.stderr.as_str()),
        (1, "capstan: a.key already exists; keys are not replaced\n")
    );
    run(&["fleet", "release", "keygen", "b.key", "--trust", "trust.json"]).ok();
    let trust = std::fs::read_to_string(dir.join("trust.json")).unwrap();
    let trust: serde_json::Value = serde_json::from_str(&trust).unwrap();
    assert_eq!((trust["keys"].as_array().unwrap().len(), &trust["threshold"]), (2, &1.into()));
    std::fs::set_permissions(dir.join("a.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = run(&["fleet", "release", "sign", "built", "--key", "a.key"]);
    assert_eq!(open.stderr, "capstan: the key a.key can be read by others: chmod 600 a.key\n");
    let none = run(&["fleet", "release", "sign", "built", "--key", "b.key"]);
    assert_eq!(none.stderr, "capstan: built is not a built release: it has no manifest.json\n");
}

#[test]
fn samples_are_numbered() {
    let dir = TempDir::new("fleet-sample").unwrap();
    for expected in ["1.0.0", "1.0.1"] {
        let made = capstan(dir.path(), &["fleet", "release", "sample", "-o", "json"]).json();
        assert_eq!(made["version"], expected);
    }
    let verify = ["fleet", "release", "verify", "data/sample/repository", "--release", "1.0.1", "--trust"];
    let args: Vec<&str> = verify.iter().chain(&["data/sample/trust.json"]).copied().collect();
    assert!(capstan(dir.path(), &args).ok().contains("image    capstan-sample-image:1.0.1"));
}
