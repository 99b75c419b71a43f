//! Dependencies point downwards, services do not know each other, the testkit is for tests.

use toml::{Table, Value};

use super::Complaint;

/// From the bottom to the top. A crate may depend on crates of lower layers only.
const LAYERS: [&[&str]; 9] = [
    &[DISK],
    &["capstan-meta"],
    &["capstan-control", "capstan-placement", "capstan-log"],
    &["capstan-access", "capstan-steward", "capstan-schemas", "capstan-client"],
    &["capstan-redis-protocol"],
    &["capstan-redis-proxy"],
    &["capstan-redis", "capstan-topics", "capstan-docs", "capstan-fleet", "capstan-example"],
    &["capstan-console", "capstan-bench"],
    &["capstan"],
];
const TESTKIT: &str = "capstan-testkit";
/// The file system calls: the one crate that the testkit knows, because it simulates them.
const DISK: &str = "capstan-disk";

pub(super) fn is_crate_manifest(path: &str) -> bool {
    matches!(path.split('/').collect::<Vec<_>>()[..], ["crates", _, "Cargo.toml"])
}

pub(super) fn check(path: &str, manifest: &str) -> Vec<Complaint> {
    match manifest.parse::<Table>() {
        Ok(manifest) => judge(&manifest).into_iter().map(|text| Complaint::new(path, 0, text)).collect(),
        Err(e) => vec![Complaint::new(path, 0, format!("is not TOML: {e}"))],
    }
}

fn judge(manifest: &Table) -> Vec<String> {
    let name =
        manifest.get("package").and_then(|p| p.get("name")).and_then(Value::as_str).unwrap_or_default();
    let mut complaints = Vec::new();
    if layer(name).is_none() && name != TESTKIT {
        complaints.push(format!("{name} has no place in the layers: give it one in tidy/layers.rs"));
    }
    for dependency in dependencies(manifest, &["dependencies", "build-dependencies"]) {
        complaints.extend(forbidden(name, &dependency));
    }
    if name == TESTKIT {
        let own = dependencies(manifest, &["dev-dependencies"]);
        complaints.extend(own.iter().filter_map(|dependency| forbidden(name, dependency)));
    }
    complaints
}

fn forbidden(name: &str, dependency: &str) -> Option<String> {
    if dependency == TESTKIT {
        return Some(format!("{name} depends on {TESTKIT}, which may only be a dev-dependency"));
    }
    let theirs = layer(dependency)?;
    if name == TESTKIT && dependency == DISK {
        return None;
    }
    if name == TESTKIT {
        return Some(format!("{TESTKIT} is below every crate and may not depend on {dependency}"));
    }
    let ours = layer(name)?;
    (theirs >= ours).then(|| format!("{name} may not depend on {dependency}: it is not below it"))
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// The packages named in these sections, also in those of one platform (`[target.*.dependencies]`).
fn dependencies(manifest: &Table, sections: &[&str]) -> Vec<String> {
    let targets =
        manifest.get("target").and_then(Value::as_table).into_iter().flat_map(|targets| targets.values());
    let tables = targets.filter_map(Value::as_table).chain([manifest]);
    let section = |table: &Table| -> Vec<String> {
        let tables = sections.iter().filter_map(|section| table.get(*section)?.as_table());
        tables.flat_map(|table| table.iter().map(|(name, value)| package(name, value))).collect()
    };
    tables.flat_map(section).collect()
}

/// A dependency may be renamed: `meta = { package = "capstan-meta" }`.
fn package(name: &str, value: &Value) -> String {
    value.get("package").and_then(Value::as_str).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, rest: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{name}\"\n{rest}");
        check("crates/x/Cargo.toml", &manifest).into_iter().map(|complaint| complaint.text).collect()
    }

    #[test]
    fn downwards_is_fine_and_dev_dependencies_may_use_the_testkit() {
        let rest = "[dependencies]\ncapstan-meta.workspace = true\nserde = \"1\"\n\
                    [dev-dependencies]\ncapstan-testkit.workspace = true";
        assert_eq!(complaints("capstan-redis", rest), [""; 0]);
        assert_eq!(complaints("capstan", "[dependencies]\ncapstan-meta.workspace = true"), [""; 0]);
    }

    #[test]
    fn upwards_sideways_renamed_and_per_platform_are_not() {
        for (name, rest) in [
            ("capstan-meta", "[dependencies]\ncapstan-control.workspace = true"),
            ("capstan-redis", "[dependencies]\ncapstan-topics.workspace = true"),
            ("capstan-control", "[dependencies]\nm = { package = \"capstan-console\" }"),
            ("capstan-log", "[target.'cfg(unix)'.dependencies]\ncapstan-docs = \"1\""),
            ("capstan-docs", "[build-dependencies]\ncapstan-fleet = \"1\""),
            ("capstan-console", "[dependencies]\ncapstan-testkit.workspace = true"),
            ("capstan-testkit", "[dev-dependencies]\ncapstan-meta.workspace = true"),
            ("capstan-stranger", ""),
        ] {
            assert_eq!(complaints(name, rest).len(), 1, "{name}: {rest}");
        }
    }

    #[test]
    fn only_manifests_of_crates_count() {
        assert!(is_crate_manifest("crates/meta/Cargo.toml"));
        assert!(!is_crate_manifest("Cargo.toml") && !is_crate_manifest("crates/meta/fuzz/Cargo.toml"));
    }
}
