//! Keys of the metadata tree are written in `keys.rs` (or a `keys/` directory) and nowhere else in the product. Unit
//! tests may write them as expectations.

use super::{Complaint, unexcused};

/// How the keys of the tree begin.
const ROOTS: [&str; 15] = [
    "/hosts/",
    "/clusters/",
    "/tasks/",
    "/deleting/",
    "/coordinators/",
    "/failures/",
    "/cluster/",
    "/namespaces/",
    "/topics/",
    "/schemas/",
    "/danube-data/",
    "/subscriptions/",
    "/neco/",
    "/docs/",
    "/capstan/",
];

pub(super) fn check(path: &str, text: &str) -> Vec<Complaint> {
    if !concerns(path) {
        return Vec::new();
    }
    let code = unexcused(product(text)).filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.filter_map(|(number, line)| {
        let root = ROOTS.iter().find(|root| line.contains(&format!("\"{root}")))?;
        Some(Complaint::new(path, number, format!("spells a key that begins with {root}")))
    })
    .collect()
}

/// Source of the product, `crates/<crate>/src/...`, other than the keys themselves and files of tests.
fn concerns(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let in_source = parts.len() > 3 && parts[0] == "crates" && parts[2] == "src";
    in_source && !parts.iter().any(|part| matches!(*part, "keys" | "keys.rs" | "tests" | "tests.rs"))
}

/// The text before the test module, which is the last item of a file (enforced by clippy).
fn product(text: &str) -> &str {
    let in_tests = text.match_indices("#[cfg(test)]\nmod ").find(|(at, found)| {
        let rest = &text[at + found.len()..];
        rest.lines().next().is_some_and(|line| line.ends_with('{'))
    });
    in_tests.map_or(text, |(at, _)| &text[..at])
}

#[test]
fn a_spelled_key_is_found_outside_keys_only() {
    let text = "let a = format!(\"/hosts/{id}\");\n/// \"/hosts/\" in a comment\nlet b = r\"/topics/\";\nlet c = \"hosts/\";";
    let lines: Vec<usize> = check("crates/redis/src/agent.rs", text).iter().map(|c| c.line).collect();
    assert_eq!(lines, [1, 3]);
    for excused in
        ["crates/redis/src/keys.rs", "crates/meta/src/keys/hosts.rs", "crates/redis/tests/it/main.rs"]
    {
        assert_eq!(check(excused, text), []);
    }
    assert_eq!(check("crates/a/src/b.rs", "x(\"/docs/\") // tidy: allow, because it is a URL"), []);

    assert_eq!(check("crates/a/src/b.rs", "#[cfg(test)]\nmod tests {\n    let a = \"/hosts/\";\n}"), []);
    assert_eq!(check("crates/a/src/b.rs", "#[cfg(test)]\nmod tests;\nlet a = \"/hosts/\";").len(), 1);
}
