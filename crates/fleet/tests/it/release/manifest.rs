//! A manifest is read strictly, and every refusal says what is wrong.

use capstan_fleet::release::{MAX_MANIFEST_BYTES, Manifest, ManifestError, StepKind};

const GOOD: &str = r#"{
  "format": 1,
  "version": "2021.04.19-13965",
  "min_worker_version": "0.1.0",
  "allowed_from": [{"at_least": "2021.04.01-1"}],
  "expires": "2027-01-01T00:00:00Z",
  "packages": [
    {"name": "svc", "version": "1.2.3-1", "size": 780,
     "digest": "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}
  ],
  "images": [
    {"name": "etcd", "tag": "3.5.1", "size": 400,
     "digest": "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}
  ],
  "steps": [
    {"name": "worker", "kind": "self", "timeout_seconds": 60},
    {"name": "etcd", "kind": "rolling", "timeout_seconds": 600,
     "actions": [
       {"packages": ["svc"]},
       {"images": ["etcd"]},
       {"command": {"argv": ["systemctl", "restart", "etcd"], "after_crash": "rerun"}}
     ],
     "health": {"probe": {"http": {"url": "http://127.0.0.1:2379/health"}},
                "min_healthy_seconds": 10, "deadline_seconds": 300}},
    {"name": "meet", "kind": "barrier", "timeout_seconds": 1, "health":
      {"probe": "services", "min_healthy_seconds": 0, "deadline_seconds": 1}}
  ]
}"#;

/// What is said about the good manifest after one change, without the place.
fn refusal(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the test's own text {from:?}");
    let error = Manifest::parse(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
    error.split(" at line ").next().unwrap().to_owned()
}

#[test]
fn a_good_manifest_is_read_and_written_back() {
    let manifest = Manifest::parse(GOOD.as_bytes()).unwrap();
    assert_eq!(manifest.last_step().get(), 3);
    assert_eq!(manifest.numbered_steps().next().unwrap().1.kind, StepKind::SelfUpdate);
    assert_eq!(Manifest::parse(&manifest.to_bytes().unwrap()).unwrap(), manifest);
}

#[test]
fn every_refusal_says_what_is_wrong() {
    for (from, to, says) in [
        (
            "\"format\": 1",
            "\"format\": 2",
            "the manifest has format 2, and this worker reads format 1: update the worker first",
        ),
        (
            "\"format\": 1,",
            "\"format\": 1, \"bonus\": 1,",
            "the manifest cannot be read: unknown field `bonus`, expected one of `format`, `version`, `min_worker_version`, `allowed_from`, `expires`, `packages`, `images`, `steps`",
        ),
        (
            "\"name\": \"svc\"",
            "\"name\": \"../svc\"",
            r#"the manifest cannot be read: "../svc" is not an artifact name: 2 to 100 of a-z 0-9 . + -, beginning with a letter or digit"#,
        ),
        (
            "\"version\": \"1.2.3-1\"",
            "\"version\": \"1/2\"",
            r#"the manifest cannot be read: "1/2" is not a version: only letters, digits and . + - ~ may stand in it"#,
        ),
        (
            "[\"svc\"]",
            "[\"svc\", \"other\"]",
            "step etcd installs package other, which the manifest does not have",
        ),
        ("{\"images\": [\"etcd\"]},", "", "no step installs image etcd"),
        ("\"meet\"", "\"etcd\"", "the manifest has two steps named etcd"),
        (
            "\"timeout_seconds\": 600",
            "\"timeout_seconds\": 0",
            "step etcd: timeout_seconds must be from 1 to 86400 seconds",
        ),
        (
            "\"deadline_seconds\": 300",
            "\"deadline_seconds\": 10",
            "step etcd: deadline_seconds must be from 11 to 86400 seconds",
        ),
        (
            "http://127",
            "file://127",
            "step etcd: the probe's url must begin with http:// or https:// and have at most 2048 bytes",
        ),
        ("\"size\": 780", "\"size\": 0", "package svc: its size must be from 1 to 17179869184 bytes"),
        ("\"barrier\"", "\"self\"", "step meet is of kind self and stands behind a step of another kind"),
        (
            "[\"systemctl\", \"restart\", \"etcd\"]",
            "[]",
            "the manifest cannot be read: a command needs a program",
        ),
        (
            "\"rolling\"",
            "\"sideways\"",
            "the manifest cannot be read: unknown variant `sideways`, expected one of `barrier`, `rolling`, `once`, `self`",
        ),
    ] {
        assert_eq!(refusal(from, to), says);
    }
}

#[test]
fn a_huge_manifest_is_refused_before_it_is_read() {
    let huge = vec![b'{'; MAX_MANIFEST_BYTES + 1];
    assert_eq!(Manifest::parse(&huge).unwrap_err().to_string(), "the manifest is longer than 262144 bytes");
    let deep = vec![b'['; MAX_MANIFEST_BYTES];
    assert!(matches!(Manifest::parse(&deep).unwrap_err(), ManifestError::Malformed(_)));
}
